// SPDX-License-Identifier: Apache-2.0
#include "kv/page_store.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "kv/page_table.h"

namespace lode {
namespace {

// A pool reserves this many times its share of the budget, because slabs of several size classes
// never fill up exactly, and as much for itself in any case.
constexpr int64_t kReserveFactor = 4;
constexpr int64_t kReserveExtra = int64_t{256} << 20;

}  // namespace

Result<std::unique_ptr<PageStore>> PageStore::Create(const KvLayout& layout, int64_t budget_bytes,
                                                     int prefix_hash_bits) {
  const int64_t share = budget_bytes / layout.num_layers();
  if (share > SlabSpace::kMaxReserveBytes - kReserveExtra) {
    return ResourceExhaustedError("KV cache: a budget of " + std::to_string(budget_bytes) +
                                  " bytes is " + std::to_string(share) +
                                  " per layer, expected at most " +
                                  std::to_string(SlabSpace::kMaxReserveBytes - kReserveExtra));
  }
  const int64_t reserve =
      std::min(share * kReserveFactor + kReserveExtra, SlabSpace::kMaxReserveBytes);
  std::unique_ptr<PageStore> store(new PageStore(layout, budget_bytes, prefix_hash_bits));
  for (int32_t layer = 0; layer < layout.num_layers(); ++layer) {
    LODE_ASSIGN_OR_RETURN(auto pool, LayerPool::Create(reserve, layout.ClassBytes()));
    store->pools_.push_back(std::move(pool));
  }
  return store;
}

PageStore::PageStore(const KvLayout& layout, int64_t budget_bytes, int prefix_hash_bits)
    : layout_(layout), budget_bytes_(budget_bytes), prefix_(layout.plan(), prefix_hash_bits) {}

PageStore::~PageStore() = default;

bool PageStore::Reserve(int64_t bytes) {
  int64_t reserved = reserved_.load(std::memory_order_relaxed);
  for (;;) {
    if (bytes > budget_bytes_) return false;
    const int64_t excess = reserved + bytes - budget_bytes_;
    if (excess > 0) {
      const bool evicted = Evict(excess);
      const int64_t before = reserved;
      reserved = reserved_.load(std::memory_order_relaxed);
      if (!evicted && reserved >= before) return false;
    } else if (reserved_.compare_exchange_weak(reserved, reserved + bytes)) {
      return true;
    }
  }
}

void PageStore::Unreserve(int64_t bytes) {
  reserved_.fetch_sub(bytes, std::memory_order_relaxed);
}

bool PageStore::Evict(int64_t bytes) {
  std::vector<std::unique_ptr<Page>> evicted = prefix_.Evict(bytes);
  if (evicted.empty()) return false;
  for (std::unique_ptr<Page>& page : evicted) FreePage(std::move(page));
  return true;
}

void PageStore::DropCached() {
  while (Evict(INT64_MAX)) {
  }
  for (const auto& pool : pools_) pool->Flush();
}

void PageStore::JoinPages() {
  for (const auto& pool : pools_) pool->JoinPages();
}

Page* PageStore::NewPage(int64_t index, Page* parent) {
  auto page = std::make_unique<Page>();
  const int32_t range = layout_.RangeOf(index);
  page->index = index;
  page->parent = parent;
  page->format = static_cast<uint8_t>(range);
  page->bytes = layout_.range(range).page_bytes;
  page->blocks.resize(static_cast<size_t>(layout_.num_layers() * layout_.num_groups()), kNoBlock);
  size_t done = 0;
  for (int32_t layer = 0; layer < layout_.num_layers(); ++layer) {
    for (int32_t group = 0; group < layout_.num_groups(); ++group) {
      const int32_t size_class = layout_.ClassOf(range, group);
      if (!pools_[static_cast<size_t>(layer)]->Allocate(size_class, {&page->blocks[done], 1})) {
        FreeBlocks(*page, done);
        return nullptr;
      }
      ++done;
    }
  }
  num_pages_.fetch_add(1, std::memory_order_relaxed);
  Inherit(*page);
  return page.release();
}

void PageStore::FreeBlocks(Page& page, size_t num_blocks) {
  const auto groups = static_cast<size_t>(layout_.num_groups());
  for (size_t i = 0; i < num_blocks; ++i) {
    const int32_t size_class = layout_.ClassOf(page.format, static_cast<int32_t>(i % groups));
    pools_[i / groups]->Free(size_class, {&page.blocks[i], 1});
  }
}

void PageStore::FreePage(std::unique_ptr<Page> page) {
  neighbours_.fetch_sub(page->neighbours, std::memory_order_relaxed);
  breaks_.fetch_sub(page->breaks, std::memory_order_relaxed);
  FreeBlocks(*page, page->blocks.size());
  num_pages_.fetch_sub(1, std::memory_order_relaxed);
  Unreserve(page->bytes);
}

void PageStore::Release(Page* page) {
  std::vector<std::unique_ptr<Page>> dead;
  prefix_.Release(page, dead);
  for (std::unique_ptr<Page>& d : dead) FreePage(std::move(d));
}

void PageStore::SetParent(Page* page, Page* parent) {
  if (page->is_heir) page->parent->heir = nullptr;
  page->parent = parent;
  Inherit(*page);
}

void PageStore::Inherit(Page& page) {
  Page* none = nullptr;
  page.is_heir = page.parent != nullptr && page.parent->heir.compare_exchange_strong(none, &page);
  CountSeams(page);
}

void PageStore::CopyBlocks(Page& from, Page& to) const {
  LODE_CHECK(from.index == to.index);
  for (int32_t layer = 0; layer < layout_.num_layers(); ++layer) {
    for (int32_t group = 0; group < layout_.num_groups(); ++group) {
      const int64_t bytes =
          pools_[static_cast<size_t>(layer)]->block_bytes(layout_.ClassOf(from.format, group));
      std::memcpy(data(layer, Block(to, layer, group)), data(layer, Block(from, layer, group)),
                  static_cast<size_t>(bytes));
    }
  }
}

void PageStore::CountSeams(Page& page) {
  int32_t neighbours = 0, breaks = 0;
  if (page.is_heir && page.parent->format == page.format) {
    const auto groups = static_cast<size_t>(layout_.num_groups());
    for (size_t i = 0; i < page.blocks.size(); ++i) {
      const int64_t bytes = pools_[i / groups]->block_bytes(
          layout_.ClassOf(page.format, static_cast<int32_t>(i % groups)));
      const int64_t distance = int64_t{page.blocks[i]} - int64_t{page.parent->blocks[i]};
      breaks += distance != bytes / kBlockIdUnit ? 1 : 0;
      ++neighbours;
    }
  }
  neighbours_.fetch_add(neighbours - page.neighbours, std::memory_order_relaxed);
  breaks_.fetch_add(breaks - page.breaks, std::memory_order_relaxed);
  page.neighbours = neighbours;
  page.breaks = breaks;
}

void PageStore::AddStats(KvCacheStats& stats) const {
  stats.budget_bytes = budget_bytes_;
  // The two are read one after the other while others change them.
  stats.neighbours = std::max(int64_t{0}, neighbours_.load(std::memory_order_relaxed));
  stats.breaks = std::clamp(breaks_.load(std::memory_order_relaxed), int64_t{0}, stats.neighbours);
  for (const auto& pool : pools_) stats.layers.push_back(pool->stats());
  stats.prefix = prefix_.stats();
  const int64_t page_bytes = int64_t{sizeof(Page)} +
                             layout_.num_layers() * layout_.num_groups() *
                                 int64_t{sizeof(BlockId) + sizeof(PageTable::Entry)} +
                             layout_.plan().block_size() * int64_t{sizeof(int32_t)};
  stats.metadata_bytes = num_pages_.load(std::memory_order_relaxed) * page_bytes;
}

Status PageStore::CheckIntegrity(std::span<Page* const> pages) const {
  LODE_RETURN_IF_ERROR(prefix_.CheckIntegrity());
  for (const auto& pool : pools_) LODE_RETURN_IF_ERROR(pool->CheckIntegrity());
  std::vector<std::vector<BlockId>> blocks(pools_.size());
  const auto groups = static_cast<size_t>(layout_.num_groups());
  int64_t neighbours = 0, breaks = 0;
  for (const Page* page : pages) {
    neighbours += page->neighbours;
    breaks += page->breaks;
    if (page->is_heir && page->parent->heir != page) {
      return InternalError("KV cache: a page has two heirs");
    }
    for (size_t i = 0; i < page->blocks.size(); ++i) blocks[i / groups].push_back(page->blocks[i]);
  }
  for (size_t layer = 0; layer < pools_.size(); ++layer) {
    std::vector<BlockId>& ids = blocks[layer];
    std::sort(ids.begin(), ids.end());
    if (std::adjacent_find(ids.begin(), ids.end()) != ids.end()) {
      return InternalError("KV cache: two pages of layer " + std::to_string(layer) +
                           " share a block");
    }
    if (pools_[layer]->stats().used_blocks != static_cast<int64_t>(ids.size())) {
      return InternalError("KV cache: layer " + std::to_string(layer) + " lost blocks");
    }
  }
  if (neighbours != neighbours_ || breaks != breaks_) {
    return InternalError("KV cache: counts of fragmentation");
  }
  if (static_cast<int64_t>(pages.size()) != num_pages_) {
    return InternalError("KV cache: " + std::to_string(num_pages_) + " pages, but " +
                         std::to_string(pages.size()) + " can be reached");
  }
  return OkStatus();
}

}  // namespace lode
