// SPDX-License-Identifier: Apache-2.0
// 2^x in f32 for the softmax kernels, per Highway target: include after hwy/highway.h, inside every
// target's pass (no include guard by design, see the toggle).
#if defined(LODE_KERNELS_EXP2_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LODE_KERNELS_EXP2_INL_H_
#undef LODE_KERNELS_EXP2_INL_H_
#else
#define LODE_KERNELS_EXP2_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lode::kernels::HWY_NAMESPACE {

// 2^x for x <= 127, exactly 0 below -126.5; x may be -infinity. Relative error below 2.5e-7.
//
// x = n + f with |f| <= 1/2: adding `shift` rounds x to an integer and leaves n + 127, the biased
// exponent of 2^n, in the low bits (0 for n = -127, which makes the factor 0). 2^f is a minimax
// polynomial with 2^0 = 1 exactly.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V Exp2(D df, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RebindToUnsigned<D> du;
  const auto shift = hn::Set(df, 12582912.0f + 127.0f);  // 1.5 * 2^23 + bias
  const auto clamped = hn::Max(x, hn::Set(df, -127.0f));
  const auto shifted = hn::Add(clamped, shift);
  const auto f = hn::Sub(clamped, hn::Sub(shifted, shift));
  auto p = hn::Set(df, 0.00132647273f);
  p = hn::MulAdd(p, f, hn::Set(df, 0.00967151299f));
  p = hn::MulAdd(p, f, hn::Set(df, 0.0555073358f));
  p = hn::MulAdd(p, f, hn::Set(df, 0.240222424f));
  p = hn::MulAdd(p, f, hn::Set(df, 0.693147004f));
  p = hn::MulAdd(p, f, hn::Set(df, 1.0f));
  const auto power = hn::BitCast(df, hn::ShiftLeft<23>(hn::BitCast(du, shifted)));
  return hn::Mul(p, power);
}

}  // namespace lode::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
