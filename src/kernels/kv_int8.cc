// SPDX-License-Identifier: Apache-2.0
#include "kernels/kv_int8.h"

#include <algorithm>
#include <cmath>

#include "kernels/dequantize.h"
#include "kernels/kv_tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kv_int8.cc"
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

// Layout, shared by all targets.
#ifndef LODE_KERNELS_KV_INT8_LAYOUT_
#define LODE_KERNELS_KV_INT8_LAYOUT_
namespace lode::kernels {
namespace {

constexpr float kMaxHalf = 65504.0f;

// Where the arrays of a key tile start.
constexpr int64_t KeyScalesAt(const KvTileShape& shape) {
  return AlignKvTile(shape.head_dim * int64_t{sizeof(Half)});
}
constexpr int64_t KeyMultipliersAt(const KvTileShape& shape) {
  return KeyScalesAt(shape) + AlignKvTile(shape.tokens * int64_t{sizeof(Half)});
}
constexpr int64_t KeyCodesAt(const KvTileShape& shape) {
  return KeyMultipliersAt(shape) + AlignKvTile(shape.head_dim / kInt8KeyGroup * shape.tokens);
}
// The scale of a key is that of its largest group, whose multiplier is this.
constexpr float kMaxMultiplier = 32.0f;

constexpr int64_t ValueCodesAt(const KvTileShape& shape) {
  return AlignKvTile(shape.tokens * int64_t{sizeof(int16_t)});
}
constexpr float kLog2Steps = 64.0f;  // of a value's scale: within 1.1 % of the best one
constexpr float kMinLog2 = -60.0f;   // of a token whose values are all 0

// Where a code lies among the codes of its tile.
constexpr int64_t KeyCodeAt(const KvTileShape& shape, int64_t token, int64_t d) {
  return (d / 2 * shape.tokens + token) * 2 + d % 2;
}
constexpr int64_t ValueCodeAt(const KvTileShape& shape, int64_t token, int64_t d) {
  return (token / 2 * shape.head_dim + d) * 2 + token % 2;
}

}  // namespace
}  // namespace lode::kernels
#endif  // LODE_KERNELS_KV_INT8_LAYOUT_

HWY_BEFORE_NAMESPACE();
namespace lode::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// NaN becomes 0, and no magnitude is left whose scale f16 could not hold.
template <class D>
HWY_INLINE hn::Vec<D> LoadFinite(D df, const float* in) {
  const auto most = hn::Set(df, 127.0f * kMaxHalf);
  const auto x = hn::LoadU(df, in);
  return hn::IfThenElseZero(hn::Eq(x, x), hn::Clamp(x, hn::Neg(most), most));
}

// Largest magnitude of n components, a multiple of kHeadDimStep.
float Largest(const float* in, int64_t n) {
  const hn::CappedTag<float, kHeadDimStep> df;
  auto max = hn::Zero(df);
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::Lanes(df))) {
    max = hn::Max(max, hn::Abs(LoadFinite(df, in + i)));
  }
  return hn::GetLane(hn::MaxOfLanes(df, max));
}

void Quantize(const float* in, int64_t n, float scale, int8_t* out) {
  const hn::CappedTag<float, kHeadDimStep> df;
  const hn::Rebind<int8_t, decltype(df)> db;
  const auto inverse = hn::Set(df, scale == 0.0f ? 0.0f : 1.0f / scale);
  const auto limit = hn::Set(df, 127.0f);
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::Lanes(df))) {
    const auto scaled = hn::Mul(LoadFinite(df, in + i), inverse);
    const auto clamped = hn::Clamp(scaled, hn::Neg(limit), limit);
    hn::StoreU(hn::DemoteTo(db, hn::NearestInt(clamped)), db, out + i);
  }
}

// n is a multiple of kHeadDimStep.
void WidenHalves(const Half* half, int64_t n, float* out) {
  const hn::CappedTag<float, kHeadDimStep> df;
  const hn::Rebind<hwy::float16_t, decltype(df)> dh;
  const auto* in = reinterpret_cast<const hwy::float16_t*>(half);
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::Lanes(df))) {
    hn::Store(hn::PromoteTo(df, hn::LoadU(dh, in + i)), df, out + i);
  }
}

void Subtract(const float* key, const float* centre, int64_t head_dim, float* out) {
  const hn::CappedTag<float, kHeadDimStep> df;
  for (int64_t i = 0; i < head_dim; i += static_cast<int64_t>(hn::Lanes(df))) {
    hn::Store(hn::Sub(LoadFinite(df, key + i), hn::Load(df, centre + i)), df, out + i);
  }
}

// The key in slot 0 becomes the tile's centre.
void StoreCentre(const float* key, int64_t head_dim, Half* centre) {
  for (int64_t d = 0; d < head_dim; ++d) {
    const float x = key[d];
    centre[d] = FloatToHalf(x == x ? std::clamp(x, -kMaxHalf, kMaxHalf) : 0.0f);
  }
}

// Smallest power of two m with largest <= 127 * scale * m / kMaxMultiplier, or kMaxMultiplier.
uint8_t MultiplierFor(float largest, float scale) {
  float multiplier = 1.0f;
  while (multiplier < kMaxMultiplier && largest * kMaxMultiplier > 127.0f * scale * multiplier) {
    multiplier *= 2.0f;
  }
  return static_cast<uint8_t>(multiplier);
}

void SealKeys(std::byte* tile, const KvTileShape& shape, const float* keys) {
  HWY_ALIGN float key[kMaxHeadDim];
  HWY_ALIGN float difference[kMaxHeadDim];
  HWY_ALIGN float centre[kMaxHeadDim];
  HWY_ALIGN int8_t row[kMaxHeadDim];
  auto* half_centre = reinterpret_cast<Half*>(tile);
  auto* scales = reinterpret_cast<Half*>(tile + KeyScalesAt(shape));
  auto* multipliers = reinterpret_cast<uint8_t*>(tile + KeyMultipliersAt(shape));
  auto* codes = reinterpret_cast<int8_t*>(tile + KeyCodesAt(shape));
  for (int64_t slot = 0; slot < shape.tokens; ++slot) {
    for (int64_t d = 0; d < shape.head_dim; ++d) key[d] = keys[d * kKvTileTokens + slot];
    if (slot == 0) {
      StoreCentre(key, shape.head_dim, half_centre);
      WidenHalves(half_centre, shape.head_dim, centre);
    }
    Subtract(key, centre, shape.head_dim, difference);
    const Half half_scale = FloatToHalf(Largest(difference, shape.head_dim) / 127.0f);
    const float scale = HalfToFloat(half_scale);
    scales[slot] = half_scale;
    for (int64_t d = 0; d < shape.head_dim; d += kInt8KeyGroup) {
      const uint8_t multiplier = MultiplierFor(Largest(difference + d, kInt8KeyGroup), scale);
      multipliers[d / kInt8KeyGroup * shape.tokens + slot] = multiplier;
      Quantize(difference + d, kInt8KeyGroup, scale * multiplier / kMaxMultiplier, row + d);
    }
    for (int64_t d = 0; d < shape.head_dim; ++d) codes[KeyCodeAt(shape, slot, d)] = row[d];
  }
}

void SealValues(std::byte* tile, const KvTileShape& shape, const float* values, int64_t stride) {
  HWY_ALIGN int8_t row[kMaxHeadDim];
  auto* scales = reinterpret_cast<int16_t*>(tile);
  auto* codes = reinterpret_cast<int8_t*>(tile + ValueCodesAt(shape));
  for (int64_t slot = 0; slot < shape.tokens; ++slot) {
    const float* value = values + slot * stride;
    const float log2 = std::max(kMinLog2, std::log2(Largest(value, shape.head_dim) / 127.0f));
    scales[slot] = static_cast<int16_t>(std::ceil(log2 * kLog2Steps));
    Quantize(value, shape.head_dim, std::exp2(scales[slot] / kLog2Steps), row);
    for (int64_t d = 0; d < shape.head_dim; ++d) codes[ValueCodeAt(shape, slot, d)] = row[d];
  }
}

// n is a multiple of 16.
HWY_INLINE void WidenCodes(const int8_t* HWY_RESTRICT in, int64_t n, int16_t* HWY_RESTRICT out) {
  const hn::CappedTag<int16_t, 16> dw;
  const hn::Rebind<int8_t, decltype(dw)> db;
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::Lanes(dw))) {
    hn::Store(hn::PromoteTo(dw, hn::LoadU(db, in + i)), dw, out + i);
  }
}

#if HWY_TARGET == HWY_SCALAR

void MultiplyCodes(const int8_t* codes, const uint8_t* multipliers, int64_t head_dim,
                   int16_t* tile) {
  for (int64_t pair = 0; pair < head_dim / 2; ++pair) {
    for (int64_t i = 0; i < 2 * kKvTileTokens; ++i) {
      const int64_t at = pair * 2 * kKvTileTokens + i;
      tile[at] = static_cast<int16_t>(
          codes[at] * multipliers[pair * 2 / kInt8KeyGroup * kKvTileTokens + i / 2]);
    }
  }
}

#else

void MultiplyCodes(const int8_t* HWY_RESTRICT codes, const uint8_t* HWY_RESTRICT multipliers,
                   int64_t head_dim, int16_t* HWY_RESTRICT tile) {
  const hn::CappedTag<int16_t, 16> dw;
  const hn::Rebind<int8_t, decltype(dw)> db;
  const hn::Repartition<uint32_t, decltype(dw)> du;
  const hn::Rebind<uint8_t, decltype(du)> dub;
  const int64_t tokens = static_cast<int64_t>(hn::Lanes(du));  // of a vector
  constexpr int64_t kPairs = kInt8KeyGroup / 2;
  for (int64_t g = 0; g < head_dim / kInt8KeyGroup; ++g) {
    for (int64_t t = 0; t < kKvTileTokens; t += tokens) {
      const auto one = hn::PromoteTo(du, hn::LoadU(dub, multipliers + g * kKvTileTokens + t));
      const auto both = hn::BitCast(dw, hn::Or(one, hn::ShiftLeft<16>(one)));
      for (int64_t pair = 0; pair < kPairs; ++pair) {
        const int64_t at = ((g * kPairs + pair) * kKvTileTokens + t) * 2;
        const auto code = hn::PromoteTo(dw, hn::LoadU(db, codes + at));
        hn::Store(hn::Mul(code, both), dw, tile + at);
      }
    }
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

void UnpackKeys(const std::byte* tile, const KvTileShape& shape, int16_t* out, float* scales,
                float* centre) {
  WidenHalves(reinterpret_cast<const Half*>(tile), shape.head_dim, centre);
  WidenHalves(reinterpret_cast<const Half*>(tile + KeyScalesAt(shape)), kKvTileTokens, scales);
  for (int64_t t = 0; t < kKvTileTokens; ++t) scales[t] *= 1.0f / kMaxMultiplier;
  MultiplyCodes(reinterpret_cast<const int8_t*>(tile + KeyCodesAt(shape)),
                reinterpret_cast<const uint8_t*>(tile + KeyMultipliersAt(shape)), shape.head_dim,
                out);
}

void UnpackValues(const std::byte* tile, const KvTileShape& shape, int64_t cols, int16_t* out,
                  float* log2_scales) {
  const auto* scales = reinterpret_cast<const int16_t*>(tile);
  for (int64_t t = 0; t < kKvTileTokens; ++t) log2_scales[t] = scales[t] * (1.0f / kLog2Steps);
  const auto* codes = reinterpret_cast<const int8_t*>(tile + ValueCodesAt(shape));
  for (int64_t pair = 0; pair < kKvTileTokens / 2; ++pair) {
    WidenCodes(codes + pair * 2 * shape.head_dim, 2 * shape.head_dim, out + pair * 2 * cols);
  }
}

}  // namespace
}  // namespace lode::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lode::kernels {

HWY_EXPORT(SealKeys);
HWY_EXPORT(SealValues);
HWY_EXPORT(UnpackKeys);
HWY_EXPORT(UnpackValues);

int64_t Int8KeyTileBytes(const KvTileShape& shape) {
  return AlignKvTile(KeyCodesAt(shape) + shape.tokens * shape.head_dim);
}

int64_t Int8ValueTileBytes(const KvTileShape& shape) {
  return AlignKvTile(ValueCodesAt(shape) + shape.tokens * shape.head_dim);
}

void Int8SealKeys(std::byte* tile, const KvTileShape& shape, const float* keys) {
  HWY_DYNAMIC_DISPATCH(SealKeys)(tile, shape, keys);
}

void Int8SealValues(std::byte* tile, const KvTileShape& shape, const float* values,
                    int64_t stride) {
  HWY_DYNAMIC_DISPATCH(SealValues)(tile, shape, values, stride);
}

void Int8DecodeKeys(const std::byte* tile, const KvTileShape& shape, float* out) {
  const auto* centre = reinterpret_cast<const Half*>(tile);
  const auto* scales = reinterpret_cast<const Half*>(tile + KeyScalesAt(shape));
  const auto* multipliers = reinterpret_cast<const uint8_t*>(tile + KeyMultipliersAt(shape));
  const auto* codes = reinterpret_cast<const int8_t*>(tile + KeyCodesAt(shape));
  for (int64_t d = 0; d < shape.head_dim; ++d) {
    for (int64_t t = 0; t < shape.tokens; ++t) {
      const int multiple =
          codes[KeyCodeAt(shape, t, d)] * multipliers[d / kInt8KeyGroup * shape.tokens + t];
      out[d * kKvTileTokens + t] = HalfToFloat(centre[d]) + HalfToFloat(scales[t]) /
                                                                kMaxMultiplier *
                                                                static_cast<float>(multiple);
    }
  }
}

void Int8DecodeValues(const std::byte* tile, const KvTileShape& shape, float* out, int64_t stride) {
  const auto* scales = reinterpret_cast<const int16_t*>(tile);
  const auto* codes = reinterpret_cast<const int8_t*>(tile + ValueCodesAt(shape));
  for (int64_t t = 0; t < shape.tokens; ++t) {
    const float scale = std::exp2(scales[t] / kLog2Steps);
    for (int64_t d = 0; d < shape.head_dim; ++d) {
      out[t * stride + d] = scale * static_cast<float>(codes[ValueCodeAt(shape, t, d)]);
    }
  }
}

void Int8UnpackKeys(const std::byte* tile, const KvTileShape& shape, int16_t* out, float* scales,
                    float* centre) {
  HWY_DYNAMIC_DISPATCH(UnpackKeys)(tile, shape, out, scales, centre);
}

void Int8UnpackValues(const std::byte* tile, const KvTileShape& shape, int64_t cols, int16_t* out,
                      float* log2_scales) {
  HWY_DYNAMIC_DISPATCH(UnpackValues)(tile, shape, cols, out, log2_scales);
}

}  // namespace lode::kernels
#endif  // HWY_ONCE
