// SPDX-License-Identifier: Apache-2.0
#include "kernels/kv_f16.h"

#include <algorithm>
#include <cstring>

#include "kernels/dequantize.h"
#include "kernels/kv_tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kv_f16.cc"
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lode::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
constexpr float kMaxHalf = 65504.0f;

// out[0, n) = half(in[0, n)), n a multiple of kHeadDimStep.
void Encode(const float* in, int64_t n, hwy::float16_t* out) {
#if HWY_TARGET <= HWY_AVX2 || HWY_TARGET == HWY_NEON
  const hn::CappedTag<float, kHeadDimStep> df;
  const hn::Rebind<hwy::float16_t, decltype(df)> dh;
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::Lanes(df))) {
    const auto x = hn::LoadU(df, in + i);
    const auto finite = hn::Clamp(x, hn::Set(df, -kMaxHalf), hn::Set(df, kMaxHalf));
    const auto number = hn::IfThenElseZero(hn::Eq(x, x), finite);
    hn::StoreU(hn::DemoteTo(dh, number), dh, out + i);
  }
#else  // Without an instruction for it, Highway truncates.
  for (int64_t i = 0; i < n; ++i) {
    const float finite = in[i] == in[i] ? std::clamp(in[i], -kMaxHalf, kMaxHalf) : 0.0f;
    const Half half = FloatToHalf(finite);
    std::memcpy(out + i, &half, sizeof(half));
  }
#endif
}

// out[0, n) = float(in[0, n)), n a multiple of kHeadDimStep.
void Decode(const hwy::float16_t* in, int64_t n, float* out) {
  const hn::CappedTag<float, kHeadDimStep> df;
  const hn::Rebind<hwy::float16_t, decltype(df)> dh;
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::Lanes(df))) {
    hn::StoreU(hn::PromoteTo(df, hn::LoadU(dh, in + i)), df, out + i);
  }
}

void StoreKeys(std::byte* tile, const KvTileShape& shape, int64_t first_slot, int64_t num_slots,
               const float* rows, int64_t stride) {
  HWY_ALIGN hwy::float16_t row[kMaxHeadDim];
  auto* keys = reinterpret_cast<hwy::float16_t*>(tile) + first_slot;
  for (int64_t i = 0; i < num_slots; ++i) {
    Encode(rows + i * stride, shape.head_dim, row);
    for (int64_t d = 0; d < shape.head_dim; ++d) keys[d * shape.tokens + i] = row[d];
  }
}

void StoreValues(std::byte* tile, const KvTileShape& shape, int64_t first_slot, int64_t num_slots,
                 const float* rows, int64_t stride) {
  auto* values = reinterpret_cast<hwy::float16_t*>(tile) + first_slot * shape.head_dim;
  for (int64_t i = 0; i < num_slots; ++i) {
    Encode(rows + i * stride, shape.head_dim, values + i * shape.head_dim);
  }
}

void DecodeKeys(const std::byte* tile, const KvTileShape& shape, float* out) {
  const auto* keys = reinterpret_cast<const hwy::float16_t*>(tile);
  if (shape.tokens == kKvTileTokens) return Decode(keys, shape.head_dim * kKvTileTokens, out);
  for (int64_t d = 0; d < shape.head_dim; ++d) {
    Decode(keys + d * shape.tokens, shape.tokens, out + d * kKvTileTokens);
  }
}

void DecodeValues(const std::byte* tile, const KvTileShape& shape, float* out, int64_t stride) {
  const auto* values = reinterpret_cast<const hwy::float16_t*>(tile);
  for (int64_t t = 0; t < shape.tokens; ++t) {
    Decode(values + t * shape.head_dim, shape.head_dim, out + t * stride);
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

int64_t F16KeyTileBytes(const KvTileShape& shape) {
  return AlignKvTile(shape.tokens * shape.head_dim * int64_t{sizeof(hwy::float16_t)});
}

int64_t F16ValueTileBytes(const KvTileShape& shape) {
  return F16KeyTileBytes(shape);
}

void F16StoreKeys(std::byte* tile, const KvTileShape& shape, int64_t first_slot, int64_t num_slots,
                  const float* rows, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(StoreKeys)(tile, shape, first_slot, num_slots, rows, stride);
}

void F16StoreValues(std::byte* tile, const KvTileShape& shape, int64_t first_slot,
                    int64_t num_slots, const float* rows, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(StoreValues)(tile, shape, first_slot, num_slots, rows, stride);
}

void F16DecodeKeys(const std::byte* tile, const KvTileShape& shape, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeKeys)(tile, shape, out);
}

void F16DecodeValues(const std::byte* tile, const KvTileShape& shape, float* out, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(DecodeValues)(tile, shape, out, stride);
}

}  // namespace lode::kernels
#endif  // HWY_ONCE
