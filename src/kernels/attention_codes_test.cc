// SPDX-License-Identifier: Apache-2.0
// Every target that this machine has against plain loops.
#include "kernels/attention_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/code_matrix.h"
#include "kernels/targets.h"

namespace lode::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <class T>
T& At(std::vector<T>& v, int64_t i) {
  return v[static_cast<size_t>(i)];
}

class AttentionCodesTest : public testing::TestWithParam<Target> {
 protected:
  template <class T>
  std::vector<T> Random(int64_t size, int lowest, int highest) {
    std::uniform_int_distribution<int> number(lowest, highest);
    std::vector<T> v(static_cast<size_t>(size));
    for (T& x : v) x = static_cast<T>(number(generator_));
    return v;
  }
  std::vector<float> Normal(int64_t size, float deviation) {
    std::normal_distribution<float> normal(0.0f, deviation);
    std::vector<float> v(static_cast<size_t>(size));
    for (float& x : v) x = normal(generator_);
    return v;
  }
  std::mt19937 generator_{1};

 private:
  const ScopedTarget target_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(AllTargets, AttentionCodesTest, testing::ValuesIn(SupportedTargets()),
                         [](const auto& test) { return TargetName(test.param); });

TEST_P(AttentionCodesTest, ProductIsExact) {
  for (const int bits : {4, 6, 8}) {
    const int most = (1 << (bits - 1)) - 1;
    for (const int64_t rows : {1, 2, 3, 7, 8, 9, 63}) {
      for (const int64_t pairs : {4, 20, 32}) {
        for (const int64_t cols : {8, 16, 24, 40, 64}) {
          const std::vector<int16_t> a = Random<int16_t>(rows * kCodeRowStride, -32767, 32767);
          const std::vector<int8_t> codes = Random<int8_t>(pairs * cols * 2, -most - 1, most);
          std::vector<std::byte> packed(static_cast<size_t>(CodeMatrixBytes(bits, pairs, cols)));
          PackCodes(codes.data(), bits, pairs, cols, packed.data());
          const int64_t first = cols > 8 ? 8 : 0;
          const int64_t n = cols - first;
          const int64_t stride = n + 3;
          std::vector<int32_t> c = Random<int32_t>(rows * stride, -1000, 1000);
          const std::vector<int32_t> before = c;
          const CodeMatrix b = {packed.data(), bits, pairs, cols};
          for (const bool accumulate : {true, false}) {
            c = before;
            MultiplyCodes({.a = a.data(),
                           .rows = rows,
                           .b = b,
                           .first_col = first,
                           .num_cols = n,
                           .accumulate = accumulate,
                           .c = c.data(),
                           .c_stride = stride});
            for (int64_t r = 0; r < rows; ++r) {
              for (int64_t col = 0; col < stride; ++col) {
                const auto at = static_cast<size_t>(r * stride + col);
                int64_t sum = accumulate || col >= n ? before[at] : 0;
                for (int64_t i = 0; i < 2 * pairs && col < n; ++i) {
                  const int64_t code = CodeAt(i / 2, first + col, i % 2, cols);
                  sum += int64_t{a[static_cast<size_t>(r * kCodeRowStride + i)]} *
                         codes[static_cast<size_t>(code)];
                }
                ASSERT_EQ(c[at], sum) << bits << " " << rows << " " << pairs << " " << cols;
              }
            }
          }
        }
      }
    }
  }
}

TEST_P(AttentionCodesTest, QueriesOfATileWithinOneAndAHalfUnits) {
  constexpr int64_t kRows = 5, kHeadDim = 40;
  std::vector<float> queries = Normal(kRows * kHeadDim, 5.0f);
  std::fill_n(queries.begin() + kHeadDim, kHeadDim, 0.0f);
  At(queries, 2 * kHeadDim + 5) = kInf;
  At(queries, 3 * kHeadDim + 7) = kNan;
  std::vector<float> scales(kHeadDim), shift(kHeadDim);
  std::vector<int16_t> ratio(kHeadDim);
  for (int64_t d = 0; d < kHeadDim; ++d) {
    At(scales, d) = 0.01f * static_cast<float>(d + 1);
    At(ratio, d) = d % 3 == 0 ? 32767 : 9830;
    At(shift, d) = static_cast<float>(d % 5) - 2.0f;
  }
  std::vector<float> normal(kRows * kHeadDim), factors(kRows), offsets(kRows * 3);
  std::vector<int16_t> rounded(kRows * kHeadDim), codes(kRows * kCodeRowStride);
  const NormalQueries ready = {
      .normal = normal.data(), .rounded = rounded.data(), .factors = factors.data()};
  NormalizeQueries(queries.data(), kRows, kHeadDim, scales.data(), 0.5f, ready);
  TileQueries(ready, kRows, kHeadDim, ratio.data(), shift.data(), codes.data(), offsets.data(), 3);
  for (const int64_t r : {0, 4}) {
    double offset = 0;
    int largest = 0;
    for (int64_t d = 0; d < kHeadDim; ++d) {
      const double q = 0.5 * double{At(queries, r * kHeadDim + d)} * double{At(scales, d)};
      const int code = At(codes, r * kCodeRowStride + d);
      EXPECT_NEAR(code * double{At(factors, r)}, q * At(ratio, d) / 32768.0,
                  double{At(factors, r)} * 1.01);  // the ratio is exact here
      offset += q * double{At(shift, d)};
      largest = std::max(largest, std::abs(code));
    }
    EXPECT_NEAR(double{At(offsets, r * 3)} * double{At(factors, r)}, offset, 1e-4);
    EXPECT_GT(largest, 9000);  // 15 bits are made use of
  }
  EXPECT_TRUE(std::isfinite(At(factors, 1)));
  EXPECT_TRUE(std::isnan(At(factors, 2)));
  EXPECT_TRUE(std::isnan(At(factors, 3)));
  for (int64_t d = 0; d < kHeadDim; ++d) EXPECT_EQ(At(codes, kCodeRowStride + d), 0);
}

// The worst that can meet in one 32-bit sum: equal queries, lowest codes, largest ratio.
TEST_P(AttentionCodesTest, NoSumOverflows) {
  for (const int64_t head_dim : {8, 512, 1024}) {
    const std::vector<float> queries(static_cast<size_t>(head_dim), 3.0f);
    const std::vector<float> ones(static_cast<size_t>(head_dim), 1.0f);
    std::vector<float> normal(static_cast<size_t>(head_dim)), factor(1), offset(1);
    const std::vector<int16_t> most(static_cast<size_t>(head_dim), 32767);
    std::vector<int16_t> rounded(static_cast<size_t>(head_dim)), codes(kCodeRowStride);
    const std::vector<int8_t> keys(static_cast<size_t>(head_dim * 8), -128);
    std::vector<int32_t> products(8);
    const NormalQueries ready = {
        .normal = normal.data(), .rounded = rounded.data(), .factors = factor.data()};
    NormalizeQueries(queries.data(), 1, head_dim, ones.data(), 1.0f, ready);
    TileQueries(ready, 1, head_dim, most.data(), ones.data(), codes.data(), offset.data(), 1);
    const CodeMatrix b = {reinterpret_cast<const std::byte*>(keys.data()), 8, head_dim / 2, 8};
    MultiplyCodes(
        {.a = codes.data(), .rows = 1, .b = b, .num_cols = 8, .c = products.data(), .c_stride = 8});
    const double expected = -3.0 * 128.0 * static_cast<double>(head_dim);
    for (const int32_t x : products) {
      EXPECT_NEAR(x * double{factor[0]}, expected, 1e-4 * std::abs(expected));
    }
  }
}

// One softmax step and its reference in double.
struct Step {
  int64_t rows;
  std::vector<int64_t> tile_begin;
  int64_t groups;
};

class SoftmaxCodesTest : public AttentionCodesTest {
 protected:
  static constexpr int64_t kKeys = kCodeStepKeys;

  void Prepare(const Step& s) {
    const int64_t keys = s.tile_begin.back();
    scores_ = Random<int32_t>(s.rows * kKeys, -2000000, 2000000);
    offsets_ = Normal(s.rows * kCodeStepTiles, 1e6f);
    factors_.assign(static_cast<size_t>(s.rows + 16), 1e-6f);
    begin_.assign(static_cast<size_t>(s.rows), 0);
    end_.assign(static_cast<size_t>(s.rows), static_cast<int32_t>(keys));
    value_scales_ = Normal(s.groups * kKeys, 9000.0f);
    for (float& x : value_scales_) x = std::clamp(x, -32767.0f, 32767.0f);
    weights_.assign(static_cast<size_t>(s.groups * s.rows * kCodeRowStride), 0);
    keep_.assign(static_cast<size_t>(s.rows + 16), 0.0f);
    gain_ = keep_;
    max_.assign(static_cast<size_t>(s.rows + 16), -kInf);
    sum_.assign(static_cast<size_t>(s.rows + 16), 0.0f);
    output_.assign(static_cast<size_t>(s.rows * 32), 0.0f);
    step_ = {.num_keys = keys,
             .num_tiles = static_cast<int64_t>(s.tile_begin.size()) - 1,
             .tile_begin = s.tile_begin.data(),
             .offsets = offsets_.data(),
             .factors = factors_.data(),
             .begin = begin_.data(),
             .end = end_.data(),
             .num_groups = s.groups,
             .value_scales = value_scales_.data(),
             .weights = weights_.data(),
             .keep = keep_.data(),
             .gain = gain_.data()};
    state_ = {.max = max_.data(),
              .sum = sum_.data(),
              .output = output_.data(),
              .rows = s.rows,
              .output_cols = 32,
              .output_stride = 32};
  }
  double Score(const Step& s, const std::vector<int32_t>& sums, int64_t r, int64_t key) {
    const auto tile =
        std::upper_bound(s.tile_begin.begin(), s.tile_begin.end(), key) - s.tile_begin.begin() - 1;
    return (double{static_cast<double>(sums[static_cast<size_t>(r * kKeys + key)])} +
            double{At(offsets_, r * kCodeStepTiles + tile)}) *
           double{At(factors_, r)};
  }

  std::vector<int32_t> scores_, begin_, end_;
  std::vector<float> offsets_, factors_, value_scales_, keep_, gain_, max_, sum_, output_;
  std::vector<int16_t> weights_;
  CodeStep step_ = {};
  SoftmaxState state_ = {};
};

INSTANTIATE_TEST_SUITE_P(AllTargets, SoftmaxCodesTest, testing::ValuesIn(SupportedTargets()),
                         [](const auto& test) { return TargetName(test.param); });

TEST_P(SoftmaxCodesTest, WeightsAreTheSoftmax) {
  for (const Step& s : {Step{1, {0, 8}, 1}, Step{7, {0, 32, 64, 96, 128}, 1},
                        Step{9, {0, 8, 24, 56}, 3}, Step{17, {0, 16, 32}, 2}}) {
    Prepare(s);
    At(begin_, s.rows - 1) = 3;
    At(end_, s.rows - 1) = 7;
    const std::vector<int32_t> sums = scores_;
    SoftmaxCodes(scores_.data(), step_, state_);
    for (int64_t r = 0; r < s.rows; ++r) {
      double most = -1e300, total = 0;
      for (int64_t k = At(begin_, r); k < At(end_, r); ++k)
        most = std::max(most, Score(s, sums, r, k));
      EXPECT_NEAR(double{At(max_, r)}, most, 1e-5 * std::abs(most) + 1e-6);
      EXPECT_EQ(At(keep_, r), 0.0f);
      EXPECT_NEAR(At(gain_, r), 1.0f, 1e-6f);
      for (int64_t k = 0; k < step_.num_keys; ++k) {
        const bool seen = k >= At(begin_, r) && k < At(end_, r);
        const double weight = seen ? std::exp2(Score(s, sums, r, k) - most) : 0.0;
        total += weight;
        for (int64_t g = 0; g < s.groups; ++g) {
          const double expected = weight * double{At(value_scales_, g * kKeys + k)};
          ASSERT_NEAR(At(weights_, (g * s.rows + r) * kCodeRowStride + k), expected, 0.6)
              << r << " " << k << " " << g;
        }
      }
      EXPECT_NEAR(double{At(sum_, r)}, total, 1e-5 * total);
    }
  }
}

TEST_P(SoftmaxCodesTest, StatesFollowEachOther) {
  const Step s = {3, {0, 32}, 1};
  Prepare(s);
  max_ = {100.0f, -100.0f, -kInf};
  max_.resize(19, -kInf);
  sum_[0] = sum_[1] = 2.0f;
  state_.max = max_.data();
  std::fill(output_.begin(), output_.begin() + 64, 6.0f);
  At(begin_, 2) = At(end_, 2) = 5;  // sees nothing
  SoftmaxCodes(scores_.data(), step_, state_);
  std::vector<int32_t> products(3 * 40, 10);
  AddProducts(products.data(), 40, step_, 0.5f, 8, 24, state_);
  EXPECT_EQ(max_[0], 100.0f);
  EXPECT_EQ(keep_[0], 1.0f);
  EXPECT_EQ(sum_[0], 2.0f);  // 2^-90 is nothing beside it
  EXPECT_EQ(output_[0], 6.0f);
  EXPECT_NEAR(output_[8], 6.0f, 1e-6f);
  EXPECT_LT(sum_[1], 40.0f);
  EXPECT_GE(sum_[1], 1.0f);
  EXPECT_NEAR(output_[32 + 8], 5.0f, 1e-5f);
  EXPECT_EQ(output_[32 + 7], 6.0f);  // another group's
  EXPECT_EQ(max_[2], -kInf);
  EXPECT_EQ(sum_[2], 0.0f);
  EXPECT_EQ(output_[64 + 8], 0.0f);
}

TEST_P(SoftmaxCodesTest, ARowOfNanGivesNan) {
  const Step s = {2, {0, 32}, 1};
  Prepare(s);
  factors_[1] = kNan;
  SoftmaxCodes(scores_.data(), step_, state_);
  std::vector<int32_t> products(2 * 32, 1);
  AddProducts(products.data(), 32, step_, 1.0f, 0, 32, state_);
  EXPECT_TRUE(std::isfinite(sum_[0]));
  EXPECT_TRUE(std::isfinite(output_[0]));
  EXPECT_TRUE(std::isnan(sum_[1]));
  EXPECT_TRUE(std::isnan(output_[32]));
}

}  // namespace
}  // namespace lode::kernels
