// SPDX-License-Identifier: Apache-2.0
// Code matrices, the rotation, and tiles of codes on every target. Round trips of whole tiles are
// in kv/codec_test.cc.
#include "kernels/kv_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/code_matrix.h"
#include "kernels/rotation.h"
#include "kernels/targets.h"

namespace lode::kernels {
namespace {

std::vector<float> Normal(int64_t size, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(static_cast<size_t>(size));
  for (float& x : v) x = normal(generator);
  return v;
}

TEST(CodeMatrixTest, PacksEveryCode) {
  for (const int bits : {4, 6, 8}) {
    constexpr int64_t kPairs = 8, kCols = 24;
    std::vector<int8_t> codes(kPairs * kCols * 2), back(codes.size());
    for (size_t i = 0; i < codes.size(); ++i) {
      const int values = 1 << bits;
      codes[i] =
          static_cast<int8_t>(static_cast<int>(i * 7 % static_cast<size_t>(values)) - values / 2);
    }
    std::vector<std::byte> packed(static_cast<size_t>(CodeMatrixBytes(bits, kPairs, kCols)));
    EXPECT_EQ(packed.size() * 8, codes.size() * static_cast<size_t>(bits));
    PackCodes(codes.data(), bits, kPairs, kCols, packed.data());
    UnpackCodes(packed.data(), bits, kPairs, kCols, back.data());
    EXPECT_EQ(back, codes) << bits;
  }
}

TEST(RotationTest, KeepsLengthsAndUndoesItself) {
  for (const int64_t n : {8, 24, 40, 64, 80, 96, 256}) {
    const std::vector<float> rows = Normal(2 * (n + 3), 1);
    std::vector<float> rotated = rows;
    Rotate(rotated.data(), 2, n, n + 3);
    for (int64_t r = 0; r < 2; ++r) {
      double before = 0, after = 0;
      for (int64_t i = r * (n + 3); i < r * (n + 3) + n; ++i) {
        before += std::pow(rows[static_cast<size_t>(i)], 2);
        after += std::pow(rotated[static_cast<size_t>(i)], 2);
      }
      EXPECT_NEAR(after, before, 1e-4);
    }
    for (int64_t i = n; i < n + 3; ++i) {  // between the rows
      EXPECT_EQ(rotated[static_cast<size_t>(i)], rows[static_cast<size_t>(i)]);
    }
    Rotate(rotated.data(), 2, n, n + 3);
    for (size_t i = 0; i < rows.size(); ++i) EXPECT_NEAR(rotated[i], rows[i], 1e-5);
  }
}

// Tiles must hold the same bits whatever machine encoded them.
TEST(RotationTest, EveryTargetAddsInTheSameOrder) {
  for (const int64_t n : {8, 16, 24, 64, 80, 96, 128, 256}) {
    const std::vector<float> rows = Normal(3 * (n + 1), 4);
    std::vector<float> expected = rows;
    const int64_t block = n & -n;
    for (int64_t r = 0; r < 3; ++r) {
      float* row = &expected[static_cast<size_t>(r * (n + 1))];
      for (int64_t half = 1; half < block; half *= 2) {
        for (int64_t i = 0; i < n; ++i) {
          if (i / half % 2 != 0) continue;
          const float sum = row[i] + row[i + half];
          row[i + half] = row[i] - row[i + half];
          row[i] = sum;
        }
      }
      for (int64_t i = 0; i < n; ++i) row[i] *= 1.0f / std::sqrt(static_cast<float>(block));
    }
    for (const Target target : SupportedTargets()) {
      const ScopedTarget pinned(target);
      std::vector<float> rotated = rows;
      Rotate(rotated.data(), 3, n, n + 1);
      EXPECT_EQ(rotated, expected) << n << " " << TargetName(target);
    }
  }
}

TEST(RotationTest, SpreadsAnOutlier) {
  std::vector<float> row(64, 0.0f);
  row[17] = 8.0f;
  Rotate(row.data(), 1, 64, 64);
  for (const float x : row) EXPECT_EQ(std::abs(x), 1.0f);
}

// What attention makes of a tile is what it decodes to.
TEST(KvCodesTest, PartsEqualTheDecodedTile) {
  for (const int bits : {4, 6, 8}) {
    for (const int64_t head_dim : {8, 40, 64, 256}) {
      for (const int64_t tokens : {8, 16, 32}) {
        const KvTileShape shape = {.head_dim = head_dim, .tokens = tokens, .value_group = 24};
        std::vector<float> keys = Normal(head_dim * kKvTileTokens, 2);
        for (int64_t t = 0; t < kKvTileTokens; ++t) keys[static_cast<size_t>(t)] += 100.0f;
        const std::vector<float> values = Normal(tokens * head_dim, 3);
        std::vector<std::byte> key_tile(static_cast<size_t>(KeyCodeBytes(bits, shape)));
        std::vector<std::byte> value_tile(static_cast<size_t>(ValueCodeBytes(bits, shape)));
        EncodeKeyCodes(bits, shape, keys.data(), key_tile.data());
        EncodeValueCodes(bits, shape, values.data(), head_dim, value_tile.data());
        std::vector<float> key_back(keys.size()), value_back(values.size());
        DecodeKeyCodes(bits, shape, key_tile.data(), key_back.data());
        DecodeValueCodes(bits, shape, value_tile.data(), value_back.data(), head_dim);
        Rotate(value_back.data(), tokens, head_dim, head_dim);

        std::vector<int8_t> key_codes(static_cast<size_t>(head_dim * tokens));
        std::vector<int8_t> value_codes(key_codes.size());
        const CodeMatrix k = KeyCodes(bits, shape, key_tile.data());
        const CodeMatrix v = ValueCodes(bits, shape, value_tile.data());
        UnpackCodes(k.codes, bits, k.pairs, k.cols, key_codes.data());
        UnpackCodes(v.codes, bits, v.pairs, v.cols, value_codes.data());
        for (const Target target : SupportedTargets()) {
          const ScopedTarget pinned(target);
          std::vector<float> most(static_cast<size_t>(head_dim)), inverse(most.size());
          std::vector<int16_t> ratio(most.size());
          std::vector<float> shift(most.size());
          most[1] = 1e9f;
          RaiseToKeyScales(bits, shape, key_tile.data(), most.data());
          EXPECT_EQ(most[1], 1e9f);
          const auto fraction_of = [](size_t d) { return static_cast<float>(d % 8 + 1) / 8; };
          for (size_t d = 0; d < most.size(); ++d) inverse[d] = fraction_of(d) / most[d];
          KeyRatios(bits, shape, key_tile.data(), inverse.data(), ratio.data(), shift.data());
          EXPECT_EQ(ratio[1], 0);
          for (int64_t d = 0; d < head_dim; ++d) {
            const auto at = static_cast<size_t>(d);
            if (d == 1) continue;
            const float fraction = fraction_of(at);
            ASSERT_NEAR(ratio[at], std::min(32767.0f, fraction * 32768), 1.0f) << bits;
            for (int64_t t = 0; t < tokens; ++t) {
              const int8_t code = key_codes[static_cast<size_t>(CodeAt(d / 2, t, d % 2, tokens))];
              const float key = (shift[at] + fraction * static_cast<float>(code)) / inverse[at];
              ASSERT_NEAR(key, key_back[static_cast<size_t>(d * kKvTileTokens + t)],
                          1e-5f * (std::abs(key) + 128 * most[at]))
                  << bits << " " << TargetName(target);
            }
          }
          for (int64_t g = 0; g < shape.value_groups(); ++g) {
            std::vector<float> scales(static_cast<size_t>(tokens));
            ValueScales(shape, value_tile.data(), g, scales.data());
            for (int64_t d = g * 24; d < std::min(head_dim, g * 24 + 24); ++d) {
              for (int64_t t = 0; t < tokens; ++t) {
                const int64_t code = CodeAt(t / 2, d, t % 2, head_dim);
                ASSERT_NEAR(scales[static_cast<size_t>(t)] *
                                static_cast<float>(value_codes[static_cast<size_t>(code)]),
                            value_back[static_cast<size_t>(t * head_dim + d)], 1e-5)
                    << bits << " " << TargetName(target);
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lode::kernels
