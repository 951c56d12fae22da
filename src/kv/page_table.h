// SPDX-License-Identifier: Apache-2.0
// PageTable: logical block index -> block, of one sequence, layer and head group.
//
// Entries lie in chunks that never move: a table grows to any length without copying, and a
// sequence of a few tokens takes one small chunk. Threads: one writer; readers between writes.
#ifndef LODE_KV_PAGE_TABLE_H_
#define LODE_KV_PAGE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/check.h"
#include "kv/block_id.h"

namespace lode {

class PageTable {
 public:
  struct Entry {
    BlockId block = kNoBlock;
    uint8_t format = 0;  // the caller's: how the block is encoded
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  static_assert(sizeof(Entry) == 8);

  int64_t size() const { return size_; }
  Entry operator[](int64_t index) const {
    LODE_DCHECK(index >= 0 && index < size_);
    return chunks_[static_cast<size_t>(index / kChunk)][static_cast<size_t>(index % kChunk)];
  }
  void Set(int64_t index, Entry entry) {
    LODE_DCHECK(index >= 0 && index < size_);
    chunks_[static_cast<size_t>(index / kChunk)][static_cast<size_t>(index % kChunk)] = entry;
  }
  void PushBack(Entry entry) {
    if (size_ == static_cast<int64_t>(chunks_.size()) * kChunk) {
      chunks_.push_back(std::make_unique<Entry[]>(kChunk));
    }
    ++size_;
    Set(size_ - 1, entry);
  }
  // Forgets the entries from `size` on.
  void Shrink(int64_t size) {
    LODE_CHECK(size >= 0 && size <= size_);
    size_ = size;
    chunks_.resize(static_cast<size_t>((size + kChunk - 1) / kChunk));
  }
  int64_t memory_bytes() const {
    return static_cast<int64_t>(chunks_.size() * (kChunk * sizeof(Entry) + sizeof(chunks_[0])));
  }

 private:
  static constexpr int64_t kChunk = 64;
  std::vector<std::unique_ptr<Entry[]>> chunks_;
  int64_t size_ = 0;
};

}  // namespace lode

#endif  // LODE_KV_PAGE_TABLE_H_
