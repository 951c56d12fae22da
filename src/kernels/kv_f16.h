// SPDX-License-Identifier: Apache-2.0
// KV blocks of IEEE half precision: 2 bytes per component, rounded to nearest even.
#ifndef LODE_KERNELS_KV_F16_H_
#define LODE_KERNELS_KV_F16_H_

#include <cstddef>
#include <cstdint>

namespace lode::kernels {

// Bytes of a block, a multiple of kKvBlockAlignment.
int64_t F16KeyBlockBytes(int64_t head_dim);
int64_t F16ValueBlockBytes(int64_t head_dim);

// Encodes num_slots rows of head_dim floats (row stride `stride` floats) into the slots from
// first_slot on. The other slots keep their contents. NaN becomes 0, and magnitudes that the type
// cannot hold become the largest that it can: a block never holds a NaN or an infinity.
void F16StoreKeys(std::byte* block, int64_t head_dim, int64_t first_slot, int64_t num_slots,
                  const float* rows, int64_t stride);
void F16StoreValues(std::byte* block, int64_t head_dim, int64_t first_slot, int64_t num_slots,
                    const float* rows, int64_t stride);

// Decodes a whole block into a tile (shapes: kv_block.h). Slots never stored decode to finite
// numbers.
void F16DecodeKeys(const std::byte* block, int64_t head_dim, float* tile);
void F16DecodeValues(const std::byte* block, int64_t head_dim, float* tile, int64_t stride);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_KV_F16_H_
