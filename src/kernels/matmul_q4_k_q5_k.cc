// SPDX-License-Identifier: Apache-2.0
// Q4_K and Q5_K: codes of 4 or 5 bits, a scale and a minimum per 32 columns.
#include "kernels/matmul_task.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul_q4_k_q5_k.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "kernels/matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lode::kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
struct FormatQ4_K;
struct FormatQ5_K;
#else
// What Q4_K and Q5_K share: 8 sub-blocks of 32 columns with 6-bit scales and minima.
template <class PackedType>
struct ScaleMinFormat {
  using Packed = PackedType;
  static constexpr int64_t kBlocks = 8;
  static constexpr int64_t kUnit = 2;  // sub-blocks of 32 columns that share bytes
  static constexpr bool kSigned = false, kHasMin = true, kHasSubScales = false;
  template <int kPosition>
  struct Block {
    const Packed* packed;
    const uint8_t* codes;  // eight words of 16 rows
    const uint8_t *scales, *mins;
    VU8 bit;  // of the sub-block in qh
  };

  template <int kPosition>
  static HWY_INLINE Block<kPosition> Open(const std::byte* group, int64_t b) {
    const Packed* packed = reinterpret_cast<const Packed*>(group) + b / kBlocks;
    const int64_t first = b % kBlocks;  // even
    return {packed, packed->qs[first * 4][0], packed->scales[first + kPosition],
            packed->mins[first + kPosition],
            hn::Set(DU8(), static_cast<uint8_t>(1 << (first + kPosition)))};
  }
  template <size_t S, int kPosition>
  static HWY_INLINE VU8 LowCodes(const Block<kPosition>& block, size_t v) {
    return Nibbles < kPosition == 1 > (block.codes + S * 64 + v * kVectorBytes);
  }
  template <int kPosition>
  static HWY_INLINE VF32 Scale(const Block<kPosition>& block, size_t v) {
    return hn::Mul(LoadHalves(block.packed->d + v * kRowsPerVector),
                   LoadBytesAsFloats(block.scales + v * kRowsPerVector));
  }
  template <int kPosition>
  static HWY_INLINE VF32 Min(const Block<kPosition>& block, size_t v) {
    return hn::Mul(LoadHalves(block.packed->dmin + v * kRowsPerVector),
                   LoadBytesAsFloats(block.mins + v * kRowsPerVector));
  }
};

struct FormatQ4_K : ScaleMinFormat<PackedQ4_K> {
  static constexpr int kOffset = 0;

  template <size_t S, int kPosition>
  static HWY_INLINE VU8 Codes(const Block<kPosition>& block, size_t v) {
    return LowCodes<S>(block, v);
  }
};

struct FormatQ5_K : ScaleMinFormat<PackedQ5_K> {
  static constexpr int kOffset = 16;  // 5 bits without it would overflow the 16-bit sums

  template <size_t S, int kPosition>
  static HWY_INLINE VU8 Codes(const Block<kPosition>& block, size_t v) {
    const uint8_t* high = block.packed->qh[S][0] + v * kVectorBytes;
    return hn::Or(LowCodes<S>(block, v), HighBit(high, block.bit));
  }
};
#endif  // HWY_TARGET == HWY_SCALAR

void MultiplyInt8Q4_K(const MatMulTask& task) {
  RunMatMul<Int8Kernel<FormatQ4_K>>(task);
}
void MultiplyF32Q4_K(const MatMulTask& task) {
  RunMatMul<F32Kernel<FormatQ4_K>>(task);
}

void MultiplyInt8Q5_K(const MatMulTask& task) {
  RunMatMul<Int8Kernel<FormatQ5_K>>(task);
}
void MultiplyF32Q5_K(const MatMulTask& task) {
  RunMatMul<F32Kernel<FormatQ5_K>>(task);
}

}  // namespace HWY_NAMESPACE
}  // namespace lode::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lode::kernels {

HWY_EXPORT(MultiplyInt8Q4_K);
HWY_EXPORT(MultiplyF32Q4_K);
void MatMulQ4_K(const MatMulTask& task, bool f32) {
  if (f32) {
    HWY_DYNAMIC_DISPATCH(MultiplyF32Q4_K)(task);
  } else {
    HWY_DYNAMIC_DISPATCH(MultiplyInt8Q4_K)(task);
  }
}

HWY_EXPORT(MultiplyInt8Q5_K);
HWY_EXPORT(MultiplyF32Q5_K);
void MatMulQ5_K(const MatMulTask& task, bool f32) {
  if (f32) {
    HWY_DYNAMIC_DISPATCH(MultiplyF32Q5_K)(task);
  } else {
    HWY_DYNAMIC_DISPATCH(MultiplyInt8Q5_K)(task);
  }
}

}  // namespace lode::kernels
#endif  // HWY_ONCE
