// SPDX-License-Identifier: Apache-2.0
// Q6_K: 6-bit codes, 8-bit scales per 16 columns and one scale per 256.
#include "kernels/matmul_task.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul_q6_k.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "kernels/matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lode::kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
struct FormatQ6_K;
#else
struct FormatQ6_K {
  using Packed = PackedQ6_K;
  static constexpr int64_t kBlocks = 8;
  static constexpr int kOffset = 32;
  static constexpr bool kSigned = false, kHasMin = false, kHasSubScales = true;
  static constexpr int64_t kUnit = 4;  // sub-blocks of 32 columns that share bytes
  template <int kPosition>
  struct Block {
    const Half* d;
    const int8_t* scales;       // two rows of 16
    const uint8_t *low, *high;  // eight words of 16 rows each
  };

  template <int kPosition>
  static HWY_INLINE Block<kPosition> Open(const std::byte* group, int64_t b) {
    const Packed* packed = reinterpret_cast<const Packed*>(group) + b / kBlocks;
    const int64_t half = b % kBlocks / kUnit;
    return {packed->d, packed->scales[half * 8 + kPosition * 2],
            packed->halves[half].ql[kPosition % 2 * 8][0], packed->halves[half].qh[0][0]};
  }
  template <size_t S, int kPosition>
  static HWY_INLINE VU8 Codes(const Block<kPosition>& block, size_t v) {
    const size_t at = S * 64 + v * kVectorBytes;
    return hn::Or(Nibbles<(kPosition >= 2)>(block.low + at), HighPair<kPosition>(block.high + at));
  }
  template <int kPosition>
  static HWY_INLINE VF32 Scale(const Block<kPosition>& block, size_t v) {
    return LoadHalves(block.d + v * kRowsPerVector);
  }
  template <int kPosition>
  static HWY_INLINE Accumulator SubScales(const Block<kPosition>& block, size_t half_block,
                                          size_t v) {
    return LoadSubScales(block.scales + half_block * 16 + v * kRowsPerVector);
  }
  template <int kPosition>
  static HWY_INLINE VF32 SubScaleFloats(const Block<kPosition>& block, size_t half_block,
                                        size_t v) {
    const hn::Rebind<int8_t, DI32> d8;
    const auto bytes = hn::LoadU(d8, block.scales + half_block * 16 + v * kRowsPerVector);
    return hn::ConvertTo(DF32(), hn::PromoteTo(DI32(), bytes));
  }
};
#endif  // HWY_TARGET == HWY_SCALAR

void MultiplyInt8Q6_K(const MatMulTask& task) {
  RunMatMul<Int8Kernel<FormatQ6_K>>(task);
}
void MultiplyF32Q6_K(const MatMulTask& task) {
  RunMatMul<F32Kernel<FormatQ6_K>>(task);
}

}  // namespace HWY_NAMESPACE
}  // namespace lode::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lode::kernels {

HWY_EXPORT(MultiplyInt8Q6_K);
HWY_EXPORT(MultiplyF32Q6_K);
void MatMulQ6_K(const MatMulTask& task, bool f32) {
  if (f32) {
    HWY_DYNAMIC_DISPATCH(MultiplyF32Q6_K)(task);
  } else {
    HWY_DYNAMIC_DISPATCH(MultiplyInt8Q6_K)(task);
  }
}

}  // namespace lode::kernels
#endif  // HWY_ONCE
