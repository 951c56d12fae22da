// SPDX-License-Identifier: Apache-2.0
// Integer dot products of the matrix kernels, for each Highway target: the operations that Highway
// 1.0.3 lacks, in intrinsics. x86 from SSSE3 on and 64-bit Arm; others use reference.cc.
//
// A "row vector" holds four consecutive columns (bytes) of as many rows as it has 32-bit lanes;
// kVectors of them hold the 16 rows of a group. Accumulator collects the products of one column
// block:
// - without a four-way dot instruction it is two 16-bit sums a lane, modulo 2^16. That is exact as
//   long as the true sum of each, offset correction included, fits 16 bits: docs/kernels.md has the
//   proof for each format. Single steps must not saturate: codes w are at most 63.
// - with one (AVX-512 VNNI, NEON dotprod) it is one 32-bit sum a lane.
//
// Included by the kernel files inside foreach_target, hence the toggling include guard.
#if defined(LODE_KERNELS_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LODE_KERNELS_DOT_INL_H_
#undef LODE_KERNELS_DOT_INL_H_
#else
#define LODE_KERNELS_DOT_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

#if HWY_TARGET != HWY_SCALAR  // which has no rows to speak of

#if defined(__clang__)
#define LODE_UNROLL _Pragma("unroll")
#else
#define LODE_UNROLL _Pragma("GCC unroll 16")
#endif

HWY_BEFORE_NAMESPACE();
namespace lode::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DU8 = hn::CappedTag<uint8_t, 64>;
using DI8 = hn::RebindToSigned<DU8>;
using DI16 = hn::RepartitionToWide<DI8>;
using DU16 = hn::RebindToUnsigned<DI16>;
using DI32 = hn::RepartitionToWide<DI16>;
using DU32 = hn::RebindToUnsigned<DI32>;
using DF32 = hn::RebindToFloat<DI32>;
using VU8 = hn::Vec<DU8>;
using VI8 = hn::Vec<DI8>;
using VI16 = hn::Vec<DI16>;
using VI32 = hn::Vec<DI32>;
using VF32 = hn::Vec<DF32>;

inline constexpr size_t kVectorBytes = hn::MaxLanes(DU8());
inline constexpr size_t kVectors = 64 / kVectorBytes;  // row vectors of a group
inline constexpr size_t kRowsPerVector = kVectorBytes / 4;

#undef LODE_HAS_DOT4
#if HWY_TARGET == HWY_AVX3_DL || (HWY_ARCH_ARM_A64 && defined(__ARM_FEATURE_DOTPROD))
#define LODE_HAS_DOT4 1
#else
#define LODE_HAS_DOT4 0
#endif

// Tokens handled at once: as many accumulators as registers allow.
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
inline constexpr int kMaxTokens = 8;
#elif HWY_TARGET == HWY_AVX2 || HWY_ARCH_ARM_A64
inline constexpr int kMaxTokens = 4;
#else
inline constexpr int kMaxTokens = 2;
#endif

// Lane i of 16 bits: w[2i] * a[2i] + w[2i+1] * a[2i+1]. w <= 128 (NEON: 127) and |a| <= 127 never
// saturate.
HWY_INLINE VI16 MulPairs(VU8 w, VI8 a) {
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
  return VI16{_mm512_maddubs_epi16(w.raw, a.raw)};
#elif HWY_TARGET == HWY_AVX2
  return VI16{_mm256_maddubs_epi16(w.raw, a.raw)};
#elif HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3
  return VI16{_mm_maddubs_epi16(w.raw, a.raw)};
#elif HWY_ARCH_ARM_A64
  const int8x16_t ww = vreinterpretq_s8_u8(w.raw);
  const int16x8_t low = vmull_s8(vget_low_s8(ww), vget_low_s8(a.raw));
  return VI16{vpaddq_s16(low, vmull_high_s8(ww, a.raw))};
#else
  const hn::RebindToSigned<hn::Repartition<uint16_t, hn::DFromV<VU8>>> dw;
  const auto ww = hn::BitCast(dw, w);
  const auto aa = hn::BitCast(dw, a);
  const auto even = hn::Mul(hn::And(ww, hn::Set(dw, 255)), hn::ShiftRight<8>(hn::ShiftLeft<8>(aa)));
  const auto odd = hn::And(hn::ShiftRight<8>(ww), hn::Set(dw, 255));
  return hn::Add(even, hn::Mul(odd, hn::ShiftRight<8>(aa)));
#endif
}

// Lane i of 32 bits: a[2i] * b[2i] + a[2i+1] * b[2i+1].
HWY_INLINE VI32 MulPairs(VI16 a, VI16 b) {
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
  return VI32{_mm512_madd_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX2
  return VI32{_mm256_madd_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3
  return VI32{_mm_madd_epi16(a.raw, b.raw)};
#elif HWY_ARCH_ARM_A64
  return VI32{vpaddq_s32(vmull_s16(vget_low_s16(a.raw), vget_low_s16(b.raw)),
                         vmull_high_s16(a.raw, b.raw))};
#else
  const hn::Repartition<int32_t, hn::DFromV<VI16>> di;
  const auto aa = hn::BitCast(di, a);
  const auto bb = hn::BitCast(di, b);
  const auto even =
      hn::Mul(hn::ShiftRight<16>(hn::ShiftLeft<16>(aa)), hn::ShiftRight<16>(hn::ShiftLeft<16>(bb)));
  return hn::Add(even, hn::Mul(hn::ShiftRight<16>(aa), hn::ShiftRight<16>(bb)));
#endif
}

// Four columns of a token in every lane.
HWY_INLINE VI8 BroadcastColumns(const int8_t* q) {
  int32_t columns;
  std::memcpy(&columns, q, sizeof(columns));
  return hn::BitCast(DI8(), hn::Set(DI32(), columns));
}

// The two 16-bit numbers of a correction in every lane.
HWY_INLINE VI16 BroadcastPair(const int16_t* pair) {
  int32_t both;
  std::memcpy(&both, pair, sizeof(both));
  return hn::BitCast(DI16(), hn::Set(DI32(), both));
}

// Hides from the compiler how a sum came about. GCC 12 would otherwise make all products first,
// spilling them, and sum them afterwards: half the speed.
template <class V>
HWY_INLINE V KeepOrder(V sum) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128
  __asm__("" : "+v"(sum.raw));
#endif
  return sum;
}

#if LODE_HAS_DOT4
using Accumulator = VI32;
#else
using Accumulator = VI16;
#endif

HWY_INLINE Accumulator ZeroAccumulator() {
  return Accumulator(hn::Zero(hn::DFromV<Accumulator>()));
}

// Starts a sum with a correction (see ActivationBlock).
HWY_INLINE Accumulator CorrectedAccumulator(VI16 correction) {
#if LODE_HAS_DOT4
  return MulPairs(correction, hn::Set(DI16(), 1));
#else
  return correction;
#endif
}

#if HWY_TARGET == HWY_AVX3_DL
// sum + u8 w times s8 a, four products a lane. Inline assembly because Highway 1.0.3 enables
// "avxvnni" for this target where the 512-bit intrinsic wants "avx512vnni" (it does check the CPU
// for the latter).
HWY_INLINE VI32 Dot4(VI32 sum, VU8 w, VI8 a) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(w.raw), "vm"(a.raw));
  return sum;
}
#endif

// sum + products of four columns. w in 0..63.
HWY_INLINE Accumulator Accumulate(Accumulator sum, VU8 w, VI8 a) {
#if HWY_TARGET == HWY_AVX3_DL
  return Dot4(sum, w, a);
#elif LODE_HAS_DOT4
  return VI32{vdotq_s32(sum.raw, vreinterpretq_s8_u8(w.raw), a.raw)};
#else
  return KeepOrder(hn::Add(sum, MulPairs(w, a)));
#endif
}

HWY_INLINE VI32 Finish(Accumulator sum) {
#if LODE_HAS_DOT4
  return sum;
#else
  return MulPairs(sum, hn::Set(DI16(), 1));
#endif
}

// Sub-block scales in the form that FinishScaled wants: each row's scale once per accumulated sum.
HWY_INLINE Accumulator LoadSubScales(const int8_t* scales) {
  const hn::Rebind<int8_t, DI32> d8;
  const VI32 wide = hn::PromoteTo(DI32(), hn::LoadU(d8, scales));
#if LODE_HAS_DOT4
  return wide;
#else
  const DI16 d16;
  return hn::OddEven(hn::BitCast(d16, hn::ShiftLeft<16>(wide)), hn::BitCast(d16, wide));
#endif
}

// The same scales as integers.
HWY_INLINE VI32 SubScaleIntegers(Accumulator scales) {
#if LODE_HAS_DOT4
  return scales;
#else
  return hn::ShiftRight<16>(hn::BitCast(DI32(), scales));
#endif
}

// The accumulated sum times its row's scale.
HWY_INLINE VI32 FinishScaled(Accumulator sum, Accumulator scales) {
#if LODE_HAS_DOT4
  return hn::Mul(sum, scales);
#else
  return MulPairs(sum, scales);
#endif
}

// Signed 8-bit weights (Q8_0): products of a pair need all 16 bits, so every step widens.
// What is the same for all tokens of one step:
struct SignedColumns {
  VI8 w;
  VU8 magnitude;  // |w|, or w + 128 for VNNI
};

HWY_INLINE SignedColumns PrepareSigned(VI8 w) {
#if HWY_TARGET == HWY_AVX3_DL
  return {w, hn::Xor(hn::BitCast(DU8(), w), hn::Set(DU8(), 0x80))};
#elif HWY_ARCH_ARM_A64
  return {w, hn::Zero(DU8())};
#else
  return {w, hn::BitCast(DU8(), hn::Abs(w))};
#endif
}

// The sum to start from; correction16 is ActivationBlock's.
HWY_INLINE VI32 StartSigned(const int16_t* correction16) {
#if HWY_TARGET == HWY_AVX3_DL
  return MulPairs(BroadcastPair(correction16), hn::Set(DI16(), 8));  // -128 * (sum of q)
#else
  (void)correction16;
  return hn::Zero(DI32());
#endif
}

HWY_INLINE VI32 AccumulateSigned(VI32 sum, const SignedColumns& columns, VI8 a) {
#if HWY_TARGET == HWY_AVX3_DL
  return Dot4(sum, columns.magnitude, a);
#elif LODE_HAS_DOT4
  return VI32{vdotq_s32(sum.raw, columns.w.raw, a.raw)};
#elif HWY_ARCH_ARM_A64
  const int16x8_t low = vmull_s8(vget_low_s8(columns.w.raw), vget_low_s8(a.raw));
  return VI32{vpadalq_s16(sum.raw, vpaddq_s16(low, vmull_high_s8(columns.w.raw, a.raw)))};
#else
  // |w| * (sign of w times a): at most 128 * 127 * 2 = 32,512 a pair.
#if HWY_TARGET == HWY_AVX2
  const VI8 signed_a{_mm256_sign_epi8(a.raw, columns.w.raw)};
#elif HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3
  const VI8 signed_a{_mm_sign_epi8(a.raw, columns.w.raw)};
#else  // AVX-512 has no such instruction
  const VI8 signed_a = hn::IfThenElse(hn::Lt(columns.w, hn::Zero(DI8())), hn::Neg(a), a);
#endif
  const VI32 products = MulPairs(MulPairs(columns.magnitude, signed_a), hn::Set(DI16(), 1));
  return KeepOrder(hn::Add(sum, products));
#endif
}

// The four low or high bits of each byte.
template <bool kHigh>
HWY_INLINE VU8 Nibbles(const uint8_t* bytes) {
  const VU8 both = hn::LoadU(DU8(), bytes);
  const VU8 mask = hn::Set(DU8(), 15);
  if constexpr (!kHigh) return hn::And(both, mask);
  return hn::And(hn::BitCast(DU8(), hn::ShiftRight<4>(hn::BitCast(DI16(), both))), mask);
}

// Bits [2 * kPair, 2 * kPair + 2) of each byte, moved to bits 4 and 5.
template <int kPair>
HWY_INLINE VU8 HighPair(const uint8_t* bytes) {
  VI16 bits = hn::BitCast(DI16(), hn::LoadU(DU8(), bytes));
  if constexpr (kPair < 2) bits = hn::ShiftLeft<4 - 2 * kPair>(bits);
  if constexpr (kPair > 2) bits = hn::ShiftRight<2 * kPair - 4>(bits);
  return hn::And(hn::BitCast(DU8(), bits), hn::Set(DU8(), 0x30));
}

// 16 in every byte that has the bit of `mask`, else 0.
HWY_INLINE VU8 HighBit(const uint8_t* bytes, VU8 mask) {
  const VU8 bit = hn::And(hn::LoadU(DU8(), bytes), mask);
  return hn::And(hn::VecFromMask(DU8(), hn::Eq(bit, mask)), hn::Set(DU8(), 16));
}

// f32 values of the halves of consecutive rows.
HWY_INLINE VF32 LoadHalves(const uint16_t* halves) {
  const hn::Rebind<hwy::float16_t, DF32> d16;
  return hn::PromoteTo(DF32(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(halves)));
}

HWY_INLINE VF32 LoadBytesAsFloats(const uint8_t* bytes) {
  const hn::Rebind<uint8_t, DI32> d8;
  return hn::ConvertTo(DF32(), hn::PromoteTo(DI32(), hn::LoadU(d8, bytes)));
}

}  // namespace HWY_NAMESPACE
}  // namespace lode::kernels
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET != HWY_SCALAR
#endif  // LODE_KERNELS_DOT_INL_H_
