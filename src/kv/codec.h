// SPDX-License-Identifier: Apache-2.0
// KvCodec: what the cache and the attentions know of a KV element type, as a table of functions.
//
// One indirect call serves a tile (kernels/kv_tile.h), and no file but codecs.cc switches on the
// type. There are two kinds of types. A row type (f32, f16, bf16) stores single rows at any time. A
// sealed type encodes a full tile at once, so that tokens can share scales; until then the cache
// keeps the tile in the sealed type's open type, a row type. A new type is kernels/kv_x.{h,cc}, a
// KvDType and a row in codecs.cc.
#ifndef LODE_KV_CODEC_H_
#define LODE_KV_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/kv_tile.h"
#include "kv/kv_dtype.h"

namespace lode {

using kernels::KvTileShape;

struct KvCodec {
  KvDType dtype;
  std::string_view name;  // as users write it
  KvDType open_dtype;     // of a tile that is not full: the type itself for row types
  int64_t (*key_tile_bytes)(const KvTileShape& shape);
  int64_t (*value_tile_bytes)(const KvTileShape& shape);
  // Decode a tile to f32.
  void (*decode_keys)(const std::byte* tile, const KvTileShape& shape, float* out);
  void (*decode_values)(const std::byte* tile, const KvTileShape& shape, float* out,
                        int64_t stride);

  // Row types, else null: encode num_slots rows (row stride in floats) into the slots from
  // first_slot on.
  void (*store_keys)(std::byte* tile, const KvTileShape& shape, int64_t first_slot,
                     int64_t num_slots, const float* rows, int64_t stride) = nullptr;
  void (*store_values)(std::byte* tile, const KvTileShape& shape, int64_t first_slot,
                       int64_t num_slots, const float* rows, int64_t stride) = nullptr;

  // Sealed types, else null: encode a full tile from its f32 form.
  void (*seal_keys)(std::byte* tile, const KvTileShape& shape, const float* keys) = nullptr;
  void (*seal_values)(std::byte* tile, const KvTileShape& shape, const float* values,
                      int64_t stride) = nullptr;

  // Bits of the codes of types that are laid out as kernels/kv_codes.h has it, else 0.
  int code_bits = 0;

  bool is_row_type() const { return store_keys != nullptr; }
};

// All codecs, in the order of KvDType.
std::span<const KvCodec> KvCodecs();
const KvCodec& CodecFor(KvDType dtype);

}  // namespace lode

#endif  // LODE_KV_CODEC_H_
