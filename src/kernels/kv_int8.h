// SPDX-License-Identifier: Apache-2.0
// KV tiles of int8, laid out for 16-bit multiplications of neighbouring pairs
// (attention_tile_int16.h).
//
//   key tile    f16 centre [head_dim]                  the key in slot 0
//               f16 scales [tokens]                    one per token
//               uint8 multipliers [head_dim / 8][tokens]   powers of two, up to 32
//               int8 codes [head_dim / 2][tokens][2]
//               key = centre + scale / 32 * multiplier * code
//   value tile  int16 scales [tokens]                  one per token, 64 log2(scale)
//               int8 codes [tokens / 2][head_dim][2]
//
// (Each array starts at a multiple of 64 bytes.) Some models, Qwen2 among them, add a large bias to
// a few components of their keys. With one scale for all components that bias drowns the rest; as a
// difference to a neighbour's key most of it is gone, and what is left stays in its group of eight.
// See docs/kv.md for the error.
//
// A tile is sealed whole. The error is at most half a step. The scales of values are stored as
// logarithms because attention takes them into its exponents.
#ifndef LODE_KERNELS_KV_INT8_H_
#define LODE_KERNELS_KV_INT8_H_

#include <cstddef>
#include <cstdint>

#include "kernels/kv_tile.h"

namespace lode::kernels {

inline constexpr int64_t kInt8KeyGroup = 8;  // components that share a multiplier

// Bytes of a tile, a multiple of kKvTileAlignment.
int64_t Int8KeyTileBytes(const KvTileShape& shape);
int64_t Int8ValueTileBytes(const KvTileShape& shape);

// Encodes a full tile from its f32 form (shapes: kv_tile.h). NaN becomes 0, and magnitudes that the
// type cannot hold become the largest that it can: a tile never holds a NaN or an infinity.
void Int8SealKeys(std::byte* tile, const KvTileShape& shape, const float* keys);
void Int8SealValues(std::byte* tile, const KvTileShape& shape, const float* values, int64_t stride);

// Decodes a tile to f32. For verification and for small tiles: attention reads codes.
void Int8DecodeKeys(const std::byte* tile, const KvTileShape& shape, float* out);
void Int8DecodeValues(const std::byte* tile, const KvTileShape& shape, float* out, int64_t stride);

// Widens the codes of a tile of kKvTileTokens tokens to 16 bits, multiplied with their multipliers,
// and the rest to f32. Arrays are 64-byte aligned.
//   keys    out [head_dim / 2][kKvTileTokens][2], scales [kKvTileTokens] (of one unit of out),
//           centre [head_dim]
//   values  out [kKvTileTokens / 2][cols][2], columns from head_dim on are not written;
//           log2_scales [kKvTileTokens], at least -60
void Int8UnpackKeys(const std::byte* tile, const KvTileShape& shape, int16_t* out, float* scales,
                    float* centre);
void Int8UnpackValues(const std::byte* tile, const KvTileShape& shape, int64_t cols, int16_t* out,
                      float* log2_scales);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_KV_INT8_H_
