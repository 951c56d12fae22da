// SPDX-License-Identifier: Apache-2.0
// Every target that this machine has against plain loops.
#include "kernels/attention_tile_int16.h"

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

constexpr int64_t kTokens = kKvTileTokens;

// 64-byte aligned numbers.
template <class T>
class Array {
 public:
  explicit Array(int64_t size)
      : size_(size), data_(new(std::align_val_t{64}) T[static_cast<size_t>(size)]()) {}
  ~Array() { operator delete[](data_, std::align_val_t{64}); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  T* data() { return data_; }
  T& operator[](int64_t i) { return data_[i]; }
  template <class F>
  void Fill(F next) {
    std::generate_n(data_, size_, next);
  }

 private:
  int64_t size_;
  T* data_;
};

class AttentionTileInt16Test : public testing::TestWithParam<Target> {
 protected:
  std::mt19937 generator_{1};

 private:
  const ScopedTarget target_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(AllTargets, AttentionTileInt16Test, testing::ValuesIn(SupportedTargets()),
                         [](const auto& test) { return TargetName(test.param); });

TEST_P(AttentionTileInt16Test, ProductIsExact) {
  std::uniform_int_distribution<int> wide(-32767, 32767), code(-127, 127);
  for (const int64_t rows : {1, 2, 3, 6, 7, 13, 63}) {
    for (const int64_t inner : {4, 15, 16}) {
      for (const int64_t cols : {32, 64, 96}) {
        const int64_t a_stride = 2 * inner + 6;
        Array<int16_t> a(rows * a_stride), b(inner * cols * 2);
        Array<int32_t> c(rows * cols);
        a.Fill([&] { return static_cast<int16_t>(wide(generator_)); });
        b.Fill([&] { return static_cast<int16_t>(code(generator_)); });
        MultiplyTileInt16(a.data(), a_stride, b.data(), rows, inner, cols, c.data(), cols);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t col = 0; col < cols; ++col) {
            int64_t sum = 0;
            for (int64_t i = 0; i < 2 * inner; ++i) {
              sum += int64_t{a[r * a_stride + i]} * b[(i / 2 * cols + col) * 2 + i % 2];
            }
            ASSERT_EQ(c[r * cols + col], sum) << rows << " " << inner << " " << cols;
          }
        }
      }
    }
  }
}

TEST_P(AttentionTileInt16Test, QueriesWithinHalfAStep) {
  constexpr int64_t kRows = 4, kHeadDim = 24;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::normal_distribution<float> normal(0.0f, 5.0f);
  Array<float> queries(kRows * kHeadDim), factors(16);
  Array<int16_t> codes(kRows * kHeadDim);
  queries.Fill([&] { return normal(generator_); });
  std::fill_n(queries.data() + kHeadDim, kHeadDim, 0.0f);
  queries[2 * kHeadDim + 5] = kInf;
  queries[3 * kHeadDim + 7] = std::numeric_limits<float>::quiet_NaN();
  QuantizeQueries(queries.data(), kRows, kHeadDim, 0.5f, codes.data(), factors.data());
  float largest = 0, sum = 0;
  for (int64_t d = 0; d < kHeadDim; ++d) {
    largest = std::max(largest, std::abs(queries[d]));
    sum += std::abs(queries[d]);
  }
  for (int64_t d = 0; d < kHeadDim; ++d) {
    EXPECT_NEAR(static_cast<float>(codes[d]) * factors[0], queries[d] * 0.5f,
                std::max(largest / 32767, sum / 528000) * 0.5f * 0.51f);
    EXPECT_EQ(codes[kHeadDim + d], 0);
  }
  EXPECT_TRUE(std::isfinite(factors[1]));
  EXPECT_TRUE(std::isnan(factors[2]));
  EXPECT_TRUE(std::isnan(factors[3]));
}

// The worst that can meet in one 32-bit sum: equal queries, largest codes, all of one sign.
TEST_P(AttentionTileInt16Test, NoSumOverflows) {
  for (const int64_t head_dim : {8, 64, 256}) {
    Array<float> queries(head_dim), factors(16);
    Array<int16_t> codes(head_dim), keys(head_dim * kTokens);
    Array<int32_t> products(kTokens);
    queries.Fill([] { return -3.0f; });
    keys.Fill([] { return static_cast<int16_t>(kMaxKeyCode); });
    QuantizeQueries(queries.data(), 1, head_dim, 1.0f, codes.data(), factors.data());
    for (int64_t first = 0; first < head_dim; first += kKeySumDim) {
      const int64_t n = std::min(kKeySumDim, head_dim - first);
      int64_t sum = 0;
      for (int64_t d = first; d < first + n; ++d) sum += int64_t{codes[d]} * kMaxKeyCode;
      MultiplyTileInt16(codes.data() + first, head_dim, keys.data() + first * kTokens, 1, n / 2,
                        kTokens, products.data(), kTokens);
      for (int64_t t = 0; t < kTokens; ++t) ASSERT_EQ(products[t], sum);
      EXPECT_NEAR(static_cast<double>(sum) * factors[0], -3.0 * n * kMaxKeyCode, 400.0 * n);
    }
  }
}

TEST_P(AttentionTileInt16Test, CentreScores) {
  for (const int64_t head_dim : {8, 40, 64, 256}) {
    std::normal_distribution<float> normal;
    Array<float> queries(3 * head_dim), centre(head_dim), out(16);
    queries.Fill([&] { return normal(generator_); });
    centre.Fill([&] { return normal(generator_); });
    CentreScores(queries.data(), 3, head_dim, centre.data(), 0.25f, out.data());
    for (int64_t r = 0; r < 3; ++r) {
      double sum = 0;
      for (int64_t d = 0; d < head_dim; ++d) sum += double{queries[r * head_dim + d]} * centre[d];
      EXPECT_NEAR(out[r], 0.25 * sum, 1e-5 * std::sqrt(static_cast<double>(head_dim)));
    }
  }
}

// Three blocks with borders in every place against one softmax in double.
TEST_P(AttentionTileInt16Test, SoftmaxOverBlocksEqualsReference) {
  constexpr int64_t kRows = 5, kSums = 2, kCols = 32, kBlocks = 3;
  const int32_t begin[kBlocks][kRows] = {{0, 5, 31, 10, 0}, {0, 0, 32, 32, 0}, {0, 0, 0, 31, 0}};
  const int32_t end[kBlocks][kRows] = {{32, 32, 32, 10, 0}, {32, 1, 32, 32, 0}, {3, 0, 32, 32, 0}};
  Array<float> max(16), sum(16), output(kRows * kCols), factors(16), keep(16), gain(16);
  Array<float> key_scales(kTokens), centre_scores(16), value_scales(kTokens), value_logs(kTokens);
  Array<int16_t> weights(kRows * kTokens), values(kTokens * kCols);
  Array<int32_t> scores(kRows * kSums * kTokens), products(kRows * kCols);
  max.Fill([] { return -std::numeric_limits<float>::infinity(); });
  factors.Fill([] { return 3e-4f; });
  const SoftmaxState state = {max.data(), sum.data(), output.data(), kRows, kCols, kCols};
  struct Key {
    double score;
    std::vector<double> value;
  };
  std::vector<std::vector<Key>> seen(kRows);
  std::uniform_int_distribution<int> score(-3000000, 3000000), code(-127, 127);
  std::uniform_real_distribution<float> scale(0.001f, 0.01f);
  for (int64_t b = 0; b < kBlocks; ++b) {
    scores.Fill([&] { return score(generator_); });
    values.Fill([&] { return static_cast<int16_t>(code(generator_)); });
    key_scales.Fill([&] { return scale(generator_); });
    centre_scores.Fill([&] { return 1000.0f * scale(generator_); });
    value_scales.Fill([&] { return scale(generator_); });
    for (int64_t t = 0; t < kTokens; ++t) value_logs[t] = std::log2(value_scales[t]);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t t = begin[b][r]; t < end[b][r]; ++t) {
        double s = 0;
        for (int64_t i = 0; i < kSums; ++i) {
          s += double{key_scales[t]} * scores[(r * kSums + i) * kTokens + t];
        }
        std::vector<double> value;
        for (int64_t c = 0; c < kCols; ++c) {
          value.push_back(double{value_scales[t]} * values[(t / 2 * kCols + c) * 2 + t % 2]);
        }
        seen[r].push_back({s * factors[r] + centre_scores[r], value});
      }
    }
    const Int16Block block = {.sums = kSums,
                              .key_scales = key_scales.data(),
                              .value_log2_scales = value_logs.data(),
                              .query_factors = factors.data(),
                              .centre_scores = centre_scores.data(),
                              .begin = begin[b],
                              .end = end[b],
                              .weights = weights.data(),
                              .keep = keep.data(),
                              .gain = gain.data()};
    SoftmaxInt16Block(scores.data(), block, state);
    MultiplyTileInt16(weights.data(), kTokens, values.data(), kRows, kTokens / 2, kCols,
                      products.data(), kCols);
    AddInt16Block(products.data(), block, state);
    for (int64_t r = 0; r < kRows; ++r) {
      if (seen[r].empty()) {
        EXPECT_EQ(sum[r], 0.0f);
        continue;
      }
      double top = -HUGE_VAL, true_sum = 0;  // relative to the largest score
      std::vector<double> mean(kCols);
      for (const Key& key : seen[r]) top = std::max(top, key.score);
      for (const Key& key : seen[r]) {
        const double weight = std::exp2(key.score - top);
        true_sum += weight;
        for (int64_t c = 0; c < kCols; ++c) mean[c] += weight * key.value[c];
      }
      ASSERT_NEAR(sum[r] * std::exp2(max[r] - top) / true_sum, 1.0, 5e-5) << b << " " << r;
      // Values are below 1.27. A weight is rounded to 1/65534 of the largest of its block: with 32
      // keys at random about 5e-5, and f32 scores of size 16 add 1e-6.
      for (int64_t c = 0; c < kCols; ++c) {
        ASSERT_NEAR(output[r * kCols + c] / sum[r], mean[c] / true_sum, 1e-4) << b << " " << r;
      }
    }
  }
}

}  // namespace
}  // namespace lode::kernels
