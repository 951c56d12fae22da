// SPDX-License-Identifier: Apache-2.0
// Q4_0 and Q5_0: codes of 4 or 5 bits with one scale per 32 columns.
#include "kernels/matmul_task.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul_q4_0_q5_0.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "kernels/matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lode::kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
struct FormatQ4_0;
struct FormatQ5_0;
#else
struct FormatQ4_0 {
  using Packed = PackedQ4_0;
  static constexpr int64_t kBlocks = 1, kUnit = 1;
  static constexpr int kOffset = 8;
  static constexpr bool kSigned = false, kHasMin = false, kHasSubScales = false;
  using Block = const Packed*;

  template <int>
  static HWY_INLINE Block Open(const std::byte* group, int64_t b) {
    return reinterpret_cast<Block>(group) + b;
  }
  template <size_t S>
  static HWY_INLINE VU8 Codes(Block block, size_t v) {
    return Nibbles<(S >= 4)>(block->qs[S % 4][0] + v * kVectorBytes);
  }
  static HWY_INLINE VF32 Scale(Block block, size_t v) {
    return LoadHalves(block->d + v * kRowsPerVector);
  }
};

struct FormatQ5_0 {
  using Packed = PackedQ5_0;
  static constexpr int64_t kBlocks = 1, kUnit = 1;
  static constexpr int kOffset = 16;
  static constexpr bool kSigned = false, kHasMin = false, kHasSubScales = false;
  struct Block {
    const Packed* packed;
    VI16 high[kVectors];
  };

  template <int>
  static HWY_INLINE Block Open(const std::byte* group, int64_t b) {
    Block block;
    block.packed = reinterpret_cast<const Packed*>(group) + b;
    LODE_UNROLL
    for (size_t v = 0; v < kVectors; ++v) {
      block.high[v] = hn::BitCast(DI16(), hn::LoadU(DU8(), block.packed->qh[0] + v * kVectorBytes));
    }
    return block;
  }
  // Bit S of every high byte moves to bit 4; bits that cross a byte are masked away.
  template <size_t S>
  static HWY_INLINE VU8 Codes(const Block& block, size_t v) {
    VI16 bit;
    if constexpr (S < 4) {
      bit = hn::ShiftLeft<4 - S>(block.high[v]);
    } else {
      bit = hn::ShiftRight<S - 4>(block.high[v]);
    }
    const VU8 high = hn::And(hn::BitCast(DU8(), bit), hn::Set(DU8(), 16));
    return hn::Or(Nibbles<(S >= 4)>(block.packed->qs[S % 4][0] + v * kVectorBytes), high);
  }
  static HWY_INLINE VF32 Scale(const Block& block, size_t v) {
    return LoadHalves(block.packed->d + v * kRowsPerVector);
  }
};
#endif  // HWY_TARGET == HWY_SCALAR

void MultiplyInt8Q4_0(const MatMulTask& task) {
  RunMatMul<Int8Kernel<FormatQ4_0>>(task);
}
void MultiplyF32Q4_0(const MatMulTask& task) {
  RunMatMul<F32Kernel<FormatQ4_0>>(task);
}

void MultiplyInt8Q5_0(const MatMulTask& task) {
  RunMatMul<Int8Kernel<FormatQ5_0>>(task);
}
void MultiplyF32Q5_0(const MatMulTask& task) {
  RunMatMul<F32Kernel<FormatQ5_0>>(task);
}

}  // namespace HWY_NAMESPACE
}  // namespace lode::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lode::kernels {

HWY_EXPORT(MultiplyInt8Q4_0);
HWY_EXPORT(MultiplyF32Q4_0);
void MatMulQ4_0(const MatMulTask& task, bool f32) {
  if (f32) {
    HWY_DYNAMIC_DISPATCH(MultiplyF32Q4_0)(task);
  } else {
    HWY_DYNAMIC_DISPATCH(MultiplyInt8Q4_0)(task);
  }
}

HWY_EXPORT(MultiplyInt8Q5_0);
HWY_EXPORT(MultiplyF32Q5_0);
void MatMulQ5_0(const MatMulTask& task, bool f32) {
  if (f32) {
    HWY_DYNAMIC_DISPATCH(MultiplyF32Q5_0)(task);
  } else {
    HWY_DYNAMIC_DISPATCH(MultiplyInt8Q5_0)(task);
  }
}

}  // namespace lode::kernels
#endif  // HWY_ONCE
