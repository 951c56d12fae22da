// SPDX-License-Identifier: Apache-2.0
// Q8_0: signed bytes with one scale per 32 columns.
#include "kernels/matmul_task.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul_q8_0.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "kernels/matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lode::kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
struct FormatQ8_0;
#else
struct FormatQ8_0 {
  using Packed = PackedQ8_0;
  static constexpr int64_t kBlocks = 1, kUnit = 1;
  static constexpr int kOffset = 0;
  static constexpr bool kSigned = true, kHasMin = false, kHasSubScales = false;
  using Block = const Packed*;

  template <int>
  static HWY_INLINE Block Open(const std::byte* group, int64_t b) {
    return reinterpret_cast<Block>(group) + b;
  }
  template <size_t S>
  static HWY_INLINE VU8 Codes(Block block, size_t v) {
    return hn::LoadU(DU8(), reinterpret_cast<const uint8_t*>(block->qs[S]) + v * kVectorBytes);
  }
  static HWY_INLINE VF32 Scale(Block block, size_t v) {
    return LoadHalves(block->d + v * kRowsPerVector);
  }
};
#endif  // HWY_TARGET == HWY_SCALAR

void MultiplyInt8Q8_0(const MatMulTask& task) {
  RunMatMul<Int8Kernel<FormatQ8_0>>(task);
}
void MultiplyF32Q8_0(const MatMulTask& task) {
  RunMatMul<F32Kernel<FormatQ8_0>>(task);
}

}  // namespace HWY_NAMESPACE
}  // namespace lode::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lode::kernels {

HWY_EXPORT(MultiplyInt8Q8_0);
HWY_EXPORT(MultiplyF32Q8_0);
void MatMulQ8_0(const MatMulTask& task, bool f32) {
  if (f32) {
    HWY_DYNAMIC_DISPATCH(MultiplyF32Q8_0)(task);
  } else {
    HWY_DYNAMIC_DISPATCH(MultiplyInt8Q8_0)(task);
  }
}

}  // namespace lode::kernels
#endif  // HWY_ONCE
