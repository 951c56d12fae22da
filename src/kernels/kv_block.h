// SPDX-License-Identifier: Apache-2.0
// The shape that every KV block has, whatever its element type.
//
// A block holds the keys or the values of kKvBlockTokens tokens of one KV head. Encoded keys lie
// dimension by dimension (all tokens' first component, then all tokens' second, ...), so that a
// register holds one component of several keys and scores need no horizontal sums; encoded values
// lie token by token. Decoded, a block becomes a tile of f32:
//   key tile    [head_dim][kKvBlockTokens]
//   value tile  [kKvBlockTokens][stride], stride >= head_dim
#ifndef LODE_KERNELS_KV_BLOCK_H_
#define LODE_KERNELS_KV_BLOCK_H_

#include <cstdint>

namespace lode::kernels {

inline constexpr int64_t kKvBlockTokens = 32;
// Head sizes are multiples of this.
inline constexpr int64_t kHeadDimStep = 8;
inline constexpr int64_t kMaxHeadDim = 1024;
// Blocks start at multiples of this many bytes.
inline constexpr int64_t kKvBlockAlignment = 64;

}  // namespace lode::kernels

#endif  // LODE_KERNELS_KV_BLOCK_H_
