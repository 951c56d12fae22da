// SPDX-License-Identifier: Apache-2.0
// OpenTiles: the not yet full tile of one sequence, in every layer and KV head.
//
// It is kept in the open type of its codecs, a row type, so that rows can be added one by one.
// Threads: calls for different layers or heads may run at the same time.
#ifndef LODE_KV_OPEN_TILES_H_
#define LODE_KV_OPEN_TILES_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kv/codec.h"
#include "kv/kv_dtype.h"

namespace lode {

struct KvTile;

class OpenTiles {
 public:
  OpenTiles(int64_t num_layers, int64_t num_kv_heads, int64_t head_dim, KvDTypes dtypes);
  // Bytes that an object of these sizes holds.
  static int64_t BytesFor(int64_t num_layers, int64_t num_kv_heads, int64_t head_dim,
                          KvDTypes dtypes);
  int64_t bytes() const { return num_places_ * PlaceBytes(); }

  KvTile Tile(int32_t layer, int32_t kv_head, const KvTileShape& shape) const;
  // Puts rows of head_dim floats (row stride in floats) into the slots from first_slot on.
  void Store(int32_t layer, int32_t kv_head, const KvTileShape& shape, int64_t first_slot,
             int64_t num_slots, const float* k, const float* v, int64_t stride);
  // Encodes the tile, which is full, with its final codecs.
  void Seal(int32_t layer, int32_t kv_head, const KvTileShape& shape, const KvCodec& key_codec,
            std::byte* keys, const KvCodec& value_codec, std::byte* values) const;
  // Takes a sealed tile back. Precondition: the final codecs are row types.
  void Reopen(int32_t layer, int32_t kv_head, const KvTileShape& shape, const std::byte* keys,
              const std::byte* values);
  // Precondition: both were made for the same sizes and types.
  void CopyFrom(const OpenTiles& other);

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };

  int64_t PlaceBytes() const { return key_bytes_ + value_bytes_; }
  std::byte* Keys(int32_t layer, int32_t kv_head) const {
    return storage_.get() + (layer * num_kv_heads_ + kv_head) * PlaceBytes();
  }
  std::byte* Values(int32_t layer, int32_t kv_head) const {
    return Keys(layer, kv_head) + key_bytes_;
  }

  const KvCodec* key_codec_;
  const KvCodec* value_codec_;
  int64_t num_kv_heads_;
  int64_t num_places_;  // layers times heads
  int64_t key_bytes_;   // of the largest tile
  int64_t value_bytes_;
  std::unique_ptr<std::byte[], Free> storage_;
};

}  // namespace lode

#endif  // LODE_KV_OPEN_TILES_H_
