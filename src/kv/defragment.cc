// SPDX-License-Identifier: Apache-2.0
// PageStore::Defragment: each text's blocks side by side.
//
// A text is the chain of pages from a root to a tail. Texts that share a beginning share its pages:
// the longest text gets them into its own piece, the others' pieces begin where they part. Chains
// are cut where the range changes and at the largest slab, so that a move takes at most 2 MiB
// besides per layer and group.
#include <algorithm>
#include <cstring>
#include <functional>
#include <unordered_set>

#include "kv/page_store.h"

namespace lode {
namespace {

// All pages, each in one chain, longest texts first.
std::vector<std::vector<Page*>> CollectChains(std::vector<Page*> ends) {
  std::ranges::stable_sort(ends, std::greater<>(), [](const Page* page) { return page->index; });
  std::vector<std::vector<Page*>> chains;
  std::unordered_set<const Page*> seen;
  for (Page* end : ends) {
    std::vector<Page*> chain;
    for (Page* page = end; page != nullptr && seen.insert(page).second; page = page->parent) {
      chain.push_back(page);
    }
    if (chain.empty()) continue;
    std::ranges::reverse(chain);
    chains.push_back(std::move(chain));
  }
  return chains;
}

}  // namespace

KvDefragmentation PageStore::Defragment(std::span<Page* const> tails,
                                        FunctionRef<bool()> should_stop,
                                        FunctionRef<void(Page&)> moved) {
  std::vector<Page*> ends(tails.begin(), tails.end());
  for (Page* page : prefix_.PagesParentsFirst()) ends.push_back(page);
  const std::vector<std::vector<Page*>> chains = CollectChains(std::move(ends));
  for (const std::vector<Page*>& chain : chains) {
    for (size_t i = 0; i < chain.size(); ++i) {
      chain[i]->heir = i + 1 < chain.size() ? chain[i + 1] : nullptr;
      chain[i]->is_heir = i > 0;
    }
  }

  KvDefragmentation result;
  for (const std::vector<Page*>& chain : chains) {
    for (size_t begin = 0; begin < chain.size() && result.finished;) {
      const size_t end = PieceEnd(chain, begin);
      if (should_stop()) {
        result.finished = false;
      } else {
        result.moved_blocks += MovePiece(std::span(chain).subspan(begin, end - begin), moved);
        begin = end;
      }
    }
  }
  for (const std::vector<Page*>& chain : chains) {
    for (Page* page : chain) CountSeams(*page);
  }
  for (const auto& pool : pools_) pool->Trim();
  return result;
}

size_t PageStore::PieceEnd(std::span<Page* const> chain, size_t begin) const {
  const uint8_t range = chain[begin]->format;
  int64_t largest = 0;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    largest = std::max(largest, pools_[0]->block_bytes(layout_.ClassOf(range, group)));
  }
  const auto max_pages =
      static_cast<size_t>(std::max(int64_t{2}, SlabSpace::kLargestSlab / largest));
  size_t end = begin + 1;
  while (end < chain.size() && end - begin < max_pages && chain[end]->format == range) ++end;
  return end;
}

// Consecutive pages of one range. Returns the number of blocks moved.
int64_t PageStore::MovePiece(std::span<Page* const> pages, FunctionRef<void(Page&)> moved) {
  const auto groups = static_cast<size_t>(layout_.num_groups());
  int64_t count = 0;
  std::vector<BlockId> from(pages.size()), to(pages.size());
  for (size_t i = 0; i < pages.front()->blocks.size(); ++i) {
    LayerPool& pool = *pools_[i / groups];
    const int32_t size_class =
        layout_.ClassOf(pages.front()->format, static_cast<int32_t>(i % groups));
    const int64_t bytes = pool.block_bytes(size_class);
    bool whole = true;
    for (size_t p = 0; p < pages.size(); ++p) {
      from[p] = pages[p]->blocks[i];
      whole = whole && (p == 0 || int64_t{from[p]} - int64_t{from[p - 1]} == bytes / kBlockIdUnit);
    }
    if (whole || !pool.AllocateRun(size_class, to)) continue;
    for (size_t p = 0; p < pages.size(); ++p) {
      std::memcpy(pool.data(to[p]), pool.data(from[p]), static_cast<size_t>(bytes));
      pages[p]->blocks[i] = to[p];
    }
    pool.Free(size_class, from);
    count += static_cast<int64_t>(pages.size());
  }
  if (count > 0) {
    for (Page* page : pages) moved(*page);
  }
  return count;
}

}  // namespace lode
