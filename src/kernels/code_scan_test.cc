// SPDX-License-Identifier: Apache-2.0
// Every target that this machine has against plain loops.
#include "kernels/code_scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/aligned_vector.h"
#include "kernels/targets.h"

namespace lode::kernels {
namespace {

class CodeScanTest : public testing::TestWithParam<Target> {
 private:
  const ScopedTarget target_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(AllTargets, CodeScanTest, testing::ValuesIn(SupportedTargets()),
                         [](const auto& test) { return TargetName(test.param); });

// Pages of random codes and the tables of some rows, with extremes: four of 63 must not overflow.
struct Case {
  Case(int64_t num_rows, int64_t num_pages, uint32_t seed)
      : rows(num_rows), pages(num_pages * kCodePageBytes) {
    std::mt19937 generator(seed);
    for (uint8_t& byte : pages) byte = static_cast<uint8_t>(generator());
    tables.resize(rows * kCodeNibbles * 16);
    for (uint8_t& entry : tables) {
      entry = generator() % 4 == 0 ? 63 : static_cast<uint8_t>(generator() % 64);
    }
    for (int64_t r = 0; r < rows; ++r) {
      steps.push_back(static_cast<float>(generator() % 1000) / 77700.0f - 0.005f);
    }
  }
  CodeTables Tables() const {
    return {.tables = tables.data(), .steps = steps.data(), .rows = rows};
  }
  const uint8_t* Page(int64_t p) const { return pages.data() + p * kCodePageBytes; }
  double Estimate(int64_t page, int64_t r, int64_t t) const {
    int sum = 0;
    for (int64_t n = 0; n < kCodeNibbles; ++n) {
      const int byte = Page(page)[n * 16 + t % 16];
      const int nibble = t < 16 ? byte % 16 : byte / 16;
      sum +=
          int{tables[static_cast<size_t>((r * kCodeNibbles + n) * 16 + nibble)]} - kCodeTableZero;
    }
    return Page(page)[kCodeNibbles * 16 + t] / 80.0 * steps[static_cast<size_t>(r)] * sum;
  }

  int64_t rows;
  std::vector<uint8_t> pages;
  AlignedVector<uint8_t> tables;
  std::vector<float> steps;
};

TEST_P(CodeScanTest, EstimatesEqualPlainLoops) {
  for (const int64_t rows : {1, 2, 7, 63}) {
    const Case c(rows, 1, 1);
    AlignedVector<float> out(static_cast<size_t>(rows * kKvTileTokens));
    ScanPage(c.Page(0), c.Tables(), out.data());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t t = 0; t < kKvTileTokens; ++t) {
        const double truth = c.Estimate(0, r, t);
        ASSERT_NEAR(out[static_cast<size_t>(r * kKvTileTokens + t)], truth,
                    1e-6 * std::abs(truth) + 1e-12)
            << rows << " " << r << " " << t;
      }
    }
  }
}

TEST_P(CodeScanTest, MassesEqualPlainLoops) {
  constexpr int64_t kStride = 21;
  for (const int64_t step : {1, 2, 7, 30}) {  // of 19 pages, every so many from the second on
    const Case c(5, 19, 2);
    std::vector<int32_t> ids;
    for (int32_t page = 1; page < 19; page += static_cast<int32_t>(step)) ids.push_back(page);
    std::vector<float> masses(5 * kStride, 3.0f);
    AddPageMasses(c.Page(0), ids, c.Tables(), masses.data(), kStride);
    for (int64_t r = 0; r < 5; ++r) {
      for (int64_t p = 0; p < kStride; ++p) {
        const bool scanned = p >= 1 && p < 19 && (p - 1) % step == 0;
        double sum = 0;
        for (int64_t t = 0; scanned && t < kKvTileTokens; ++t) {
          sum += std::exp2(std::min(c.Estimate(p, r, t), 64.0));
        }
        const double truth = scanned ? 3 + std::log2(sum) : 3;
        // Powers are interpolated between integers, where pages count at all.
        EXPECT_NEAR(masses[static_cast<size_t>(r * kStride + p)], truth, scanned ? 0.0445 : 0)
            << r << " " << p << " " << step;
      }
    }
  }
}

TEST_P(CodeScanTest, TablesKeepTheirLargestEntry) {
  std::mt19937 generator(3);
  std::normal_distribution<float> normal;
  std::vector<float> tables(4 * 32);
  for (float& x : tables) x = normal(generator);
  tables[5] = -7.0f;
  std::fill_n(tables.begin() + 32, 32, 0.0f);
  tables[64 + 3] = NAN;
  tables[96 + 3] = INFINITY;
  std::vector<uint8_t> out(4 * 32);
  float steps[4];
  QuantizeTables(tables.data(), 4, 32, out.data(), steps);
  EXPECT_FLOAT_EQ(steps[0], 7.0f / 31);
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_NEAR(steps[0] * (out[i] - kCodeTableZero), tables[i], steps[0] * 0.5001f);
    for (const size_t row : {1, 2, 3}) EXPECT_EQ(out[row * 32 + i], kCodeTableZero);
  }
  for (const size_t row : {1, 2, 3}) EXPECT_EQ(steps[row], 0.0f);
}

}  // namespace
}  // namespace lode::kernels
