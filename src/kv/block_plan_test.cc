// SPDX-License-Identifier: Apache-2.0
#include "kv/block_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace lode {
namespace {

// The rule as the header states it, token by token.
int64_t TokensAt(int64_t block_size, int64_t position) {
  if (position < 128) return std::max<int64_t>(8, block_size / 4);
  if (position < 1152) return std::max<int64_t>(8, block_size / 2);
  return block_size;
}

TEST(BlockPlanTest, EqualsAWalkThroughThePositions) {
  for (const int64_t block_size : {8, 16, 32, 64, 128}) {
    const BlockPlan plan(block_size);
    EXPECT_EQ(plan.block_size(), block_size);
    int64_t block = 0, tile = 0, block_first = 0, tile_first = 0;
    for (int64_t p = 0; p < 6000; ++p) {
      if (p > 0 && p - block_first == TokensAt(block_size, block_first)) ++block, block_first = p;
      const int64_t tile_tokens = std::min<int64_t>(32, TokensAt(block_size, tile_first));
      if (p > 0 && p - tile_first == tile_tokens) ++tile, tile_first = p;
      ASSERT_EQ(plan.IndexOf(p), block) << block_size << " " << p;
      ASSERT_EQ(plan.FirstPosition(block), block_first);
      ASSERT_EQ(plan.Tokens(block), TokensAt(block_size, block_first));
      ASSERT_EQ(plan.NumBlocks(p + 1), block + 1);
      ASSERT_EQ(plan.NumFullBlocks(p), block);
      ASSERT_EQ(plan.TileOf(p), tile);
      ASSERT_EQ(plan.FirstPositionOfTile(tile), tile_first);
      ASSERT_EQ(plan.TileTokens(tile), std::min<int64_t>(32, TokensAt(block_size, tile_first)));
      ASSERT_EQ(plan.NumTiles(p + 1), tile + 1);
      ASSERT_EQ(plan.NumFullTiles(p), tile);
      // No tile crosses a block, and both start at a multiple of their size.
      ASSERT_EQ(plan.IndexOf(tile_first + plan.TileTokens(tile) - 1), block);
      ASSERT_EQ(block_first % plan.Tokens(block), 0);
      ASSERT_EQ(tile_first % plan.TileTokens(tile), 0);
    }
    EXPECT_EQ(plan.NumBlocks(0), 0);
    EXPECT_EQ(plan.NumTiles(0), 0);
  }
}

TEST(BlockPlanTest, DefaultIsTheTextsPlan) {
  const BlockPlan plan;
  EXPECT_EQ(plan, BlockPlan(32));
  EXPECT_EQ(plan.Tokens(0), 8);
  EXPECT_EQ(plan.IndexOf(128), 16);
  EXPECT_EQ(plan.Tokens(16), 16);
  EXPECT_EQ(plan.IndexOf(1152), 80);
  EXPECT_EQ(plan.Tokens(80), 32);
}

TEST(BlockPlanTest, FixedHasOneSize) {
  const BlockPlan plan = BlockPlan::Fixed(16);
  for (int64_t p = 0; p < 3000; ++p) {
    ASSERT_EQ(plan.IndexOf(p), p / 16);
    ASSERT_EQ(plan.FirstPosition(p), p * 16);
    ASSERT_EQ(plan.Tokens(p), 16);
  }
  EXPECT_NE(plan, BlockPlan(16));
}

TEST(BlockPlanTest, HoldsBeyond32Bits) {
  for (const int64_t block_size : {8, 32, 128}) {
    const BlockPlan plan(block_size);
    for (const int64_t position : {int64_t{1} << 31, int64_t{1} << 40, (int64_t{1} << 52) + 77}) {
      const int64_t block = plan.IndexOf(position), tile = plan.TileOf(position);
      EXPECT_LE(plan.FirstPosition(block), position);
      EXPECT_GT(plan.FirstPosition(block) + plan.Tokens(block), position);
      EXPECT_LE(plan.FirstPositionOfTile(tile), position);
      EXPECT_GT(plan.FirstPositionOfTile(tile) + plan.TileTokens(tile), position);
    }
  }
}

TEST(BlockPlanTest, RefusesOtherSizes) {
  for (const int64_t size : {0, -8, 1, 4, 12, 24, 256}) {
    const Result<BlockPlan> plan = BlockPlan::Create(size);
    ASSERT_FALSE(plan.ok()) << size;
    EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(plan.status().message().find("found " + std::to_string(size)), std::string::npos);
  }
  EXPECT_TRUE(BlockPlan::Create(64).ok());
}

}  // namespace
}  // namespace lode
