// SPDX-License-Identifier: Apache-2.0
// exp for the elementwise kernels, on every Highway target; included inside foreach_target.
#if defined(LODE_KERNELS_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LODE_KERNELS_EXP_INL_H_
#undef LODE_KERNELS_EXP_INL_H_
#else
#define LODE_KERNELS_EXP_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lode::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that a constant number of vectors make 32 lanes on every target.
using DExp = hn::CappedTag<float, 16>;
using VExp = hn::Vec<DExp>;

// e^x within 2 ulp (elementwise_test): x = n ln 2 + r with |r| <= ln 2 / 2, then the polynomial of
// Cephes' expf. 0 below -104, infinity above 89; NaN stays NaN.
HWY_INLINE VExp Exp(VExp x) {
  const DExp df;
  const hn::RebindToSigned<DExp> di;
  const VExp clamped = hn::Max(hn::Min(x, hn::Set(df, 89.0f)), hn::Set(df, -104.0f));
  const VExp n = hn::Round(hn::Mul(clamped, hn::Set(df, 1.44269504088896341f)));
  VExp r = hn::NegMulAdd(n, hn::Set(df, 0.693359375f), clamped);  // ln 2 in two parts
  r = hn::NegMulAdd(n, hn::Set(df, -2.12194440e-4f), r);
  VExp p = hn::Set(df, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(df, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(df, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(df, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(df, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(df, 5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), hn::Set(df, 1.0f));
  // 2^n in two factors, since n reaches from -150 to 128.
  const auto exponent = hn::ConvertTo(di, n);
  const auto first = hn::ShiftRight<1>(exponent);
  const auto second = hn::Sub(exponent, first);
  const auto bias = hn::Set(di, 127);
  const VExp scale1 = hn::BitCast(df, hn::ShiftLeft<23>(hn::Add(first, bias)));
  const VExp scale2 = hn::BitCast(df, hn::ShiftLeft<23>(hn::Add(second, bias)));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Mul(hn::Mul(p, scale1), scale2));
}

// Calls f(vector in, ...) for whole vectors of x, y [n], and once more for the rest through a
// buffer padded with zeros; the result replaces x.
template <class F>
HWY_INLINE void Transform(const F& f, float* HWY_RESTRICT x, const float* HWY_RESTRICT y,
                          int64_t n) {
  const DExp df;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(f(hn::LoadU(df, x + i), hn::LoadU(df, y + i)), df, x + i);
  }
  if (i == n) return;
  HWY_ALIGN float rest[2][16] = {};
  const size_t bytes = static_cast<size_t>(n - i) * sizeof(float);
  std::memcpy(rest[0], x + i, bytes);
  std::memcpy(rest[1], y + i, bytes);
  hn::Store(f(hn::Load(df, rest[0]), hn::Load(df, rest[1])), df, rest[0]);
  std::memcpy(x + i, rest[0], bytes);
}

}  // namespace HWY_NAMESPACE
}  // namespace lode::kernels
HWY_AFTER_NAMESPACE();

#endif  // LODE_KERNELS_EXP_INL_H_
