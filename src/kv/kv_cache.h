// SPDX-License-Identifier: Apache-2.0
// KvCache: keys (after RoPE) and values of all layers and sequences.
//
// A sequence is cut into tiles (block_plan.h). The trailing tile, as long as it is not full, is
// open: it lives in a buffer of the sequence, in a row type, and every Store adds rows to it. A
// tile that fills is sealed: encoded as a whole into its place in a block. Sealed tiles never
// change, so blocks can be shared. How a tile's bytes are laid out belongs to its codec (codec.h)
// and is what the attention kernels read; models never see it. Which bits a tile holds does not
// depend on how a sequence was cut into calls.
//
// Threads: one writer at a time per sequence (Store: per sequence and layer); readers between
// writes.
#ifndef LODE_KV_KV_CACHE_H_
#define LODE_KV_KV_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "kv/block_plan.h"
#include "kv/codec.h"
#include "kv/kv_dtype.h"

namespace lode {

using SequenceId = int32_t;
using BlockId = int32_t;

struct KvCacheOptions {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  KvDTypes dtypes = KvDType::kF16;
  int64_t max_tokens =
      0;  // capacity over all sequences; memory is taken as tokens arrive, not at once
};

// The keys and values of one tile in one KV head.
struct KvTile {
  const std::byte* keys;
  const std::byte* values;
  const KvCodec* key_codec;
  const KvCodec* value_codec;
  KvTileShape shape;
};

class KvCache {
 public:
  // InvalidArgument on a nonsensical option.
  static Result<std::unique_ptr<KvCache>> Create(const KvCacheOptions& options);
  // Bytes that one sequence of `num_tokens` tokens takes under these options.
  static int64_t BytesFor(const KvCacheOptions& options, int64_t num_tokens);
  // Bytes that a step of attention reads per cached token of a long sequence, in all layers.
  static double BytesPerToken(const KvCacheOptions& options);
  virtual ~KvCache() = default;

  virtual const KvCacheOptions& options() const = 0;
  virtual const BlockPlan& plan() const = 0;
  virtual Result<SequenceId> AddSequence() = 0;
  virtual void RemoveSequence(SequenceId sequence) = 0;
  // Number of tokens whose slots are reserved.
  virtual int64_t Length(SequenceId sequence) const = 0;
  // Extends the sequence by num_tokens slots (all layers). ResourceExhausted names need and
  // capacity.
  virtual Status Extend(SequenceId sequence, int64_t num_tokens) = 0;
  // Forgets tokens from new_length on and returns the new length. That is new_length, or less when
  // it falls into a sealed tile of a type that cannot be opened again without loss: then the whole
  // tile is forgotten, and the caller computes its first tokens again.
  virtual int64_t Truncate(SequenceId sequence, int64_t new_length) = 0;
  // Stores keys and values of one layer for the next num_tokens reserved positions of that layer,
  // which start at first_position.
  //   k, v  [num_tokens, num_kv_heads, head_dim] f32
  virtual void Store(int32_t layer, SequenceId sequence, int64_t first_position, int64_t num_tokens,
                     const float* k, const float* v) = 0;
  // A tile that holds stored positions, for the kernels. Valid until the next write to the
  // sequence.
  virtual KvTile Tile(SequenceId sequence, int32_t layer, int32_t kv_head, int64_t tile) const = 0;
  virtual int64_t bytes_in_use() const = 0;
};

}  // namespace lode

#endif  // LODE_KV_KV_CACHE_H_
