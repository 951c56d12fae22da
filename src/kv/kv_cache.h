// SPDX-License-Identifier: Apache-2.0
// KvCache: keys (after RoPE) and values of all layers and sequences.
//
// A sequence is cut into tiles and blocks (block_plan.h). The trailing tile, as long as it is not
// full, is open: it lives in a buffer of the sequence, in a row type, and every Store adds rows to
// it. A tile that fills is sealed: encoded as a whole into its place in a block. Sealed tiles never
// change, so blocks can be shared: between forks, and with later texts that begin with the same
// tokens (prefix_cache.h). How a tile's bytes are laid out belongs to its codec (codec.h) and is
// what the attention kernels read; models never see it. Which bits a tile holds does not depend on
// how a sequence was cut into calls.
//
// Memory: blocks come from one pool per layer (layer_pool.h) within a budget. When it is used up,
// pages that only the prefix cache holds are given up, least recently used first; a running
// sequence never loses a token unless the caller preempts it.
//
// Threads: different sequences may be used at the same time in any way. Of one sequence: one writer
// at a time (Store: per sequence and layer); readers between writes. Defragment and CheckIntegrity
// run alone.
#ifndef LODE_KV_KV_CACHE_H_
#define LODE_KV_KV_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/function_ref.h"
#include "base/status.h"
#include "kv/block_plan.h"
#include "kv/codec.h"
#include "kv/kv_dtype.h"
#include "kv/kv_stats.h"

namespace lode {

using SequenceId = int32_t;

struct KvCacheOptions {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  KvDTypes dtypes = KvDType::kF16;
  int64_t block_size = BlockPlan::kDefaultBlockSize;
  // Components of a value that share a scale in quantised types (kv_cache_quant_group_size), a
  // multiple of 8; a head's size if that is smaller.
  int64_t value_group = kernels::kDefaultValueGroup;
  // Blocks from this position on have int6 where dtypes say int4; 0: never.
  int64_t int4_fallback_threshold = 24'576;
  bool adaptive_blocks = true;  // false: one size at all positions, to compare with
  // The tokens that the budget is made for where memory_bytes does not say otherwise. Memory is
  // taken as tokens arrive, not at once.
  int64_t max_tokens = 0;
  // Budget of all sequences, cached pages and open tiles. 0: the blocks of one sequence of
  // max_tokens tokens, open tiles besides.
  int64_t memory_bytes = 0;
  // Whatever else keys depend on (the model, its rope): separates the texts of different models.
  std::string fingerprint = {};
  int prefix_hash_bits = 128;  // fewer only in tests of collisions
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
  // An empty sequence. Sequences share pages only with those of the same salt (a tenant, say).
  // ResourceExhausted when its open tiles do not fit the budget.
  virtual Result<SequenceId> AddSequence(std::string_view salt = {}) = 0;
  // A second sequence with the same tokens: full blocks are shared, the open tile and a block that
  // is filled in part are copied. Precondition: all layers stored the same number of tokens; slots
  // that are only reserved stay with the first.
  virtual Result<SequenceId> Fork(SequenceId sequence) = 0;
  // Pages that were published stay for later texts until their memory is needed.
  virtual void RemoveSequence(SequenceId sequence) = 0;
  // Empties a sequence so that others can go on; the caller computes it again later, and
  // AttachPrefix finds what is still there.
  virtual void Preempt(SequenceId sequence) = 0;
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

  // How many of these tokens AttachPrefix would find now.
  virtual int64_t PrefixLength(std::span<const int32_t> token_ids,
                               std::string_view salt = {}) const = 0;
  // Makes a sequence hold the longest beginning of this text that is known: its own first
  // own_length tokens, which must be the text's, or cached pages where those reach further. Returns
  // its length (Truncate says when it is less than own_length).
  virtual int64_t AttachPrefix(SequenceId sequence, std::span<const int32_t> token_ids,
                               int64_t own_length = 0) = 0;
  // Says which tokens the stored keys and values belong to, in order from position 0; what leaves a
  // gap is ignored. Blocks that are full in all layers become available to later texts.
  virtual void Publish(SequenceId sequence, int64_t first_position,
                       std::span<const int32_t> token_ids) = 0;
  // Gives up all pages that no sequence uses.
  virtual void DropCached() = 0;

  // Moves blocks so that each text lies in one piece; asks should_stop after every few megabytes.
  // Sequences keep their contents; earlier results of Tile become invalid.
  virtual KvDefragmentation Defragment(FunctionRef<bool()> should_stop) = 0;

  // Has the system put memory that is in use into huge pages: reading a long context touches a new
  // small page with every tile, and looks its address up. To be called when a text has grown;
  // copies what is not in such pages yet.
  virtual void JoinPages() = 0;

  // Bytes of blocks (of sequences and cached pages) and of open tiles.
  virtual int64_t bytes_in_use() const = 0;
  virtual KvCacheStats stats() const = 0;
  // Internal when any two of pools, pages, tables and sums disagree.
  virtual Status CheckIntegrity() const = 0;
};

}  // namespace lode

#endif  // LODE_KV_KV_CACHE_H_
