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
  struct Block {
    const Packed* packed;
    size_t half, t;  // sub-block t of 32 columns in half `half`
  };

  static HWY_INLINE Block Open(const std::byte* group, int64_t b) {
    return {reinterpret_cast<const Packed*>(group) + b / kBlocks,
            static_cast<size_t>(b % kBlocks / 4), static_cast<size_t>(b % 4)};
  }
  template <size_t S>
  static HWY_INLINE VU8 Codes(const Block& block, size_t v) {
    const uint8_t* low_word = block.packed->ql[block.half * 16 + block.t % 2 * 8 + S][0];
    const uint8_t* high_word = block.packed->qh[block.half * 8 + S][0];
    const VU8 low = BitsAt(low_word + v * kVectorBytes, static_cast<int>(block.t / 2 * 4), 15);
    const VU8 bits = BitsAt(high_word + v * kVectorBytes, static_cast<int>(block.t * 2), 3);
    return hn::Or(low, hn::BitCast(DU8(), hn::ShiftLeft<4>(hn::BitCast(DI16(), bits))));
  }
  static HWY_INLINE VF32 Scale(const Block& block, size_t v) {
    return LoadHalves(block.packed->d + v * kRowsPerVector);
  }
  static HWY_INLINE Accumulator SubScales(const Block& block, size_t half_block, size_t v) {
    return LoadSubScales(SubScaleBytes(block, half_block, v));
  }
  static HWY_INLINE VF32 SubScaleFloats(const Block& block, size_t half_block, size_t v) {
    const hn::Rebind<int8_t, DI32> d8;
    const VI32 wide = hn::PromoteTo(DI32(), hn::LoadU(d8, SubScaleBytes(block, half_block, v)));
    return hn::ConvertTo(DF32(), wide);
  }

 private:
  static HWY_INLINE const int8_t* SubScaleBytes(const Block& block, size_t half_block, size_t v) {
    return block.packed->scales[(block.half * 4 + block.t) * 2 + half_block] + v * kRowsPerVector;
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
