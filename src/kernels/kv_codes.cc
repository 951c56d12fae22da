// SPDX-License-Identifier: Apache-2.0
#include "kernels/kv_codes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/code_matrix.h"
#include "kernels/dequantize.h"
#include "kernels/kv_tile.h"
#include "kernels/rotation.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kv_codes.cc"
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

// Layout, shared by all targets.
#ifndef LODE_KERNELS_KV_CODES_LAYOUT_
#define LODE_KERNELS_KV_CODES_LAYOUT_
namespace lode::kernels {
namespace {

constexpr float kCentreUnit = 32.0f;  // scales, a quarter of what codes reach
// Bits of f32 below those of a scale in eight bits, and the exponent that code 0 stands for.
constexpr int kScaleShift = 20;
constexpr int32_t kScaleBias = (127 - 18) << 23;

constexpr int64_t kHalfBytes = 2;

// Bytes before the codes.
constexpr int64_t KeyHeaderBytes(int bits, const KvTileShape& shape) {
  return shape.head_dim * (bits == 8 ? 2 : 2 * kHalfBytes);
}
int64_t ValueHeaderBytes(const KvTileShape& shape) {
  return shape.value_groups() * shape.tokens * kHalfBytes;
}

}  // namespace
}  // namespace lode::kernels
#endif  // LODE_KERNELS_KV_CODES_LAYOUT_

HWY_BEFORE_NAMESPACE();
namespace lode::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using F32 = hn::CappedTag<float, kHeadDimStep>;
using I32 = hn::RebindToSigned<F32>;

HWY_INLINE hn::Vec<F32> LoadScales(const std::byte* at) {
  const I32 di;
  const hn::Rebind<uint8_t, F32> db;
  const auto codes = hn::PromoteTo(di, hn::LoadU(db, reinterpret_cast<const uint8_t*>(at)));
  return hn::BitCast(F32(), hn::Add(hn::ShiftLeft<kScaleShift>(codes), hn::Set(di, kScaleBias)));
}

HWY_INLINE hn::Vec<F32> LoadHalves(const std::byte* at) {
  const hn::Rebind<hwy::float16_t, F32> dh;
  return hn::PromoteTo(F32(), hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(at)));
}

// Scales of components [d, d + 8).
HWY_INLINE hn::Vec<F32> LoadKeyScales(int bits, const std::byte* tile, int64_t d) {
  return bits == 8 ? LoadScales(tile + d) : LoadHalves(tile + d * kHalfBytes);
}

void RaiseToKeyScales(int bits, const KvTileShape& shape, const std::byte* tile, float* scales) {
  const F32 df;
  for (int64_t d = 0; d < shape.head_dim; d += static_cast<int64_t>(hn::Lanes(df))) {
    const auto scale = LoadKeyScales(bits, tile, d);
    hn::StoreU(hn::Max(hn::LoadU(df, scales + d), scale), df, scales + d);
  }
}

void KeyRatios(int bits, const KvTileShape& shape, const std::byte* tile,
               const float* HWY_RESTRICT inverse, int16_t* HWY_RESTRICT ratio,
               float* HWY_RESTRICT shift) {
  const F32 df;
  const I32 di;
  const hn::Rebind<int16_t, F32> dw;
  const hn::Rebind<int8_t, F32> db;
  const std::byte* centres = tile + KeyHeaderBytes(bits, shape) / 2;
  for (int64_t d = 0; d < shape.head_dim; d += static_cast<int64_t>(hn::Lanes(df))) {
    const auto by = hn::LoadU(df, inverse + d);
    const auto scale = hn::Mul(LoadKeyScales(bits, tile, d), by);
    const auto fixed = hn::NearestInt(hn::Mul(scale, hn::Set(df, 32768.0f)));
    hn::StoreU(hn::DemoteTo(dw, fixed), dw, ratio + d);
    if (bits == 8) {
      const auto code = hn::LoadU(db, reinterpret_cast<const int8_t*>(centres + d));
      const auto units = hn::Mul(hn::ConvertTo(df, hn::PromoteTo(di, code)), scale);
      hn::StoreU(hn::Mul(units, hn::Set(df, kCentreUnit)), df, shift + d);
    } else {
      hn::StoreU(hn::Mul(LoadHalves(centres + d * kHalfBytes), by), df, shift + d);
    }
  }
}

void ValueScales(const KvTileShape& shape, const std::byte* tile, int64_t group, float* scales) {
  const F32 df;
  const std::byte* at = tile + group * shape.tokens * kHalfBytes;
  for (int64_t t = 0; t < shape.tokens; t += static_cast<int64_t>(hn::Lanes(df))) {
    hn::StoreU(LoadHalves(at + t * kHalfBytes), df, scales + t);
  }
}

}  // namespace
}  // namespace lode::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lode::kernels {
namespace {

constexpr float kMaxHalf = 65504.0f;
constexpr int kMaxScaleCode = 255;
constexpr int64_t kMaxCodes = kMaxHeadDim * kKvTileTokens;

float Finite(float x) {
  return x == x ? std::clamp(x, -kMaxHalf, kMaxHalf) : 0.0f;
}

Half LoadHalf(const std::byte* at) {
  Half half;
  std::memcpy(&half, at, sizeof(half));
  return half;
}

void StoreHalf(Half half, std::byte* at) {
  std::memcpy(at, &half, sizeof(half));
}

float ScaleOf(int code) {
  return std::bit_cast<float>((code << kScaleShift) + kScaleBias);
}

// The smallest code of a scale that is at least `scale`, or the largest.
int ScaleCodeFor(float scale) {
  const int32_t above = std::bit_cast<int32_t>(scale) - kScaleBias;
  return std::clamp((above + (1 << kScaleShift) - 1) >> kScaleShift, 0, kMaxScaleCode);
}

// The smallest f16 that is at least x, for 0 <= x below 65504.
Half RoundUpToHalf(float x) {
  const Half half = FloatToHalf(x);
  return HalfToFloat(half) < x ? static_cast<Half>(half + 1) : half;
}

// The codes of a type: 8 bits are symmetric, fewer have one more step below zero than above.
struct CodeRange {
  explicit CodeRange(int bits)
      : lowest(bits == 8 ? -127.0f : -static_cast<float>(1 << (bits - 1))),
        highest(static_cast<float>((1 << (bits - 1)) - 1)) {}

  // The nearest code to x * inverse.
  int8_t Nearest(float x, float inverse) const {
    constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    const float clamped = std::clamp(x * inverse, lowest, highest);
    return static_cast<int8_t>((clamped + kRounder) - kRounder);
  }

  float lowest;
  float highest;
};

// What a tile says of one component of its keys.
struct KeyChannel {
  float scale;
  float centre;
};

// Stores the finest scale whose codes, about a centre that can be stored, reach from lo to hi.
KeyChannel StoreChannel(int bits, float lo, float hi, const KvTileShape& shape, int64_t d,
                        std::byte* tile) {
  const CodeRange range(bits);
  const float least = (hi - lo) / (range.highest - range.lowest);
  if (bits != 8) {
    // The centre is rounded by less than half a scale, too.
    const float size = std::max(std::abs(lo), std::abs(hi));
    const Half half_scale = RoundUpToHalf(std::max({least, size / 1024.0f, 1e-7f}));
    const float scale = HalfToFloat(half_scale);
    const Half half_centre =
        FloatToHalf(std::clamp(lo - range.lowest * scale, -kMaxHalf, kMaxHalf));
    StoreHalf(half_scale, tile + d * kHalfBytes);
    StoreHalf(half_centre, tile + (shape.head_dim + d) * kHalfBytes);
    return {scale, HalfToFloat(half_centre)};
  }
  const float middle = (lo + hi) / 2;
  const CodeRange centres(8);
  int code = ScaleCodeFor(std::max(least, std::abs(middle) / (centres.highest * kCentreUnit)));
  for (;; ++code) {
    const float unit = ScaleOf(code) * kCentreUnit;
    const int8_t centre_code = centres.Nearest(middle, 1.0f / unit);
    const float centre = unit * static_cast<float>(centre_code);
    const float reach = (range.highest + 0.5f) * ScaleOf(code);
    if (code < kMaxScaleCode && (lo < centre - reach || hi > centre + reach)) continue;
    tile[d] = static_cast<std::byte>(code);
    tile[shape.head_dim + d] = static_cast<std::byte>(centre_code);
    return {ScaleOf(code), centre};
  }
}

KeyChannel LoadChannel(int bits, const KvTileShape& shape, const std::byte* tile, int64_t d) {
  if (bits != 8) {
    return {HalfToFloat(LoadHalf(tile + d * kHalfBytes)),
            HalfToFloat(LoadHalf(tile + (shape.head_dim + d) * kHalfBytes))};
  }
  const float scale = ScaleOf(static_cast<int>(tile[d]));
  const auto code = static_cast<int8_t>(tile[shape.head_dim + d]);
  return {scale, scale * kCentreUnit * static_cast<float>(code)};
}

// Scale of n components of a value, so that the largest is the lowest code, which reaches farthest.
Half ValueScaleFor(const float* row, int64_t n, const CodeRange& range) {
  float largest = 0;
  for (int64_t d = 0; d < n; ++d) {
    if (std::abs(row[d]) > std::abs(largest)) largest = row[d];
  }
  return FloatToHalf(std::clamp(largest / range.lowest, -kMaxHalf, kMaxHalf));
}

}  // namespace

HWY_EXPORT(RaiseToKeyScales);
HWY_EXPORT(KeyRatios);
HWY_EXPORT(ValueScales);

int64_t KeyCodeBytes(int bits, const KvTileShape& shape) {
  return AlignKvTile(KeyHeaderBytes(bits, shape) +
                     CodeMatrixBytes(bits, shape.head_dim / 2, shape.tokens));
}

int64_t ValueCodeBytes(int bits, const KvTileShape& shape) {
  return AlignKvTile(ValueHeaderBytes(shape) +
                     CodeMatrixBytes(bits, shape.tokens / 2, shape.head_dim));
}

CodeMatrix KeyCodes(int bits, const KvTileShape& shape, const std::byte* tile) {
  return {tile + KeyHeaderBytes(bits, shape), bits, shape.head_dim / 2, shape.tokens};
}

CodeMatrix ValueCodes(int bits, const KvTileShape& shape, const std::byte* tile) {
  return {tile + ValueHeaderBytes(shape), bits, shape.tokens / 2, shape.head_dim};
}

void EncodeKeyCodes(int bits, const KvTileShape& shape, const float* keys, std::byte* tile) {
  int8_t codes[kMaxCodes];
  const CodeRange range(bits);
  for (int64_t d = 0; d < shape.head_dim; ++d) {
    float column[kKvTileTokens];
    for (int64_t t = 0; t < shape.tokens; ++t) column[t] = Finite(keys[d * kKvTileTokens + t]);
    const auto [lo, hi] = std::minmax_element(column, column + shape.tokens);
    const KeyChannel channel = StoreChannel(bits, *lo, *hi, shape, d, tile);
    const float inverse = 1.0f / channel.scale;
    for (int64_t t = 0; t < shape.tokens; ++t) {
      codes[CodeAt(d / 2, t, d % 2, shape.tokens)] =
          range.Nearest(column[t] - channel.centre, inverse);
    }
  }
  PackCodes(codes, bits, shape.head_dim / 2, shape.tokens, tile + KeyHeaderBytes(bits, shape));
}

void EncodeValueCodes(int bits, const KvTileShape& shape, const float* values, int64_t stride,
                      std::byte* tile) {
  int8_t codes[kMaxCodes];
  const CodeRange range(bits);
  for (int64_t t = 0; t < shape.tokens; ++t) {
    float row[kMaxHeadDim];
    for (int64_t d = 0; d < shape.head_dim; ++d) row[d] = Finite(values[t * stride + d]);
    Rotate(row, 1, shape.head_dim, shape.head_dim);
    for (int64_t g = 0; g < shape.value_groups(); ++g) {
      const int64_t begin = g * shape.value_group;
      const int64_t end = std::min(shape.head_dim, begin + shape.value_group);
      const Half half_scale = ValueScaleFor(row + begin, end - begin, range);
      StoreHalf(half_scale, tile + (g * shape.tokens + t) * kHalfBytes);
      const float scale = HalfToFloat(half_scale);
      const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
      for (int64_t d = begin; d < end; ++d) {
        codes[CodeAt(t / 2, d, t % 2, shape.head_dim)] = range.Nearest(row[d], inverse);
      }
    }
  }
  PackCodes(codes, bits, shape.tokens / 2, shape.head_dim, tile + ValueHeaderBytes(shape));
}

void DecodeKeyCodes(int bits, const KvTileShape& shape, const std::byte* tile, float* keys) {
  int8_t codes[kMaxCodes];
  UnpackCodes(tile + KeyHeaderBytes(bits, shape), bits, shape.head_dim / 2, shape.tokens, codes);
  for (int64_t d = 0; d < shape.head_dim; ++d) {
    const KeyChannel channel = LoadChannel(bits, shape, tile, d);
    for (int64_t t = 0; t < shape.tokens; ++t) {
      const int8_t code = codes[CodeAt(d / 2, t, d % 2, shape.tokens)];
      keys[d * kKvTileTokens + t] = channel.centre + channel.scale * static_cast<float>(code);
    }
  }
}

void DecodeValueCodes(int bits, const KvTileShape& shape, const std::byte* tile, float* values,
                      int64_t stride) {
  int8_t codes[kMaxCodes];
  UnpackCodes(tile + ValueHeaderBytes(shape), bits, shape.tokens / 2, shape.head_dim, codes);
  for (int64_t t = 0; t < shape.tokens; ++t) {
    float* row = values + t * stride;
    for (int64_t g = 0; g < shape.value_groups(); ++g) {
      const float scale = HalfToFloat(LoadHalf(tile + (g * shape.tokens + t) * kHalfBytes));
      const int64_t end = std::min(shape.head_dim, (g + 1) * shape.value_group);
      for (int64_t d = g * shape.value_group; d < end; ++d) {
        row[d] = scale * static_cast<float>(codes[CodeAt(t / 2, d, t % 2, shape.head_dim)]);
      }
    }
    Rotate(row, 1, shape.head_dim, stride);
  }
}

void RaiseToKeyScales(int bits, const KvTileShape& shape, const std::byte* tile, float* scales) {
  HWY_DYNAMIC_DISPATCH(RaiseToKeyScales)(bits, shape, tile, scales);
}

void KeyRatios(int bits, const KvTileShape& shape, const std::byte* tile, const float* inverse,
               int16_t* ratio, float* shift) {
  HWY_DYNAMIC_DISPATCH(KeyRatios)(bits, shape, tile, inverse, ratio, shift);
}

void ValueScales(const KvTileShape& shape, const std::byte* tile, int64_t group, float* scales) {
  HWY_DYNAMIC_DISPATCH(ValueScales)(shape, tile, group, scales);
}

}  // namespace lode::kernels
#endif  // HWY_ONCE
