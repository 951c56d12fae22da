// SPDX-License-Identifier: Apache-2.0
// KvLayout: how a sequence's blocks look: which head groups, formats and sizes there are, and where
// in a block a tile lies. Pure arithmetic on KvCacheOptions.
//
// The KV heads of a layer form up to 4 groups, each with blocks of its own. A range is a run of
// block indices with equal blocks: it ends where the plan's block size or the element types change.
// Block 0, the sinks that every later token looks at, keeps the open types. Inside a block, keys of
// head after head come first (a head's tiles in order), then the values likewise.
#ifndef LODE_KV_KV_LAYOUT_H_
#define LODE_KV_KV_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv/block_plan.h"
#include "kv/codec.h"
#include "kv/kv_cache.h"

namespace lode {

// Blocks of one range.
struct BlockRange {
  int64_t first_index = 0;
  int64_t tiles = 1;  // per block
  KvTileShape shape = {};
  const KvCodec* key_codec = nullptr;
  const KvCodec* value_codec = nullptr;
  int64_t key_tile_bytes = 0;
  int64_t value_tile_bytes = 0;
  int64_t page_bytes = 0;  // of a block index in all layers and groups

  int64_t tile_bytes() const { return key_tile_bytes + value_tile_bytes; }
  bool can_reopen() const { return key_codec->is_row_type() && value_codec->is_row_type(); }
};

class KvLayout {
 public:
  static constexpr int32_t kMaxGroups = 4;

  // Precondition: valid options.
  explicit KvLayout(const KvCacheOptions& options);

  const BlockPlan& plan() const { return plan_; }
  int32_t num_layers() const { return num_layers_; }
  int32_t num_groups() const { return static_cast<int32_t>(first_head_.size()) - 1; }
  int32_t GroupOf(int32_t kv_head) const { return group_of_[static_cast<size_t>(kv_head)]; }
  int32_t FirstHead(int32_t group) const { return first_head_[static_cast<size_t>(group)]; }
  int32_t NumHeads(int32_t group) const { return FirstHead(group + 1) - FirstHead(group); }

  const std::vector<BlockRange>& ranges() const { return ranges_; }
  int32_t RangeOf(int64_t index) const {
    auto range = static_cast<int32_t>(ranges_.size()) - 1;
    while (index < ranges_[static_cast<size_t>(range)].first_index) --range;
    return range;
  }
  const BlockRange& range(int32_t range) const { return ranges_[static_cast<size_t>(range)]; }

  // Size classes of a layer's pool: one per range and group.
  int32_t ClassOf(int32_t range, int32_t group) const { return range * num_groups() + group; }
  std::vector<int64_t> ClassBytes() const;

  // Where keys and values of a tile lie in its group's block.
  int64_t KeyOffset(const BlockRange& range, int32_t head_in_group, int64_t tile_in_block) const {
    return (head_in_group * range.tiles + tile_in_block) * range.key_tile_bytes;
  }
  int64_t ValueOffset(const BlockRange& range, int32_t group, int32_t head_in_group,
                      int64_t tile_in_block) const {
    return NumHeads(group) * range.tiles * range.key_tile_bytes +
           (head_in_group * range.tiles + tile_in_block) * range.value_tile_bytes;
  }

  // Blocks that a sequence of this length holds: those with a full tile.
  int64_t NumPages(int64_t length) const;
  int64_t PageBytes(int64_t index) const { return range(RangeOf(index)).page_bytes; }
  // Bytes of the first num_pages pages.
  int64_t PagesBytes(int64_t num_pages) const;
  // The longest sequence whose pages fit.
  int64_t LongestWithin(int64_t bytes) const;

 private:
  KvDTypes DTypesAt(int64_t index, const KvCacheOptions& options) const;
  void AddRange(int64_t first_index, const KvCacheOptions& options);

  const BlockPlan plan_;
  const int32_t num_layers_;
  std::vector<int32_t> group_of_;    // [num_kv_heads]
  std::vector<int32_t> first_head_;  // [num_groups + 1]
  std::vector<BlockRange> ranges_;   // by first_index, the first at 0
};

}  // namespace lode

#endif  // LODE_KV_KV_LAYOUT_H_
