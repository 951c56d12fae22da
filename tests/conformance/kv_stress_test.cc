// SPDX-License-Identifier: Apache-2.0
// Quantised types at 1,048,576 positions: nothing overflows, the error of a position does not
// depend on where it is, and attention over all of it is still exact.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "attention/attention.h"
#include "kernels/kv_tile.h"
#include "kv/kv_cache.h"

namespace lode {
namespace {

constexpr int64_t kLength = int64_t{1} << 20;
constexpr int64_t kWindow = kLength / 16;
constexpr int64_t kHeadDim = 16;
constexpr int64_t kChunk = 4096;

// Row `position`: one component with a large bias that rotates slowly, as in a biased key after
// RoPE, and one token in a thousand that is far out.
void FillRow(int64_t position, std::mt19937& generator, float* row) {
  std::normal_distribution<float> normal;
  const float scale = position % 1000 == 17 ? 20.0f : 1.0f;
  for (int64_t d = 0; d < kHeadDim; ++d) row[d] = scale * normal(generator);
  const double angle = static_cast<double>(position) * 1e-4;
  row[3] += static_cast<float>(100.0 * std::cos(angle));
  row[11] += static_cast<float>(100.0 * std::sin(angle));
}

std::vector<float> Rows(int64_t first, int64_t num_tokens, uint32_t seed) {
  std::mt19937 generator(static_cast<uint32_t>(first) * 2 + seed);
  std::vector<float> rows(static_cast<size_t>(num_tokens * kHeadDim));
  for (int64_t t = 0; t < num_tokens; ++t) {
    FillRow(first + t, generator, rows.data() + t * kHeadDim);
  }
  return rows;
}

// Sum of squares of the differences of a decoded tile to the rows that were stored.
struct TileError {
  double keys = 0;
  double values = 0;
};
TileError ErrorOf(const KvTile& tile, const float* keys, const float* values) {
  std::vector<float> k(static_cast<size_t>(kHeadDim * kernels::kKvTileTokens));
  std::vector<float> v(k.size());
  tile.key_codec->decode_keys(tile.keys, tile.shape, k.data());
  tile.value_codec->decode_values(tile.values, tile.shape, v.data(), kHeadDim);
  TileError error;
  for (int64_t t = 0; t < tile.shape.tokens; ++t) {
    for (int64_t d = 0; d < kHeadDim; ++d) {
      const auto at = static_cast<size_t>(t * kHeadDim + d);
      const float key = k[static_cast<size_t>(d * kernels::kKvTileTokens + t)];
      error.keys += std::pow(double{key} - double{keys[at]}, 2);
      error.values += std::pow(double{v[at]} - double{values[at]}, 2);
    }
  }
  return error;
}

class KvStressTest : public testing::TestWithParam<KvDType> {};
INSTANTIATE_TEST_SUITE_P(All, KvStressTest, testing::Values(KvDType::kInt8, KvDType::kInt4),
                         [](const auto& test) { return std::string(KvDTypeName(test.param)); });

TEST_P(KvStressTest, ErrorIsFlatOverAMillionPositions) {
  const auto created = KvCache::Create({.num_layers = 1,
                                        .num_kv_heads = 1,
                                        .head_dim = kHeadDim,
                                        .dtypes = GetParam(),
                                        .int4_fallback_threshold = 0,  // int4 to the end
                                        .max_tokens = kLength});
  ASSERT_TRUE(created.ok()) << created.status().ToString();
  KvCache& cache = **created;
  const SequenceId sequence = *cache.AddSequence();
  std::vector<TileError> windows(static_cast<size_t>(kLength / kWindow));
  for (int64_t first = 0; first < kLength; first += kChunk) {
    ASSERT_TRUE(cache.Extend(sequence, kChunk).ok());
    const std::vector<float> keys = Rows(first, kChunk, 0), values = Rows(first, kChunk, 1);
    cache.Store(0, sequence, first, kChunk, keys.data(), values.data());
    for (int64_t position = first; position < first + kChunk;) {
      const KvTile tile = cache.Tile(sequence, 0, 0, cache.plan().TileOf(position));
      const auto offset = static_cast<size_t>((position - first) * kHeadDim);
      const TileError error = ErrorOf(tile, keys.data() + offset, values.data() + offset);
      TileError& window = windows[static_cast<size_t>(position / kWindow)];
      window.keys += error.keys;
      window.values += error.values;
      position += tile.shape.tokens;
    }
  }
  ASSERT_EQ(cache.Length(sequence), kLength);
  // The first window has tiles of 8 and 16 tokens, which are more exact.
  const TileError& second = windows[1];
  EXPECT_GT(second.keys, 0.0);
  for (size_t w = 0; w < windows.size(); ++w) {
    EXPECT_LT(windows[w].keys, 1.2 * second.keys) << w;
    EXPECT_GT(windows[w].keys, 0.8 * second.keys) << w;
    EXPECT_LT(windows[w].values, 1.2 * second.values) << w;
    EXPECT_GT(windows[w].values, 0.8 * second.values) << w;
  }

  const std::vector<float> queries = Rows(-5, 2, 7);
  std::vector<float> out(static_cast<size_t>(2 * kHeadDim)), truth(out.size());
  ThreadPool pool(2);
  const auto run = [&](std::string_view name, float* to) {
    CreateAttention(name).value()->Forward({.sequence = sequence,
                                            .first_position = kLength - 1,
                                            .num_tokens = 1,
                                            .num_heads = 2,
                                            .scale = 0.01f,
                                            .q = queries.data(),
                                            .q_stride = 2 * kHeadDim},
                                           cache, pool, to, 2 * kHeadDim);
  };
  run("eager", truth.data());
  run("flash", out.data());
  float largest = 0;
  for (const float x : truth) largest = std::max(largest, std::abs(x));
  for (size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], truth[i], 4e-4f * largest);
}

}  // namespace
}  // namespace lode
