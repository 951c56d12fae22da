// SPDX-License-Identifier: Apache-2.0
#include "kernels/softmax.h"

#include <cmath>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/softmax.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "kernels/exp-inl.h"
#include "kernels/exp2-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lode::kernels {
namespace HWY_NAMESPACE {

constexpr int64_t kPartials = 32;
constexpr size_t kLanes = hn::MaxLanes(DExp());
constexpr size_t kVectors = kPartials / kLanes;

float Maximum(const float* x, int64_t n) {
  const DExp df;
  VExp max = hn::Set(df, -std::numeric_limits<float>::infinity());
  int64_t i = 0;
  for (; i + static_cast<int64_t>(kLanes) <= n; i += static_cast<int64_t>(kLanes)) {
    max = hn::Max(max, hn::LoadU(df, x + i));
  }
  float result = hn::GetLane(hn::MaxOfLanes(df, max));
  for (; i < n; ++i) result = result < x[i] ? x[i] : result;
  return result;
}

// x[i] = exp(x[i] - max) for 32 entries, added to the partial sums.
HWY_INLINE void ExpAndSum(float* x, VExp max, VExp (&sums)[kVectors]) {
  const DExp df;
  for (size_t v = 0; v < kVectors; ++v) {
    const VExp e = Exp(hn::Sub(hn::LoadU(df, x + v * kLanes), max));
    hn::StoreU(e, df, x + v * kLanes);
    sums[v] = hn::Add(sums[v], e);
  }
}

void SoftmaxInPlace(float* x, int64_t n) {
  const DExp df;
  const VExp max = hn::Set(df, Maximum(x, n));
  VExp sums[kVectors];
  for (VExp& sum : sums) sum = hn::Zero(df);
  int64_t i = 0;
  for (; i + kPartials <= n; i += kPartials) ExpAndSum(x + i, max, sums);
  if (i < n) {
    HWY_ALIGN float rest[kPartials];
    for (float& r : rest) r = -std::numeric_limits<float>::infinity();
    const size_t bytes = static_cast<size_t>(n - i) * sizeof(float);
    std::memcpy(rest, x + i, bytes);
    ExpAndSum(rest, max, sums);
    std::memcpy(x + i, rest, bytes);
  }
  HWY_ALIGN float partial[kPartials];
  for (size_t v = 0; v < kVectors; ++v) hn::Store(sums[v], df, partial + v * kLanes);
  for (int64_t width = kPartials / 2; width > 0; width /= 2) {
    for (int64_t k = 0; k < width; ++k) partial[k] += partial[k + width];
  }
  const float scale = 1.0f / partial[0];
  for (i = 0; i < n; ++i) x[i] *= scale;
}

using F32 = hn::CappedTag<float, 16>;

float LogSumExp2(const float* HWY_RESTRICT x, int64_t n) {
  const F32 df;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  auto max = hn::Set(df, std::numeric_limits<float>::lowest());
  for (int64_t i = 0; i < n; i += lanes) max = hn::Max(max, hn::LoadU(df, x + i));
  const float largest = hn::GetLane(hn::MaxOfLanes(df, max));
  auto sum = hn::Zero(df);
  for (int64_t i = 0; i < n; i += lanes) {
    sum = hn::Add(sum, Exp2(df, hn::Sub(hn::LoadU(df, x + i), hn::Set(df, largest))));
  }
  return largest + std::log2(hn::GetLane(hn::SumOfLanes(df, sum)));
}

void AddShares(const float* HWY_RESTRICT x, int64_t n, float log_sum, float* HWY_RESTRICT shares,
               float* HWY_RESTRICT squares) {
  const F32 df;
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::Lanes(df))) {
    const auto share = Exp2(df, hn::Sub(hn::LoadU(df, x + i), hn::Set(df, log_sum)));
    hn::StoreU(hn::Add(hn::LoadU(df, shares + i), share), df, shares + i);
    hn::StoreU(hn::MulAdd(share, share, hn::LoadU(df, squares + i)), df, squares + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lode::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lode::kernels {

HWY_EXPORT(SoftmaxInPlace);
void Softmax(float* x, int64_t n) {
  HWY_DYNAMIC_DISPATCH(SoftmaxInPlace)(x, n);
}

HWY_EXPORT(LogSumExp2);
float LogSumExp2(const float* x, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(LogSumExp2)(x, n);
}

HWY_EXPORT(AddShares);
void AddShares(const float* x, int64_t n, float log_sum, float* shares, float* squares) {
  HWY_DYNAMIC_DISPATCH(AddShares)(x, n, log_sum, shares, squares);
}

}  // namespace lode::kernels
#endif  // HWY_ONCE
