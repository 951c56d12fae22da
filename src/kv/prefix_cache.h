// SPDX-License-Identifier: Apache-2.0
// PrefixCache: finds the pages of an earlier text that a new text begins with, and decides which
// page to give up when memory is short.
//
// A full page is published under a 128-bit XXH3 hash of its root (model, cache options, salt) and
// of all tokens up to its end. Hashes only find candidates: root, parent and token ids are compared
// on every hit, so a collision is a counted miss and never another text's keys. Pages that no
// sequence uses stay, least recently used at the front; only pages that no other page follows are
// given up, so that what stays can be found.
//
// Threads: all functions from any thread; one lock, held for a map operation per page. Who holds a
// reference may read the page without the lock.
#ifndef LODE_KV_PREFIX_CACHE_H_
#define LODE_KV_PREFIX_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "kv/block_plan.h"
#include "kv/counted_mutex.h"
#include "kv/kv_stats.h"
#include "kv/page.h"

namespace lode {

class PrefixCache {
 public:
  // hash_bits < 128 is for tests: hashes are cut, so that texts collide.
  explicit PrefixCache(const BlockPlan& plan, int hash_bits = 128);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // The root of all texts that may share pages: everything that their keys depend on but tokens.
  static Hash128 Root(std::string_view fingerprint, std::string_view salt);

  struct Found {
    std::vector<Page*> pages;  // from index 0 on; the caller holds a reference on the last
    PrefixMiss miss = PrefixMiss::kNone;
  };
  // The longest chain of pages that `token_ids` begins with.
  Found Find(const Hash128& root, std::span<const int32_t> token_ids);

  // How many pages Find would return; counts nothing.
  int64_t CountPages(const Hash128& root, std::span<const int32_t> token_ids) const;

  // Offers a full page to later texts. Precondition: the caller holds a reference, nobody else has
  // the page yet, and token_ids are the page's own. Returns the page that stands for this text from
  // now on: `page` itself, or the one that another sequence published before, with a reference for
  // the caller, who then follows up with that one and releases `page`. The page stays private
  // (published == false) when its parent is private or on a collision.
  Page* Publish(Page* page, const Hash128& root, std::span<const int32_t> token_ids);

  void Acquire(Page* page);
  // Gives up a reference. Private pages that nobody holds any more are appended to `dead`: the
  // caller frees their blocks. Published ones stay until Evict.
  void Release(Page* page, std::vector<std::unique_ptr<Page>>& dead);
  // Takes out least recently used pages until their bytes reach `bytes` or none is left that may
  // go. The caller frees (or first saves) their blocks.
  std::vector<std::unique_ptr<Page>> Evict(int64_t bytes);
  int64_t evictable_pages() const;

  // All published pages, parents first, for defragmentation. Nothing else may run.
  std::vector<Page*> PagesParentsFirst() const;

  PrefixCacheStats stats() const;
  // Internal when map, chains and the queue of evictable pages disagree. Nothing else may run.
  Status CheckIntegrity() const;

 private:
  struct HashOf {
    size_t operator()(const Hash128& hash) const { return hash.low; }
  };
  static constexpr size_t kRememberedEvictions = size_t{1} << 14;

  Hash128 PageHash(const Hash128& parent, std::span<const int32_t> token_ids) const;
  bool WasEvicted(const Hash128& hash) const {
    return evicted_hashes_[hash.low % kRememberedEvictions] == (hash.high | 1);
  }
  std::vector<Hash128> Hashes(const Hash128& root, std::span<const int32_t> token_ids) const;
  Found FindLocked(const Hash128& root, std::span<const int32_t> token_ids,
                   std::span<const Hash128> hashes) const;
  static Page* Unlink(Page& page);
  void AcquireLocked(Page* page);
  void ReleaseLocked(Page* page, std::vector<std::unique_ptr<Page>>& dead);

  const BlockPlan plan_;
  const uint64_t low_mask_, high_mask_;
  mutable CountedMutex mutex_;
  std::unordered_map<Hash128, Page*, HashOf> pages_;
  std::map<uint64_t, Page*> evictable_;   // by last_used, which differs between them
  std::vector<uint64_t> evicted_hashes_;  // a bounded memory, to say why a block is missing
  uint64_t clock_ = 0;
  PrefixCacheStats stats_;
};

}  // namespace lode

#endif  // LODE_KV_PREFIX_CACHE_H_
