// SPDX-License-Identifier: Apache-2.0
#include "kernels/norm.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lode::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kPartials = 32;  // a whole number of vectors on every target
using DF = hn::CappedTag<float, 16>;
constexpr size_t kLanes = hn::MaxLanes(DF());
constexpr size_t kVectors = kPartials / kLanes;

float SumOfSquares(const float* x, int64_t n) {
  const DF df;
  hn::Vec<DF> sums[kVectors];
  for (auto& sum : sums) sum = hn::Zero(df);
  int64_t i = 0;
  for (; i + kPartials <= n; i += kPartials) {
    for (size_t v = 0; v < kVectors; ++v) {
      const auto value = hn::LoadU(df, x + i + v * kLanes);
      sums[v] = hn::MulAdd(value, value, sums[v]);
    }
  }
  HWY_ALIGN float partial[kPartials];
  for (size_t v = 0; v < kVectors; ++v) hn::Store(sums[v], df, partial + v * kLanes);
  for (int64_t k = 0; i + k < n; ++k) partial[k] += x[i + k] * x[i + k];
  for (int64_t width = kPartials / 2; width > 0; width /= 2) {
    for (int64_t k = 0; k < width; ++k) partial[k] += partial[k + width];
  }
  return partial[0];
}

void Normalise(const float* x, const float* weight, int64_t n, float epsilon, float* out) {
  const DF df;
  const float mean = SumOfSquares(x, n) / static_cast<float>(n);
  const float scale = 1.0f / std::sqrt(mean + epsilon);
  const auto scales = hn::Set(df, scale);
  int64_t i = 0;
  for (; i + static_cast<int64_t>(kLanes) <= n; i += static_cast<int64_t>(kLanes)) {
    const auto scaled = hn::Mul(hn::LoadU(df, x + i), scales);
    hn::StoreU(hn::Mul(scaled, hn::LoadU(df, weight + i)), df, out + i);
  }
  for (; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

}  // namespace HWY_NAMESPACE
}  // namespace lode::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lode::kernels {

HWY_EXPORT(Normalise);
void RmsNorm(const float* x, const float* weight, int64_t n, float epsilon, float* out) {
  HWY_DYNAMIC_DISPATCH(Normalise)(x, weight, n, epsilon, out);
}

}  // namespace lode::kernels
#endif  // HWY_ONCE
