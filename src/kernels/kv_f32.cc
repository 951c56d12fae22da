// SPDX-License-Identifier: Apache-2.0
#include "kernels/kv_f32.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/kv_tile.h"

namespace lode::kernels {
namespace {

float Finite(float x) {
  constexpr float kMax = std::numeric_limits<float>::max();
  return std::isnan(x) ? 0.0f : std::clamp(x, -kMax, kMax);
}

}  // namespace

int64_t F32KeyTileBytes(const KvTileShape& shape) {
  return AlignKvTile(shape.tokens * shape.head_dim * int64_t{sizeof(float)});
}

int64_t F32ValueTileBytes(const KvTileShape& shape) {
  return F32KeyTileBytes(shape);
}

void F32StoreKeys(std::byte* tile, const KvTileShape& shape, int64_t first_slot, int64_t num_slots,
                  const float* rows, int64_t stride) {
  float* keys = reinterpret_cast<float*>(tile) + first_slot;
  for (int64_t i = 0; i < num_slots; ++i) {
    for (int64_t d = 0; d < shape.head_dim; ++d) {
      keys[d * shape.tokens + i] = Finite(rows[i * stride + d]);
    }
  }
}

void F32StoreValues(std::byte* tile, const KvTileShape& shape, int64_t first_slot,
                    int64_t num_slots, const float* rows, int64_t stride) {
  const int64_t head_dim = shape.head_dim;
  float* values = reinterpret_cast<float*>(tile) + first_slot * head_dim;
  for (int64_t i = 0; i < num_slots; ++i) {
    for (int64_t d = 0; d < head_dim; ++d) values[i * head_dim + d] = Finite(rows[i * stride + d]);
  }
}

void F32DecodeKeys(const std::byte* tile, const KvTileShape& shape, float* out) {
  const float* keys = reinterpret_cast<const float*>(tile);
  for (int64_t d = 0; d < shape.head_dim; ++d) {
    std::copy_n(keys + d * shape.tokens, shape.tokens, out + d * kKvTileTokens);
  }
}

void F32DecodeValues(const std::byte* tile, const KvTileShape& shape, float* out, int64_t stride) {
  const float* values = reinterpret_cast<const float*>(tile);
  for (int64_t t = 0; t < shape.tokens; ++t) {
    std::copy_n(values + t * shape.head_dim, shape.head_dim, out + t * stride);
  }
}

}  // namespace lode::kernels
