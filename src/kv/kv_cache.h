// SPDX-License-Identifier: Apache-2.0
// KvCache: keys (after RoPE) and values of all layers and sequences, in pages ("blocks") of
// kBlockTokens slots.
//
// A sequence owns a page table: its t-th token lives in slot t % kBlockTokens of block page_table[t
// / kBlockTokens]. One block id addresses the same slots in every layer and KV head. The layout
// inside a block belongs to the dtype and is what the attention kernels read
// (kernels/attention_tile.h); models never see it. Threads: one writer at a time per sequence;
// readers between writes.
#ifndef LODE_KV_KV_CACHE_H_
#define LODE_KV_KV_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace lode {

using SequenceId = int32_t;
using BlockId = int32_t;

// kF32 is for verification (it adds no error of its own), kF16 the default, kInt8 the fast one.
enum class KvDType : uint8_t { kF32, kF16, kInt8 };
std::string_view KvDTypeName(KvDType dtype);          // "f32", "f16", "int8"
Result<KvDType> ParseKvDType(std::string_view name);  // InvalidArgument lists the known names

struct KvCacheOptions {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  KvDType dtype = KvDType::kF16;
  int64_t max_tokens =
      0;  // capacity over all sequences; memory is taken as tokens arrive, not at once
};

class KvCache {
 public:
  static constexpr int64_t kBlockTokens = 32;

  // InvalidArgument on a nonsensical option.
  static Result<std::unique_ptr<KvCache>> Create(const KvCacheOptions& options);
  // Bytes that `num_tokens` tokens take under these options (whole blocks).
  static int64_t BytesFor(const KvCacheOptions& options, int64_t num_tokens);
  virtual ~KvCache() = default;

  virtual const KvCacheOptions& options() const = 0;
  virtual Result<SequenceId> AddSequence() = 0;
  virtual void RemoveSequence(SequenceId sequence) = 0;
  // Number of tokens whose slots are reserved.
  virtual int64_t Length(SequenceId sequence) const = 0;
  // Extends the sequence by num_tokens slots (all layers). ResourceExhausted names need and
  // capacity.
  virtual Status Extend(SequenceId sequence, int64_t num_tokens) = 0;
  // Forgets all tokens from new_length on and returns whole free blocks to the pool.
  virtual void Truncate(SequenceId sequence, int64_t new_length) = 0;
  // Stores keys and values of one layer for positions [first_position, first_position +
  // num_tokens), already reserved.
  //   k, v  [num_tokens, num_kv_heads, head_dim] f32
  virtual void Store(int32_t layer, SequenceId sequence, int64_t first_position, int64_t num_tokens,
                     const float* k, const float* v) = 0;
  // Page table of a sequence; block data for the kernels.
  virtual std::span<const BlockId> page_table(SequenceId sequence) const = 0;
  virtual const std::byte* KeyBlock(int32_t layer, int32_t kv_head, BlockId block) const = 0;
  virtual const std::byte* ValueBlock(int32_t layer, int32_t kv_head, BlockId block) const = 0;
  virtual int64_t bytes_in_use() const = 0;
};

}  // namespace lode

#endif  // LODE_KV_KV_CACHE_H_
