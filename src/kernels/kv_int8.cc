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
constexpr int64_t kGroup = 32;  // components that share a scale
constexpr int64_t kMaxGroups = kMaxHeadDim / kGroup;
constexpr float kMaxHalf = 65504.0f;

constexpr int64_t NumGroups(int64_t head_dim) {
  return (head_dim + kGroup - 1) / kGroup;
}

constexpr int64_t ScaleBytes(int64_t head_dim) {
  return NumGroups(head_dim) * kTokens * int64_t{sizeof(Half)};
}

}  // namespace
}  // namespace lode::kernels
#endif  // LODE_KERNELS_KV_INT8_LAYOUT_

HWY_BEFORE_NAMESPACE();
namespace lode::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Quantises n <= kGroup components, a multiple of kHeadDimStep; returns the scale.
Half EncodeGroup(const float* in, int64_t n, int8_t* out) {
  const hn::CappedTag<float, kHeadDimStep> df;
  const hn::Rebind<int8_t, decltype(df)> db;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  const auto most = hn::Set(df, 127.0f * kMaxHalf);
  const auto finite = [&](int64_t i) HWY_ATTR {
    const auto x = hn::LoadU(df, in + i);
    return hn::IfThenElseZero(hn::Eq(x, x), hn::Clamp(x, hn::Neg(most), most));
  };
  auto max = hn::Zero(df);
  for (int64_t i = 0; i < n; i += lanes) max = hn::Max(max, hn::Abs(finite(i)));
  const float largest = hn::GetLane(hn::MaxOfLanes(df, max));

  const Half scale = FloatToHalf(largest / 127.0f);
  const float step = HalfToFloat(scale);
  const auto inverse = hn::Set(df, step == 0.0f ? 0.0f : 1.0f / step);
  const auto limit = hn::Set(df, 127.0f);
  for (int64_t i = 0; i < n; i += lanes) {
    const auto scaled = hn::Clamp(hn::Mul(finite(i), inverse), hn::Neg(limit), limit);
    hn::StoreU(hn::DemoteTo(db, hn::NearestInt(scaled)), db, out + i);
  }
  return scale;
}

// Quantises one token; scales of its groups go to scales[g * kTokens].
void EncodeRow(const float* in, int64_t head_dim, Half* scales, int8_t* out) {
  for (int64_t g = 0; g < NumGroups(head_dim); ++g) {
    const int64_t first = g * kGroup;
    scales[g * kTokens] = EncodeGroup(in + first, std::min(kGroup, head_dim - first), out + first);
  }
}

void StoreKeys(std::byte* block, int64_t head_dim, int64_t first_slot, int64_t num_slots,
               const float* rows, int64_t stride) {
  HWY_ALIGN int8_t row[kMaxHeadDim];
  auto* scales = reinterpret_cast<Half*>(block) + first_slot;
  auto* codes = reinterpret_cast<int8_t*>(block + ScaleBytes(head_dim)) + first_slot;
  for (int64_t i = 0; i < num_slots; ++i) {
    EncodeRow(rows + i * stride, head_dim, scales + i, row);
    for (int64_t d = 0; d < head_dim; ++d) codes[d * kTokens + i] = row[d];
  }
}

void StoreValues(std::byte* block, int64_t head_dim, int64_t first_slot, int64_t num_slots,
                 const float* rows, int64_t stride) {
  auto* scales = reinterpret_cast<Half*>(block) + first_slot;
  auto* codes = reinterpret_cast<int8_t*>(block + ScaleBytes(head_dim)) + first_slot * head_dim;
  for (int64_t i = 0; i < num_slots; ++i) {
    EncodeRow(rows + i * stride, head_dim, scales + i, codes + i * head_dim);
  }
}

// Scales of all groups as f32, [groups][kTokens].
void DecodeScales(const std::byte* block, int64_t head_dim, float* scales) {
  const hn::CappedTag<float, kHeadDimStep> df;
  const hn::Rebind<hwy::float16_t, decltype(df)> dh;
  const auto* half = reinterpret_cast<const hwy::float16_t*>(block);
  for (int64_t i = 0; i < NumGroups(head_dim) * kTokens; i += static_cast<int64_t>(hn::Lanes(df))) {
    hn::Store(hn::PromoteTo(df, hn::LoadU(dh, half + i)), df, scales + i);
  }
}

void DecodeKeys(const std::byte* block, int64_t head_dim, float* tile) {
  const hn::CappedTag<float, kHeadDimStep> df;
  const hn::Rebind<int32_t, decltype(df)> di;
  const hn::Rebind<int8_t, decltype(df)> db;
  HWY_ALIGN float scales[kMaxGroups * kTokens];
  DecodeScales(block, head_dim, scales);
  const auto* codes = reinterpret_cast<const int8_t*>(block + ScaleBytes(head_dim));
  for (int64_t d = 0; d < head_dim; ++d) {
    const float* group_scales = scales + d / kGroup * kTokens;
    for (int64_t t = 0; t < kTokens; t += static_cast<int64_t>(hn::Lanes(df))) {
      const auto code = hn::PromoteTo(di, hn::LoadU(db, codes + d * kTokens + t));
      hn::StoreU(hn::Mul(hn::ConvertTo(df, code), hn::Load(df, group_scales + t)), df,
                 tile + d * kTokens + t);
    }
  }
}

void DecodeValues(const std::byte* block, int64_t head_dim, float* tile, int64_t stride) {
  const hn::CappedTag<float, kHeadDimStep> df;
  const hn::Rebind<int32_t, decltype(df)> di;
  const hn::Rebind<int8_t, decltype(df)> db;
  HWY_ALIGN float scales[kMaxGroups * kTokens];
  DecodeScales(block, head_dim, scales);
  const auto* codes = reinterpret_cast<const int8_t*>(block + ScaleBytes(head_dim));
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t d = 0; d < head_dim; d += static_cast<int64_t>(hn::Lanes(df))) {
      const auto code = hn::PromoteTo(di, hn::LoadU(db, codes + t * head_dim + d));
      const auto scale = hn::Set(df, scales[d / kGroup * kTokens + t]);
      hn::StoreU(hn::Mul(hn::ConvertTo(df, code), scale), df, tile + t * stride + d);
    }
  }
}

}  // namespace
}  // namespace lode::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lode::kernels {

HWY_EXPORT(StoreKeys);
HWY_EXPORT(StoreValues);
HWY_EXPORT(DecodeKeys);
HWY_EXPORT(DecodeValues);

int64_t Int8KeyBlockBytes(int64_t head_dim) {
  return ScaleBytes(head_dim) + kTokens * head_dim;
}

int64_t Int8ValueBlockBytes(int64_t head_dim) {
  return Int8KeyBlockBytes(head_dim);
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
  HWY_DYNAMIC_DISPATCH(DecodeKeys)(block, head_dim, tile);
}

void Int8DecodeValues(const std::byte* block, int64_t head_dim, float* tile, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(DecodeValues)(block, head_dim, tile, stride);
}

}  // namespace lode::kernels
#endif  // HWY_ONCE
