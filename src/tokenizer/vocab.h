// SPDX-License-Identifier: Apache-2.0
// Vocab: token texts in one arena, and an open-addressing table from text to id.
// MergeTable: from a pair of ids to the rank and result of its merge.
//
// A vocabulary of 262,144 tokens must load in tens of milliseconds, so there is one allocation per
// array and none per token; slots hold part of the hash so that a miss rarely touches the arena.
#ifndef LODE_TOKENIZER_VOCAB_H_
#define LODE_TOKENIZER_VOCAB_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace lode {

// Immutable after the last Insert: any number of threads.
class Vocab {
 public:
  // `max_tokens` ids and `max_bytes` of text will be added at most.
  Vocab(size_t max_tokens, size_t max_bytes);

  // Appends the text of the next id without making it findable.
  void Append(std::string_view text);
  // Makes `id` findable by its text. Returns the id already there under this text, or -1.
  TokenId Insert(TokenId id);
  // -1 when absent.
  TokenId Find(std::string_view text) const;
  std::string_view text(TokenId id) const {
    return {arena_.data() + offsets_[static_cast<size_t>(id)],
            offsets_[static_cast<size_t>(id) + 1] - offsets_[static_cast<size_t>(id)]};
  }
  int64_t size() const { return static_cast<int64_t>(offsets_.size()) - 1; }

 private:
  struct Slot {
    uint32_t tag = 0;
    TokenId id = -1;
  };
  std::string arena_;
  std::vector<size_t> offsets_;
  std::vector<Slot> slots_;
  size_t mask_;
};

class MergeTable {
 public:
  struct Merge {
    uint32_t rank;
    TokenId id;
  };
  explicit MergeTable(size_t max_merges);
  // A repeated pair keeps its newest rank, as in Hugging Face's table.
  void Insert(TokenId left, TokenId right, Merge merge);
  // Null when the pair does not merge.
  const Merge* Find(TokenId left, TokenId right) const {
    const uint64_t key = Key(left, right);
    for (size_t i = Hash(key) & mask_;; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return &slots_[i].merge;
      if (slots_[i].key == kEmpty) return nullptr;
    }
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge{0, -1};
  };
  static uint64_t Key(TokenId left, TokenId right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  static uint64_t Hash(uint64_t key) {
    key *= 0x9E3779B97F4A7C15u;
    return key ^ (key >> 32);
  }
  std::vector<Slot> slots_;
  size_t mask_;
};

}  // namespace lode

#endif  // LODE_TOKENIZER_VOCAB_H_
