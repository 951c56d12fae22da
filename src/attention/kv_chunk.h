// SPDX-License-Identifier: Apache-2.0
// KvChunk: up to kKvTileTokens neighbouring positions of one layer and KV head, whatever tiles they
// lie in, decoded to f32.
#ifndef LODE_ATTENTION_KV_CHUNK_H_
#define LODE_ATTENTION_KV_CHUNK_H_

#include <cstdint>

#include "base/check.h"
#include "kernels/kv_tile.h"
#include "kv/kv_cache.h"

namespace lode {

class KvChunk {
 public:
  // Positions [begin, end) of stored tokens, begin a multiple of kKvTileTokens. The last tile is
  // decoded whole: columns and rows from end on are finite and mean nothing.
  KvChunk(const KvCache& cache, SequenceId sequence, int32_t layer, int32_t kv_head, int64_t begin,
          int64_t end)
      : cache_(cache),
        sequence_(sequence),
        layer_(layer),
        kv_head_(kv_head),
        begin_(begin),
        end_(end) {
    LODE_DCHECK(begin % kernels::kKvTileTokens == 0 && end - begin <= kernels::kKvTileTokens);
  }

  // out [head_dim][kKvTileTokens]
  void DecodeKeys(float* out) const {
    ForTiles([&](const KvTile& tile, int64_t at) {
      tile.key_codec->decode_keys(tile.keys, tile.shape, out + at);
    });
  }
  // out [end - begin][stride]
  void DecodeValues(float* out, int64_t stride) const {
    ForTiles([&](const KvTile& tile, int64_t at) {
      tile.value_codec->decode_values(tile.values, tile.shape, out + at * stride, stride);
    });
  }

 private:
  template <class Visit>
  void ForTiles(const Visit& visit) const {
    for (int64_t position = begin_; position < end_;) {
      const KvTile tile = cache_.Tile(sequence_, layer_, kv_head_, cache_.plan().TileOf(position));
      visit(tile, position - begin_);
      position += tile.shape.tokens;
    }
  }

  const KvCache& cache_;
  const SequenceId sequence_;
  const int32_t layer_, kv_head_;
  const int64_t begin_, end_;
};

}  // namespace lode

#endif  // LODE_ATTENTION_KV_CHUNK_H_
