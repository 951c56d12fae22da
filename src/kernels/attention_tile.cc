// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention_tile.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_tile.cc"
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/exp2-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lode::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that two vectors never exceed kTileColumnStep.
using F32 = hn::CappedTag<float, 16>;
using VF32 = hn::Vec<F32>;

// Rows of a register block. Six rows of two vectors leave room for two of b and one of a in the 16
// registers of AVX2.
constexpr int64_t kMaxRows = 6;

// One register block: kRows rows by two vectors of columns.
template <int64_t kRows>
HWY_INLINE void MultiplyBlock(const float* HWY_RESTRICT a, int64_t a_stride,
                              const float* HWY_RESTRICT b, int64_t b_stride, int64_t inner,
                              bool accumulate, float* HWY_RESTRICT c, int64_t c_stride) {
  const F32 df;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  VF32 sum0[kRows];
  VF32 sum1[kRows];
  for (int64_t r = 0; r < kRows; ++r) {
    sum0[r] = accumulate ? hn::Load(df, c + r * c_stride) : hn::Zero(df);
    sum1[r] = accumulate ? hn::Load(df, c + r * c_stride + lanes) : hn::Zero(df);
  }
  for (int64_t i = 0; i < inner; ++i) {
    const auto b0 = hn::Load(df, b + i * b_stride);
    const auto b1 = hn::Load(df, b + i * b_stride + lanes);
    for (int64_t r = 0; r < kRows; ++r) {
      const auto x = hn::Set(df, a[r * a_stride + i]);
      sum0[r] = hn::MulAdd(x, b0, sum0[r]);
      sum1[r] = hn::MulAdd(x, b1, sum1[r]);
    }
  }
  for (int64_t r = 0; r < kRows; ++r) {
    hn::Store(sum0[r], df, c + r * c_stride);
    hn::Store(sum1[r], df, c + r * c_stride + lanes);
  }
}

template <int64_t kRows>
HWY_INLINE void MultiplyRows(const float* HWY_RESTRICT a, int64_t a_stride,
                             const float* HWY_RESTRICT b, int64_t inner, int64_t cols,
                             bool accumulate, float* HWY_RESTRICT c, int64_t c_stride) {
  const int64_t step = 2 * static_cast<int64_t>(hn::Lanes(F32()));
  for (int64_t col = 0; col < cols; col += step) {
    MultiplyBlock<kRows>(a, a_stride, b + col, cols, inner, accumulate, c + col, c_stride);
  }
}

void MultiplyTile(const float* HWY_RESTRICT a, int64_t a_stride, const float* HWY_RESTRICT b,
                  int64_t rows, int64_t inner, int64_t cols, bool accumulate, float* HWY_RESTRICT c,
                  int64_t c_stride) {
  // Blocks of about equal height: a last block of one row would wait for its own sums.
  const int64_t blocks = (rows + kMaxRows - 1) / kMaxRows;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t row = rows * block / blocks;
    const float* block_a = a + row * a_stride;
    float* block_c = c + row * c_stride;
    switch (rows * (block + 1) / blocks - row) {
      case 1:
        MultiplyRows<1>(block_a, a_stride, b, inner, cols, accumulate, block_c, c_stride);
        break;
      case 2:
        MultiplyRows<2>(block_a, a_stride, b, inner, cols, accumulate, block_c, c_stride);
        break;
      case 3:
        MultiplyRows<3>(block_a, a_stride, b, inner, cols, accumulate, block_c, c_stride);
        break;
      case 4:
        MultiplyRows<4>(block_a, a_stride, b, inner, cols, accumulate, block_c, c_stride);
        break;
      case 5:
        MultiplyRows<5>(block_a, a_stride, b, inner, cols, accumulate, block_c, c_stride);
        break;
      default:
        MultiplyRows<6>(block_a, a_stride, b, inner, cols, accumulate, block_c, c_stride);
        break;
    }
  }
}

// Scores outside [begin, end) become -infinity.
void MaskRow(float* scores, int64_t cols, int64_t begin, int64_t end) {
  std::fill(scores, scores + begin, -std::numeric_limits<float>::infinity());
  std::fill(scores + end, scores + cols, -std::numeric_limits<float>::infinity());
}

float MaxOfRow(const float* scores, int64_t cols) {
  const F32 df;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  auto max0 = hn::Load(df, scores);
  auto max1 = hn::Load(df, scores + lanes);
  for (int64_t i = 2 * lanes; i < cols; i += 2 * lanes) {
    max0 = hn::Max(max0, hn::Load(df, scores + i));
    max1 = hn::Max(max1, hn::Load(df, scores + i + lanes));
  }
  return hn::GetLane(hn::MaxOfLanes(df, hn::Max(max0, max1)));
}

// Scores become 2^(score - max); returns their sum.
float WeightRow(float* scores, int64_t cols, float max) {
  const F32 df;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  const auto max_vector = hn::Set(df, max);
  auto sum0 = hn::Zero(df);
  auto sum1 = hn::Zero(df);
  for (int64_t i = 0; i < cols; i += 2 * lanes) {
    const auto w0 = Exp2(df, hn::Sub(hn::Load(df, scores + i), max_vector));
    const auto w1 = Exp2(df, hn::Sub(hn::Load(df, scores + i + lanes), max_vector));
    hn::Store(w0, df, scores + i);
    hn::Store(w1, df, scores + i + lanes);
    sum0 = hn::Add(sum0, w0);
    sum1 = hn::Add(sum1, w1);
  }
  return hn::GetLane(hn::SumOfLanes(df, hn::Add(sum0, sum1)));
}

void ScaleRow(float* row, int64_t cols, float factor) {
  const F32 df;
  const auto factor_vector = hn::Set(df, factor);
  for (int64_t i = 0; i < cols; i += static_cast<int64_t>(hn::Lanes(df))) {
    hn::Store(hn::Mul(hn::Load(df, row + i), factor_vector), df, row + i);
  }
}

void SoftmaxTile(float* scores, int64_t score_stride, int64_t cols, const int32_t* begin,
                 const int32_t* end, const SoftmaxState& state) {
  for (int64_t r = 0; r < state.rows; ++r) {
    float* row = scores + r * score_stride;
    if (begin[r] >= end[r]) {
      std::fill(row, row + cols, 0.0f);
      continue;
    }
    if (begin[r] > 0 || end[r] < cols) MaskRow(row, cols, begin[r], end[r]);
    const float tile_max = MaxOfRow(row, cols);
    if (tile_max > state.max[r]) {
      const float factor = std::exp2(state.max[r] - tile_max);  // 0 for the first keys
      state.sum[r] *= factor;
      ScaleRow(state.output + r * state.output_stride, state.output_cols, factor);
      state.max[r] = tile_max;
    }
    state.sum[r] += WeightRow(row, cols, state.max[r]);
  }
}

}  // namespace
}  // namespace lode::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lode::kernels {

HWY_EXPORT(MultiplyTile);
HWY_EXPORT(SoftmaxTile);

void MultiplyTile(const float* a, int64_t a_stride, const float* b, int64_t rows, int64_t inner,
                  int64_t cols, bool accumulate, float* c, int64_t c_stride) {
  HWY_DYNAMIC_DISPATCH(MultiplyTile)
  (a, a_stride, b, rows, inner, cols, accumulate, c, c_stride);
}

void SoftmaxTile(float* scores, int64_t score_stride, int64_t cols, const int32_t* begin,
                 const int32_t* end, const SoftmaxState& state) {
  HWY_DYNAMIC_DISPATCH(SoftmaxTile)(scores, score_stride, cols, begin, end, state);
}

}  // namespace lode::kernels
#endif  // HWY_ONCE
