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
#include <vector>

#include "kernels/dequantize.h"
#include "kernels/kv_tile.h"
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

  // Largest error of component i.
  double Bound(const std::vector<float>& rows, int64_t head_dim, int64_t i, bool is_key) const {
    const auto at = [&](int64_t index) { return double{rows[static_cast<size_t>(index)]}; };
    if (codec().dtype == KvDType::kF32) return 0;
    if (codec().dtype == KvDType::kF16) return std::abs(at(i)) / 2048 + 1e-7;
    const int64_t row = i - i % head_dim;
    double largest = 0, largest_of_group = 0;
    for (int64_t d = 0; d < head_dim; ++d) {
      // Keys are stored as differences to the first, which is rounded to f16.
      const double size =
          std::abs(at(row + d) - (is_key ? at(d) : 0)) + (is_key ? std::abs(at(d)) / 2048 : 0);
      largest = std::max(largest, size);
      if (d / 8 == i % head_dim / 8) largest_of_group = std::max(largest_of_group, size);
    }
    // Half a step. The step of a value is rounded up by less than 2^(1/64); that of a key's group
    // of eight is up to twice what it needs, and at least 1/32 of the key's largest.
    if (!is_key) return largest / 127 * 0.51 + 1e-6;
    return std::max(2 * largest_of_group, largest / 32) / 127 * 0.57 + 1e-6;
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
                                                          KvDType::kInt8),
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
      const Decoded decoded =
          RoundTrip(rows, {.head_dim = head_dim, .tokens = tokens}, {1, 2, tokens - 1, tokens});
      for (int64_t i = 0; i < tokens * head_dim; ++i) {
        const auto at = static_cast<size_t>(i);
        ASSERT_NEAR(decoded.keys[at], rows[at], Bound(rows, head_dim, i, true))
            << head_dim << " " << i;
        ASSERT_NEAR(decoded.values[at], rows[at], Bound(rows, head_dim, i, false))
            << head_dim << " " << i;
      }
    }
  }
}

TEST_P(KvCodecTest, UnpackedCodesTimesScalesAreTheDecodedTile) {
  const KvCodec& c = codec();
  if (c.unpack_keys == nullptr) return;  // a type without codes
  for (const int64_t head_dim : {8, 40, 64, 256}) {
    const KvTileShape shape = {.head_dim = head_dim};
    const std::vector<float> rows = RandomRows(head_dim, 4);
    const Decoded decoded = RoundTrip(rows, shape, {});
    Block keys(c.key_tile_bytes(shape)), values(c.value_tile_bytes(shape));
    Encode(rows, shape, {}, keys.data(), values.data());
    const int64_t cols = head_dim + 24;
    Block key_tile(head_dim * kTokens * 2), value_tile(cols * kTokens * 2);
    Block key_scales(kTokens * 4), value_scales(kTokens * 4), centre(head_dim * 4);
    auto* k = reinterpret_cast<int16_t*>(key_tile.data());
    auto* v = reinterpret_cast<int16_t*>(value_tile.data());
    auto* ks = reinterpret_cast<float*>(key_scales.data());
    auto* vs = reinterpret_cast<float*>(value_scales.data());
    auto* kc = reinterpret_cast<float*>(centre.data());
    c.unpack_keys(keys.data(), shape, k, ks, kc);
    c.unpack_values(values.data(), shape, cols, v, vs);
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t d = 0; d < head_dim; ++d) {
        const float key = kc[d] + ks[t] * static_cast<float>(k[(d / 2 * kTokens + t) * 2 + d % 2]);
        const float value =
            static_cast<float>(v[(t / 2 * cols + d) * 2 + t % 2]) * std::exp2(vs[t]);
        ASSERT_EQ(key, decoded.keys[static_cast<size_t>(t * head_dim + d)]) << t << " " << d;
        ASSERT_EQ(value, decoded.values[static_cast<size_t>(t * head_dim + d)]) << t << " " << d;
      }
    }
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
  EXPECT_NE(unknown.status().message().find("f32, f16, int8"), std::string::npos);

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
