// SPDX-License-Identifier: Apache-2.0
// Decoders of stored types. Each block format has one DecodeBlock, written as the formula of
// tensor/block_formats.h in plain loops of fixed length; Highway compiles the file once per CPU
// target and the compiler vectorises the loops for it. Results are the same on every target and
// equal to the `gguf` Python package bit for bit: scales are multiplied in its order, and the file
// is built with -ffp-contract=off so that no product and sum are fused.
#include "kernels/dequantize.h"

#include <bit>
#include <cstring>

#include "base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dequantize.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lode::kernels {
namespace HWY_NAMESPACE {

// Branch-free so that loops over it vectorise. Subnormal halves are renormalised by subtracting a
// magic bias, the others by rescaling the exponent (infinities and NaNs stay such).
HWY_INLINE float DecodeHalf(Half h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7fffu;
  const float normal = std::bit_cast<float>((magnitude << 13) + (0xe0u << 23)) * 0x1.0p-112f;
  const float subnormal = std::bit_cast<float>(magnitude | (126u << 23)) - 0.5f;
  // Selected by a mask: a branch here would keep loops from being vectorised.
  const uint32_t is_subnormal = magnitude < 0x400u ? ~0u : 0u;
  return std::bit_cast<float>(sign | (std::bit_cast<uint32_t>(subnormal) & is_subnormal) |
                              (std::bit_cast<uint32_t>(normal) & ~is_subnormal));
}

HWY_INLINE void DecodeBlock(const BlockQ4_0& block, float* HWY_RESTRICT out) {
  const float d = DecodeHalf(block.d);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((block.qs[i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((block.qs[i] >> 4) - 8);
  }
}

HWY_INLINE void DecodeBlock(const BlockQ4_1& block, float* HWY_RESTRICT out) {
  const float d = DecodeHalf(block.d);
  const float m = DecodeHalf(block.m);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(block.qs[i] & 15) + m;
    out[i + 16] = d * static_cast<float>(block.qs[i] >> 4) + m;
  }
}

// The 32 high bits of the 5-bit formats, element 0 lowest.
HWY_INLINE uint32_t HighBits(const uint8_t* qh) {
  uint32_t bits;
  std::memcpy(&bits, qh, sizeof(bits));
  return bits;
}
// Element i of the low nibbles, element i + 16 of the high ones, with their fifth bit.
HWY_INLINE float LowFive(const uint8_t* qs, uint32_t high, int i, int offset) {
  const int q = (qs[i] & 15) | static_cast<int>(high >> i & 1) << 4;
  return static_cast<float>(q - offset);
}
HWY_INLINE float HighFive(const uint8_t* qs, uint32_t high, int i, int offset) {
  const int q = (qs[i] >> 4) | static_cast<int>(high >> (i + 16) & 1) << 4;
  return static_cast<float>(q - offset);
}

HWY_INLINE void DecodeBlock(const BlockQ5_0& block, float* HWY_RESTRICT out) {
  const float d = DecodeHalf(block.d);
  const uint32_t high = HighBits(block.qh);
  for (int i = 0; i < 16; ++i) out[i] = d * LowFive(block.qs, high, i, 16);
  for (int i = 0; i < 16; ++i) out[i + 16] = d * HighFive(block.qs, high, i, 16);
}

HWY_INLINE void DecodeBlock(const BlockQ5_1& block, float* HWY_RESTRICT out) {
  const float d = DecodeHalf(block.d);
  const float m = DecodeHalf(block.m);
  const uint32_t high = HighBits(block.qh);
  for (int i = 0; i < 16; ++i) out[i] = d * LowFive(block.qs, high, i, 0) + m;
  for (int i = 0; i < 16; ++i) out[i + 16] = d * HighFive(block.qs, high, i, 0) + m;
}

HWY_INLINE void DecodeBlock(const BlockQ8_0& block, float* HWY_RESTRICT out) {
  const float d = DecodeHalf(block.d);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(block.qs[i]);
}

HWY_INLINE void DecodeBlock(const BlockQ2_K& block, float* HWY_RESTRICT out) {
  const float d = DecodeHalf(block.d);
  const float dmin = DecodeHalf(block.dmin);
  for (int sub = 0; sub < 16; ++sub) {
    const uint8_t* qs = block.qs + sub / 8 * 32 + sub % 2 * 16;
    const int shift = sub / 2 % 4 * 2;
    const float scale = d * static_cast<float>(block.scales[sub] & 15);
    const float offset = dmin * static_cast<float>(block.scales[sub] >> 4);
    for (int i = 0; i < 16; ++i) {
      out[sub * 16 + i] = scale * static_cast<float>(qs[i] >> shift & 3) - offset;
    }
  }
}

HWY_INLINE void DecodeBlock(const BlockQ3_K& block, float* HWY_RESTRICT out) {
  const float d = DecodeHalf(block.d);
  for (int sub = 0; sub < 16; ++sub) {
    const int low = block.scales[sub % 8] >> (sub / 8 * 4) & 15;
    const int high = block.scales[8 + sub % 4] >> (sub / 4 * 2) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    const uint8_t* qs = block.qs + sub / 8 * 32 + sub % 2 * 16;
    const uint8_t* hmask = block.hmask + sub % 2 * 16;
    const int shift = sub / 2 % 4 * 2;
    const int bit = sub / 2;
    for (int i = 0; i < 16; ++i) {
      const int q = (qs[i] >> shift & 3) | (hmask[i] >> bit & 1) << 2;
      out[sub * 16 + i] = scale * static_cast<float>(q - 4);
    }
  }
}

struct ScaleAndMin {
  int scale, min;
};
// The 6-bit scale and minimum of sub-block 0-7: four of each lie whole in bytes 0-7; of the other
// four, bytes 8-11 hold the low nibbles and the top bits of bytes 0-7 the rest.
HWY_INLINE ScaleAndMin UnpackScaleAndMin(const uint8_t* scales, int sub) {
  if (sub < 4) return {scales[sub] & 63, scales[sub + 4] & 63};
  return {(scales[sub + 4] & 15) | (scales[sub - 4] >> 6) << 4,
          (scales[sub + 4] >> 4) | (scales[sub] >> 6) << 4};
}

HWY_INLINE void DecodeBlock(const BlockQ4_K& block, float* HWY_RESTRICT out) {
  const float d = DecodeHalf(block.d);
  const float dmin = DecodeHalf(block.dmin);
  for (int sub = 0; sub < 8; sub += 2) {  // two share 32 bytes
    const ScaleAndMin low = UnpackScaleAndMin(block.scales, sub);
    const ScaleAndMin high = UnpackScaleAndMin(block.scales, sub + 1);
    const float low_scale = d * static_cast<float>(low.scale);
    const float low_offset = dmin * static_cast<float>(low.min);
    const float high_scale = d * static_cast<float>(high.scale);
    const float high_offset = dmin * static_cast<float>(high.min);
    const uint8_t* qs = block.qs + sub * 16;
    float* row = out + sub * 32;
    for (int i = 0; i < 32; ++i) row[i] = low_scale * static_cast<float>(qs[i] & 15) - low_offset;
    for (int i = 0; i < 32; ++i) {
      row[i + 32] = high_scale * static_cast<float>(qs[i] >> 4) - high_offset;
    }
  }
}

HWY_INLINE void DecodeBlock(const BlockQ5_K& block, float* HWY_RESTRICT out) {
  const float d = DecodeHalf(block.d);
  const float dmin = DecodeHalf(block.dmin);
  for (int sub = 0; sub < 8; ++sub) {
    const ScaleAndMin s = UnpackScaleAndMin(block.scales, sub);
    const float scale = d * static_cast<float>(s.scale);
    const float offset = dmin * static_cast<float>(s.min);
    const uint8_t* qs = block.qs + sub / 2 * 32;
    const int shift = sub % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      const int q = (qs[i] >> shift & 15) | (block.qh[i] >> sub & 1) << 4;
      out[sub * 32 + i] = scale * static_cast<float>(q) - offset;
    }
  }
}

HWY_INLINE void DecodeBlock(const BlockQ6_K& block, float* HWY_RESTRICT out) {
  const float d = DecodeHalf(block.d);
  for (int sub = 0; sub < 16; ++sub) {
    const float scale = d * static_cast<float>(block.scales[sub]);
    // Each half of 128 elements: low nibbles of 64 bytes, then their high nibbles.
    const uint8_t* ql = block.ql + sub / 8 * 64 + sub % 4 * 16;
    const uint8_t* qh = block.qh + sub / 8 * 32 + sub % 2 * 16;
    const int low_shift = sub / 4 % 2 * 4;
    const int high_shift = sub / 2 % 4 * 2;
    for (int i = 0; i < 16; ++i) {
      const int q = (ql[i] >> low_shift & 15) | (qh[i] >> high_shift & 3) << 4;
      out[sub * 16 + i] = scale * static_cast<float>(q - 32);
    }
  }
}

// The non-linear 4-bit levels of IQ4_NL and IQ4_XS.
constexpr float kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};

HWY_INLINE void DecodeBlock(const BlockIQ4_NL& block, float* HWY_RESTRICT out) {
  const float d = DecodeHalf(block.d);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * kIq4Levels[block.qs[i] & 15];
    out[i + 16] = d * kIq4Levels[block.qs[i] >> 4];
  }
}

HWY_INLINE void DecodeBlock(const BlockIQ4_XS& block, float* HWY_RESTRICT out) {
  const float d = DecodeHalf(block.d);
  for (int sub = 0; sub < 8; ++sub) {
    const int low = block.scales_l[sub / 2] >> (sub % 2 * 4) & 15;
    const int high = block.scales_h >> (sub * 2) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    const uint8_t* qs = block.qs + sub * 16;
    for (int i = 0; i < 16; ++i) {
      out[sub * 32 + i] = scale * kIq4Levels[qs[i] & 15];
      out[sub * 32 + i + 16] = scale * kIq4Levels[qs[i] >> 4];
    }
  }
}

// Blocks are read where they lie. Only where src is not aligned for them (never in a GGUF file) is
// each copied first, which takes up to three times as long.
template <class Block>
HWY_INLINE void DecodeBlocks(const std::byte* src, int64_t elements, int64_t block_elements,
                             float* HWY_RESTRICT out) {
  const int64_t num_blocks = elements / block_elements;
  if (reinterpret_cast<uintptr_t>(src) % alignof(Block) == 0) {
    const Block* blocks = reinterpret_cast<const Block*>(src);
    for (int64_t i = 0; i < num_blocks; ++i) DecodeBlock(blocks[i], out + i * block_elements);
    return;
  }
  for (int64_t i = 0; i < num_blocks; ++i) {
    Block block;
    std::memcpy(&block, src + i * static_cast<int64_t>(sizeof(block)), sizeof(block));
    DecodeBlock(block, out + i * block_elements);
  }
}

template <class Integer>
HWY_INLINE float ToFloat(Integer value) {
  return static_cast<float>(value);
}

// Stored values of one C++ type: convert(value) for each element.
template <class Stored, class Convert>
HWY_INLINE void DecodePlain(const std::byte* src, int64_t elements, float* HWY_RESTRICT out,
                            const Convert& convert) {
  for (int64_t i = 0; i < elements; ++i) {
    Stored stored;
    std::memcpy(&stored, src + i * static_cast<int64_t>(sizeof(stored)), sizeof(stored));
    out[i] = convert(stored);
  }
}

void DequantizeAny(DType type, const std::byte* src, int64_t elements, float* out) {
  switch (type) {
    case DType::kQ4_0:
      return DecodeBlocks<BlockQ4_0>(src, elements, 32, out);
    case DType::kQ4_1:
      return DecodeBlocks<BlockQ4_1>(src, elements, 32, out);
    case DType::kQ5_0:
      return DecodeBlocks<BlockQ5_0>(src, elements, 32, out);
    case DType::kQ5_1:
      return DecodeBlocks<BlockQ5_1>(src, elements, 32, out);
    case DType::kQ8_0:
      return DecodeBlocks<BlockQ8_0>(src, elements, 32, out);
    case DType::kQ2_K:
      return DecodeBlocks<BlockQ2_K>(src, elements, 256, out);
    case DType::kQ3_K:
      return DecodeBlocks<BlockQ3_K>(src, elements, 256, out);
    case DType::kQ4_K:
      return DecodeBlocks<BlockQ4_K>(src, elements, 256, out);
    case DType::kQ5_K:
      return DecodeBlocks<BlockQ5_K>(src, elements, 256, out);
    case DType::kQ6_K:
      return DecodeBlocks<BlockQ6_K>(src, elements, 256, out);
    case DType::kIQ4_NL:
      return DecodeBlocks<BlockIQ4_NL>(src, elements, 32, out);
    case DType::kIQ4_XS:
      return DecodeBlocks<BlockIQ4_XS>(src, elements, 256, out);
    case DType::kF32:
      std::memcpy(out, src, static_cast<size_t>(elements) * sizeof(float));
      return;
    case DType::kF16:
      return DecodePlain<Half>(src, elements, out, DecodeHalf);
    case DType::kBF16:
      return DecodePlain<uint16_t>(src, elements, out, Bf16ToFloat);
    case DType::kI8:
      return DecodePlain<int8_t>(src, elements, out, ToFloat<int8_t>);
    case DType::kI32:
      return DecodePlain<int32_t>(src, elements, out, ToFloat<int32_t>);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lode::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lode::kernels {
HWY_EXPORT(DequantizeAny);

float HalfToFloat(Half h) {
  return HWY_STATIC_DISPATCH(DecodeHalf)(h);
}

Half FloatToHalf(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<Half>(sign | 0x7e00u);   // NaN
  if (magnitude >= 0x477ff000u) return static_cast<Half>(sign | 0x7c00u);  // rounds to infinity
  if (magnitude < 0x38800000u) {
    // Below the smallest normal half: adding 0.5 leaves the half's mantissa, rounded by the FPU, in
    // the low bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<Half>(sign |
                             (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f)));
  }
  const uint32_t odd = magnitude >> 13 & 1;
  return static_cast<Half>(sign | (magnitude - (112u << 23) + 0xfffu + odd) >> 13);
}

void Dequantize(DType type, const std::byte* src, int64_t elements, float* out) {
  LODE_DCHECK(elements % Traits(type).block_elements == 0);
  HWY_DYNAMIC_DISPATCH(DequantizeAny)(type, src, elements, out);
}

}  // namespace lode::kernels
#endif  // HWY_ONCE
