// SPDX-License-Identifier: Apache-2.0
// BlockPlan: which positions of a sequence share a block, and which a tile. Pure arithmetic.
//
// A block is the unit of allocation and sharing. Short sequences get small blocks, because the
// slots that they do not fill are wasted; long ones large blocks, because each costs an entry in a
// table and a jump in memory. With block size B, blocks hold
//   max(8, B / 4) tokens at positions [0, 128)
//   max(8, B / 2) tokens at positions [128, 1152)
//   B tokens from 1152 on.
// A tile is the unit of encoding, min(block, 32) tokens: larger blocks are several whole tiles.
// Every block and every tile starts at a multiple of its own size. Indices count from position 0.
#ifndef LODE_KV_BLOCK_PLAN_H_
#define LODE_KV_BLOCK_PLAN_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/status.h"

namespace lode {

class BlockPlan {
 public:
  static constexpr int64_t kMinBlockTokens = 8;
  static constexpr int64_t kMaxBlockTokens = 128;
  static constexpr int64_t kMaxTileTokens = 32;
  static constexpr int64_t kDefaultBlockSize = 32;
  static constexpr int kNumZones = 3;

  // InvalidArgument unless block_size is 8, 16, 32, 64 or 128.
  static Result<BlockPlan> Create(int64_t block_size) {
    if (IsBlockSize(block_size)) return BlockPlan(block_size);
    return InvalidArgumentError("block size: expected 8, 16, 32, 64 or 128 tokens, found " +
                                std::to_string(block_size));
  }
  // The same block size at all positions, to compare with. Precondition: IsBlockSize(block_size).
  static BlockPlan Fixed(int64_t block_size) {
    BlockPlan plan(block_size);
    plan.SetSizes({block_size, block_size, block_size});
    return plan;
  }
  static constexpr bool IsBlockSize(int64_t value) {
    return value >= kMinBlockTokens && value <= kMaxBlockTokens &&
           std::has_single_bit(static_cast<uint64_t>(value));
  }

  BlockPlan() : BlockPlan(kDefaultBlockSize) {}
  // Precondition: IsBlockSize(block_size).
  explicit BlockPlan(int64_t block_size) {
    LODE_CHECK(IsBlockSize(block_size));
    const auto at_least_8 = [](int64_t tokens) {
      return tokens < kMinBlockTokens ? kMinBlockTokens : tokens;
    };
    SetSizes({at_least_8(block_size / 4), at_least_8(block_size / 2), block_size});
  }

  // The size of the blocks from position 1152 on.
  int64_t block_size() const { return int64_t{1} << zones_.back().block.log2_tokens; }

  // Blocks. Preconditions everywhere: position, index and length are not negative.
  int64_t IndexOf(int64_t position) const { return Index(&Zone::block, position); }
  int64_t FirstPosition(int64_t index) const { return First(&Zone::block, index); }
  int64_t Tokens(int64_t index) const { return Size(&Zone::block, index); }
  // Blocks that hold positions [0, length), the last perhaps in part.
  int64_t NumBlocks(int64_t length) const { return length == 0 ? 0 : IndexOf(length - 1) + 1; }
  // Blocks that positions [0, length) fill.
  int64_t NumFullBlocks(int64_t length) const { return IndexOf(length); }

  // Blocks [FirstIndexOfZone(zone), FirstIndexOfZone(zone + 1)) have one size, in kNumZones zones.
  int64_t FirstIndexOfZone(int zone) const {
    return zones_[static_cast<size_t>(zone)].block.first_index;
  }

  // Tiles.
  int64_t TileOf(int64_t position) const { return Index(&Zone::tile, position); }
  int64_t FirstPositionOfTile(int64_t tile) const { return First(&Zone::tile, tile); }
  int64_t TileTokens(int64_t tile) const { return Size(&Zone::tile, tile); }
  int64_t NumTiles(int64_t length) const { return length == 0 ? 0 : TileOf(length - 1) + 1; }
  int64_t NumFullTiles(int64_t length) const { return TileOf(length); }

  friend bool operator==(const BlockPlan&, const BlockPlan&) = default;

 private:
  // Equal units (blocks or tiles) in a row.
  struct Run {
    int64_t first_index = 0;
    int32_t log2_tokens = 0;
    friend bool operator==(const Run&, const Run&) = default;
  };
  struct Zone {
    int64_t first_position = 0;
    Run block;
    Run tile;
    friend bool operator==(const Zone&, const Zone&) = default;
  };
  static constexpr std::array<int64_t, kNumZones> kFirstPositions = {0, 128, 1152};

  void SetSizes(const std::array<int64_t, kNumZones>& block_tokens) {
    for (size_t i = 0; i < zones_.size(); ++i) {
      Zone& zone = zones_[i];
      zone.first_position = kFirstPositions[i];
      const int64_t tile_tokens =
          block_tokens[i] < kMaxTileTokens ? block_tokens[i] : kMaxTileTokens;
      zone.block.log2_tokens = std::countr_zero(static_cast<uint64_t>(block_tokens[i]));
      zone.tile.log2_tokens = std::countr_zero(static_cast<uint64_t>(tile_tokens));
      if (i == 0) continue;
      const int64_t positions = kFirstPositions[i] - kFirstPositions[i - 1];
      const Zone& before = zones_[i - 1];
      zone.block.first_index = before.block.first_index + (positions >> before.block.log2_tokens);
      zone.tile.first_index = before.tile.first_index + (positions >> before.tile.log2_tokens);
    }
  }

  int64_t Index(Run Zone::* unit, int64_t position) const {
    LODE_DCHECK(position >= 0);
    const Zone& zone = zones_[static_cast<size_t>(position >= kFirstPositions[1]) +
                              static_cast<size_t>(position >= kFirstPositions[2])];
    const Run& run = zone.*unit;
    return run.first_index + ((position - zone.first_position) >> run.log2_tokens);
  }
  const Zone& ZoneOfIndex(Run Zone::* unit, int64_t index) const {
    LODE_DCHECK(index >= 0);
    return zones_[static_cast<size_t>(index >= (zones_[1].*unit).first_index) +
                  static_cast<size_t>(index >= (zones_[2].*unit).first_index)];
  }
  int64_t First(Run Zone::* unit, int64_t index) const {
    const Zone& zone = ZoneOfIndex(unit, index);
    const Run& run = zone.*unit;
    return zone.first_position + ((index - run.first_index) << run.log2_tokens);
  }
  int64_t Size(Run Zone::* unit, int64_t index) const {
    return int64_t{1} << (ZoneOfIndex(unit, index).*unit).log2_tokens;
  }

  std::array<Zone, kNumZones> zones_;
};

}  // namespace lode

#endif  // LODE_KV_BLOCK_PLAN_H_
