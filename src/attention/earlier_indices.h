// SPDX-License-Identifier: Apache-2.0
// EarlierIndices: the sparse indices of texts that a sequence held before, for when one comes back.
//
// Keys and values of earlier texts stay in the cache until their memory is needed
// (kv/prefix_cache.h); what was learnt of them stays here, under the texts' tokens. Not
// thread-safe.
#ifndef LODE_ATTENTION_EARLIER_INDICES_H_
#define LODE_ATTENTION_EARLIER_INDICES_H_

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "attention/sparse_index.h"

namespace lode {

// The tokens that two texts begin with.
int64_t CommonLength(std::span<const int32_t> a, std::span<const int32_t> b);

class EarlierIndices {
 public:
  // Shorter texts are not kept: their indices are made in no time, and have costs of their own.
  static constexpr int64_t kLeastTokens = kPageTokens * kNodePages;

  // Keeps the index of a text, in place of those of its beginnings.
  void Keep(std::span<const int32_t> text, SparseIndex index);
  // Gives away the index of the text that has the longest beginning in common with this one, cut to
  // that: more than `least` tokens and at least half of the text, so that no long index is lost for
  // a short beginning.
  std::optional<SparseIndex> Take(std::span<const int32_t> text, int64_t least);
  // Forgets the oldest until those that are left stand for so many tokens at most.
  void ShrinkTo(int64_t tokens);

 private:
  struct Entry {
    std::vector<int32_t> text;
    SparseIndex index;
  };
  std::list<Entry> entries_;  // newest first
};

}  // namespace lode

#endif  // LODE_ATTENTION_EARLIER_INDICES_H_
