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

// Pages of random codes and the tables of some rows, with the extremes that QuantizeTables allows:
// the first row's keys reach sums of 127.
struct Case {
  Case(int64_t num_rows, int64_t num_pages, uint32_t seed)
      : rows(num_rows), pages(num_pages * kCodePageBytes) {
    std::mt19937 generator(seed);
    for (uint8_t& byte : pages) byte = static_cast<uint8_t>(generator());
    for (int64_t p = 0; p < num_pages; ++p) {
      scales.push_back(static_cast<float>(generator() % 300) / 100.0f);
    }
    tables.resize(rows * kCodeNibbles * 16);
    for (int8_t& entry : tables) entry = static_cast<int8_t>(generator() % 15) - 7;
    for (int64_t i = 0; i < kCodeNibbles * 16; ++i)
      tables[static_cast<size_t>(i)] = i < 16 ? 22 : 7;
    for (int64_t r = 0; r < rows; ++r) {
      steps.push_back(static_cast<float>(generator() % 1000) / 6000.0f);
    }
  }
  CodeTables Tables() const {
    return {.tables = tables.data(), .steps = steps.data(), .rows = rows};
  }
  const uint8_t* Page(int64_t p) const { return pages.data() + p * kCodePageBytes; }
  double Estimate(int64_t page, int64_t r, int64_t t) const {
    int sum = 0;
    for (int64_t n = 0; n < kCodeNibbles; ++n) {
      const int byte = Page(page)[n % 8 * 32 + t];
      const int nibble = n < 8 ? byte % 16 : byte / 16;
      sum += tables[static_cast<size_t>((r * kCodeNibbles + n) * 16 + nibble)];
    }
    return double{scales[static_cast<size_t>(page)]} * steps[static_cast<size_t>(r)] * sum;
  }

  int64_t rows;
  std::vector<uint8_t> pages;
  std::vector<float> scales;
  AlignedVector<int8_t> tables;
  std::vector<float> steps;
};

TEST_P(CodeScanTest, EstimatesEqualPlainLoops) {
  for (const int64_t rows : {1, 2, 7, 63}) {
    const Case c(rows, 1, 1);
    AlignedVector<float> out(static_cast<size_t>(rows * kKvTileTokens));
    ScanPage({c.Page(0), c.scales.data(), 1}, c.Tables(), out.data());
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
  constexpr int64_t kRows = 5, kStride = 21;
  for (const int64_t pages : {1, 7, 8, 19}) {
    Case c(kRows, pages, 2);
    c.steps[1] = 0.66f;  // estimates beyond the largest power
    c.steps[2] = 0.0f;
    c.scales[0] = 0.0f;
    std::vector<float> masses(kRows * kStride, 3.0f);
    AddPageMasses({c.Page(0), c.scales.data(), pages}, c.Tables(), masses.data(), kStride);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t p = 0; p < kStride; ++p) {
        double sum = 0;
        for (int64_t t = 0; p < pages && t < kKvTileTokens; ++t) {
          sum += std::exp2(std::clamp(c.Estimate(p, r, t), -126.0, 126.0));
        }
        const double truth = p < pages ? 3 + std::log2(sum) : 3;
        // Powers are interpolated between integers; estimates to 1/64.
        EXPECT_NEAR(masses[static_cast<size_t>(r * kStride + p)], truth, p < pages ? 0.055 : 0)
            << r << " " << p << " " << pages;
      }
    }
  }
}

TEST_P(CodeScanTest, MassesBeyondF32AreItsLargest) {
  Case c(1, 1, 4);
  std::fill(c.tables.begin(), c.tables.end(), int8_t{7});
  c.steps[0] = 1.9f;  // every key counts as 126, and 32 of them exceed f32
  c.scales[0] = 1.0f;
  float mass = 0;
  AddPageMasses({c.Page(0), c.scales.data(), 1}, c.Tables(), &mass, 1);
  EXPECT_FLOAT_EQ(mass, 128.0f);
}

TEST_P(CodeScanTest, TablesKeepTheirLargestSum) {
  constexpr int64_t kEntries = kCodeNibbles * 16;
  std::mt19937 generator(3);
  std::normal_distribution<float> normal;
  std::vector<float> tables(4 * kEntries);
  for (float& x : tables) x = normal(generator);
  tables[5] = -70.0f;
  std::fill_n(tables.begin() + kEntries, kEntries, 0.0f);
  tables[2 * kEntries + 3] = NAN;
  tables[3 * kEntries + 3] = INFINITY;
  std::vector<int8_t> out(tables.size());
  float steps[4];
  QuantizeTables(tables.data(), 4, out.data(), steps);
  float largest_sum = 0;
  int largest_rounded = 0;
  for (int64_t n = 0; n < kCodeNibbles; ++n) {
    float largest = 0;
    int rounded = 0;
    for (int64_t i = n * 16; i < (n + 1) * 16; ++i) {
      const auto at = static_cast<size_t>(i);
      EXPECT_NEAR(steps[0] * out[at], tables[at], steps[0] * 0.5001f);
      for (const int64_t row : {1, 2, 3})
        EXPECT_EQ(out[static_cast<size_t>(row * kEntries + i)], 0);
      largest = std::max(largest, std::abs(tables[at]));
      rounded = std::max(rounded, std::abs(int{out[at]}));
    }
    largest_sum += largest;
    largest_rounded += rounded;
  }
  EXPECT_FLOAT_EQ(steps[0], largest_sum / 119);
  EXPECT_LE(largest_rounded, 127);
  for (const size_t row : {1, 2, 3}) EXPECT_EQ(steps[row], 0.0f);
}

}  // namespace
}  // namespace lode::kernels
