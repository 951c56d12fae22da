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

// For everything but products: tiles, heads and steps are multiples of 8, and most of 16.
using F32 = hn::CappedTag<float, 8>;
using I32 = hn::RebindToSigned<F32>;
using VF32 = hn::Vec<F32>;
using Wide = hn::CappedTag<float, 16>;

// visit(tag) with the widest tag whose vectors `count`, a multiple of 8, is full of.
template <class Visit>
HWY_INLINE void WithTagFor(int64_t count, const Visit& visit) {
  if constexpr (hn::MaxLanes(Wide()) > hn::MaxLanes(F32())) {
    if (count % static_cast<int64_t>(hn::MaxLanes(Wide())) == 0) return visit(Wide());
  }
  visit(F32());
}

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

#if HWY_TARGET != HWY_AVX3_DL
// Has the compiler finish `v` here. Left to itself it adds the products of several pairs to each
// other first, runs out of registers and keeps sums in memory, which takes a third longer.
template <class V>
HWY_INLINE void Finish([[maybe_unused]] V& v) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128
  asm volatile("" : "+x"(v.raw));
#endif
}
#endif

// sum + products of neighbouring pairs; targets that sum even and odd pairs apart use `odd`, too.
template <class DI, class VW>
HWY_INLINE void AddProductsOfPairs([[maybe_unused]] DI di, VW x, VW codes, hn::Vec<DI>& sum,
                                   [[maybe_unused]] hn::Vec<DI>& odd) {
#if HWY_TARGET == HWY_AVX3_DL
  // Inline assembly for the reason that dot-inl.h gives.
  __asm__("vpdpwssd %2, %1, %0" : "+v"(sum.raw) : "v"(x.raw), "v"(codes.raw));
#else
  sum = hn::ReorderWidenMulAccumulate(di, x, codes, sum, odd);
  Finish(sum);
#endif
}

// The products with pair kPair of a quad, of kVectors vectors of columns.
template <int kPair, int64_t kRows, int64_t kVectors, class DI, class Quad>
HWY_INLINE void AddPair(DI di, const int16_t* HWY_RESTRICT a, const Quad (&quad)[kVectors],
                        hn::Vec<DI> (&sum)[kVectors][kRows], hn::Vec<DI> (&odd)[kVectors][kRows]) {
  const hn::Repartition<int16_t, DI> dw;
  hn::Vec<decltype(dw)> codes[kVectors];
  for (int64_t v = 0; v < kVectors; ++v) codes[v] = quad[v].template Get<kPair>();
  for (int64_t r = 0; r < kRows; ++r) {
    int32_t pair;
    __builtin_memcpy(&pair, a + r * kCodeRowStride + 2 * kPair, sizeof(pair));
    const auto x = hn::BitCast(dw, hn::Set(di, pair));
    for (int64_t v = 0; v < kVectors; ++v) {
      AddProductsOfPairs(di, x, codes[v], sum[v][r], odd[v][r]);
    }
  }
}

constexpr int64_t kLineBytes = 64;

// One register block: kRows rows from `row` on by kVectors vectors of columns from `col` on. Asks
// for as many bytes of `ahead` as it reads, and moves it on by these.
template <int kBits, int64_t kRows, int64_t kVectors, class DI>
HWY_INLINE void MultiplyBlock(DI di, const CodeProduct& p, int64_t row, int64_t col,
                              const std::byte*& ahead) {
  const hn::Repartition<int16_t, DI> dw;
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(di));
  constexpr int64_t kQuadBytes = 2 * kLanes * kCodeQuad * kBits / 8;
  const int16_t* HWY_RESTRICT a = p.a + row * kCodeRowStride;
  int32_t* HWY_RESTRICT c = p.c + row * p.c_stride + col;
  const int64_t lane = 2 * (p.first_col + col);
  hn::Vec<DI> sum[kVectors][kRows];
  hn::Vec<DI> odd[kVectors][kRows];  // used by targets that sum even and odd products apart
  for (int64_t v = 0; v < kVectors; ++v) {
    for (int64_t r = 0; r < kRows; ++r) {
      sum[v][r] = hn::Zero(di);
      odd[v][r] = hn::Zero(di);
    }
  }
  const int64_t num_quads = p.b.pairs / kCodeQuad;
  for (int64_t q = 0; q < num_quads; ++q, a += 2 * kCodeQuad) {
    CodeQuad<kBits, decltype(dw)> quad[kVectors];
    for (int64_t v = 0; v < kVectors; ++v) {
      // To L2: the L1 cache is full of what is multiplied now.
      for (int64_t i = 0; i < kQuadBytes; i += kLineBytes) __builtin_prefetch(ahead + i, 0, 2);
      ahead += kQuadBytes;
      quad[v].Load(p.b.codes, q, lane + 2 * v * kLanes, p.b.pairs, 2 * p.b.cols);
    }
    AddPair<0, kRows>(di, a, quad, sum, odd);
    AddPair<1, kRows>(di, a, quad, sum, odd);
    AddPair<2, kRows>(di, a, quad, sum, odd);
    AddPair<3, kRows>(di, a, quad, sum, odd);
  }
  for (int64_t v = 0; v < kVectors; ++v) {
    for (int64_t r = 0; r < kRows; ++r) {
      // Not as the first sum: targets that sum even and odd products apart have its lanes
      // elsewhere.
      auto total = hn::RearrangeToOddPlusEven(sum[v][r], odd[v][r]);
      int32_t* at = c + r * p.c_stride + v * kLanes;
      if (p.accumulate) total = hn::Add(total, hn::LoadU(di, at));
      hn::StoreU(total, di, at);
    }
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
#if HWY_TARGET == HWY_AVX3_DL
  // A sum waits five cycles for its next product and two products start in each: one vector of
  // columns has too few rows to fill them. The registers of this target have room for two.
  for (; col + 2 * lanes <= p.num_cols; col += 2 * lanes) {
    MultiplyBlock<kBits, kRows, 2>(di, p, row, col, ahead);
  }
#endif
  for (; col + lanes <= p.num_cols; col += lanes) {
    MultiplyBlock<kBits, kRows, 1>(di, p, row, col, ahead);
  }
  for (; col < p.num_cols; col += static_cast<int64_t>(hn::Lanes(di_rest))) {
    MultiplyBlock<kBits, kRows, 1>(di_rest, p, row, col, ahead);
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
template <class DW, class V>
HWY_INLINE hn::Vec<DW> RoundToInt16(DW dw, V x) {
  const hn::DFromV<V> df;
  const hn::RebindToSigned<decltype(df)> di;
  const auto rounder = hn::Set(df, kRounder);
  return hn::DemoteTo(dw, hn::Sub(hn::BitCast(di, hn::Add(x, rounder)), hn::BitCast(di, rounder)));
}

void NormalizeQueries(const float* queries, int64_t rows, int64_t head_dim,
                      const float* HWY_RESTRICT scales, float scale, const NormalQueries& out) {
  const F32 df;
  const hn::Rebind<int16_t, F32> dw;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  // Rounding may add half a unit; 512 products of 32767 and -128 fit 32 bits.
  const float limit = head_dim <= 512 ? 32767.0f : 16383.0f;
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = queries + r * head_dim;
    float* normal = out.normal + r * head_dim;
    int16_t* HWY_RESTRICT rounded = out.rounded + r * head_dim;
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
    out.factors[r] = unit * scale + nan_or_zero;
    const bool valid = nan_or_zero == 0.0f;
    const auto inverse = hn::Set(df, 1.0f / unit);
    for (int64_t d = 0; d < head_dim; d += lanes) {
      const auto x = hn::Mul(hn::LoadU(df, row + d), hn::LoadU(df, scales + d));
      const auto multiple = valid ? hn::Mul(x, inverse) : hn::Zero(df);
      hn::StoreU(multiple, df, normal + d);
      hn::StoreU(RoundToInt16(dw, multiple), dw, rounded + d);
    }
  }
}

// offsets[r] = sum_d normal * shift, of kRows rows side by side, which hide each other's latencies.
template <class DF, int64_t kRows>
HWY_INLINE void OffsetRows(DF df, const float* HWY_RESTRICT normal, int64_t head_dim,
                           const float* HWY_RESTRICT shift, float* HWY_RESTRICT offsets,
                           int64_t offset_stride) {
  hn::Vec<DF> sum[kRows];
  for (int64_t r = 0; r < kRows; ++r) sum[r] = hn::Zero(df);
  for (int64_t d = 0; d < head_dim; d += static_cast<int64_t>(hn::Lanes(df))) {
    const auto centre = hn::LoadU(df, shift + d);
    for (int64_t r = 0; r < kRows; ++r) {
      sum[r] = hn::MulAdd(hn::LoadU(df, normal + r * head_dim + d), centre, sum[r]);
    }
  }
  for (int64_t r = 0; r < kRows; ++r) {
    offsets[r * offset_stride] = hn::GetLane(hn::SumOfLanes(df, sum[r]));
  }
}

template <class DF>
HWY_INLINE void Offsets(DF df, const float* HWY_RESTRICT normal, int64_t rows, int64_t head_dim,
                        const float* HWY_RESTRICT shift, float* HWY_RESTRICT offsets,
                        int64_t offset_stride) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    OffsetRows<DF, 4>(df, normal + r * head_dim, head_dim, shift, offsets + r * offset_stride,
                      offset_stride);
  }
  for (; r < rows; ++r) {
    OffsetRows<DF, 1>(df, normal + r * head_dim, head_dim, shift, offsets + r * offset_stride,
                      offset_stride);
  }
}

void TileQueries(const NormalQueries& queries, int64_t rows, int64_t head_dim,
                 const int16_t* HWY_RESTRICT ratio, const float* HWY_RESTRICT shift,
                 int16_t* HWY_RESTRICT codes, float* HWY_RESTRICT offsets, int64_t offset_stride) {
  const hn::CappedTag<int16_t, 32> dw;
  const hn::CappedTag<int16_t, 8> dw_rest;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(dw));
  const int64_t full = head_dim / lanes * lanes;
  const auto scale_columns = [&](auto tag, int64_t d) HWY_ATTR {
    const auto by = hn::LoadU(tag, ratio + d);
    for (int64_t r = 0; r < rows; ++r) {
      const auto x = hn::LoadU(tag, queries.rounded + r * head_dim + d);
      hn::StoreU(hn::MulFixedPoint15(x, by), tag, codes + r * kCodeRowStride + d);
    }
  };
  for (int64_t d = 0; d < full; d += lanes) scale_columns(dw, d);
  for (int64_t d = full; d < head_dim; d += static_cast<int64_t>(hn::Lanes(dw_rest))) {
    scale_columns(dw_rest, d);
  }
  WithTagFor(head_dim, [&](auto df) HWY_ATTR {
    Offsets(df, queries.normal, rows, head_dim, shift, offsets, offset_stride);
  });
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
template <class DF>
HWY_INLINE hn::Vec<DF> Mask(DF df, hn::Vec<DF> scores, int64_t first, int32_t begin, int32_t end) {
  const auto position = hn::Iota(df, static_cast<float>(first));
  const auto inside = hn::And(hn::Ge(position, hn::Set(df, static_cast<float>(begin))),
                              hn::Lt(position, hn::Set(df, static_cast<float>(end))));
  return hn::IfThenElse(inside, scores, hn::Set(df, -std::numeric_limits<float>::infinity()));
}

// Integer sums of row r become scores; returns the largest. `scores` may be `sums`.
template <class DF>
HWY_INLINE float ScoreRow(DF df, const int32_t* sums, const CodeStep& step, int64_t r,
                          float* scores) {
  const hn::RebindToSigned<DF> di;
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
    const auto score = Mask(df, hn::LoadU(df, scores + i), i, step.begin[r], step.end[r]);
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
template <int64_t kGroups, class DF>
HWY_INLINE float WeightRow(DF df, const float* HWY_RESTRICT row, const CodeStep& step, float max,
                           int64_t r, int64_t rows) {
  const hn::Rebind<int16_t, DF> dw;
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
// `wide` is for keys.
template <class DF, class Largest>
HWY_INLINE void SoftmaxRows(DF wide, const float* scores, const CodeStep& step,
                            const SoftmaxState& state, const Largest& largest) {
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
      sum[r] = step.num_groups == 1 ? WeightRow<1>(wide, row, step, max[r], first + r, state.rows)
                                    : WeightRow<0>(wide, row, step, max[r], first + r, state.rows);
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

// Borders of tiles, or'ed together: a multiple of what all of them are multiples of.
HWY_INLINE int64_t TileBorders(const CodeStep& step) {
  int64_t borders = 0;
  for (int64_t i = 1; i <= step.num_tiles; ++i) borders |= step.tile_begin[i];
  return borders;
}

void SoftmaxCodes(int32_t* products, const CodeStep& step, const SoftmaxState& state) {
  float* scores = reinterpret_cast<float*>(products);  // in place
  WithTagFor(TileBorders(step), [&](auto df) HWY_ATTR {
    SoftmaxRows(df, scores, step, state, [&](int64_t r) HWY_ATTR {
      float* row = scores + r * kCodeStepKeys;
      const float max = ScoreRow(df, products + r * kCodeStepKeys, step, r, row);
      return step.begin[r] > 0 || step.end[r] < step.num_keys ? MaskRow(step, r, row) : max;
    });
  });
}

void ScoreCodes(const int32_t* products, const CodeStep& step, int64_t rows, float* out,
                int64_t out_stride) {
  WithTagFor(TileBorders(step), [&](auto df) HWY_ATTR {
    for (int64_t r = 0; r < rows; ++r) {
      ScoreRow(df, products + r * kCodeStepKeys, step, r, out + r * out_stride);
    }
  });
}

void SoftmaxScores(const float* scores, const CodeStep& step, const SoftmaxState& state) {
  WithTagFor(step.num_keys, [&](auto df) HWY_ATTR {
    SoftmaxRows(df, scores, step, state, [&](int64_t r) HWY_ATTR {
      return LargestOf(scores + r * kCodeStepKeys, step.num_keys);
    });
  });
}

void AddProducts(const int32_t* HWY_RESTRICT products, int64_t product_stride, const CodeStep& step,
                 float unit, int64_t first_col, int64_t num_cols, const SoftmaxState& state) {
  WithTagFor(num_cols, [&](auto df) HWY_ATTR {
    const hn::RebindToSigned<decltype(df)> di;
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
  });
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
                      float scale, const NormalQueries& out) {
  HWY_DYNAMIC_DISPATCH(NormalizeQueries)(queries, rows, head_dim, scales, scale, out);
}

void TileQueries(const NormalQueries& queries, int64_t rows, int64_t head_dim, const int16_t* ratio,
                 const float* shift, int16_t* codes, float* offsets, int64_t offset_stride) {
  HWY_DYNAMIC_DISPATCH(TileQueries)
  (queries, rows, head_dim, ratio, shift, codes, offsets, offset_stride);
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
