// SPDX-License-Identifier: Apache-2.0
// KV blocks of f32: 4 bytes per component. For verification: the cache adds no error of its own.
#ifndef LODE_KERNELS_KV_F32_H_
#define LODE_KERNELS_KV_F32_H_

#include <cstddef>
#include <cstdint>

namespace lode::kernels {

// Bytes of a block, a multiple of kKvBlockAlignment.
int64_t F32KeyBlockBytes(int64_t head_dim);
int64_t F32ValueBlockBytes(int64_t head_dim);

// Encodes num_slots rows of head_dim floats (row stride `stride` floats) into the slots from
// first_slot on. The other slots keep their contents. NaN becomes 0, and magnitudes that the type
// cannot hold become the largest that it can: a block never holds a NaN or an infinity.
void F32StoreKeys(std::byte* block, int64_t head_dim, int64_t first_slot, int64_t num_slots,
                  const float* rows, int64_t stride);
void F32StoreValues(std::byte* block, int64_t head_dim, int64_t first_slot, int64_t num_slots,
                    const float* rows, int64_t stride);

// Decodes a whole block into a tile (shapes: kv_block.h). Slots never stored decode to finite
// numbers.
void F32DecodeKeys(const std::byte* block, int64_t head_dim, float* tile);
void F32DecodeValues(const std::byte* block, int64_t head_dim, float* tile, int64_t stride);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_KV_F32_H_
