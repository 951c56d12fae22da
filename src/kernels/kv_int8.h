// SPDX-License-Identifier: Apache-2.0
// KV blocks of int8 with one f16 scale per token and 32 components: 8.5 bits per component.
//
//   key block    f16 scales [groups][kKvBlockTokens], int8 [head_dim][kKvBlockTokens]
//   value block  f16 scales [groups][kKvBlockTokens], int8 [kKvBlockTokens][head_dim]
//
// A token's codes depend on that token alone, so it does not matter how a sequence was cut into
// calls. Values are quantised with the scale as rounded to f16; the error is at most half a step.
#ifndef LODE_KERNELS_KV_INT8_H_
#define LODE_KERNELS_KV_INT8_H_

#include <cstddef>
#include <cstdint>

namespace lode::kernels {

// Bytes of a block, a multiple of kKvBlockAlignment.
int64_t Int8KeyBlockBytes(int64_t head_dim);
int64_t Int8ValueBlockBytes(int64_t head_dim);

// Encodes num_slots rows of head_dim floats (row stride `stride` floats) into the slots from
// first_slot on. The other slots keep their contents. NaN becomes 0, and magnitudes that the type
// cannot hold become the largest that it can: a block never holds a NaN or an infinity.
void Int8StoreKeys(std::byte* block, int64_t head_dim, int64_t first_slot, int64_t num_slots,
                   const float* rows, int64_t stride);
void Int8StoreValues(std::byte* block, int64_t head_dim, int64_t first_slot, int64_t num_slots,
                     const float* rows, int64_t stride);

// Decodes a whole block into a tile (shapes: kv_block.h). Slots never stored decode to finite
// numbers.
void Int8DecodeKeys(const std::byte* block, int64_t head_dim, float* tile);
void Int8DecodeValues(const std::byte* block, int64_t head_dim, float* tile, int64_t stride);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_KV_INT8_H_
