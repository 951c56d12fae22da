// SPDX-License-Identifier: Apache-2.0
#include "attention/earlier_indices.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace lode {

int64_t CommonLength(std::span<const int32_t> a, std::span<const int32_t> b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

void EarlierIndices::Keep(std::span<const int32_t> text, SparseIndex index) {
  if (std::ssize(text) < kLeastTokens) return;
  std::erase_if(entries_, [&](const Entry& entry) {
    return CommonLength(entry.text, text) == std::ssize(entry.text);
  });
  entries_.push_front({.text = {text.begin(), text.end()}, .index = std::move(index)});
}

std::optional<SparseIndex> EarlierIndices::Take(std::span<const int32_t> text, int64_t least) {
  auto best = entries_.end();
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    const int64_t common = CommonLength(entry->text, text);
    if (common > least && 2 * common >= std::ssize(entry->text)) best = entry, least = common;
  }
  if (best == entries_.end()) return std::nullopt;
  SparseIndex index = std::move(best->index);
  entries_.erase(best);
  index.Truncate(least);
  return index;
}

void EarlierIndices::ShrinkTo(int64_t tokens) {
  int64_t kept = 0;
  auto entry = entries_.begin();
  while (entry != entries_.end() && (kept += std::ssize(entry->text)) <= tokens) ++entry;
  entries_.erase(entry, entries_.end());
}

}  // namespace lode
