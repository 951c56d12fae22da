// SPDX-License-Identifier: Apache-2.0
// PageStore: makes and frees pages: a pool per layer, the budget over all of them, and the prefix
// cache that pages go to when their sequence ends.
//
// The budget is reserved before anything is allocated. When it is used up, pages that only the
// prefix cache holds are given up; Evicted is the one place where they leave, and where a slower
// tier could take them. Threads: everything but MovePages from any thread.
#ifndef LODE_KV_PAGE_STORE_H_
#define LODE_KV_PAGE_STORE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "base/status.h"
#include "kv/kv_layout.h"
#include "kv/kv_stats.h"
#include "kv/layer_pool.h"
#include "kv/page.h"
#include "kv/prefix_cache.h"

namespace lode {

class PageStore {
 public:
  // ResourceExhausted when the system refuses the addresses, or the budget is more than pools
  // reach.
  static Result<std::unique_ptr<PageStore>> Create(const KvLayout& layout, int64_t budget_bytes,
                                                   int prefix_hash_bits);
  ~PageStore();
  PageStore(const PageStore&) = delete;
  PageStore& operator=(const PageStore&) = delete;

  PrefixCache& prefix() { return prefix_; }
  const PrefixCache& prefix() const { return prefix_; }
  int64_t budget_bytes() const { return budget_bytes_; }
  int64_t reserved_bytes() const { return reserved_.load(std::memory_order_relaxed); }

  // Takes bytes from the budget, evicting as needed; false when they are not to be had.
  bool Reserve(int64_t bytes);
  void Unreserve(int64_t bytes);

  // A private page for block `index` that follows `parent`, whose reference passes from the caller
  // to the new page. Its bytes must have been reserved. Null when a pool has no addresses left.
  Page* NewPage(int64_t index, Page* parent);
  // Gives up a reference; frees what nobody holds any more.
  void Release(Page* page);
  // Makes `parent` the page's parent. Both stand for the same text.
  void SetParent(Page* page, Page* parent);
  void DropCached();

  BlockId& Block(Page& page, int32_t layer, int32_t group) const {
    return page.blocks[static_cast<size_t>(layer * layout_.num_groups() + group)];
  }
  std::byte* data(int32_t layer, BlockId block) const {
    return pools_[static_cast<size_t>(layer)]->data(block);
  }
  // Copies the blocks of a page of the same index.
  void CopyBlocks(Page& from, Page& to) const;

  // Moves blocks so that the pages from each root to each of `tails` and to each cached page lie in
  // one piece; calls moved(page) for every page whose blocks have new ids. Nothing else may run.
  KvDefragmentation Defragment(std::span<Page* const> tails, FunctionRef<bool()> should_stop,
                               FunctionRef<void(Page&)> moved);

  // Has the system put memory that is in use into huge pages.
  void JoinPages();

  // Fills in layers, prefix, neighbours and breaks.
  void AddStats(KvCacheStats& stats) const;
  // Checks pools and prefix cache, and that `pages` (each once) are all there is, with these
  // blocks.
  Status CheckIntegrity(std::span<Page* const> pages) const;

 private:
  PageStore(const KvLayout& layout, int64_t budget_bytes, int prefix_hash_bits);
  void FreePage(std::unique_ptr<Page> page);
  void FreeBlocks(Page& page, size_t num_blocks);
  bool Evict(int64_t bytes);
  // Sets page.neighbours and page.breaks, and adds their change to the sums.
  void CountSeams(Page& page);
  void Inherit(Page& page);
  void Disinherit(Page& page);
  // The pages from `begin` on that one move takes.
  size_t PieceEnd(std::span<Page* const> chain, size_t begin) const;
  int64_t MovePiece(std::span<Page* const> pages, FunctionRef<void(Page&)> moved);

  const KvLayout& layout_;
  const int64_t budget_bytes_;
  std::vector<std::unique_ptr<LayerPool>> pools_;
  PrefixCache prefix_;
  std::atomic<int64_t> reserved_{0};
  std::atomic<int64_t> num_pages_{0};
  std::atomic<int64_t> neighbours_{0};
  std::atomic<int64_t> breaks_{0};
};

}  // namespace lode

#endif  // LODE_KV_PAGE_STORE_H_
