// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kv/block_pool.h"
#include "kv/open_tiles.h"

namespace lode {
namespace {

const BlockPlan kPlan = BlockPlan::Fixed(BlockPlan::kDefaultBlockSize);

// A tile of a block from position 1152 on.
KvTileShape LargeTile(const KvCacheOptions& options) {
  return {.head_dim = options.head_dim, .tokens = kernels::kKvTileTokens};
}

// Bytes of one block in all layers and heads.
int64_t BlockBytes(const KvCacheOptions& options) {
  const KvTileShape shape = LargeTile(options);
  return int64_t{options.num_layers} * options.num_kv_heads *
         (CodecFor(options.dtypes.key).key_tile_bytes(shape) +
          CodecFor(options.dtypes.value).value_tile_bytes(shape));
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
      : options_(options),
        key_codec_(CodecFor(options.dtypes.key)),
        value_codec_(CodecFor(options.dtypes.value)),
        pool_(std::move(pool)) {}

  const KvCacheOptions& options() const override { return options_; }
  const BlockPlan& plan() const override { return kPlan; }

  Result<SequenceId> AddSequence() override {
    auto unused = std::find(sequences_.begin(), sequences_.end(), nullptr);
    if (unused == sequences_.end()) {
      if (sequences_.size() >= static_cast<size_t>(std::numeric_limits<SequenceId>::max())) {
        return ResourceExhaustedError("KV cache: no sequence ids left");
      }
      unused = sequences_.insert(sequences_.end(), nullptr);
    }
    *unused = std::make_unique<Sequence>(
        Sequence{.page_table = {},
                 .stored = std::vector<int64_t>(static_cast<size_t>(options_.num_layers), 0),
                 .open = OpenTiles(options_.num_layers, options_.num_kv_heads, options_.head_dim,
                                   options_.dtypes)});
    return static_cast<SequenceId>(unused - sequences_.begin());
  }

  void RemoveSequence(SequenceId sequence) override {
    Truncate(sequence, 0);
    sequences_[static_cast<size_t>(sequence)] = nullptr;
  }

  int64_t Length(SequenceId sequence) const override { return Get(sequence).length; }

  Status Extend(SequenceId sequence, int64_t num_tokens) override {
    Sequence& s = Get(sequence);
    LODE_CHECK(num_tokens >= 0);
    int64_t length = 0;
    const bool overflow = __builtin_add_overflow(s.length, num_tokens, &length);
    const auto held = static_cast<int64_t>(s.page_table.size());
    if (overflow || kPlan.NumBlocks(length) - held > pool_->num_free()) {
      const int64_t block_tokens = kPlan.block_size();
      return ResourceExhaustedError(
          "KV cache: " + std::to_string(num_tokens) + " more tokens do not fit: the sequence has " +
          std::to_string(s.length) + ", room is left for " +
          std::to_string((pool_->num_free() + held) * block_tokens - s.length) +
          ", capacity over all sequences is " + std::to_string(pool_->num_blocks() * block_tokens) +
          " tokens");
    }
    for (int64_t i = held; i < kPlan.NumBlocks(length); ++i) {
      s.page_table.push_back(pool_->Allocate());
    }
    s.length = length;
    return OkStatus();
  }

  int64_t Truncate(SequenceId sequence, int64_t new_length) override {
    Sequence& s = Get(sequence);
    LODE_CHECK(new_length >= 0 && new_length <= s.length);
    const int64_t tile = kPlan.TileOf(new_length);
    const int64_t first = kPlan.FirstPositionOfTile(tile);
    const int64_t tile_end = first + kPlan.TileTokens(tile);
    if (new_length > first && !CanReopen()) {
      const bool sealed = std::any_of(s.stored.begin(), s.stored.end(),
                                      [&](int64_t stored) { return stored >= tile_end; });
      if (sealed) new_length = first;
    }
    for (int32_t layer = 0; layer < options_.num_layers; ++layer) {
      int64_t& stored = s.stored[static_cast<size_t>(layer)];
      if (stored <= new_length) continue;
      if (new_length > first && stored >= tile_end) Reopen(s, layer, tile);
      stored = new_length;
    }
    const auto kept = static_cast<size_t>(kPlan.NumBlocks(new_length));
    while (s.page_table.size() > kept) {
      pool_->Free(s.page_table.back());
      s.page_table.pop_back();
    }
    s.length = new_length;
    return new_length;
  }

  void Store(int32_t layer, SequenceId sequence, int64_t first_position, int64_t num_tokens,
             const float* k, const float* v) override {
    Sequence& s = Get(sequence);
    LODE_CHECK(layer >= 0 && layer < options_.num_layers);
    int64_t& stored = s.stored[static_cast<size_t>(layer)];
    LODE_CHECK(first_position == stored && num_tokens >= 0 && stored + num_tokens <= s.length);
    const int64_t row = int64_t{options_.num_kv_heads} * options_.head_dim;
    for (int64_t done = 0; done < num_tokens;) {
      const int64_t tile = kPlan.TileOf(stored);
      const int64_t slot = stored - kPlan.FirstPositionOfTile(tile);
      const int64_t n = std::min(kPlan.TileTokens(tile) - slot, num_tokens - done);
      for (int32_t head = 0; head < options_.num_kv_heads; ++head) {
        const int64_t offset = done * row + head * options_.head_dim;
        s.open.Store(layer, head, Shape(tile), slot, n, k + offset, v + offset, row);
        if (slot + n == kPlan.TileTokens(tile)) Seal(s, layer, head, tile);
      }
      done += n;
      stored += n;
    }
  }

  KvTile Tile(SequenceId sequence, int32_t layer, int32_t kv_head, int64_t tile) const override {
    const Sequence& s = Get(sequence);
    const int64_t stored = s.stored[static_cast<size_t>(layer)];
    LODE_DCHECK(kPlan.FirstPositionOfTile(tile) < stored);
    if (kPlan.FirstPositionOfTile(tile) + kPlan.TileTokens(tile) > stored) {
      return s.open.Tile(layer, kv_head, Shape(tile));
    }
    return {.keys = KeyData(s, layer, kv_head, tile),
            .values = ValueData(s, layer, kv_head, tile),
            .key_codec = &key_codec_,
            .value_codec = &value_codec_,
            .shape = Shape(tile)};
  }

  int64_t bytes_in_use() const override {
    int64_t bytes = pool_->num_used() * BlockBytes(options_);
    for (const auto& sequence : sequences_) {
      if (sequence != nullptr) bytes += sequence->open.bytes();
    }
    return bytes;
  }

 private:
  struct Sequence {
    int64_t length = 0;
    std::vector<BlockId> page_table;
    std::vector<int64_t> stored;  // per layer: positions [0, stored) hold keys and values
    OpenTiles open;
  };

  KvTileShape Shape(int64_t tile) const {
    return {.head_dim = options_.head_dim, .tokens = kPlan.TileTokens(tile)};
  }
  bool CanReopen() const { return key_codec_.is_row_type() && value_codec_.is_row_type(); }

  void Seal(Sequence& s, int32_t layer, int32_t head, int64_t tile) {
    s.open.Seal(layer, head, Shape(tile), key_codec_, KeyData(s, layer, head, tile), value_codec_,
                ValueData(s, layer, head, tile));
  }

  void Reopen(Sequence& s, int32_t layer, int64_t tile) {
    for (int32_t head = 0; head < options_.num_kv_heads; ++head) {
      s.open.Reopen(layer, head, Shape(tile), KeyData(s, layer, head, tile),
                    ValueData(s, layer, head, tile));
    }
  }

  // Values of a head follow in the next region.
  int64_t KeyRegion(int32_t layer, int32_t kv_head) const {
    return 2 * (int64_t{layer} * options_.num_kv_heads + kv_head);
  }
  std::byte* KeyData(const Sequence& s, int32_t layer, int32_t kv_head, int64_t tile) const {
    return pool_->data(KeyRegion(layer, kv_head), s.page_table[static_cast<size_t>(tile)]);
  }
  std::byte* ValueData(const Sequence& s, int32_t layer, int32_t kv_head, int64_t tile) const {
    return pool_->data(KeyRegion(layer, kv_head) + 1, s.page_table[static_cast<size_t>(tile)]);
  }

  const Sequence& Get(SequenceId sequence) const {
    LODE_CHECK(sequence >= 0 && static_cast<size_t>(sequence) < sequences_.size());
    const auto& s = sequences_[static_cast<size_t>(sequence)];
    LODE_CHECK(s != nullptr);
    return *s;
  }
  Sequence& Get(SequenceId sequence) {
    return const_cast<Sequence&>(std::as_const(*this).Get(sequence));
  }

  const KvCacheOptions options_;
  const KvCodec& key_codec_;
  const KvCodec& value_codec_;
  const std::unique_ptr<BlockPool> pool_;
  std::vector<std::unique_ptr<Sequence>> sequences_;  // null: the id is free
};

}  // namespace

Result<std::unique_ptr<KvCache>> KvCache::Create(const KvCacheOptions& options) {
  LODE_RETURN_IF_ERROR(CheckOptions(options));
  BlockPoolOptions pool_options = {.num_blocks = kPlan.NumBlocks(options.max_tokens),
                                   .block_bytes = {}};
  const KvTileShape shape = LargeTile(options);
  for (int64_t i = 0; i < int64_t{options.num_layers} * options.num_kv_heads; ++i) {
    pool_options.block_bytes.push_back(CodecFor(options.dtypes.key).key_tile_bytes(shape));
    pool_options.block_bytes.push_back(CodecFor(options.dtypes.value).value_tile_bytes(shape));
  }
  LODE_ASSIGN_OR_RETURN(std::unique_ptr<BlockPool> pool, BlockPool::Create(pool_options));
  return std::unique_ptr<KvCache>(std::make_unique<PagedKvCache>(options, std::move(pool)));
}

int64_t KvCache::BytesFor(const KvCacheOptions& options, int64_t num_tokens) {
  return kPlan.NumBlocks(num_tokens) * BlockBytes(options) +
         OpenTiles::BytesFor(options.num_layers, options.num_kv_heads, options.head_dim,
                             options.dtypes);
}

double KvCache::BytesPerToken(const KvCacheOptions& options) {
  return static_cast<double>(BlockBytes(options)) / static_cast<double>(kPlan.block_size());
}

}  // namespace lode
