// SPDX-License-Identifier: Apache-2.0
// KvCodec: what the cache and the attentions know of a KV element type, as a table of functions.
//
// One indirect call serves a block, and no file but codecs.cc switches on the type. A new type is
// kernels/kv_x.{h,cc}, a KvDType and a row in codecs.cc. Tile shapes: kernels/kv_block.h.
#ifndef LODE_KV_CODEC_H_
#define LODE_KV_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kv/kv_cache.h"

namespace lode {

struct KvCodec {
  KvDType dtype;
  std::string_view name;  // as users write it
  int64_t (*key_block_bytes)(int64_t head_dim);
  int64_t (*value_block_bytes)(int64_t head_dim);
  // Encode num_slots rows (row stride in floats) into the slots from first_slot on.
  void (*store_keys)(std::byte* block, int64_t head_dim, int64_t first_slot, int64_t num_slots,
                     const float* rows, int64_t stride);
  void (*store_values)(std::byte* block, int64_t head_dim, int64_t first_slot, int64_t num_slots,
                       const float* rows, int64_t stride);
  // Decode a block: keys to [head_dim][kBlockTokens], values to [kBlockTokens][stride].
  void (*decode_keys)(const std::byte* block, int64_t head_dim, float* tile);
  void (*decode_values)(const std::byte* block, int64_t head_dim, float* tile, int64_t stride);

  // For types with int8 codes, else null: codes widened to 16 bits in pairs, for
  // kernels/attention_tile_int16.h. Keys are centre [head_dim] + scales [kBlockTokens] * tile;
  // values are 2^log2_scales [kBlockTokens] * tile.
  void (*unpack_keys)(const std::byte* block, int64_t head_dim, int16_t* tile, float* scales,
                      float* centre) = nullptr;
  void (*unpack_values)(const std::byte* block, int64_t head_dim, int64_t cols, int16_t* tile,
                        float* log2_scales) = nullptr;
};

// All codecs, in the order of KvDType.
std::span<const KvCodec> KvCodecs();
const KvCodec& CodecFor(KvDType dtype);

}  // namespace lode

#endif  // LODE_KV_CODEC_H_
