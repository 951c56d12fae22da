// SPDX-License-Identifier: Apache-2.0
#include "kernels/kv_f32.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/kv_block.h"

namespace lode::kernels {
namespace {

constexpr int64_t kTokens = kKvBlockTokens;

float Finite(float x) {
  constexpr float kMax = std::numeric_limits<float>::max();
  return std::isnan(x) ? 0.0f : std::clamp(x, -kMax, kMax);
}

}  // namespace

int64_t F32KeyBlockBytes(int64_t head_dim) {
  return kTokens * head_dim * int64_t{sizeof(float)};
}

int64_t F32ValueBlockBytes(int64_t head_dim) {
  return F32KeyBlockBytes(head_dim);
}

void F32StoreKeys(std::byte* block, int64_t head_dim, int64_t first_slot, int64_t num_slots,
                  const float* rows, int64_t stride) {
  float* keys = reinterpret_cast<float*>(block);
  for (int64_t i = 0; i < num_slots; ++i) {
    for (int64_t d = 0; d < head_dim; ++d) {
      keys[d * kTokens + first_slot + i] = Finite(rows[i * stride + d]);
    }
  }
}

void F32StoreValues(std::byte* block, int64_t head_dim, int64_t first_slot, int64_t num_slots,
                    const float* rows, int64_t stride) {
  float* values = reinterpret_cast<float*>(block) + first_slot * head_dim;
  for (int64_t i = 0; i < num_slots; ++i) {
    for (int64_t d = 0; d < head_dim; ++d) values[i * head_dim + d] = Finite(rows[i * stride + d]);
  }
}

void F32DecodeKeys(const std::byte* block, int64_t head_dim, float* tile) {
  std::memcpy(tile, block, static_cast<size_t>(F32KeyBlockBytes(head_dim)));
}

void F32DecodeValues(const std::byte* block, int64_t head_dim, float* tile, int64_t stride) {
  const float* values = reinterpret_cast<const float*>(block);
  for (int64_t t = 0; t < kTokens; ++t) {
    std::copy_n(values + t * head_dim, head_dim, tile + t * stride);
  }
}

}  // namespace lode::kernels
