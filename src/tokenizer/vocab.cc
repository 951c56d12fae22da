// SPDX-License-Identifier: Apache-2.0
// Linear probing at a load of at most 2/3; XXH3 hashes short keys in a few nanoseconds.
#include "tokenizer/vocab.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>

namespace lode {
namespace {

size_t TableSize(size_t entries) {
  return std::bit_ceil(std::max<size_t>(16, entries + entries / 2));
}

}  // namespace

Vocab::Vocab(size_t max_tokens, size_t max_bytes)
    : slots_(TableSize(max_tokens)), mask_(slots_.size() - 1) {
  arena_.reserve(max_bytes);
  offsets_.reserve(max_tokens + 1);
  offsets_.push_back(0);
}

void Vocab::Append(std::string_view text) {
  arena_.append(text);
  offsets_.push_back(arena_.size());
}

TokenId Vocab::Insert(TokenId id) {
  const std::string_view wanted = text(id);
  const uint64_t hash = XXH3_64bits(wanted.data(), wanted.size());
  const auto tag = static_cast<uint32_t>(hash >> 32);
  for (size_t i = hash & mask_;; i = (i + 1) & mask_) {
    Slot& slot = slots_[i];
    if (slot.id < 0) {
      slot = {tag, id};
      return -1;
    }
    if (slot.tag == tag && text(slot.id) == wanted) return slot.id;
  }
}

TokenId Vocab::Find(std::string_view wanted) const {
  const uint64_t hash = XXH3_64bits(wanted.data(), wanted.size());
  const auto tag = static_cast<uint32_t>(hash >> 32);
  for (size_t i = hash & mask_;; i = (i + 1) & mask_) {
    const Slot& slot = slots_[i];
    if (slot.id < 0) return -1;
    if (slot.tag == tag && text(slot.id) == wanted) return slot.id;
  }
}

MergeTable::MergeTable(size_t max_merges)
    : slots_(TableSize(max_merges)), mask_(slots_.size() - 1) {}

void MergeTable::Insert(TokenId left, TokenId right, Merge merge) {
  const uint64_t key = Key(left, right);
  size_t i = Hash(key) & mask_;
  while (slots_[i].key != kEmpty && slots_[i].key != key) i = (i + 1) & mask_;
  slots_[i] = {key, merge};
}

}  // namespace lode
