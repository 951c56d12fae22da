// SPDX-License-Identifier: Apache-2.0
// Every codec on every target: round trip within the type's error, slots that do not disturb each
// other, and no NaN or infinity in a block.
#include "kv/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/dequantize.h"
#include "kernels/kv_tile.h"
#include "kernels/rotation.h"
#include "kernels/targets.h"

namespace lode {
namespace {

constexpr int64_t kTokens = kernels::kKvTileTokens;
constexpr float kUntouched = -77.0f;

struct Block {
  explicit Block(int64_t bytes) : storage(static_cast<size_t>(bytes) + 64) {}
  std::byte* data() {
    return storage.data() + (64 - reinterpret_cast<uintptr_t>(storage.data()) % 64) % 64;
  }
  std::vector<std::byte> storage;
};

class KvCodecTest : public testing::TestWithParam<std::tuple<KvDType, kernels::Target>> {
 protected:
  const KvCodec& codec() const { return CodecFor(std::get<0>(GetParam())); }

  // Largest error of component d of token t.
  double KeyBound(const std::vector<float>& rows, const KvTileShape& shape, int64_t t,
                  int64_t d) const {
    const auto at = [&](int64_t token) {
      return double{rows[static_cast<size_t>(token * shape.head_dim + d)]};
    };
    if (codec().dtype == KvDType::kF32) return 0;
    if (codec().dtype == KvDType::kF16) return std::abs(at(t)) / 2048 + 1e-7;
    if (codec().dtype == KvDType::kBf16) return std::abs(at(t)) / 256;
    double lo = at(0), hi = at(0);
    for (int64_t i = 1; i < shape.tokens; ++i) {
      lo = std::min(lo, at(i));
      hi = std::max(hi, at(i));
    }
    const double size = std::max(std::abs(lo), std::abs(hi));
    // Half a step. In eight bits a scale is rounded up by up to an eighth, the centre takes up to
    // another, and 127 units of 32 steps must reach it.
    const double step = codec().code_bits == 8
                            ? std::max((hi - lo) / 254 * 1.27, size / 127 / 32 * 1.13)
                            : std::max((hi - lo) / ((1 << codec().code_bits) - 1), size / 1024);
    return step * 0.505 + 1e-6;
  }
  double ValueBound(const std::vector<float>& rows, const KvTileShape& shape, int64_t t,
                    int64_t d) const {
    if (codec().code_bits == 0) return KeyBound(rows, shape, t, d);
    const float* row = rows.data() + t * shape.head_dim;
    std::vector<float> rotated(row, row + shape.head_dim);
    kernels::Rotate(rotated.data(), 1, shape.head_dim, shape.head_dim);
    float largest = 0;
    for (const float x : rotated) largest = std::max(largest, std::abs(x));
    const int64_t block = shape.head_dim & -shape.head_dim;
    const double reach = codec().code_bits == 8 ? 127 : 1 << (codec().code_bits - 1);
    // Half a step in every rotated component, a whole one where the highest code is one short.
    return largest / reach * 0.51 * 2 * std::sqrt(static_cast<double>(block)) + 1e-6;
  }

  // Puts rows [shape.tokens][head_dim] into tiles: row types in the given pieces.
  void Encode(const std::vector<float>& rows, const KvTileShape& shape,
              const std::vector<int64_t>& cuts, std::byte* keys, std::byte* values) const {
    const KvCodec& c = codec();
    if (!c.is_row_type()) {
      std::vector<float> columns(static_cast<size_t>(shape.head_dim * kTokens), 1e9f);
      for (int64_t t = 0; t < shape.tokens; ++t) {
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          columns[static_cast<size_t>(d * kTokens + t)] =
              rows[static_cast<size_t>(t * shape.head_dim + d)];
        }
      }
      c.seal_keys(keys, shape, columns.data());
      c.seal_values(values, shape, rows.data(), shape.head_dim);
      return;
    }
    int64_t slot = 0;
    for (const int64_t cut : cuts) {
      const float* first = rows.data() + slot * shape.head_dim;
      c.store_keys(keys, shape, slot, cut - slot, first, shape.head_dim);
      c.store_values(values, shape, slot, cut - slot, first, shape.head_dim);
      slot = cut;
    }
  }

  // Rows as they come back.
  struct Decoded {
    std::vector<float> keys;    // [tokens][head_dim]
    std::vector<float> values;  // [tokens][head_dim]
  };
  Decoded RoundTrip(const std::vector<float>& rows, const KvTileShape& shape,
                    const std::vector<int64_t>& cuts) const {
    const KvCodec& c = codec();
    Block keys(c.key_tile_bytes(shape)), values(c.value_tile_bytes(shape));
    Encode(rows, shape, cuts, keys.data(), values.data());
    const int64_t stride = shape.head_dim + 8;
    std::vector<float> key_tile(static_cast<size_t>(shape.head_dim * kTokens), kUntouched);
    std::vector<float> value_tile(static_cast<size_t>(stride * kTokens), kUntouched);
    c.decode_keys(keys.data(), shape, key_tile.data());
    c.decode_values(values.data(), shape, value_tile.data(), stride);
    Decoded decoded;
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t d = 0; d < shape.head_dim; ++d) {
        const float key = key_tile[static_cast<size_t>(d * kTokens + t)];
        const float value = value_tile[static_cast<size_t>(t * stride + d)];
        if (t >= shape.tokens) {  // belongs to the tile's neighbour
          EXPECT_EQ(key, kUntouched);
          EXPECT_EQ(value, kUntouched);
          continue;
        }
        decoded.keys.push_back(key);
        decoded.values.push_back(value);
      }
    }
    return decoded;
  }

 private:
  const kernels::ScopedTarget target_{std::get<1>(GetParam())};
};

INSTANTIATE_TEST_SUITE_P(AllTypes, KvCodecTest,
                         testing::Combine(testing::Values(KvDType::kF32, KvDType::kF16,
                                                          KvDType::kBf16, KvDType::kInt8,
                                                          KvDType::kInt6, KvDType::kInt4),
                                          testing::ValuesIn(kernels::SupportedTargets())),
                         [](const auto& test) {
                           return std::string(KvDTypeName(std::get<0>(test.param))) + "_" +
                                  kernels::TargetName(std::get<1>(test.param));
                         });

std::vector<float> RandomRows(int64_t head_dim, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<size_t>(kTokens * head_dim));
  for (float& x : rows) x = normal(generator);
  for (int64_t t = 0; t < kTokens; ++t) rows[static_cast<size_t>(t * head_dim + 3)] += 100.0f;
  return rows;
}

TEST_P(KvCodecTest, RoundTrip) {
  for (const int64_t head_dim : {8, 40, 64, 96, 128, 256}) {
    for (const int64_t tokens : {8, 16, 32}) {
      const std::vector<float> rows = RandomRows(head_dim, 1);
      const KvTileShape shape = {.head_dim = head_dim, .tokens = tokens};
      const Decoded decoded = RoundTrip(rows, shape, {1, 2, tokens - 1, tokens});
      for (int64_t i = 0; i < tokens * head_dim; ++i) {
        const auto at = static_cast<size_t>(i);
        const int64_t t = i / head_dim, d = i % head_dim;
        ASSERT_NEAR(decoded.keys[at], rows[at], KeyBound(rows, shape, t, d))
            << head_dim << " " << i;
        ASSERT_NEAR(decoded.values[at], rows[at], ValueBound(rows, shape, t, d))
            << head_dim << " " << i;
      }
    }
  }
}

// Scores of keys of which one component is biased, as Qwen2's are, and sums of values. A scale per
// token would have an error of 0.2 in eight bits.
TEST_P(KvCodecTest, ErrorOfScoresAndSums) {
  const KvTileShape shape = {.head_dim = 64};
  const std::vector<float> rows = RandomRows(64, 6);
  const std::vector<float> queries = RandomRows(64, 7);
  std::vector<float> centred = rows;
  for (int64_t t = 0; t < kTokens; ++t) centred[static_cast<size_t>(t * 64 + 3)] -= 100.0f;
  const Decoded decoded = RoundTrip(rows, shape, {32});
  const Decoded values = RoundTrip(centred, shape, {32});
  double score_error = 0, value_error = 0;
  for (int64_t q = 0; q < kTokens; ++q) {
    for (int64_t t = 0; t < kTokens; ++t) {
      double error = 0;
      for (int64_t d = 0; d < 64; ++d) {
        const auto at = static_cast<size_t>(t * 64 + d);
        const double query = double{queries[static_cast<size_t>(q * 64 + d)]} - (d == 3 ? 100 : 0);
        error += query * (double{decoded.keys[at]} - double{rows[at]}) / 8;
      }
      score_error += error * error;
    }
  }
  for (size_t i = 0; i < centred.size(); ++i) {
    value_error += std::pow(double{values.values[i]} - double{centred[i]}, 2);
  }
  score_error = std::sqrt(score_error / kTokens / kTokens);
  value_error = std::sqrt(value_error / static_cast<double>(centred.size()));
  const auto expected = [&](double bf16, double int8, double int6, double int4) {
    switch (codec().dtype) {
      case KvDType::kBf16:
        return bf16;
      case KvDType::kInt8:
        return int8;
      case KvDType::kInt6:
        return int6;
      case KvDType::kInt4:
        return int4;
      default:
        return 0.004;
    }
  };
  EXPECT_LT(score_error, expected(0.03, 0.0075, 0.022, 0.09));
  EXPECT_LT(value_error, expected(0.003, 0.007, 0.025, 0.11));
}

// Bits per component of large tiles, scales included, of keys and of values.
TEST_P(KvCodecTest, TakesTheBitsPromised) {
  const auto promised = [&]() -> std::pair<double, double> {
    switch (codec().dtype) {
      case KvDType::kF32:
        return {32, 32};
      case KvDType::kInt8:
        return {8.5, 8};
      case KvDType::kInt6:
        return {7, 6};
      case KvDType::kInt4:
        return {5, 4};
      default:
        return {16, 16};
    }
  }();
  for (const int64_t head_dim : {64, 80, 128, 256}) {
    const KvTileShape shape = {.head_dim = head_dim};
    const double components = static_cast<double>(head_dim * shape.tokens);
    const double per_value =
        codec().code_bits == 0
            ? 0
            : 16.0 * static_cast<double>(shape.value_groups()) / static_cast<double>(head_dim);
    const double keys = promised.first;
    const double values = promised.second + per_value;
    EXPECT_NEAR(8 * static_cast<double>(codec().key_tile_bytes(shape)) / components, keys,
                0.03 * keys);
    EXPECT_NEAR(8 * static_cast<double>(codec().value_tile_bytes(shape)) / components, values,
                0.03 * values);
  }
}

TEST(KvCodecF16, EqualsTheScalarConversionOnEveryTarget) {
  constexpr int64_t kHeadDim = 64;
  const KvCodec& codec = CodecFor(KvDType::kF16);
  std::vector<float> rows = RandomRows(kHeadDim, 5);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] *= std::exp2(static_cast<float>(i % 24) - 16.0f);
  for (const kernels::Target target : kernels::SupportedTargets()) {
    const kernels::ScopedTarget pinned(target);
    const KvTileShape shape = {.head_dim = kHeadDim};
    Block block(codec.value_tile_bytes(shape));
    std::vector<float> decoded(rows.size());
    codec.store_values(block.data(), shape, 0, kTokens, rows.data(), kHeadDim);
    codec.decode_values(block.data(), shape, decoded.data(), kHeadDim);
    for (size_t i = 0; i < rows.size(); ++i) {
      const float clamped = std::clamp(rows[i], -65504.0f, 65504.0f);
      ASSERT_EQ(decoded[i], kernels::HalfToFloat(kernels::FloatToHalf(clamped)))
          << rows[i] << " " << kernels::TargetName(target);
    }
  }
}

TEST_P(KvCodecTest, ResultDoesNotDependOnTheCalls) {
  if (!codec().is_row_type()) return;  // sealed by one call
  const std::vector<float> rows = RandomRows(64, 2);
  const Decoded whole = RoundTrip(rows, {.head_dim = 64}, {32});
  std::vector<int64_t> single(32);
  for (int64_t i = 0; i < 32; ++i) single[static_cast<size_t>(i)] = i + 1;
  for (const auto& cuts : {single, {1, 32}, {31, 32}, {7, 8, 20, 32}}) {
    const Decoded pieces = RoundTrip(rows, {.head_dim = 64}, cuts);
    EXPECT_EQ(pieces.keys, whole.keys);
    EXPECT_EQ(pieces.values, whole.values);
  }
}

TEST_P(KvCodecTest, NeverHoldsNanOrInfinity) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> rows = RandomRows(64, 3);
  rows[5] = kInf;
  rows[70] = -kInf;
  rows[9] = std::numeric_limits<float>::quiet_NaN();
  rows[200] = std::numeric_limits<float>::max();
  rows[300] = -1e20f;
  rows[400] = 1e-42f;
  const Decoded decoded = RoundTrip(rows, {.head_dim = 64}, {32});
  for (size_t i = 0; i < rows.size(); ++i) {
    ASSERT_TRUE(std::isfinite(decoded.keys[i])) << i;
    ASSERT_TRUE(std::isfinite(decoded.values[i])) << i;
  }
  EXPECT_GT(decoded.keys[5], 1e4f);
  EXPECT_LT(decoded.values[70], -1e4f);
  if (codec().code_bits != 0) return;  // these are off by a share of the largest
  EXPECT_EQ(decoded.keys[9], 0.0f);
  EXPECT_EQ(decoded.values[9], 0.0f);
}

TEST(KvCodecNames, ParseAndPrint) {
  for (const KvCodec& codec : KvCodecs()) {
    ASSERT_TRUE(ParseKvDType(codec.name).ok());
    EXPECT_EQ(*ParseKvDType(codec.name), codec.dtype);
    EXPECT_EQ(KvDTypeName(codec.dtype), codec.name);
    for (const int64_t tokens : {8, 16, 32}) {
      const KvTileShape shape = {.head_dim = 40, .tokens = tokens};
      EXPECT_EQ(codec.key_tile_bytes(shape) % kernels::kKvTileAlignment, 0);
      EXPECT_EQ(codec.value_tile_bytes(shape) % kernels::kKvTileAlignment, 0);
    }
    EXPECT_EQ(codec.is_row_type(), codec.seal_keys == nullptr);
    EXPECT_TRUE(CodecFor(codec.open_dtype).is_row_type());
  }
  const Result<KvDType> unknown = ParseKvDType("q8_0");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(unknown.status().message().find("f32, f16, bf16, int8, int6, int4"), std::string::npos);

  EXPECT_EQ(*ParseKvDTypes("int8"), KvDTypes(KvDType::kInt8));
  EXPECT_EQ(*ParseKvDTypes("int8,f16"), KvDTypes(KvDType::kInt8, KvDType::kF16));
  EXPECT_EQ(KvDTypesName(*ParseKvDTypes("int8,f16")), "int8,f16");
  EXPECT_EQ(KvDTypesName(KvDType::kF32), "f32");
  for (const char* wrong : {"", ",", "int8,", ",int8", "int8,f16,f16", "int8 "}) {
    EXPECT_FALSE(ParseKvDTypes(wrong).ok()) << wrong;
  }
}

}  // namespace
}  // namespace lode
