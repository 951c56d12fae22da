// SPDX-License-Identifier: Apache-2.0
// Plain loops, which compilers turn into vectors: this type has no kernels of its own to feed.
#include "kernels/kv_bf16.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/dequantize.h"
#include "kernels/kv_tile.h"

namespace lode::kernels {
namespace {

uint16_t Encode(float x) {
  constexpr float kMax = 0x1.FEp127f;  // the largest bfloat16
  const float finite = std::isnan(x) ? 0.0f : std::clamp(x, -kMax, kMax);
  const auto bits = std::bit_cast<uint32_t>(finite);
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

void Decode(const uint16_t* in, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = Bf16ToFloat(in[i]);
}

}  // namespace

int64_t Bf16KeyTileBytes(const KvTileShape& shape) {
  return AlignKvTile(shape.tokens * shape.head_dim * int64_t{sizeof(uint16_t)});
}

int64_t Bf16ValueTileBytes(const KvTileShape& shape) {
  return Bf16KeyTileBytes(shape);
}

void Bf16StoreKeys(std::byte* tile, const KvTileShape& shape, int64_t first_slot, int64_t num_slots,
                   const float* rows, int64_t stride) {
  uint16_t* keys = reinterpret_cast<uint16_t*>(tile) + first_slot;
  for (int64_t i = 0; i < num_slots; ++i) {
    for (int64_t d = 0; d < shape.head_dim; ++d) {
      keys[d * shape.tokens + i] = Encode(rows[i * stride + d]);
    }
  }
}

void Bf16StoreValues(std::byte* tile, const KvTileShape& shape, int64_t first_slot,
                     int64_t num_slots, const float* rows, int64_t stride) {
  const int64_t head_dim = shape.head_dim;
  uint16_t* values = reinterpret_cast<uint16_t*>(tile) + first_slot * head_dim;
  for (int64_t i = 0; i < num_slots; ++i) {
    for (int64_t d = 0; d < head_dim; ++d) values[i * head_dim + d] = Encode(rows[i * stride + d]);
  }
}

void Bf16DecodeKeys(const std::byte* tile, const KvTileShape& shape, float* out) {
  const auto* keys = reinterpret_cast<const uint16_t*>(tile);
  for (int64_t d = 0; d < shape.head_dim; ++d) {
    Decode(keys + d * shape.tokens, shape.tokens, out + d * kKvTileTokens);
  }
}

void Bf16DecodeValues(const std::byte* tile, const KvTileShape& shape, float* out, int64_t stride) {
  const auto* values = reinterpret_cast<const uint16_t*>(tile);
  for (int64_t t = 0; t < shape.tokens; ++t) {
    Decode(values + t * shape.head_dim, shape.head_dim, out + t * stride);
  }
}

}  // namespace lode::kernels
