// SPDX-License-Identifier: Apache-2.0
#include "kernels/activation.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activation.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "kernels/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lode::kernels {
namespace HWY_NAMESPACE {

struct SiluTimes {
  HWY_INLINE VExp operator()(VExp gate, VExp up) const {
    const VExp one = hn::Set(DExp(), 1.0f);
    return hn::Mul(hn::Div(gate, hn::Add(one, Exp(hn::Neg(gate)))), up);
  }
};

// x/2 (1 + tanh(u)) = x / (1 + exp(-2u)), which does not cancel.
struct GeluTanhTimes {
  HWY_INLINE VExp operator()(VExp gate, VExp up) const {
    const DExp df;
    const VExp cubic = hn::Mul(hn::Mul(gate, gate), hn::Set(df, 0.044715f));
    const VExp u = hn::MulAdd(cubic, gate, gate);
    const VExp e = Exp(hn::Mul(u, hn::Set(df, -2.0f * 0.7978845608f)));  // sqrt(2 / pi)
    return hn::Mul(hn::Div(gate, hn::Add(hn::Set(df, 1.0f), e)), up);
  }
};

struct Sum {
  HWY_INLINE VExp operator()(VExp x, VExp y) const { return hn::Add(x, y); }
};

void Silu(float* gate, const float* up, int64_t n) {
  Transform(SiluTimes(), gate, up, n);
}
void GeluTanh(float* gate, const float* up, int64_t n) {
  Transform(GeluTanhTimes(), gate, up, n);
}
void AddTo(float* x, const float* y, int64_t n) {
  Transform(Sum(), x, y, n);
}

}  // namespace HWY_NAMESPACE
}  // namespace lode::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lode::kernels {

HWY_EXPORT(Silu);
void SiluMultiply(float* gate, const float* up, int64_t n) {
  HWY_DYNAMIC_DISPATCH(Silu)(gate, up, n);
}

HWY_EXPORT(GeluTanh);
void GeluTanhMultiply(float* gate, const float* up, int64_t n) {
  HWY_DYNAMIC_DISPATCH(GeluTanh)(gate, up, n);
}

HWY_EXPORT(AddTo);
void AddInto(float* x, const float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(AddTo)(x, y, n);
}

}  // namespace lode::kernels
#endif  // HWY_ONCE
