// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention_codes.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/code_matrix.h"
#include "kernels/kv_tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_codes.cc"
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/code_matrix-inl.h"
#include "kernels/exp2-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lode::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr float kMaxWeight = 32766.0f;  // rounding may add half a unit
constexpr float kLowest = std::numeric_limits<float>::lowest();
// Adding it rounds to an integer, whose lowest 16 bits are then the lowest of the sum.
constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23

// For everything but products: tiles, heads and steps are multiples of 8.
using F32 = hn::CappedTag<float, 8>;
using I32 = hn::RebindToSigned<F32>;
using VF32 = hn::Vec<F32>;

// ---- Product

#if HWY_TARGET == HWY_SCALAR

template <int kBits>
void MultiplyCodes(const CodeProduct& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t col = 0; col < p.num_cols; ++col) {
      int32_t sum = p.accumulate ? p.c[r * p.c_stride + col] : 0;
      for (int64_t i = 0; i < 2 * p.b.pairs; ++i) {
        const int64_t lane = 2 * (p.first_col + col) + i % 2;
        sum += p.a[r * kCodeRowStride + i] *
               ScalarCode<kBits>(p.b.codes, i / 2, lane, p.b.pairs, 2 * p.b.cols);
      }
      p.c[r * p.c_stride + col] = sum;
    }
  }
}

#else

// Rows of a register block. One vector of columns is widened once for so many rows, which costs
// more than loading: widening takes as long as two of the multiplications that it feeds.
constexpr int64_t kMaxRows = 8;

// Has the compiler finish `v` here. Left to itself it adds the products of several pairs to each
// other first, runs out of registers and keeps sums in memory, which takes a third longer.
template <class V>
HWY_INLINE void Finish([[maybe_unused]] V& v) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128
  asm volatile("" : "+x"(v.raw));
#endif
}

// The products with pair kPair of a quad.
template <int kPair, int64_t kRows, class DI, class Quad>
HWY_INLINE void AddPair(DI di, const int16_t* HWY_RESTRICT a, const Quad& quad,
                        hn::Vec<DI> (&sum)[kRows], hn::Vec<DI> (&odd)[kRows]) {
  const hn::Repartition<int16_t, DI> dw;
  const auto codes = quad.template Get<kPair>();
  for (int64_t r = 0; r < kRows; ++r) {
    int32_t pair;
    __builtin_memcpy(&pair, a + r * kCodeRowStride + 2 * kPair, sizeof(pair));
    const auto x = hn::BitCast(dw, hn::Set(di, pair));
    sum[r] = hn::ReorderWidenMulAccumulate(di, x, codes, sum[r], odd[r]);
    Finish(sum[r]);
  }
}

// One register block: kRows rows from `row` on by the vector of columns from `col` on. Asks for a
// line of `ahead` per quad, and moves it on by as many bytes as it reads.
template <int kBits, int64_t kRows, class DI>
HWY_INLINE void MultiplyBlock(DI di, const CodeProduct& p, int64_t row, int64_t col,
                              const std::byte*& ahead) {
  const hn::Repartition<int16_t, DI> dw;
  constexpr int64_t kQuadBytes = static_cast<int64_t>(hn::MaxLanes(dw)) * kCodeQuad * kBits / 8;
  const int16_t* HWY_RESTRICT a = p.a + row * kCodeRowStride;
  int32_t* HWY_RESTRICT c = p.c + row * p.c_stride + col;
  const int64_t lane = 2 * (p.first_col + col);
  hn::Vec<DI> sum[kRows];
  hn::Vec<DI> odd[kRows];  // used by targets that sum even and odd products apart, else removed
  for (int64_t r = 0; r < kRows; ++r) {
    sum[r] = hn::Zero(di);
    odd[r] = hn::Zero(di);
  }
  const int64_t num_quads = p.b.pairs / kCodeQuad;
  for (int64_t q = 0; q < num_quads; ++q, a += 2 * kCodeQuad) {
    __builtin_prefetch(ahead, 0, 2);  // to L2: the L1 cache is full of what is multiplied now
    ahead += kQuadBytes;
    CodeQuad<kBits, decltype(dw)> quad;
    quad.Load(p.b.codes, q, lane, p.b.pairs, 2 * p.b.cols);
    AddPair<0, kRows>(di, a, quad, sum, odd);
    AddPair<1, kRows>(di, a, quad, sum, odd);
    AddPair<2, kRows>(di, a, quad, sum, odd);
    AddPair<3, kRows>(di, a, quad, sum, odd);
  }
  for (int64_t r = 0; r < kRows; ++r) {
    // Not as the first sum: targets that sum even and odd products apart have its lanes elsewhere.
    auto total = hn::RearrangeToOddPlusEven(sum[r], odd[r]);
    if (p.accumulate) total = hn::Add(total, hn::LoadU(di, c + r * p.c_stride));
    hn::StoreU(total, di, c + r * p.c_stride);
  }
}

template <int kBits, int64_t kRows>
HWY_INLINE void MultiplyRows(const CodeProduct& p, int64_t row) {
  const hn::CappedTag<int32_t, 16> di;
  const hn::CappedTag<int32_t, kCodeColumns> di_rest;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(di));
  // Further rows find their lines asked for.
  const std::byte* ahead = p.ahead != nullptr && row == 0 ? p.ahead : p.b.codes;
  int64_t col = 0;
  for (; col + lanes <= p.num_cols; col += lanes) {
    MultiplyBlock<kBits, kRows>(di, p, row, col, ahead);
  }
  for (; col < p.num_cols; col += static_cast<int64_t>(hn::Lanes(di_rest))) {
    MultiplyBlock<kBits, kRows>(di_rest, p, row, col, ahead);
  }
}

template <int kBits>
void MultiplyCodes(const CodeProduct& p) {
  const int64_t blocks = (p.rows + kMaxRows - 1) / kMaxRows;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t row = p.rows * block / blocks;  // blocks of about equal height
    switch (p.rows * (block + 1) / blocks - row) {
      case 1:
        MultiplyRows<kBits, 1>(p, row);
        break;
      case 2:
        MultiplyRows<kBits, 2>(p, row);
        break;
      case 3:
        MultiplyRows<kBits, 3>(p, row);
        break;
      case 4:
        MultiplyRows<kBits, 4>(p, row);
        break;
      case 5:
        MultiplyRows<kBits, 5>(p, row);
        break;
      case 6:
        MultiplyRows<kBits, 6>(p, row);
        break;
      case 7:
        MultiplyRows<kBits, 7>(p, row);
        break;
      default:
        MultiplyRows<kBits, 8>(p, row);
        break;
    }
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

void MultiplyAnyCodes(const CodeProduct& product) {
  if (product.b.bits == 8) {
    MultiplyCodes<8>(product);
  } else if (product.b.bits == 6) {
    MultiplyCodes<6>(product);
  } else {
    MultiplyCodes<4>(product);
  }
}

// ---- Queries

// round(x) for |x| <= 32767, as int16.
template <class DW>
HWY_INLINE hn::Vec<DW> RoundToInt16(DW dw, VF32 x) {
  const I32 di;
  const auto rounder = hn::Set(F32(), kRounder);
  return hn::DemoteTo(dw, hn::Sub(hn::BitCast(di, hn::Add(x, rounder)), hn::BitCast(di, rounder)));
}

void NormalizeQueries(const float* queries, int64_t rows, int64_t head_dim,
                      const float* HWY_RESTRICT scales, float scale, float* normal,
                      float* HWY_RESTRICT factors) {
  const F32 df;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  // Rounding may add half a unit; 512 products of 32767 and -128 fit 32 bits.
  const float limit = head_dim <= 512 ? 32767.0f : 16383.0f;
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = queries + r * head_dim;
    float* out = normal + r * head_dim;
    auto max = hn::Zero(df);
    auto difference = hn::Zero(df);  // x - x is NaN for NaN and infinity
    for (int64_t d = 0; d < head_dim; d += lanes) {
      const auto x = hn::Mul(hn::LoadU(df, row + d), hn::LoadU(df, scales + d));
      max = hn::Max(max, hn::Abs(x));
      difference = hn::Add(difference, hn::Sub(x, x));
    }
    const float largest = hn::GetLane(hn::MaxOfLanes(df, max));
    const float nan_or_zero = hn::GetLane(hn::SumOfLanes(df, difference));
    // Below 1e-30 the unit would lose bits; such a row's scores are 0 for any key.
    const float unit = largest > 1e-30f ? largest / limit : 1.0f;
    factors[r] = unit * scale + nan_or_zero;
    const bool valid = nan_or_zero == 0.0f;
    const auto inverse = hn::Set(df, 1.0f / unit);
    for (int64_t d = 0; d < head_dim; d += lanes) {
      const auto x = hn::Mul(hn::LoadU(df, row + d), hn::LoadU(df, scales + d));
      hn::StoreU(valid ? hn::Mul(x, inverse) : hn::Zero(df), df, out + d);
    }
  }
}

// kRows rows side by side, so that they hide each other's latencies.
template <int64_t kRows>
HWY_INLINE void TileQueryRows(const float* HWY_RESTRICT normal, int64_t head_dim,
                              const float* HWY_RESTRICT ratio, const float* HWY_RESTRICT shift,
                              int16_t* HWY_RESTRICT codes, float* HWY_RESTRICT offsets,
                              int64_t offset_stride) {
  const F32 df;
  const hn::Rebind<int16_t, F32> dw;
  VF32 sum[kRows];
  for (int64_t r = 0; r < kRows; ++r) sum[r] = hn::Zero(df);
  for (int64_t d = 0; d < head_dim; d += static_cast<int64_t>(hn::Lanes(df))) {
    const auto by = hn::LoadU(df, ratio + d);
    const auto centre = hn::LoadU(df, shift + d);
    for (int64_t r = 0; r < kRows; ++r) {
      const auto x = hn::LoadU(df, normal + r * head_dim + d);
      hn::StoreU(RoundToInt16(dw, hn::Mul(x, by)), dw, codes + r * kCodeRowStride + d);
      sum[r] = hn::MulAdd(x, centre, sum[r]);
    }
  }
  for (int64_t r = 0; r < kRows; ++r) {
    offsets[r * offset_stride] = hn::GetLane(hn::SumOfLanes(df, sum[r]));
  }
}

void TileQueries(const float* HWY_RESTRICT normal, int64_t rows, int64_t head_dim,
                 const float* HWY_RESTRICT ratio, const float* HWY_RESTRICT shift,
                 int16_t* HWY_RESTRICT codes, float* HWY_RESTRICT offsets, int64_t offset_stride) {
  for (int64_t r = 0; r < rows; r += 4) {
    const float* HWY_RESTRICT in = normal + r * head_dim;
    int16_t* HWY_RESTRICT out = codes + r * kCodeRowStride;
    float* HWY_RESTRICT sums = offsets + r * offset_stride;
    switch (std::min<int64_t>(4, rows - r)) {
      case 1:
        TileQueryRows<1>(in, head_dim, ratio, shift, out, sums, offset_stride);
        break;
      case 2:
        TileQueryRows<2>(in, head_dim, ratio, shift, out, sums, offset_stride);
        break;
      case 3:
        TileQueryRows<3>(in, head_dim, ratio, shift, out, sums, offset_stride);
        break;
      default:
        TileQueryRows<4>(in, head_dim, ratio, shift, out, sums, offset_stride);
        break;
    }
  }
}

// ---- Softmax

float NormalizeValueScales(float* scales, int64_t num_keys) {
  const F32 df;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  auto max = hn::Zero(df);
  for (int64_t i = 0; i < num_keys; i += lanes) {
    max = hn::Max(max, hn::Abs(hn::LoadU(df, scales + i)));
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(df, max));
  const float unit = largest > 0.0f ? largest / kMaxWeight : 1.0f;
  const auto inverse = hn::Set(df, 1.0f / unit);
  for (int64_t i = 0; i < num_keys; i += lanes) {
    hn::StoreU(hn::Mul(hn::LoadU(df, scales + i), inverse), df, scales + i);
  }
  return unit;
}

// Positions outside [begin, end) become -infinity.
HWY_INLINE VF32 Mask(VF32 scores, int64_t first, int32_t begin, int32_t end) {
  const F32 df;
  const auto position = hn::Iota(df, static_cast<float>(first));
  const auto inside = hn::And(hn::Ge(position, hn::Set(df, static_cast<float>(begin))),
                              hn::Lt(position, hn::Set(df, static_cast<float>(end))));
  return hn::IfThenElse(inside, scores, hn::Set(df, -std::numeric_limits<float>::infinity()));
}

// Integer sums of row r become scores; returns the largest. `scores` may be `sums`.
HWY_INLINE float ScoreRow(const int32_t* sums, const CodeStep& step, int64_t r, float* scores) {
  const F32 df;
  const I32 di;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  const auto factor = hn::Set(df, step.factors[r]);
  const float* HWY_RESTRICT offsets = step.offsets + r * kCodeStepTiles;
  auto max = hn::Set(df, -std::numeric_limits<float>::infinity());
  for (int64_t tile = 0; tile < step.num_tiles; ++tile) {
    const auto offset = hn::Set(df, offsets[tile]);
    for (int64_t i = step.tile_begin[tile]; i < step.tile_begin[tile + 1]; i += lanes) {
      const auto sum = hn::Add(hn::ConvertTo(df, hn::LoadU(di, sums + i)), offset);
      const auto score = hn::Mul(sum, factor);
      max = hn::Max(max, score);
      hn::StoreU(score, df, scores + i);
    }
  }
  return hn::GetLane(hn::MaxOfLanes(df, max));
}

// Scores of keys that row r does not attend to become -infinity; returns the largest other.
HWY_INLINE float MaskRow(const CodeStep& step, int64_t r, float* HWY_RESTRICT scores) {
  const F32 df;
  auto max = hn::Set(df, -std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < step.num_keys; i += static_cast<int64_t>(hn::Lanes(df))) {
    const auto score = Mask(hn::LoadU(df, scores + i), i, step.begin[r], step.end[r]);
    max = hn::Max(max, score);
    hn::StoreU(score, df, scores + i);
  }
  return hn::GetLane(hn::MaxOfLanes(df, max));
}

HWY_INLINE float LargestOf(const float* HWY_RESTRICT scores, int64_t n) {
  const F32 df;
  auto max = hn::Set(df, -std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::Lanes(df))) {
    max = hn::Max(max, hn::LoadU(df, scores + i));
  }
  return hn::GetLane(hn::MaxOfLanes(df, max));
}

// Scores of row r to weights, times the scales of values and rounded; returns the weights' sum.
// kGroups: of components of values, 0 for any number.
template <int64_t kGroups>
HWY_INLINE float WeightRow(const float* HWY_RESTRICT row, const CodeStep& step, float max,
                           int64_t r, int64_t rows) {
  const F32 df;
  const hn::Rebind<int16_t, F32> dw;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  const int64_t num_keys = step.num_keys;
  const int64_t num_groups = kGroups > 0 ? kGroups : step.num_groups;
  const float* HWY_RESTRICT value_scales = step.value_scales;
  // A row without keys is all -infinity: its weights must be 0, not NaN.
  const auto largest = hn::Set(df, std::max(max, kLowest));
  int16_t* HWY_RESTRICT weights = step.weights + r * kCodeRowStride;
  auto sum = hn::Zero(df);
  for (int64_t i = 0; i < num_keys; i += lanes) {
    const auto weight = Exp2(df, hn::Sub(hn::LoadU(df, row + i), largest));
    sum = hn::Add(sum, weight);
    for (int64_t g = 0; g < num_groups; ++g) {
      const auto scaled = hn::Mul(weight, hn::LoadU(df, value_scales + g * kCodeStepKeys + i));
      hn::StoreU(RoundToInt16(dw, scaled), dw, weights + g * rows * kCodeRowStride + i);
    }
  }
  return hn::GetLane(hn::SumOfLanes(df, sum));
}

// The step for all rows; largest(r) is the largest score of row r, and makes its scores ready.
template <class Largest>
HWY_INLINE void SoftmaxRows(const float* scores, const CodeStep& step, const SoftmaxState& state,
                            const Largest& largest) {
  const F32 df;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  constexpr int64_t kMaxLanes = 8;
  HWY_ALIGN float max[kMaxLanes] = {};
  HWY_ALIGN float sum[kMaxLanes] = {};
  for (int64_t first = 0; first < state.rows; first += lanes) {
    const int64_t rows = std::min(lanes, state.rows - first);
    for (int64_t r = 0; r < rows; ++r) max[r] = largest(first + r);
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = scores + (first + r) * kCodeStepKeys;
      sum[r] = step.num_groups == 1 ? WeightRow<1>(row, step, max[r], first + r, state.rows)
                                    : WeightRow<0>(row, step, max[r], first + r, state.rows);
    }
    const auto old_max = hn::LoadU(df, state.max + first);
    const auto step_max = hn::Load(df, max);
    const auto new_max = hn::Max(old_max, step_max);
    // With no key so far, both differences must be -infinity, not NaN.
    const auto base = hn::Max(new_max, hn::Set(df, kLowest));
    const auto keep = Exp2(df, hn::Sub(old_max, base));
    // The factor of a row that has no meaning is NaN and makes its sum and output so.
    const auto factor = hn::LoadU(df, step.factors + first);
    const auto gain = hn::Add(Exp2(df, hn::Sub(step_max, base)), hn::Sub(factor, factor));
    hn::StoreU(new_max, df, state.max + first);
    hn::StoreU(hn::MulAdd(hn::LoadU(df, state.sum + first), keep, hn::Mul(hn::Load(df, sum), gain)),
               df, state.sum + first);
    hn::StoreU(keep, df, step.keep + first);
    hn::StoreU(gain, df, step.gain + first);
  }
}

void SoftmaxCodes(int32_t* products, const CodeStep& step, const SoftmaxState& state) {
  float* scores = reinterpret_cast<float*>(products);  // in place
  SoftmaxRows(scores, step, state, [&](int64_t r) HWY_ATTR {
    float* row = scores + r * kCodeStepKeys;
    const float max = ScoreRow(products + r * kCodeStepKeys, step, r, row);
    return step.begin[r] > 0 || step.end[r] < step.num_keys ? MaskRow(step, r, row) : max;
  });
}

void ScoreCodes(const int32_t* products, const CodeStep& step, int64_t rows, float* out,
                int64_t out_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    ScoreRow(products + r * kCodeStepKeys, step, r, out + r * out_stride);
  }
}

void SoftmaxScores(const float* scores, const CodeStep& step, const SoftmaxState& state) {
  SoftmaxRows(scores, step, state, [&](int64_t r) HWY_ATTR {
    return LargestOf(scores + r * kCodeStepKeys, step.num_keys);
  });
}

void AddProducts(const int32_t* HWY_RESTRICT products, int64_t product_stride, const CodeStep& step,
                 float unit, int64_t first_col, int64_t num_cols, const SoftmaxState& state) {
  const F32 df;
  const I32 di;
  for (int64_t r = 0; r < state.rows; ++r) {
    const auto keep = hn::Set(df, step.keep[r]);
    const auto gain = hn::Set(df, step.gain[r] * unit);
    const int32_t* HWY_RESTRICT row = products + r * product_stride;
    float* HWY_RESTRICT output = state.output + r * state.output_stride + first_col;
    for (int64_t i = 0; i < num_cols; i += static_cast<int64_t>(hn::Lanes(df))) {
      const auto added = hn::Mul(hn::ConvertTo(df, hn::LoadU(di, row + i)), gain);
      hn::StoreU(hn::MulAdd(hn::LoadU(df, output + i), keep, added), df, output + i);
    }
  }
}

}  // namespace
}  // namespace lode::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lode::kernels {

HWY_EXPORT(MultiplyAnyCodes);
HWY_EXPORT(NormalizeQueries);
HWY_EXPORT(TileQueries);
HWY_EXPORT(NormalizeValueScales);
HWY_EXPORT(SoftmaxCodes);
HWY_EXPORT(ScoreCodes);
HWY_EXPORT(SoftmaxScores);
HWY_EXPORT(AddProducts);

void MultiplyCodes(const CodeProduct& product) {
  HWY_DYNAMIC_DISPATCH(MultiplyAnyCodes)(product);
}

void NormalizeQueries(const float* queries, int64_t rows, int64_t head_dim, const float* scales,
                      float scale, float* normal, float* factors) {
  HWY_DYNAMIC_DISPATCH(NormalizeQueries)(queries, rows, head_dim, scales, scale, normal, factors);
}

void TileQueries(const float* normal, int64_t rows, int64_t head_dim, const float* ratio,
                 const float* shift, int16_t* codes, float* offsets, int64_t offset_stride) {
  HWY_DYNAMIC_DISPATCH(TileQueries)
  (normal, rows, head_dim, ratio, shift, codes, offsets, offset_stride);
}

float NormalizeValueScales(float* scales, int64_t num_keys) {
  return HWY_DYNAMIC_DISPATCH(NormalizeValueScales)(scales, num_keys);
}

void SoftmaxCodes(int32_t* scores, const CodeStep& step, const SoftmaxState& state) {
  HWY_DYNAMIC_DISPATCH(SoftmaxCodes)(scores, step, state);
}

void ScoreCodes(const int32_t* products, const CodeStep& step, int64_t rows, float* out,
                int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(ScoreCodes)(products, step, rows, out, out_stride);
}

void SoftmaxScores(const float* scores, const CodeStep& step, const SoftmaxState& state) {
  HWY_DYNAMIC_DISPATCH(SoftmaxScores)(scores, step, state);
}

void AddProducts(const int32_t* products, int64_t product_stride, const CodeStep& step, float unit,
                 int64_t first_col, int64_t num_cols, const SoftmaxState& state) {
  HWY_DYNAMIC_DISPATCH(AddProducts)
  (products, product_stride, step, unit, first_col, num_cols, state);
}

}  // namespace lode::kernels
#endif  // HWY_ONCE
