// SPDX-License-Identifier: Apache-2.0
#include "kernels/rotation.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rotation.cc"
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lode::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Rows are multiples of eight long.
using F32 = hn::CappedTag<float, 8>;
constexpr int64_t kLanes = hn::MaxLanes(F32());

// x -> x + y, y -> x - y for n numbers.
void Butterfly(float* HWY_RESTRICT x, float* HWY_RESTRICT y, int64_t n) {
  const F32 df;
  for (int64_t i = 0; i < n; i += kLanes) {
    const auto a = hn::LoadU(df, x + i), b = hn::LoadU(df, y + i);
    hn::StoreU(hn::Add(a, b), df, x + i);
    hn::StoreU(hn::Sub(a, b), df, y + i);
  }
}

#if HWY_TARGET != HWY_SCALAR
// The same inside a vector: `other` has each lane's partner, at a distance of `half` lanes.
template <int half>
HWY_INLINE hn::Vec<F32> ButterflyIn(hn::Vec<F32> x, hn::Vec<F32> other) {
  const F32 df;
  const hn::RebindToUnsigned<F32> du;
  const auto upper = hn::TestBit(hn::Iota(du, 0), hn::Set(du, half));
  return hn::IfThenElse(hn::RebindMask(df, upper), hn::Sub(other, x), hn::Add(x, other));
}

// All butterflies over less than a vector.
HWY_INLINE hn::Vec<F32> RotateIn(hn::Vec<F32> x) {
  x = ButterflyIn<1>(x, hn::Shuffle2301(x));
  x = ButterflyIn<2>(x, hn::Shuffle1032(x));
  if constexpr (kLanes == 8) x = ButterflyIn<4>(x, hn::SwapAdjacentBlocks(x));
  return x;
}
#endif

void Rotate(float* rows, int64_t num_rows, int64_t n, int64_t stride) {
  const int64_t block = n & -n;
  const F32 df;
  const auto scale = hn::Set(df, 1.0f / std::sqrt(static_cast<float>(block)));
  for (int64_t r = 0; r < num_rows; ++r) {
    float* row = rows + r * stride;
#if HWY_TARGET != HWY_SCALAR
    for (int64_t i = 0; i < n; i += kLanes) {
      hn::StoreU(RotateIn(hn::LoadU(df, row + i)), df, row + i);
    }
#endif
    for (int64_t half = kLanes; half < block; half *= 2) {
      for (int64_t i = 0; i < n; i += 2 * half) Butterfly(row + i, row + i + half, half);
    }
    for (int64_t i = 0; i < n; i += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(df, row + i), scale), df, row + i);
    }
  }
}

}  // namespace
}  // namespace lode::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lode::kernels {

HWY_EXPORT(Rotate);

void Rotate(float* rows, int64_t num_rows, int64_t n, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(Rotate)(rows, num_rows, n, stride);
}

}  // namespace lode::kernels
#endif  // HWY_ONCE
