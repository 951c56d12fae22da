// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_stats.h"

#include <fmt/format.h>

namespace lode {
namespace {

double Ratio(int64_t part, int64_t whole, double of_nothing) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : of_nothing;
}

}  // namespace

std::string_view PrefixMissName(PrefixMiss miss) {
  static constexpr std::array<std::string_view, kNumPrefixMisses> kNames = {
      "none", "too_short", "unknown", "evicted", "collision"};
  return kNames[static_cast<size_t>(miss)];
}

LayerPoolStats& LayerPoolStats::operator+=(const LayerPoolStats& other) {
  used_blocks += other.used_blocks;
  total_blocks += other.total_blocks;
  used_bytes += other.used_bytes;
  touched_bytes += other.touched_bytes;
  slab_bytes += other.slab_bytes;
  refills += other.refills;
  drains += other.drains;
  lock_waits += other.lock_waits;
  lock_wait_nanoseconds += other.lock_wait_nanoseconds;
  return *this;
}

LayerPoolStats KvCacheStats::pools() const {
  LayerPoolStats sum;
  for (const LayerPoolStats& layer : layers) sum += layer;
  return sum;
}

double KvCacheStats::hit_rate() const {
  return Ratio(prefix.found_blocks, prefix.wanted_blocks, 1.0);
}

double KvCacheStats::eviction_rate() const {
  return seconds > 0 ? static_cast<double>(prefix.evicted_pages) / seconds : 0.0;
}

double KvCacheStats::fragmentation_rate() const {
  return Ratio(breaks, neighbours, 0.0);
}

std::string KvCacheStats::LogLine() const {
  const LayerPoolStats sum = pools();
  return fmt::format(
      "hca_cache_stats hit_rate={:.4f} eviction_rate={:.3f}/s fragmentation_rate={:.4f} "
      "blocks={}/{} bytes={}/{} open_bytes={} cached_pages={} evictable_pages={} lookups={} "
      "collisions={} preemptions={} refills={} lock_waits={} lock_wait_us={}",
      hit_rate(), eviction_rate(), fragmentation_rate(), sum.used_blocks, sum.total_blocks,
      block_bytes + open_bytes, budget_bytes, open_bytes, prefix.cached_pages,
      prefix.evictable_pages, prefix.lookups, prefix.collisions, preemptions, sum.refills,
      sum.lock_waits + prefix.lock_waits,
      (sum.lock_wait_nanoseconds + prefix.lock_wait_nanoseconds) / 1000);
}

}  // namespace lode
