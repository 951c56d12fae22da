// SPDX-License-Identifier: Apache-2.0
// Prepares activations: f32 rows are copied, int8 rows are quantised in blocks of 32 columns
// (ActivationBlock) with outliers apart, equal to ReferencePrepareActivations bit for bit on every
// target.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/packed_layout.h"
#include "kernels/reference.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activations.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lode::kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

void QuantiseRow(const float* x, int64_t cols, std::byte* out) {
  ReferencePrepareActivations(DType::kQ8_0, ActivationType::kInt8, x, cols, out);
}

#else

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;
constexpr size_t kLanes = hn::MaxLanes(DF());
constexpr size_t kVectors = kBlockCols / kLanes;
using DPairs = hn::FixedTag<int16_t, 8>;

// The largest magnitude; NaN if any value is NaN. Bits of |x| order like the values, NaN last.
HWY_INLINE float MaxMagnitude(const VF (&x)[kVectors]) {
  const DF df;
  const hn::RebindToSigned<DF> di;
  auto max = hn::BitCast(di, hn::Abs(x[0]));
  for (size_t v = 1; v < kVectors; ++v) max = hn::Max(max, hn::BitCast(di, hn::Abs(x[v])));
  return hn::GetLane(hn::BitCast(df, hn::MaxOfLanes(di, max)));
}

// Lane 0: sums over 16 columns c of those with c % 4 < 2; lane 1: of the others.
HWY_INLINE hn::Vec<DPairs> PairSums(const int8_t* q) {
  const DPairs d16;
  const hn::Repartition<int32_t, DPairs> d32;
  const auto bytes = hn::BitCast(d16, hn::LoadU(hn::Repartition<int8_t, DPairs>(), q));
  const auto pairs = hn::Add(hn::ShiftRight<8>(hn::ShiftLeft<8>(bytes)), hn::ShiftRight<8>(bytes));
  const auto half = hn::Add(pairs, hn::BitCast(d16, hn::Shuffle1032(hn::BitCast(d32, pairs))));
  return hn::Add(half, hn::BitCast(d16, hn::Shuffle2301(hn::BitCast(d32, half))));
}

HWY_INLINE void StorePair(hn::Vec<DPairs> sums, int16_t* out) {
  const int32_t both = hn::GetLane(hn::BitCast(hn::Repartition<int32_t, DPairs>(), sums));
  std::memcpy(out, &both, sizeof(both));
}

// Sum of the squares of a row, in 16 partial sums whatever the vectors.
HWY_INLINE float SumOfSquares(const float* x, int64_t cols) {
  const DF df;
  VF partial[kVectors / 2];
  for (VF& sums : partial) sums = hn::Zero(df);
  for (int64_t c = 0; c < cols; c += 16) {
    for (size_t v = 0; v < kVectors / 2; ++v) {
      const VF values = hn::LoadU(df, x + c + v * kLanes);
      partial[v] = hn::Add(partial[v], hn::Mul(values, values));
    }
  }
  float lanes[16];
  for (size_t v = 0; v < kVectors / 2; ++v) hn::StoreU(partial[v], df, lanes + v * kLanes);
  float sum = 0;
  for (float lane : lanes) sum += lane;
  return sum;
}

HWY_INLINE void LoadBlock(const float* x, VF (&values)[kVectors]) {
  for (size_t v = 0; v < kVectors; ++v) values[v] = hn::LoadU(DF(), x + v * kLanes);
}

// Moves values above the threshold to the outliers and leaves zeros.
HWY_NOINLINE void TakeOutliers(const float* x, float threshold, int64_t first_column,
                               OutlierWriter& outliers, VF (&values)[kVectors]) {
  float rest[kBlockCols];
  for (int64_t i = 0; i < kBlockCols; ++i) {
    const bool is_outlier = std::fabs(x[i]) > threshold && outliers.Add(first_column + i, x[i]);
    rest[i] = is_outlier ? 0.0f : x[i];
  }
  LoadBlock(rest, values);
}

HWY_INLINE void QuantiseBlock(const float* x, float threshold, int64_t first_column,
                              OutlierWriter& outliers, ActivationBlock* out) {
  const DF df;
  VF values[kVectors];
  LoadBlock(x, values);
  float max = MaxMagnitude(values);
  if (HWY_UNLIKELY(max > threshold)) {
    TakeOutliers(x, threshold, first_column, outliers, values);
    max = MaxMagnitude(values);
  }
  const bool tiny = max < 1e-30f;  // the inverse would overflow
  const VF inverse = hn::Set(df, tiny ? 0.0f : 127.0f / max);
  for (size_t v = 0; v < kVectors; ++v) {
    const auto q = hn::NearestInt(hn::Mul(values[v], inverse));
    const hn::Rebind<int8_t, DF> d8;
    hn::StoreU(hn::DemoteTo(d8, q), d8, out->q + v * kLanes);
  }
  const auto low = PairSums(out->q), high = PairSums(out->q + 16);
  const auto all = hn::Add(low, high);
  StorePair(hn::Neg(hn::ShiftLeft<5>(low)), out->correction32[0]);
  StorePair(hn::Neg(hn::ShiftLeft<5>(high)), out->correction32[1]);
  StorePair(hn::Neg(hn::ShiftLeft<4>(all)), out->correction16);
  int16_t sums[2];
  StorePair(all, sums);
  out->d = tiny ? 0.0f : max / 127.0f;
  out->d_sum = out->d * static_cast<float>(sums[0] + sums[1]);
}

void QuantiseRow(const float* x, int64_t cols, std::byte* out) {
  const float threshold = OutlierThreshold(SumOfSquares(x, cols), cols);
  OutlierWriter outliers(out, cols);
  auto* blocks = reinterpret_cast<ActivationBlock*>(out);
  for (int64_t c = 0; c < cols; c += kBlockCols) {
    QuantiseBlock(x + c, threshold, c, outliers, blocks + c / kBlockCols);
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace lode::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lode::kernels {

HWY_EXPORT(QuantiseRow);

void PrepareActivations(DType packed_type, ActivationType type, const float* x, int64_t x_stride,
                        int64_t num_tokens, int64_t cols, std::byte* out) {
  const int64_t row_bytes = ActivationRowBytes(packed_type, type, cols);
  const bool f32 = type == ActivationType::kF32 || IsFloatType(packed_type);
  const auto quantise = HWY_DYNAMIC_DISPATCH(QuantiseRow);
  for (int64_t t = 0; t < num_tokens; ++t, x += x_stride, out += row_bytes) {
    if (f32) {
      std::memcpy(out, x, static_cast<size_t>(cols) * sizeof(float));
    } else {
      quantise(x, cols, out);
    }
  }
}

}  // namespace lode::kernels
#endif  // HWY_ONCE
