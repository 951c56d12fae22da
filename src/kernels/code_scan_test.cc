// SPDX-License-Identifier: Apache-2.0
// Every target that this machine has against plain loops.
#include "kernels/code_scan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/dequantize.h"
#include "kernels/targets.h"

namespace lode::kernels {
namespace {

class CodeScanTest : public testing::TestWithParam<Target> {
 private:
  const ScopedTarget target_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(AllTargets, CodeScanTest, testing::ValuesIn(SupportedTargets()),
                         [](const auto& test) { return TargetName(test.param); });

TEST_P(CodeScanTest, EqualsPlainLoops) {
  std::mt19937 generator(1);
  for (const int64_t nibbles : {2, 8, 16, 64}) {
    for (const int64_t rows : {1, 2, 7, 63}) {
      std::vector<uint8_t> codes(static_cast<size_t>(nibbles * 16));
      for (uint8_t& byte : codes) byte = static_cast<uint8_t>(generator());
      std::vector<uint16_t> scales(kKvTileTokens);
      for (uint16_t& scale : scales) {
        scale = FloatToHalf(static_cast<float>(generator() % 1000) / 300.0f);
      }
      alignas(64) static uint8_t tables[63 * 64 * 16];
      alignas(64) static float out[63 * kKvTileTokens];
      for (uint8_t& entry : tables) {
        // Extremes too: a pair of 127 must not overflow.
        entry = generator() % 4 == 0 ? 127 : static_cast<uint8_t>(generator() % 128);
      }
      std::vector<float> steps(static_cast<size_t>(rows));
      for (float& step : steps) step = static_cast<float>(generator() % 1000) / 777.0f - 0.5f;
      ScanCodes(codes.data(), scales.data(), nibbles, tables, steps.data(), rows, out);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t t = 0; t < kKvTileTokens; ++t) {
          int sum = 0;
          for (int64_t n = 0; n < nibbles; ++n) {
            const int byte = codes[static_cast<size_t>(n * 16 + t % 16)];
            const int nibble = t < 16 ? byte % 16 : byte / 16;
            sum += int{tables[(r * nibbles + n) * 16 + nibble]} - kCodeTableZero;
          }
          const double truth = double{HalfToFloat(scales[static_cast<size_t>(t)])} *
                               steps[static_cast<size_t>(r)] * sum;
          ASSERT_NEAR(out[r * kKvTileTokens + t], truth, 1e-6 * std::abs(truth) + 1e-12)
              << nibbles << " " << r << " " << t;
        }
      }
    }
  }
}

TEST_P(CodeScanTest, LogSumsEqualReference) {
  std::mt19937 generator(2);
  std::normal_distribution<float> normal(-3.0f, 20.0f);
  alignas(64) float x[5 * kKvTileTokens];
  for (float& value : x) value = normal(generator);
  float out[5];
  LogSumsOfPage(x, 5, out);
  for (int64_t r = 0; r < 5; ++r) {
    double sum = 0;
    for (int64_t t = 0; t < kKvTileTokens; ++t) sum += std::exp2(double{x[r * kKvTileTokens + t]});
    EXPECT_NEAR(out[r], std::log2(sum), 1e-5 * std::abs(std::log2(sum)) + 1e-5);
  }
}

}  // namespace
}  // namespace lode::kernels
