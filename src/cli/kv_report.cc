// SPDX-License-Identifier: Apache-2.0
#include "cli/kv_report.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cli/console.h"

namespace lode::cli {
namespace {

// Blocks used and in slabs; one line when all layers are alike, else one per layer.
std::vector<std::vector<std::string>> LayerRows(const std::vector<LayerPoolStats>& layers) {
  const auto cell = [](const LayerPoolStats& layer) {
    return FormatCount(layer.used_blocks) + " / " + FormatCount(layer.total_blocks);
  };
  const bool alike = std::all_of(layers.begin(), layers.end(), [&](const LayerPoolStats& layer) {
    return cell(layer) == cell(layers.front());
  });
  std::vector<std::vector<std::string>> rows;
  for (size_t i = 0; i < (alike ? std::min<size_t>(1, layers.size()) : layers.size()); ++i) {
    rows.push_back(
        {alike ? "blocks used / total, each of " + std::to_string(layers.size()) + " layers"
               : "blocks used / total, layer " + std::to_string(i),
         cell(layers[i])});
  }
  return rows;
}

}  // namespace

std::string KvStatsText(const KvCacheStats& stats) {
  const LayerPoolStats pools = stats.pools();
  const PrefixCacheStats& prefix = stats.prefix;
  const auto ratio = [](double value) { return FormatFixed(100.0 * value, 2) + " %"; };
  std::vector<std::vector<std::string>> rows = {
      {"hca_cache_hit_rate", ratio(stats.hit_rate())},
      {"hca_eviction_rate", FormatFixed(stats.eviction_rate(), 3) + " pages/s"},
      {"hca_fragmentation_rate", ratio(stats.fragmentation_rate())},
      {"budget", FormatBytes(stats.budget_bytes)},
      {"blocks", FormatBytes(stats.block_bytes)},
      {"open tiles", FormatBytes(stats.open_bytes)},
      {"pages and tables", FormatBytes(stats.metadata_bytes)},
      {"sequences", FormatCount(stats.sequences)}};
  for (auto& row : LayerRows(stats.layers)) rows.push_back(std::move(row));
  rows.push_back({"cached pages", FormatCount(prefix.cached_pages)});
  rows.push_back({"of these in no use", FormatCount(prefix.evictable_pages)});
  rows.push_back({"evicted pages", FormatCount(prefix.evicted_pages)});
  rows.push_back({"prefix lookups", FormatCount(prefix.lookups)});
  rows.push_back({"blocks found / wanted",
                  FormatCount(prefix.found_blocks) + " / " + FormatCount(prefix.wanted_blocks)});
  rows.push_back({"tokens found", FormatCount(prefix.found_tokens)});
  for (size_t i = 0; i < kNumPrefixMisses; ++i) {
    rows.push_back({"lookups ended by: " + std::string(PrefixMissName(PrefixMiss(i))),
                    FormatCount(prefix.misses[i])});
  }
  rows.push_back({"hash collisions", FormatCount(prefix.collisions)});
  rows.push_back({"preemptions", FormatCount(stats.preemptions)});
  rows.push_back({"defragmentations, blocks moved",
                  FormatCount(stats.defragmentations) + ", " + FormatCount(stats.moved_blocks)});
  rows.push_back({"allocator refills / drains",
                  FormatCount(pools.refills) + " / " + FormatCount(pools.drains)});
  rows.push_back({"waits for locks: pools",
                  FormatCount(pools.lock_waits) + ", " +
                      FormatFixed(static_cast<double>(pools.lock_wait_nanoseconds) / 1e6, 3) +
                      " ms"});
  rows.push_back({"waits for locks: prefix cache",
                  FormatCount(prefix.lock_waits) + ", " +
                      FormatFixed(static_cast<double>(prefix.lock_wait_nanoseconds) / 1e6, 3) +
                      " ms"});
  return FormatTable(rows);
}

void KvStatsJson(const KvCacheStats& stats, JsonWriter& json) {
  const LayerPoolStats pools = stats.pools();
  const PrefixCacheStats& prefix = stats.prefix;
  json.BeginObject().Field("hca_cache_hit_rate", stats.hit_rate());
  json.Field("hca_eviction_rate", stats.eviction_rate());
  json.Field("hca_fragmentation_rate", stats.fragmentation_rate());
  json.Field("seconds", stats.seconds).Field("budget_bytes", stats.budget_bytes);
  json.Field("block_bytes", stats.block_bytes).Field("open_bytes", stats.open_bytes);
  json.Field("metadata_bytes", stats.metadata_bytes).Field("sequences", stats.sequences);
  json.Key("layers").BeginArray();
  for (const LayerPoolStats& layer : stats.layers) {
    json.BeginObject().Field("used_blocks", layer.used_blocks);
    json.Field("total_blocks", layer.total_blocks).Field("used_bytes", layer.used_bytes);
    json.Field("touched_bytes", layer.touched_bytes).EndObject();
  }
  json.EndArray().Field("cached_pages", prefix.cached_pages);
  json.Field("evictable_pages", prefix.evictable_pages);
  json.Field("evicted_pages", prefix.evicted_pages).Field("prefix_lookups", prefix.lookups);
  json.Field("prefix_blocks_wanted", prefix.wanted_blocks);
  json.Field("prefix_blocks_found", prefix.found_blocks);
  json.Field("prefix_tokens_found", prefix.found_tokens);
  json.Key("prefix_lookups_ended_by").BeginObject();
  for (size_t i = 0; i < kNumPrefixMisses; ++i) {
    json.Field(PrefixMissName(PrefixMiss(i)), prefix.misses[i]);
  }
  json.EndObject().Field("hash_collisions", prefix.collisions);
  json.Field("preemptions", stats.preemptions).Field("defragmentations", stats.defragmentations);
  json.Field("moved_blocks", stats.moved_blocks).Field("allocator_refills", pools.refills);
  json.Field("allocator_drains", pools.drains).Field("pool_lock_waits", pools.lock_waits);
  json.Field("pool_lock_wait_nanoseconds", pools.lock_wait_nanoseconds);
  json.Field("prefix_lock_waits", prefix.lock_waits);
  json.Field("prefix_lock_wait_nanoseconds", prefix.lock_wait_nanoseconds).EndObject();
}

}  // namespace lode::cli
