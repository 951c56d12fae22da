// SPDX-License-Identifier: Apache-2.0
// F32, F16 and BF16 weights: [columns][16 rows], always with f32 activations.
#include "kernels/matmul_task.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul_float.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "kernels/matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lode::kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
struct F32Columns;
struct F16Columns;
struct Bf16Columns;
#else
struct F16Columns {
  static constexpr int64_t kBytes = 2;
  static HWY_INLINE VF32 Load(const std::byte* weights, int64_t c, size_t v) {
    return LoadHalves(reinterpret_cast<const uint16_t*>(weights) + c * 16 + v * kRowsPerVector);
  }
};

struct Bf16Columns {
  static constexpr int64_t kBytes = 2;
  static HWY_INLINE VF32 Load(const std::byte* weights, int64_t c, size_t v) {
    const hn::Rebind<uint16_t, DU32> d16;
    const auto bits =
        hn::LoadU(d16, reinterpret_cast<const uint16_t*>(weights) + c * 16 + v * kRowsPerVector);
    return hn::BitCast(DF32(), hn::ShiftLeft<16>(hn::PromoteTo(DU32(), bits)));
  }
};
#endif  // HWY_TARGET == HWY_SCALAR

void MultiplyF32(const MatMulTask& task) {
  RunMatMul<FloatKernel<F32Columns>>(task);
}
void MultiplyF16(const MatMulTask& task) {
  RunMatMul<FloatKernel<F16Columns>>(task);
}
void MultiplyBf16(const MatMulTask& task) {
  RunMatMul<FloatKernel<Bf16Columns>>(task);
}

}  // namespace HWY_NAMESPACE
}  // namespace lode::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lode::kernels {

HWY_EXPORT(MultiplyF32);
HWY_EXPORT(MultiplyF16);
HWY_EXPORT(MultiplyBf16);
void MatMulFloat(const MatMulTask& task) {
  switch (task.weights.type) {
    case DType::kF16:
      return HWY_DYNAMIC_DISPATCH(MultiplyF16)(task);
    case DType::kBF16:
      return HWY_DYNAMIC_DISPATCH(MultiplyBf16)(task);
    default:
      return HWY_DYNAMIC_DISPATCH(MultiplyF32)(task);
  }
}

}  // namespace lode::kernels
#endif  // HWY_ONCE
