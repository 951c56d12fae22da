// SPDX-License-Identifier: Apache-2.0
// PagedKvCache: the KvCache over page tables, a PageStore and open tiles.
//
// A sequence has the chain of its pages (page.h), a page table per layer and head group that says
// the same for attention in the order in which it reads, and its open tiles. It holds a reference
// on its last page only: each page holds its parent.
#ifndef LODE_KV_PAGED_KV_CACHE_H_
#define LODE_KV_PAGED_KV_CACHE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "kv/counted_mutex.h"
#include "kv/kv_cache.h"
#include "kv/kv_layout.h"
#include "kv/open_tiles.h"
#include "kv/page_store.h"
#include "kv/page_table.h"

namespace lode {

class PagedKvCache final : public KvCache {
 public:
  PagedKvCache(const KvCacheOptions& options, std::unique_ptr<const KvLayout> layout,
               std::unique_ptr<PageStore> store);
  ~PagedKvCache() override;

  const KvCacheOptions& options() const override { return options_; }
  const BlockPlan& plan() const override { return layout_->plan(); }
  Result<SequenceId> AddSequence(std::string_view salt) override;
  Result<SequenceId> Fork(SequenceId sequence) override;
  void RemoveSequence(SequenceId sequence) override;
  void Preempt(SequenceId sequence) override;
  int64_t Length(SequenceId sequence) const override { return Get(sequence).length; }
  Status Extend(SequenceId sequence, int64_t num_tokens) override;
  int64_t Truncate(SequenceId sequence, int64_t new_length) override;
  void Store(int32_t layer, SequenceId sequence, int64_t first_position, int64_t num_tokens,
             const float* k, const float* v) override;
  KvTile Tile(SequenceId sequence, int32_t layer, int32_t kv_head, int64_t tile) const override;
  int64_t PrefixLength(std::span<const int32_t> token_ids, std::string_view salt) const override;
  int64_t AttachPrefix(SequenceId sequence, std::span<const int32_t> token_ids,
                       int64_t own_length) override;
  void Publish(SequenceId sequence, int64_t first_position,
               std::span<const int32_t> token_ids) override;
  void DropCached() override { store_->DropCached(); }
  KvDefragmentation Defragment(FunctionRef<bool()> should_stop) override;
  void JoinPages() override { store_->JoinPages(); }
  int64_t bytes_in_use() const override;
  KvCacheStats stats() const override;
  Status CheckIntegrity() const override;

 private:
  static constexpr size_t kMaxSequences = 4096;

  struct Sequence {
    Sequence(const KvCacheOptions& options, const KvLayout& layout, const Hash128& text_root);

    Hash128 root;
    int64_t length = 0;
    std::vector<int64_t> stored;     // per layer: positions [0, stored) hold keys and values
    std::vector<Page*> pages;        // by block index; a reference is held on the last
    std::vector<PageTable> tables;   // [num_layers * num_groups], of these pages
    std::vector<int32_t> token_ids;  // what Publish said
    int64_t offered = 0;             // pages [0, offered) were published, or never will be
    OpenTiles open;
  };

  const Sequence& Get(SequenceId sequence) const;
  Sequence& Get(SequenceId sequence);
  Result<SequenceId> Insert(std::unique_ptr<Sequence> sequence);
  bool ReserveOpenTiles();

  void PushPage(Sequence& s, Page* page);
  void SetEntries(Sequence& s, int64_t index);
  bool AddPages(Sequence& s, int64_t num_pages);
  void DropPages(Sequence& s, int64_t num_pages);
  bool CopyPage(Sequence& s, int64_t index);
  int64_t ShortenToWhole(const Sequence& s, int64_t new_length) const;
  void Reset(Sequence& s);
  Status DoesNotFit(const Sequence& s, int64_t num_tokens) const;
  void PublishPage(Sequence& s, int64_t index);

  // Where the keys and values of a sealed tile lie, and the range of its block.
  struct Place {
    const BlockRange* range;
    std::byte* keys;
    std::byte* values;
  };
  Place PlaceOf(const Sequence& s, int32_t layer, int32_t kv_head, int64_t tile) const;
  KvTileShape Shape(int64_t tile) const {
    return {.head_dim = options_.head_dim,
            .tokens = plan().TileTokens(tile),
            .value_group = std::min<int64_t>(options_.value_group, options_.head_dim)};
  }
  int64_t LeastStored(const Sequence& s) const;
  Status CheckTables(const Sequence& s) const;

  const KvCacheOptions options_;
  const std::unique_ptr<const KvLayout> layout_;
  const std::unique_ptr<PageStore> store_;
  const int64_t open_bytes_;  // of one sequence
  CountedMutex ids_mutex_;
  std::vector<std::atomic<Sequence*>> sequences_;  // by id; null: free
  std::atomic<int64_t> num_sequences_{0};
  std::atomic<int64_t> preemptions_{0};
  std::atomic<int64_t> defragmentations_{0};
  std::atomic<int64_t> moved_blocks_{0};
  const Stopwatch age_;
};

}  // namespace lode

#endif  // LODE_KV_PAGED_KV_CACHE_H_
