// SPDX-License-Identifier: Apache-2.0
// MergeSymbols: the byte-pair-encoding loop. Of all neighbouring pairs, the one with the lowest
// rank is joined (the leftmost of equals) until no pair has a merge (Sennrich et al. 2016, 3.2).
//
// Short words scan for the lowest rank: quadratic in theory, fastest in practice, nothing
// allocated. Long ones keep the pairs in a heap over a linked list: O(n log n) for any input.
#ifndef LODE_TOKENIZER_MERGE_H_
#define LODE_TOKENIZER_MERGE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace lode {

// One token of the word being merged: bytes [begin, begin + size) of the text.
struct Symbol {
  uint32_t begin;
  uint32_t size;
  TokenId id;
  bool mergeable = true;  // false for byte fallbacks and unknown characters
};

inline constexpr uint64_t kNoMerge = ~uint64_t{0};

// The best merge of two neighbours: `rank` is kNoMerge when they do not merge.
struct PairMerge {
  uint64_t rank = kNoMerge;
  TokenId id = -1;
};

// Buffers of one call of Encode, reused from word to word.
struct MergeScratch {
  struct Entry {
    uint64_t rank;
    uint32_t position;
    TokenId id;
    // Of a max-heap whose top must be the lowest rank, then the leftmost.
    bool operator<(const Entry& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  std::vector<Symbol> symbols;
  std::vector<PairMerge> pairs;  // of symbols i and i + 1
  std::vector<Entry> heap;
  std::vector<uint32_t> previous, next;
};

// Joins scratch.symbols in place. `lookup(left, right)` gives the PairMerge of two symbols.
template <class Lookup>
void MergeSymbolsByScan(MergeScratch& scratch, const Lookup& lookup) {
  std::vector<Symbol>& symbols = scratch.symbols;
  std::vector<PairMerge>& pairs = scratch.pairs;
  size_t count = symbols.size();
  pairs.resize(count);
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = lookup(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == kNoMerge) break;
    symbols[best].size += symbols[best + 1].size;
    symbols[best].id = pairs[best].id;
    for (size_t i = best + 1; i + 1 < count; ++i) {
      symbols[i] = symbols[i + 1];
      pairs[i] = pairs[i + 1];
    }
    --count;
    if (best + 1 < count) pairs[best] = lookup(symbols[best], symbols[best + 1]);
    if (best > 0) pairs[best - 1] = lookup(symbols[best - 1], symbols[best]);
  }
  symbols.resize(count);
}

template <class Lookup>
void MergeSymbolsByHeap(MergeScratch& scratch, const Lookup& lookup) {
  std::vector<Symbol>& symbols = scratch.symbols;
  std::vector<MergeScratch::Entry>& heap = scratch.heap;
  const auto count = static_cast<uint32_t>(symbols.size());
  constexpr uint32_t kNone = UINT32_MAX;
  heap.clear();
  scratch.previous.resize(count);
  scratch.next.resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    scratch.previous[i] = i == 0 ? kNone : i - 1;
    scratch.next[i] = i + 1 == count ? kNone : i + 1;
  }
  const auto entry_at = [&](uint32_t position) {
    const PairMerge pair = lookup(symbols[position], symbols[scratch.next[position]]);
    return MergeScratch::Entry{pair.rank, position, pair.id};
  };
  for (uint32_t i = 0; i + 1 < count; ++i) {
    if (const auto entry = entry_at(i); entry.rank != kNoMerge) heap.push_back(entry);
  }
  std::make_heap(heap.begin(), heap.end());
  const auto push = [&](uint32_t position) {
    if (const auto entry = entry_at(position); entry.rank != kNoMerge) {
      heap.push_back(entry);
      std::push_heap(heap.begin(), heap.end());
    }
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const MergeScratch::Entry top = heap.back();
    heap.pop_back();
    // Entries are never removed when a neighbour changes: one is stale when its symbol is gone
    // (size 0) or its pair is another one by now.
    const uint32_t right = scratch.next[top.position];
    if (symbols[top.position].size == 0 || right == kNone) continue;
    const PairMerge now = lookup(symbols[top.position], symbols[right]);
    if (now.rank != top.rank || now.id != top.id) continue;
    symbols[top.position].size += symbols[right].size;
    symbols[top.position].id = top.id;
    symbols[right].size = 0;
    const uint32_t after = scratch.next[right];
    scratch.next[top.position] = after;
    if (after != kNone) {
      scratch.previous[after] = top.position;
      push(top.position);
    }
    if (scratch.previous[top.position] != kNone) push(scratch.previous[top.position]);
  }
  std::erase_if(symbols, [](const Symbol& symbol) { return symbol.size == 0; });
}

template <class Lookup>
void MergeSymbols(MergeScratch& scratch, const Lookup& lookup) {
  constexpr size_t kScanMax = 48;
  if (scratch.symbols.size() <= kScanMax) {
    MergeSymbolsByScan(scratch, lookup);
  } else {
    MergeSymbolsByHeap(scratch, lookup);
  }
}

}  // namespace lode

#endif  // LODE_TOKENIZER_MERGE_H_
