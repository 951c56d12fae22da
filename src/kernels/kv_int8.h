// SPDX-License-Identifier: Apache-2.0
// KV blocks of int8, laid out for 16-bit multiplications of neighbouring pairs
// (attention_tile_int16.h).
//
//   key block    f16 centre [head_dim]                  the key in slot 0
//                f16 scales [kKvBlockTokens]            one per token
//                uint8 multipliers [head_dim / 8][kKvBlockTokens]   powers of two, up to 32
//                int8 codes [head_dim / 2][kKvBlockTokens][2]
//                key = centre + scale / 32 * multiplier * code
//   value block  int16 scales [kKvBlockTokens]          one per token, 64 log2(scale)
//                int8 codes [kKvBlockTokens / 2][head_dim][2]
//
// (Each array starts at a multiple of 64 bytes.) Some models, Qwen2 among them, add a large bias to
// a few components of their keys. With one scale for all components that bias drowns the rest; as a
// difference to a neighbour's key most of it is gone, and what is left stays in its group of eight.
// See docs/kv.md for the error.
//
// A token's codes depend on that token and on slot 0 of its block only, so it does not matter how a
// sequence was cut into calls. The error is at most half a step. The scales of values are stored as
// logarithms because attention takes them into its exponents.
#ifndef LODE_KERNELS_KV_INT8_H_
#define LODE_KERNELS_KV_INT8_H_

#include <cstddef>
#include <cstdint>

namespace lode::kernels {

inline constexpr int64_t kInt8KeyGroup = 8;  // components that share a multiplier

// Bytes of a block, a multiple of kKvBlockAlignment.
int64_t Int8KeyBlockBytes(int64_t head_dim);
int64_t Int8ValueBlockBytes(int64_t head_dim);

// Encodes num_slots rows of head_dim floats (row stride `stride` floats) into the slots from
// first_slot on. The other slots keep their contents, but a new key in slot 0 changes what the
// codes of the others mean: they must be stored again. NaN becomes 0, and magnitudes that the type
// cannot hold become the largest that it can: a block never holds a NaN or an infinity.
void Int8StoreKeys(std::byte* block, int64_t head_dim, int64_t first_slot, int64_t num_slots,
                   const float* rows, int64_t stride);
void Int8StoreValues(std::byte* block, int64_t head_dim, int64_t first_slot, int64_t num_slots,
                     const float* rows, int64_t stride);

// Decodes a whole block into a tile of f32 (shapes: kv_block.h). Slots never stored decode to
// finite numbers. For verification: attention reads codes.
void Int8DecodeKeys(const std::byte* block, int64_t head_dim, float* tile);
void Int8DecodeValues(const std::byte* block, int64_t head_dim, float* tile, int64_t stride);

// Widens codes to 16 bits, multiplied with their multipliers, and the rest to f32. Arrays are
// 64-byte aligned.
//   keys    tile [head_dim / 2][kKvBlockTokens][2], scales [kKvBlockTokens] (of one unit of the
//           tile), centre [head_dim]
//   values  tile [kKvBlockTokens / 2][cols][2], columns from head_dim on are not written;
//           log2_scales [kKvBlockTokens], at least -60
void Int8UnpackKeys(const std::byte* block, int64_t head_dim, int16_t* tile, float* scales,
                    float* centre);
void Int8UnpackValues(const std::byte* block, int64_t head_dim, int64_t cols, int16_t* tile,
                      float* log2_scales);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_KV_INT8_H_
