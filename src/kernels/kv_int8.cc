// SPDX-License-Identifier: Apache-2.0
#include "kernels/kv_int8.h"

#include <algorithm>
#include <cmath>

#include "kernels/dequantize.h"
#include "kernels/kv_block.h"

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

constexpr int64_t kTokens = kKvBlockTokens;
constexpr float kMaxHalf = 65504.0f;

constexpr int64_t Align(int64_t bytes) {
  return (bytes + kKvBlockAlignment - 1) / kKvBlockAlignment * kKvBlockAlignment;
}

// Where the arrays of a key block start.
constexpr int64_t KeyScalesAt(int64_t head_dim) {
  return Align(head_dim * int64_t{sizeof(Half)});
}
constexpr int64_t KeyMultipliersAt(int64_t head_dim) {
  return KeyScalesAt(head_dim) + kTokens * int64_t{sizeof(Half)};
}
constexpr int64_t KeyCodesAt(int64_t head_dim) {
  return KeyMultipliersAt(head_dim) + Align(head_dim / kInt8KeyGroup * kTokens);
}
// The scale of a key is that of its largest group, whose multiplier is this.
constexpr float kMaxMultiplier = 32.0f;

constexpr int64_t kValueScaleBytes = kTokens * int64_t{sizeof(int16_t)};
constexpr float kLog2Steps = 64.0f;  // of a value's scale: within 1.1 % of the best one
constexpr float kMinLog2 = -60.0f;   // of a token whose values are all 0

// Where a code lies among the codes of its block.
constexpr int64_t KeyCodeAt(int64_t token, int64_t d) {
  return (d / 2 * kTokens + token) * 2 + d % 2;
}
constexpr int64_t ValueCodeAt(int64_t token, int64_t d, int64_t head_dim) {
  return (token / 2 * head_dim + d) * 2 + token % 2;
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

// The key in slot 0 becomes the block's centre.
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

void StoreKeys(std::byte* block, int64_t head_dim, int64_t first_slot, int64_t num_slots,
               const float* rows, int64_t stride) {
  HWY_ALIGN float difference[kMaxHeadDim];
  HWY_ALIGN float centre[kMaxHeadDim];
  HWY_ALIGN int8_t row[kMaxHeadDim];
  auto* half_centre = reinterpret_cast<Half*>(block);
  auto* scales = reinterpret_cast<Half*>(block + KeyScalesAt(head_dim));
  auto* multipliers = reinterpret_cast<uint8_t*>(block + KeyMultipliersAt(head_dim));
  auto* codes = reinterpret_cast<int8_t*>(block + KeyCodesAt(head_dim));
  if (first_slot == 0 && num_slots > 0) StoreCentre(rows, head_dim, half_centre);
  WidenHalves(half_centre, head_dim, centre);
  for (int64_t i = 0; i < num_slots; ++i) {
    const int64_t slot = first_slot + i;
    Subtract(rows + i * stride, centre, head_dim, difference);
    const Half half_scale = FloatToHalf(Largest(difference, head_dim) / 127.0f);
    const float scale = HalfToFloat(half_scale);
    scales[slot] = half_scale;
    for (int64_t d = 0; d < head_dim; d += kInt8KeyGroup) {
      const uint8_t multiplier = MultiplierFor(Largest(difference + d, kInt8KeyGroup), scale);
      multipliers[d / kInt8KeyGroup * kTokens + slot] = multiplier;
      Quantize(difference + d, kInt8KeyGroup, scale * multiplier / kMaxMultiplier, row + d);
    }
    for (int64_t d = 0; d < head_dim; ++d) codes[KeyCodeAt(slot, d)] = row[d];
  }
}

void StoreValues(std::byte* block, int64_t head_dim, int64_t first_slot, int64_t num_slots,
                 const float* rows, int64_t stride) {
  HWY_ALIGN int8_t row[kMaxHeadDim];
  auto* scales = reinterpret_cast<int16_t*>(block);
  auto* codes = reinterpret_cast<int8_t*>(block + kValueScaleBytes);
  for (int64_t i = 0; i < num_slots; ++i) {
    const int64_t slot = first_slot + i;
    const float* value = rows + i * stride;
    const float log2 = std::max(kMinLog2, std::log2(Largest(value, head_dim) / 127.0f));
    scales[slot] = static_cast<int16_t>(std::ceil(log2 * kLog2Steps));
    Quantize(value, head_dim, std::exp2(scales[slot] / kLog2Steps), row);
    for (int64_t d = 0; d < head_dim; ++d) codes[ValueCodeAt(slot, d, head_dim)] = row[d];
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
    for (int64_t i = 0; i < 2 * kTokens; ++i) {
      const int64_t at = pair * 2 * kTokens + i;
      tile[at] =
          static_cast<int16_t>(codes[at] * multipliers[pair * 2 / kInt8KeyGroup * kTokens + i / 2]);
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
    for (int64_t t = 0; t < kTokens; t += tokens) {
      const auto one = hn::PromoteTo(du, hn::LoadU(dub, multipliers + g * kTokens + t));
      const auto both = hn::BitCast(dw, hn::Or(one, hn::ShiftLeft<16>(one)));
      for (int64_t pair = 0; pair < kPairs; ++pair) {
        const int64_t at = ((g * kPairs + pair) * kTokens + t) * 2;
        const auto code = hn::PromoteTo(dw, hn::LoadU(db, codes + at));
        hn::Store(hn::Mul(code, both), dw, tile + at);
      }
    }
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

void UnpackKeys(const std::byte* block, int64_t head_dim, int16_t* tile, float* scales,
                float* centre) {
  WidenHalves(reinterpret_cast<const Half*>(block), head_dim, centre);
  WidenHalves(reinterpret_cast<const Half*>(block + KeyScalesAt(head_dim)), kTokens, scales);
  for (int64_t t = 0; t < kTokens; ++t) scales[t] *= 1.0f / kMaxMultiplier;
  MultiplyCodes(reinterpret_cast<const int8_t*>(block + KeyCodesAt(head_dim)),
                reinterpret_cast<const uint8_t*>(block + KeyMultipliersAt(head_dim)), head_dim,
                tile);
}

void UnpackValues(const std::byte* block, int64_t head_dim, int64_t cols, int16_t* tile,
                  float* log2_scales) {
  const auto* scales = reinterpret_cast<const int16_t*>(block);
  for (int64_t t = 0; t < kTokens; ++t) log2_scales[t] = scales[t] * (1.0f / kLog2Steps);
  const auto* codes = reinterpret_cast<const int8_t*>(block + kValueScaleBytes);
  for (int64_t pair = 0; pair < kTokens / 2; ++pair) {
    WidenCodes(codes + pair * 2 * head_dim, 2 * head_dim, tile + pair * 2 * cols);
  }
}

}  // namespace
}  // namespace lode::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lode::kernels {

HWY_EXPORT(StoreKeys);
HWY_EXPORT(StoreValues);
HWY_EXPORT(UnpackKeys);
HWY_EXPORT(UnpackValues);

int64_t Int8KeyBlockBytes(int64_t head_dim) {
  return KeyCodesAt(head_dim) + kTokens * head_dim;
}

int64_t Int8ValueBlockBytes(int64_t head_dim) {
  return kValueScaleBytes + kTokens * head_dim;
}

void Int8StoreKeys(std::byte* block, int64_t head_dim, int64_t first_slot, int64_t num_slots,
                   const float* rows, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(StoreKeys)(block, head_dim, first_slot, num_slots, rows, stride);
}

void Int8StoreValues(std::byte* block, int64_t head_dim, int64_t first_slot, int64_t num_slots,
                     const float* rows, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(StoreValues)(block, head_dim, first_slot, num_slots, rows, stride);
}

void Int8DecodeKeys(const std::byte* block, int64_t head_dim, float* tile) {
  const auto* centre = reinterpret_cast<const Half*>(block);
  const auto* scales = reinterpret_cast<const Half*>(block + KeyScalesAt(head_dim));
  const auto* multipliers = reinterpret_cast<const uint8_t*>(block + KeyMultipliersAt(head_dim));
  const auto* codes = reinterpret_cast<const int8_t*>(block + KeyCodesAt(head_dim));
  for (int64_t d = 0; d < head_dim; ++d) {
    for (int64_t t = 0; t < kTokens; ++t) {
      const int multiple = codes[KeyCodeAt(t, d)] * multipliers[d / kInt8KeyGroup * kTokens + t];
      tile[d * kTokens + t] = HalfToFloat(centre[d]) + HalfToFloat(scales[t]) / kMaxMultiplier *
                                                           static_cast<float>(multiple);
    }
  }
}

void Int8DecodeValues(const std::byte* block, int64_t head_dim, float* tile, int64_t stride) {
  const auto* scales = reinterpret_cast<const int16_t*>(block);
  const auto* codes = reinterpret_cast<const int8_t*>(block + kValueScaleBytes);
  for (int64_t t = 0; t < kTokens; ++t) {
    const float scale = std::exp2(scales[t] / kLog2Steps);
    for (int64_t d = 0; d < head_dim; ++d) {
      tile[t * stride + d] = scale * static_cast<float>(codes[ValueCodeAt(t, d, head_dim)]);
    }
  }
}

void Int8UnpackKeys(const std::byte* block, int64_t head_dim, int16_t* tile, float* scales,
                    float* centre) {
  HWY_DYNAMIC_DISPATCH(UnpackKeys)(block, head_dim, tile, scales, centre);
}

void Int8UnpackValues(const std::byte* block, int64_t head_dim, int64_t cols, int16_t* tile,
                      float* log2_scales) {
  HWY_DYNAMIC_DISPATCH(UnpackValues)(block, head_dim, cols, tile, log2_scales);
}

}  // namespace lode::kernels
#endif  // HWY_ONCE
