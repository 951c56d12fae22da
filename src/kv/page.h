// SPDX-License-Identifier: Apache-2.0
// Page: one logical block of a sequence in all layers and head groups: the unit of sharing, hashing
// and eviction.
//
// Pages form chains by `parent`: page i of a text follows page i - 1 of the same text, and texts
// with a common beginning share the pages of that beginning. A page holds a reference on its
// parent, so who holds a text's last page holds all of it. A page never changes once it is full.
#ifndef LODE_KV_PAGE_H_
#define LODE_KV_PAGE_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "kv/block_id.h"

namespace lode {

struct Hash128 {
  uint64_t low = 0;
  uint64_t high = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
};

struct Page {
  int64_t index = 0;       // logical block
  Page* parent = nullptr;  // null for index 0
  uint8_t format = 0;      // the owner's: how its blocks are encoded
  int64_t bytes = 0;       // of its blocks
  // The page that is to lie next to this one in memory, of those that follow it.
  std::atomic<Page*> heir = nullptr;
  bool is_heir = false;              // of its parent
  int32_t neighbours = 0;            // blocks that are to follow the parent's in memory
  int32_t breaks = 0;                // of these, blocks that do not
  std::vector<BlockId> blocks = {};  // [num_layers * num_head_groups]

  // Set by PrefixCache::Publish, then constant.
  std::vector<int32_t> token_ids = {};
  Hash128 root = {};  // model, cache options and salt
  Hash128 hash = {};  // of root and all tokens up to this page's last
  bool published = false;

  // PrefixCache's, under its lock.
  int64_t references = 1;  // sequences that end here, and pages that follow
  uint64_t last_used = 0;
};

}  // namespace lode

#endif  // LODE_KV_PAGE_H_
