// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_cache.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/check.h"
#include "kernels/kv_block.h"
#include "kv/block_pool.h"
#include "kv/codec.h"

namespace lode {
namespace {

static_assert(KvCache::kBlockTokens == kernels::kKvBlockTokens);

constexpr int64_t kBlockTokens = KvCache::kBlockTokens;

int64_t BlocksFor(int64_t num_tokens) {
  return num_tokens / kBlockTokens + (num_tokens % kBlockTokens != 0 ? 1 : 0);
}

// Bytes of one block in all layers and heads.
int64_t BlockBytes(const KvCacheOptions& options) {
  const KvCodec& codec = CodecFor(options.dtype);
  return int64_t{options.num_layers} * options.num_kv_heads *
         (codec.key_block_bytes(options.head_dim) + codec.value_block_bytes(options.head_dim));
}

Status CheckOptions(const KvCacheOptions& options) {
  const auto refuse = [](std::string_view what, int64_t found, std::string_view expected) {
    return InvalidArgumentError("KV cache: " + std::string(what) + " is " + std::to_string(found) +
                                ", expected " + std::string(expected));
  };
  if (options.num_layers <= 0) return refuse("num_layers", options.num_layers, "at least 1");
  if (options.num_kv_heads <= 0) return refuse("num_kv_heads", options.num_kv_heads, "at least 1");
  if (options.head_dim <= 0 || options.head_dim % kernels::kHeadDimStep != 0 ||
      options.head_dim > kernels::kMaxHeadDim) {
    return refuse("head_dim", options.head_dim,
                  "a multiple of " + std::to_string(kernels::kHeadDimStep) + " up to " +
                      std::to_string(kernels::kMaxHeadDim));
  }
  if (options.max_tokens <= 0) return refuse("max_tokens", options.max_tokens, "at least 1");
  return OkStatus();
}

class PagedKvCache final : public KvCache {
 public:
  PagedKvCache(const KvCacheOptions& options, std::unique_ptr<BlockPool> pool)
      : options_(options), codec_(CodecFor(options.dtype)), pool_(std::move(pool)) {}

  const KvCacheOptions& options() const override { return options_; }

  Result<SequenceId> AddSequence() override {
    const auto unused = std::find_if(sequences_.begin(), sequences_.end(),
                                     [](const Sequence& s) { return !s.alive; });
    if (unused != sequences_.end()) {
      unused->alive = true;
      return static_cast<SequenceId>(unused - sequences_.begin());
    }
    if (sequences_.size() >= static_cast<size_t>(std::numeric_limits<SequenceId>::max())) {
      return ResourceExhaustedError("KV cache: no sequence ids left");
    }
    sequences_.emplace_back().alive = true;
    return static_cast<SequenceId>(sequences_.size() - 1);
  }

  void RemoveSequence(SequenceId sequence) override {
    Truncate(sequence, 0);
    Get(sequence).alive = false;
  }

  int64_t Length(SequenceId sequence) const override { return Get(sequence).length; }

  Status Extend(SequenceId sequence, int64_t num_tokens) override {
    Sequence& s = Get(sequence);
    LODE_CHECK(num_tokens >= 0);
    int64_t length = 0;
    const bool overflow = __builtin_add_overflow(s.length, num_tokens, &length);
    const auto held = static_cast<int64_t>(s.page_table.size());
    if (overflow || BlocksFor(length) - held > pool_->num_free()) {
      return ResourceExhaustedError(
          "KV cache: " + std::to_string(num_tokens) + " more tokens do not fit: the sequence has " +
          std::to_string(s.length) + ", room is left for " +
          std::to_string(pool_->num_free() * kBlockTokens + held * kBlockTokens - s.length) +
          ", capacity over all sequences is " + std::to_string(pool_->num_blocks() * kBlockTokens) +
          " tokens");
    }
    for (int64_t i = held; i < BlocksFor(length); ++i) s.page_table.push_back(pool_->Allocate());
    s.length = length;
    return OkStatus();
  }

  void Truncate(SequenceId sequence, int64_t new_length) override {
    Sequence& s = Get(sequence);
    LODE_CHECK(new_length >= 0 && new_length <= s.length);
    const auto kept = static_cast<size_t>(BlocksFor(new_length));
    while (s.page_table.size() > kept) {
      pool_->Free(s.page_table.back());
      s.page_table.pop_back();
    }
    s.length = new_length;
  }

  void Store(int32_t layer, SequenceId sequence, int64_t first_position, int64_t num_tokens,
             const float* k, const float* v) override {
    const Sequence& s = Get(sequence);
    LODE_CHECK(layer >= 0 && layer < options_.num_layers);
    LODE_CHECK(first_position >= 0 && num_tokens >= 0 && first_position + num_tokens <= s.length);
    const int64_t head_dim = options_.head_dim;
    const int64_t stride = options_.num_kv_heads * head_dim;
    for (int64_t done = 0; done < num_tokens;) {
      const int64_t position = first_position + done;
      const int64_t slot = position % kBlockTokens;
      const int64_t n = std::min(kBlockTokens - slot, num_tokens - done);
      const BlockId block = s.page_table[static_cast<size_t>(position / kBlockTokens)];
      for (int32_t head = 0; head < options_.num_kv_heads; ++head) {
        const int64_t offset = done * stride + head * head_dim;
        codec_.store_keys(pool_->data(KeyRegion(layer, head), block), head_dim, slot, n, k + offset,
                          stride);
        codec_.store_values(pool_->data(KeyRegion(layer, head) + 1, block), head_dim, slot, n,
                            v + offset, stride);
      }
      done += n;
    }
  }

  std::span<const BlockId> page_table(SequenceId sequence) const override {
    return Get(sequence).page_table;
  }

  const std::byte* KeyBlock(int32_t layer, int32_t kv_head, BlockId block) const override {
    return pool_->data(KeyRegion(layer, kv_head), block);
  }

  const std::byte* ValueBlock(int32_t layer, int32_t kv_head, BlockId block) const override {
    return pool_->data(KeyRegion(layer, kv_head) + 1, block);
  }

  int64_t bytes_in_use() const override { return pool_->num_used() * BlockBytes(options_); }

 private:
  struct Sequence {
    bool alive = false;
    int64_t length = 0;
    std::vector<BlockId> page_table;
  };

  // Values of a head follow in the next region.
  int64_t KeyRegion(int32_t layer, int32_t kv_head) const {
    return 2 * (int64_t{layer} * options_.num_kv_heads + kv_head);
  }

  const Sequence& Get(SequenceId sequence) const {
    LODE_CHECK(sequence >= 0 && static_cast<size_t>(sequence) < sequences_.size());
    const Sequence& s = sequences_[static_cast<size_t>(sequence)];
    LODE_CHECK(s.alive);
    return s;
  }
  Sequence& Get(SequenceId sequence) {
    return const_cast<Sequence&>(std::as_const(*this).Get(sequence));
  }

  const KvCacheOptions options_;
  const KvCodec& codec_;
  const std::unique_ptr<BlockPool> pool_;
  std::vector<Sequence> sequences_;
};

}  // namespace

Result<std::unique_ptr<KvCache>> KvCache::Create(const KvCacheOptions& options) {
  LODE_RETURN_IF_ERROR(CheckOptions(options));
  const KvCodec& codec = CodecFor(options.dtype);
  BlockPoolOptions pool_options = {.num_blocks = BlocksFor(options.max_tokens), .block_bytes = {}};
  for (int64_t i = 0; i < int64_t{options.num_layers} * options.num_kv_heads; ++i) {
    pool_options.block_bytes.push_back(codec.key_block_bytes(options.head_dim));
    pool_options.block_bytes.push_back(codec.value_block_bytes(options.head_dim));
  }
  LODE_ASSIGN_OR_RETURN(std::unique_ptr<BlockPool> pool, BlockPool::Create(pool_options));
  return std::unique_ptr<KvCache>(std::make_unique<PagedKvCache>(options, std::move(pool)));
}

int64_t KvCache::BytesFor(const KvCacheOptions& options, int64_t num_tokens) {
  return BlocksFor(num_tokens) * BlockBytes(options);
}

}  // namespace lode
