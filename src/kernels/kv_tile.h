// SPDX-License-Identifier: Apache-2.0
// The shape that every KV tile has, whatever its element type.
//
// A tile holds the keys or the values of up to kKvTileTokens neighbouring tokens of one KV head,
// encoded. Encoded keys lie dimension by dimension (all tokens' first component, then all tokens'
// second, ...), so that a register holds one component of several keys and scores need no
// horizontal sums; encoded values lie token by token. Decoded, a tile is f32:
//   keys    [head_dim][kKvTileTokens], of which the first `tokens` columns are written, so that
//           several small tiles decode side by side
//   values  [tokens][stride], stride >= head_dim
#ifndef LODE_KERNELS_KV_TILE_H_
#define LODE_KERNELS_KV_TILE_H_

#include <cstdint>

namespace lode::kernels {

inline constexpr int64_t kKvTileTokens = 32;
// The number of tokens of a tile is a multiple of this.
inline constexpr int64_t kKvTileStep = 8;
// Head sizes are multiples of this.
inline constexpr int64_t kHeadDimStep = 8;
inline constexpr int64_t kMaxHeadDim = 1024;
// Tiles start at multiples of this many bytes, and their sizes are multiples of it.
inline constexpr int64_t kKvTileAlignment = 64;

inline constexpr int64_t kDefaultValueGroup = 128;

constexpr int64_t AlignKvTile(int64_t bytes) {
  return (bytes + kKvTileAlignment - 1) / kKvTileAlignment * kKvTileAlignment;
}

struct KvTileShape {
  int64_t head_dim = 0;
  int64_t tokens = kKvTileTokens;  // 8, 16, 24 or 32
  // Components of a value that share a scale in quantised types, a multiple of kHeadDimStep. The
  // last group of a head may have fewer.
  int64_t value_group = kDefaultValueGroup;

  int64_t value_groups() const { return (head_dim + value_group - 1) / value_group; }
  bool operator==(const KvTileShape&) const = default;
};

}  // namespace lode::kernels

#endif  // LODE_KERNELS_KV_TILE_H_
