// SPDX-License-Identifier: Apache-2.0
// KV blocks of int8, laid out for 16-bit multiplications of neighbouring pairs
// (attention_tile_int16.h).
//
//   key block    f16 scales [groups][kKvBlockTokens]   one per token and kInt8KeyGroup components
//                int8 codes [head_dim / 2][kKvBlockTokens][2]
//   value block  int16 scales [kKvBlockTokens]         one per token, 64 log2(scale)
//                int8 codes [kKvBlockTokens / 2][head_dim][2]
//
// A token's codes depend on that token alone, so it does not matter how a sequence was cut into
// calls. Components are quantised with the scale as stored; the error is at most half a step. The
// scales of values are stored as logarithms because attention takes them into its exponents.
#ifndef LODE_KERNELS_KV_INT8_H_
#define LODE_KERNELS_KV_INT8_H_

#include <cstddef>
#include <cstdint>

namespace lode::kernels {

inline constexpr int64_t kInt8KeyGroup = 32;
constexpr int64_t Int8KeyGroups(int64_t head_dim) {
  return (head_dim + kInt8KeyGroup - 1) / kInt8KeyGroup;
}

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

// Decodes a whole block into a tile of f32 (shapes: kv_block.h). Slots never stored decode to
// finite numbers. For verification: attention reads codes.
void Int8DecodeKeys(const std::byte* block, int64_t head_dim, float* tile);
void Int8DecodeValues(const std::byte* block, int64_t head_dim, float* tile, int64_t stride);

// Widens codes to 16 bits and scales to f32, both 64-byte aligned.
//   keys    tile [head_dim / 2][kKvBlockTokens][2], scales [groups][kKvBlockTokens]
//   values  tile [kKvBlockTokens / 2][cols][2], columns from head_dim on are not written;
//           log2_scales [kKvBlockTokens], at least -60
void Int8UnpackKeys(const std::byte* block, int64_t head_dim, int16_t* tile, float* scales);
void Int8UnpackValues(const std::byte* block, int64_t head_dim, int64_t cols, int16_t* tile,
                      float* log2_scales);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_KV_INT8_H_
