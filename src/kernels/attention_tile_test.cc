// SPDX-License-Identifier: Apache-2.0
// Every target that this machine has against plain double loops.
#include "kernels/attention_tile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <random>
#include <vector>

#include "kernels/targets.h"

namespace lode::kernels {
namespace {

// 64-byte aligned floats with normally distributed contents.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t cols, uint32_t seed)
      : cols_(cols), data_(new(std::align_val_t{64}) float[static_cast<size_t>(rows * cols)]) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::generate_n(data_, rows * cols, [&] { return normal(generator); });
  }
  ~Matrix() { operator delete[](data_, std::align_val_t{64}); }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  float* data() { return data_; }
  float& at(int64_t r, int64_t c) { return data_[r * cols_ + c]; }

 private:
  int64_t cols_;
  float* data_;
};

// Runs each test once per target.
class AttentionTileTest : public testing::TestWithParam<Target> {
 private:
  const ScopedTarget target_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(AllTargets, AttentionTileTest, testing::ValuesIn(SupportedTargets()),
                         [](const auto& test) { return TargetName(test.param); });

TEST_P(AttentionTileTest, ProductEqualsReference) {
  for (const int64_t rows : {1, 2, 3, 5, 6, 7, 12, 13, 61}) {
    for (const int64_t inner : {1, 8, 33}) {
      for (const int64_t cols : {32, 64, 96}) {
        for (const bool accumulate : {false, true}) {
          Matrix a(rows, inner + 3, 1), b(inner, cols, 2), c(rows, cols, 3), before(rows, cols, 3);
          MultiplyTile(a.data(), inner + 3, b.data(), rows, inner, cols, accumulate, c.data(),
                       cols);
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t col = 0; col < cols; ++col) {
              double sum = accumulate ? before.at(r, col) : 0.0;
              for (int64_t i = 0; i < inner; ++i) sum += double{a.at(r, i)} * b.at(i, col);
              // f32 sums of up to 34 terms of size 1: 34 * 2^-24 each, with room.
              ASSERT_NEAR(c.at(r, col), sum, 2e-5) << rows << " " << inner << " " << cols;
            }
          }
        }
      }
    }
  }
}

TEST_P(AttentionTileTest, SoftmaxEqualsReference) {
  constexpr int64_t kRows = 4, kCols = 64, kOutputs = 32, kTiles = 3;
  const int32_t begin[kTiles][kRows] = {{0, 5, 63, 10}, {0, 0, 64, 64}, {0, 0, 0, 31}};
  const int32_t end[kTiles][kRows] = {{64, 64, 64, 10}, {64, 1, 64, 64}, {33, 0, 64, 32}};
  Matrix output(kRows, kOutputs, 1), unscaled(kRows, kOutputs, 1);
  std::vector<float> max(kRows, -std::numeric_limits<float>::infinity()), sum(kRows, 0.0f);
  const SoftmaxState state = {max.data(), sum.data(), output.data(), kRows, kOutputs, kOutputs};
  std::vector<std::vector<double>> seen(kRows);  // scores that count, per row
  for (int64_t tile = 0; tile < kTiles; ++tile) {
    Matrix scores(kRows, kCols, 7 + tile), before(kRows, kCols, 7 + tile);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t c = 0; c < kCols; ++c) {
        scores.at(r, c) = before.at(r, c) *= 20.0f * static_cast<float>(tile + 1);
        if (c >= begin[tile][r] && c < end[tile][r]) seen[r].push_back(before.at(r, c));
      }
    }
    SoftmaxTile(scores.data(), kCols, kCols, begin[tile], end[tile], state);
    for (int64_t r = 0; r < kRows; ++r) {
      if (seen[r].empty()) continue;
      const double true_max = *std::max_element(seen[r].begin(), seen[r].end());
      double true_sum = 0;
      for (const double score : seen[r]) true_sum += std::exp2(score - true_max);
      ASSERT_EQ(max[r], true_max);
      ASSERT_NEAR(sum[r] / true_sum, 1.0, 1e-5);
      for (int64_t c = 0; c < kCols; ++c) {
        const bool counts = c >= begin[tile][r] && c < end[tile][r];
        const double weight = counts ? std::exp2(double{before.at(r, c)} - true_max) : 0.0;
        // Relative: one rounding of the difference (up to 200 units: 2^-17) and the polynomial.
        ASSERT_NEAR(scores.at(r, c), weight, 2e-5 * weight + 1e-37) << r << " " << c;
      }
    }
  }
  // The output was rescaled by 2^(old max - new max) each time; from -infinity that is 0.
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kOutputs; ++c) ASSERT_EQ(output.at(r, c), 0.0f);
  }
}

TEST_P(AttentionTileTest, OutputFollowsTheMaximum) {
  Matrix output(2, 32, 1), before(2, 32, 1), scores(2, 32, 2);
  std::fill_n(scores.data(), 64, 3.0f);
  std::vector<float> max = {1.5f, 4.0f}, sum = {8.0f, 8.0f};
  const std::vector<int32_t> begin = {0, 0}, end = {32, 32};
  SoftmaxTile(scores.data(), 32, 32, begin.data(), end.data(),
              {max.data(), sum.data(), output.data(), 2, 32, 32});
  EXPECT_EQ(max[0], 3.0f);
  EXPECT_EQ(max[1], 4.0f);
  const float factor = std::exp2(-1.5f);
  EXPECT_FLOAT_EQ(sum[0], 8.0f * factor + 32.0f);
  EXPECT_FLOAT_EQ(sum[1], 8.0f + 16.0f);
  for (int64_t c = 0; c < 32; ++c) {
    EXPECT_FLOAT_EQ(output.at(0, c), before.at(0, c) * factor);
    EXPECT_EQ(output.at(1, c), before.at(1, c));
  }
}

}  // namespace
}  // namespace lode::kernels
