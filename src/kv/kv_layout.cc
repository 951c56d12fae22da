// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_layout.h"

#include <algorithm>
#include <limits>
#include <set>

namespace lode {

KvLayout::KvLayout(const KvCacheOptions& options)
    : plan_(options.adaptive_blocks ? BlockPlan(options.block_size)
                                    : BlockPlan::Fixed(options.block_size)),
      num_layers_(options.num_layers) {
  const int32_t heads = options.num_kv_heads;
  const int32_t groups = std::min(kMaxGroups, heads);
  for (int32_t group = 0; group < groups; ++group) {
    first_head_.push_back(static_cast<int32_t>(group_of_.size()));
    const int32_t size = heads / groups + (group < heads % groups ? 1 : 0);
    group_of_.insert(group_of_.end(), static_cast<size_t>(size), group);
  }
  first_head_.push_back(heads);

  // Where anything may change: after the sinks, with the block size, at the threshold.
  std::set<int64_t> borders = {0, 1, plan_.NumBlocks(options.int4_fallback_threshold)};
  for (int zone = 0; zone < BlockPlan::kNumZones; ++zone) {
    borders.insert(plan_.FirstIndexOfZone(zone));
  }
  for (const int64_t border : borders) AddRange(border, options);
}

KvDTypes KvLayout::DTypesAt(int64_t index, const KvCacheOptions& options) const {
  const int64_t threshold = options.int4_fallback_threshold;
  const bool falls_back = threshold > 0 && plan_.FirstPosition(index) >= threshold;
  const auto at = [&](KvDType dtype) {
    if (index == 0) return CodecFor(dtype).open_dtype;
    return falls_back && dtype == KvDType::kInt4 ? KvDType::kInt6 : dtype;
  };
  return {at(options.dtypes.key), at(options.dtypes.value)};
}

// A range that is like the one before it is a part of that one.
void KvLayout::AddRange(int64_t first_index, const KvCacheOptions& options) {
  const KvDTypes dtypes = DTypesAt(first_index, options);
  const int64_t tile_tokens = plan_.TileTokens(plan_.TileOf(plan_.FirstPosition(first_index)));
  BlockRange range;
  range.first_index = first_index;
  range.tiles = plan_.Tokens(first_index) / tile_tokens;
  range.shape = {.head_dim = options.head_dim,
                 .tokens = tile_tokens,
                 .value_group = std::min<int64_t>(options.value_group, options.head_dim)};
  range.key_codec = &CodecFor(dtypes.key);
  range.value_codec = &CodecFor(dtypes.value);
  range.key_tile_bytes = range.key_codec->key_tile_bytes(range.shape);
  range.value_tile_bytes = range.value_codec->value_tile_bytes(range.shape);
  if (!ranges_.empty() && ranges_.back().key_codec == range.key_codec &&
      ranges_.back().value_codec == range.value_codec && ranges_.back().shape == range.shape &&
      ranges_.back().tiles == range.tiles) {
    return;
  }
  range.page_bytes = int64_t{num_layers_} * options.num_kv_heads * range.tiles * range.tile_bytes();
  ranges_.push_back(range);
}

std::vector<int64_t> KvLayout::ClassBytes() const {
  std::vector<int64_t> bytes;
  for (const BlockRange& range : ranges_) {
    for (int32_t group = 0; group < num_groups(); ++group) {
      bytes.push_back(NumHeads(group) * range.tiles * range.tile_bytes());
    }
  }
  return bytes;
}

int64_t KvLayout::NumPages(int64_t length) const {
  const int64_t full_tiles = plan_.NumFullTiles(length);
  if (full_tiles == 0) return 0;
  return plan_.IndexOf(plan_.FirstPositionOfTile(full_tiles - 1)) + 1;
}

int64_t KvLayout::PagesBytes(int64_t num_pages) const {
  int64_t bytes = 0;
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const int64_t end =
        i + 1 < ranges_.size() ? std::min(num_pages, ranges_[i + 1].first_index) : num_pages;
    const int64_t pages = std::max(int64_t{0}, end - ranges_[i].first_index);
    int64_t part = 0;
    if (__builtin_mul_overflow(pages, ranges_[i].page_bytes, &part) ||
        __builtin_add_overflow(bytes, part, &bytes)) {
      return std::numeric_limits<int64_t>::max();
    }
  }
  return bytes;
}

int64_t KvLayout::LongestWithin(int64_t bytes) const {
  int64_t fits = 0, too_long = int64_t{1} << 50;
  while (fits + 1 < too_long) {
    const int64_t middle = fits + (too_long - fits) / 2;
    (PagesBytes(NumPages(middle)) <= bytes ? fits : too_long) = middle;
  }
  return fits;
}

}  // namespace lode
