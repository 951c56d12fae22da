// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention_tile_int16.h"

#include <algorithm>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_tile_int16.cc"
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/exp2-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lode::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that two vectors never exceed kTileColumnStep.
using F32 = hn::CappedTag<float, 16>;
using I32 = hn::RebindToSigned<F32>;
using VF32 = hn::Vec<F32>;
using VI32 = hn::Vec<I32>;

constexpr int64_t kTokens = kKvTileTokens;
constexpr float kLimit = 32767.0f;
// Rounding may add half a unit to each of kKeySumDim codes.
constexpr float kMaxCodeSum =
    static_cast<float>(std::numeric_limits<int32_t>::max() / kMaxKeyCode - kKeySumDim);
constexpr float kLog2Limit = 14.99995f;  // 2^this <= kLimit
constexpr float kLowest = std::numeric_limits<float>::lowest();

// ---- Product

#if HWY_TARGET == HWY_SCALAR

void MultiplyTileInt16(const int16_t* HWY_RESTRICT a, int64_t a_stride,
                       const int16_t* HWY_RESTRICT b, int64_t rows, int64_t inner, int64_t cols,
                       int32_t* HWY_RESTRICT c, int64_t c_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t col = 0; col < cols; ++col) {
      int32_t sum = 0;
      for (int64_t i = 0; i < inner; ++i) {
        const int16_t* pair = b + 2 * (i * cols + col);
        sum += a[r * a_stride + 2 * i] * pair[0] + a[r * a_stride + 2 * i + 1] * pair[1];
      }
      c[r * c_stride + col] = sum;
    }
  }
}

#else

constexpr int64_t kMaxRows = 6;  // as in attention_tile.cc

// One register block: kRows rows by two vectors of columns.
template <int64_t kRows>
HWY_INLINE void MultiplyBlock(const int16_t* HWY_RESTRICT a, int64_t a_stride,
                              const int16_t* HWY_RESTRICT b, int64_t b_stride, int64_t inner,
                              int32_t* HWY_RESTRICT c, int64_t c_stride) {
  const I32 di;
  const hn::Repartition<int16_t, I32> dw;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(di));
  VI32 sum0[kRows];
  VI32 sum1[kRows];
  VI32 odd0[kRows];  // used by targets that sum even and odd products apart, else removed
  VI32 odd1[kRows];
  for (int64_t r = 0; r < kRows; ++r) sum0[r] = sum1[r] = odd0[r] = odd1[r] = hn::Zero(di);
  for (int64_t i = 0; i < inner; ++i) {
    const auto b0 = hn::Load(dw, b + i * b_stride);
    const auto b1 = hn::Load(dw, b + i * b_stride + 2 * lanes);
    for (int64_t r = 0; r < kRows; ++r) {
      int32_t pair;
      __builtin_memcpy(&pair, a + r * a_stride + 2 * i, sizeof(pair));
      const auto x = hn::BitCast(dw, hn::Set(di, pair));
      sum0[r] = hn::ReorderWidenMulAccumulate(di, x, b0, sum0[r], odd0[r]);
      sum1[r] = hn::ReorderWidenMulAccumulate(di, x, b1, sum1[r], odd1[r]);
    }
  }
  for (int64_t r = 0; r < kRows; ++r) {
    hn::Store(hn::RearrangeToOddPlusEven(sum0[r], odd0[r]), di, c + r * c_stride);
    hn::Store(hn::RearrangeToOddPlusEven(sum1[r], odd1[r]), di, c + r * c_stride + lanes);
  }
}

template <int64_t kRows>
HWY_INLINE void MultiplyRows(const int16_t* HWY_RESTRICT a, int64_t a_stride,
                             const int16_t* HWY_RESTRICT b, int64_t inner, int64_t cols,
                             int32_t* HWY_RESTRICT c, int64_t c_stride) {
  const int64_t step = 2 * static_cast<int64_t>(hn::Lanes(I32()));
  for (int64_t col = 0; col < cols; col += step) {
    MultiplyBlock<kRows>(a, a_stride, b + 2 * col, 2 * cols, inner, c + col, c_stride);
  }
}

void MultiplyTileInt16(const int16_t* HWY_RESTRICT a, int64_t a_stride,
                       const int16_t* HWY_RESTRICT b, int64_t rows, int64_t inner, int64_t cols,
                       int32_t* HWY_RESTRICT c, int64_t c_stride) {
  const int64_t blocks = (rows + kMaxRows - 1) / kMaxRows;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t row = rows * block / blocks;
    const int16_t* block_a = a + row * a_stride;
    int32_t* block_c = c + row * c_stride;
    switch (rows * (block + 1) / blocks - row) {
      case 1:
        MultiplyRows<1>(block_a, a_stride, b, inner, cols, block_c, c_stride);
        break;
      case 2:
        MultiplyRows<2>(block_a, a_stride, b, inner, cols, block_c, c_stride);
        break;
      case 3:
        MultiplyRows<3>(block_a, a_stride, b, inner, cols, block_c, c_stride);
        break;
      case 4:
        MultiplyRows<4>(block_a, a_stride, b, inner, cols, block_c, c_stride);
        break;
      case 5:
        MultiplyRows<5>(block_a, a_stride, b, inner, cols, block_c, c_stride);
        break;
      default:
        MultiplyRows<6>(block_a, a_stride, b, inner, cols, block_c, c_stride);
        break;
    }
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

// ---- Queries

void QuantizeQueries(const float* HWY_RESTRICT queries, int64_t rows, int64_t head_dim, float scale,
                     int16_t* HWY_RESTRICT codes, float* HWY_RESTRICT factors) {
  const hn::CappedTag<float, kHeadDimStep> df;
  const hn::Rebind<int16_t, decltype(df)> dw;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = queries + r * head_dim;
    auto max = hn::Zero(df);
    auto difference = hn::Zero(df);  // x - x is NaN for NaN and infinity
    float largest_sum = 0.0f;        // of the magnitudes that meet in one 32-bit sum
    for (int64_t first = 0; first < head_dim; first += kKeySumDim) {
      auto sum = hn::Zero(df);
      for (int64_t d = first; d < std::min(first + kKeySumDim, head_dim); d += lanes) {
        const auto x = hn::LoadU(df, row + d);
        max = hn::Max(max, hn::Abs(x));
        sum = hn::Add(sum, hn::Abs(x));
        difference = hn::Add(difference, hn::Sub(x, x));
      }
      largest_sum = std::max(largest_sum, hn::GetLane(hn::SumOfLanes(df, sum)));
    }
    const float largest = hn::GetLane(hn::MaxOfLanes(df, max));
    const float nan_or_zero = hn::GetLane(hn::SumOfLanes(df, difference));
    // Below 1e-30 the step would lose bits; such a row's scores are 0 for any key.
    const float step =
        largest > 1e-30f ? std::max(largest / kLimit, largest_sum / kMaxCodeSum) : 1.0f;
    factors[r] = step * scale + nan_or_zero;
    const auto inverse = hn::Set(df, nan_or_zero == 0.0f ? 1.0f / step : 0.0f);
    for (int64_t d = 0; d < head_dim; d += lanes) {
      const auto code = hn::NearestInt(hn::Mul(hn::LoadU(df, row + d), inverse));
      hn::StoreU(hn::DemoteTo(dw, code), dw, codes + r * head_dim + d);
    }
  }
}

void CentreScores(const float* HWY_RESTRICT queries, int64_t rows, int64_t head_dim,
                  const float* HWY_RESTRICT centre, float scale, float* HWY_RESTRICT out) {
  const hn::CappedTag<float, kHeadDimStep> df;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  for (int64_t r = 0; r < rows; ++r) {
    const float* HWY_RESTRICT row = queries + r * head_dim;
    auto sum = hn::Zero(df);
    for (int64_t d = 0; d < head_dim; d += lanes) {
      sum = hn::MulAdd(hn::LoadU(df, row + d), hn::Load(df, centre + d), sum);
    }
    out[r] = scale * hn::GetLane(hn::SumOfLanes(df, sum));
  }
}

// ---- Softmax

// Positions outside [begin, end) become -infinity.
HWY_INLINE VF32 Mask(VF32 scores, int64_t first, int32_t begin, int32_t end) {
  const F32 df;
  const auto position = hn::Iota(df, static_cast<float>(first));
  const auto inside = hn::And(hn::Ge(position, hn::Set(df, static_cast<float>(begin))),
                              hn::Lt(position, hn::Set(df, static_cast<float>(end))));
  return hn::IfThenElse(inside, scores, hn::Set(df, -std::numeric_limits<float>::infinity()));
}

// What the weights of a block need of its values: log2 and inverse of each scale.
struct ValueScales {
  HWY_ALIGN float log2[kTokens];
  HWY_ALIGN float inverse[kTokens];
};

// kRows rows side by side, so that they hide each other's latencies: weights of a block relative to
// the row's largest (score + log2 of the value's scale), and that largest and the weights' sum.
template <int64_t kRows>
HWY_INLINE void WeightRows(const int32_t* HWY_RESTRICT scores, const Int16Block& block,
                           const ValueScales& scales, int64_t first, float* HWY_RESTRICT max_out,
                           float* HWY_RESTRICT sum_out) {
  const F32 df;
  const I32 di;
  const hn::Rebind<int16_t, I32> dw;
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(F32()));
  constexpr int64_t kVectors = kTokens / kLanes;
  const auto rounder = hn::Set(df, 12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  VF32 x[kRows][kVectors];
  VF32 max[kRows];
  for (int64_t r = 0; r < kRows; ++r) {
    const int32_t* HWY_RESTRICT row = scores + (first + r) * block.sums * kTokens;
    for (int64_t v = 0; v < kVectors; ++v) {
      x[r][v] = hn::ConvertTo(df, hn::Load(di, row + v * kLanes));
    }
    for (int64_t s = 1; s < block.sums; ++s) {
      for (int64_t v = 0; v < kVectors; ++v) {
        x[r][v] = hn::Add(x[r][v], hn::ConvertTo(df, hn::Load(di, row + s * kTokens + v * kLanes)));
      }
    }
    const auto factor = hn::Set(df, block.query_factors[first + r]);
    const int32_t begin = block.begin[first + r];
    const int32_t end = block.end[first + r];
    for (int64_t v = 0; v < kVectors; ++v) {
      x[r][v] = hn::MulAdd(hn::Mul(x[r][v], hn::Load(df, block.key_scales + v * kLanes)), factor,
                           hn::Load(df, scales.log2 + v * kLanes));
    }
    if (begin > 0 || end < kTokens) {
      for (int64_t v = 0; v < kVectors; ++v) x[r][v] = Mask(x[r][v], v * kLanes, begin, end);
    }
    max[r] = x[r][0];
    for (int64_t v = 1; v < kVectors; ++v) max[r] = hn::Max(max[r], x[r][v]);
  }
  for (int64_t r = 0; r < kRows; ++r) {
    max[r] = hn::MaxOfLanes(df, max[r]);
    // The centre is the same for all keys of the block, so the weights do not depend on it.
    max_out[r] = hn::GetLane(max[r]) + block.centre_scores[first + r] - kLog2Limit;
    // A row without keys is all -infinity: its weights must be 0, not NaN.
    max[r] = hn::Sub(hn::Max(max[r], hn::Set(df, kLowest)), hn::Set(df, kLog2Limit));
  }
  for (int64_t r = 0; r < kRows; ++r) {
    auto sum = hn::Zero(df);
    for (int64_t v = 0; v < kVectors; ++v) {
      const auto weight = Exp2(df, hn::Sub(x[r][v], max[r]));
      sum = hn::MulAdd(weight, hn::Load(df, scales.inverse + v * kLanes), sum);
      const auto code =
          hn::Sub(hn::BitCast(di, hn::Add(weight, rounder)), hn::BitCast(di, rounder));
      hn::StoreU(hn::DemoteTo(dw, code), dw, block.weights + (first + r) * kTokens + v * kLanes);
    }
    sum_out[r] = hn::GetLane(hn::SumOfLanes(df, sum));
  }
}

void SoftmaxInt16Block(const int32_t* scores, const Int16Block& block, const SoftmaxState& state) {
  const F32 df;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  ValueScales scales;
  for (int64_t t = 0; t < kTokens; t += lanes) {
    const auto log2 = hn::Load(df, block.value_log2_scales + t);
    hn::Store(log2, df, scales.log2 + t);
    hn::Store(Exp2(df, hn::Neg(log2)), df, scales.inverse + t);
  }
  constexpr int64_t kMaxLanes = 16;
  HWY_ALIGN float max[kMaxLanes] = {};
  HWY_ALIGN float sum[kMaxLanes] = {};
  for (int64_t first = 0; first < state.rows; first += lanes) {
    const int64_t rows = std::min(lanes, state.rows - first);
    int64_t r = 0;
    for (; r + 2 <= rows; r += 2) {
      WeightRows<2>(scores, block, scales, first + r, max + r, sum + r);
    }
    if (r < rows) WeightRows<1>(scores, block, scales, first + r, max + r, sum + r);
    const auto old_max = hn::LoadU(df, state.max + first);
    const auto block_max = hn::Load(df, max);
    const auto new_max = hn::Max(old_max, block_max);
    // With no key so far, both differences must be -infinity, not NaN.
    const auto base = hn::Max(new_max, hn::Set(df, kLowest));
    const auto keep = Exp2(df, hn::Sub(old_max, base));
    const auto gain = Exp2(df, hn::Sub(block_max, base));
    hn::StoreU(new_max, df, state.max + first);
    hn::StoreU(hn::MulAdd(hn::LoadU(df, state.sum + first), keep, hn::Mul(hn::Load(df, sum), gain)),
               df, state.sum + first);
    hn::StoreU(keep, df, block.keep + first);
    hn::StoreU(gain, df, block.gain + first);
  }
}

void AddInt16Block(const int32_t* HWY_RESTRICT products, const Int16Block& block,
                   const SoftmaxState& state) {
  const F32 df;
  const I32 di;
  for (int64_t r = 0; r < state.rows; ++r) {
    const auto keep = hn::Set(df, block.keep[r]);
    const auto gain = hn::Set(df, block.gain[r]);
    const int32_t* HWY_RESTRICT row = products + r * state.output_cols;
    float* HWY_RESTRICT output = state.output + r * state.output_stride;
    for (int64_t i = 0; i < state.output_cols; i += static_cast<int64_t>(hn::Lanes(df))) {
      const auto added = hn::Mul(hn::ConvertTo(df, hn::Load(di, row + i)), gain);
      hn::Store(hn::MulAdd(hn::Load(df, output + i), keep, added), df, output + i);
    }
  }
}

}  // namespace
}  // namespace lode::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lode::kernels {

HWY_EXPORT(MultiplyTileInt16);
HWY_EXPORT(QuantizeQueries);
HWY_EXPORT(CentreScores);
HWY_EXPORT(SoftmaxInt16Block);
HWY_EXPORT(AddInt16Block);

void QuantizeQueries(const float* queries, int64_t rows, int64_t head_dim, float scale,
                     int16_t* codes, float* factors) {
  HWY_DYNAMIC_DISPATCH(QuantizeQueries)(queries, rows, head_dim, scale, codes, factors);
}

void CentreScores(const float* queries, int64_t rows, int64_t head_dim, const float* centre,
                  float scale, float* out) {
  HWY_DYNAMIC_DISPATCH(CentreScores)(queries, rows, head_dim, centre, scale, out);
}

void MultiplyTileInt16(const int16_t* a, int64_t a_stride, const int16_t* b, int64_t rows,
                       int64_t inner, int64_t cols, int32_t* c, int64_t c_stride) {
  HWY_DYNAMIC_DISPATCH(MultiplyTileInt16)(a, a_stride, b, rows, inner, cols, c, c_stride);
}

void SoftmaxInt16Block(const int32_t* scores, const Int16Block& block, const SoftmaxState& state) {
  HWY_DYNAMIC_DISPATCH(SoftmaxInt16Block)(scores, block, state);
}

void AddInt16Block(const int32_t* products, const Int16Block& block, const SoftmaxState& state) {
  HWY_DYNAMIC_DISPATCH(AddInt16Block)(products, block, state);
}

}  // namespace lode::kernels
#endif  // HWY_ONCE
