// SPDX-License-Identifier: Apache-2.0
#include "kv/prefix_cache.h"

#include <algorithm>
#include <string>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/check.h"

namespace lode {
namespace {

Hash128 FromXxh(XXH128_hash_t hash) {
  return {.low = hash.low64, .high = hash.high64};
}

// The lowest `bits` of 64, for the part of a hash that begins at bit `first`.
uint64_t Mask(int bits, int first) {
  const int left = std::clamp(bits - first, 0, 64);
  return left == 64 ? ~uint64_t{0} : (uint64_t{1} << left) - 1;
}

std::span<const int32_t> BlockTokens(const BlockPlan& plan, std::span<const int32_t> token_ids,
                                     int64_t index) {
  return token_ids.subspan(static_cast<size_t>(plan.FirstPosition(index)),
                           static_cast<size_t>(plan.Tokens(index)));
}

}  // namespace

PrefixCache::PrefixCache(const BlockPlan& plan, int hash_bits)
    : plan_(plan),
      low_mask_(Mask(hash_bits, 0)),
      high_mask_(Mask(hash_bits, 64)),
      evicted_hashes_(kRememberedEvictions) {}

PrefixCache::~PrefixCache() {
  for (const auto& [hash, page] : pages_) delete page;
}

Hash128 PrefixCache::Root(std::string_view fingerprint, std::string_view salt) {
  // The lengths keep ("ab", "c") and ("a", "bc") apart.
  std::string text = std::to_string(fingerprint.size()) + ":";
  text.append(fingerprint).append(salt);
  return FromXxh(XXH3_128bits(text.data(), text.size()));
}

Hash128 PrefixCache::PageHash(const Hash128& parent, std::span<const int32_t> token_ids) const {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  XXH3_128bits_update(&state, &parent, sizeof(parent));
  XXH3_128bits_update(&state, token_ids.data(), token_ids.size_bytes());
  Hash128 hash = FromXxh(XXH3_128bits_digest(&state));
  hash.low &= low_mask_;
  hash.high &= high_mask_;
  return hash;
}

std::vector<Hash128> PrefixCache::Hashes(const Hash128& root,
                                         std::span<const int32_t> token_ids) const {
  std::vector<Hash128> hashes;
  const int64_t num_blocks = plan_.NumFullBlocks(static_cast<int64_t>(token_ids.size()));
  for (int64_t i = 0; i < num_blocks; ++i) {
    hashes.push_back(PageHash(i == 0 ? root : hashes.back(), BlockTokens(plan_, token_ids, i)));
  }
  return hashes;
}

PrefixCache::Found PrefixCache::FindLocked(const Hash128& root, std::span<const int32_t> token_ids,
                                           std::span<const Hash128> hashes) const {
  Found found;
  if (hashes.empty()) found.miss = PrefixMiss::kTooShort;
  for (size_t i = 0; i < hashes.size(); ++i) {
    const auto it = pages_.find(hashes[i]);
    if (it == pages_.end()) {
      found.miss = WasEvicted(hashes[i]) ? PrefixMiss::kEvicted : PrefixMiss::kUnknown;
      break;
    }
    Page* page = it->second;
    Page* parent = found.pages.empty() ? nullptr : found.pages.back();
    if (page->parent != parent || page->root != root ||
        !std::ranges::equal(page->token_ids,
                            BlockTokens(plan_, token_ids, static_cast<int64_t>(i)))) {
      found.miss = PrefixMiss::kCollision;
      break;
    }
    found.pages.push_back(page);
  }
  return found;
}

PrefixCache::Found PrefixCache::Find(const Hash128& root, std::span<const int32_t> token_ids) {
  const std::vector<Hash128> hashes = Hashes(root, token_ids);
  const auto lock = mutex_.Lock();
  Found found = FindLocked(root, token_ids, hashes);
  if (!found.pages.empty()) AcquireLocked(found.pages.back());
  const auto num_found = static_cast<int64_t>(found.pages.size());
  ++stats_.lookups;
  ++stats_.misses[static_cast<size_t>(found.miss)];
  stats_.collisions += found.miss == PrefixMiss::kCollision ? 1 : 0;
  stats_.wanted_blocks += static_cast<int64_t>(hashes.size());
  stats_.found_blocks += num_found;
  stats_.found_tokens += plan_.FirstPosition(num_found);
  return found;
}

int64_t PrefixCache::CountPages(const Hash128& root, std::span<const int32_t> token_ids) const {
  const std::vector<Hash128> hashes = Hashes(root, token_ids);
  const auto lock = mutex_.Lock();
  return static_cast<int64_t>(FindLocked(root, token_ids, hashes).pages.size());
}

Page* PrefixCache::Publish(Page* page, const Hash128& root, std::span<const int32_t> token_ids) {
  LODE_CHECK(!page->published);
  LODE_CHECK(static_cast<int64_t>(token_ids.size()) == plan_.Tokens(page->index));
  if (page->parent != nullptr && !page->parent->published) return page;
  page->token_ids.assign(token_ids.begin(), token_ids.end());
  page->root = root;
  page->hash = PageHash(page->parent == nullptr ? root : page->parent->hash, token_ids);

  const auto lock = mutex_.Lock();
  const auto [it, inserted] = pages_.emplace(page->hash, page);
  if (inserted) {
    page->published = true;
    return page;
  }
  Page* known = it->second;
  if (known->parent == page->parent && known->root == root && known->token_ids == page->token_ids) {
    AcquireLocked(known);
    return known;
  }
  ++stats_.collisions;
  return page;
}

void PrefixCache::Acquire(Page* page) {
  const auto lock = mutex_.Lock();
  AcquireLocked(page);
}

void PrefixCache::AcquireLocked(Page* page) {
  if (page->references++ == 0) evictable_.erase(page->last_used);
}

void PrefixCache::Release(Page* page, std::vector<std::unique_ptr<Page>>& dead) {
  const auto lock = mutex_.Lock();
  page->last_used = ++clock_;
  ReleaseLocked(page, dead);
}

void PrefixCache::ReleaseLocked(Page* page, std::vector<std::unique_ptr<Page>>& dead) {
  while (page != nullptr) {
    LODE_CHECK(page->references > 0);
    if (--page->references > 0) return;
    if (page->published) {
      const bool inserted = evictable_.emplace(page->last_used, page).second;
      LODE_CHECK(inserted);
      return;
    }
    dead.emplace_back(page);
    page = Unlink(*page);
  }
}

std::vector<std::unique_ptr<Page>> PrefixCache::Evict(int64_t bytes) {
  std::vector<std::unique_ptr<Page>> evicted;
  const auto lock = mutex_.Lock();
  while (bytes > 0 && !evictable_.empty()) {
    Page* page = evictable_.begin()->second;
    evictable_.erase(evictable_.begin());
    pages_.erase(page->hash);
    evicted_hashes_[page->hash.low % kRememberedEvictions] = page->hash.high | 1;
    bytes -= page->bytes;
    ++stats_.evicted_pages;
    evicted.emplace_back(page);
    // A published page's parent is published: it is queued, not dead.
    ReleaseLocked(Unlink(*page), evicted);
  }
  return evicted;
}

// What a page that dies leaves to its parent, which is returned: whoever used the page used its
// parent as well.
Page* PrefixCache::Unlink(Page& page) {
  if (page.parent == nullptr) return nullptr;
  page.parent->last_used = std::max(page.parent->last_used, page.last_used);
  if (page.is_heir) page.parent->heir = nullptr;
  return page.parent;
}

int64_t PrefixCache::evictable_pages() const {
  const auto lock = mutex_.Lock();
  return static_cast<int64_t>(evictable_.size());
}

PrefixCacheStats PrefixCache::stats() const {
  const auto lock = mutex_.Lock();
  PrefixCacheStats stats = stats_;
  stats.cached_pages = static_cast<int64_t>(pages_.size());
  stats.evictable_pages = static_cast<int64_t>(evictable_.size());
  stats.lock_waits = mutex_.waits();
  stats.lock_wait_nanoseconds = mutex_.wait_nanoseconds();
  return stats;
}

std::vector<Page*> PrefixCache::PagesParentsFirst() const {
  std::vector<Page*> pages;
  for (const auto& [hash, page] : pages_) pages.push_back(page);
  std::ranges::sort(pages, {}, [](const Page* page) { return page->index; });
  return pages;
}

Status PrefixCache::CheckIntegrity() const {
  const auto fail = [](std::string_view what, const Page& page) {
    return InternalError("prefix cache: page " + std::to_string(page.index) + " " +
                         std::string(what));
  };
  std::unordered_map<const Page*, int64_t> followers;
  size_t unreferenced = 0;
  for (const auto& [hash, page] : pages_) {
    if (!page->published) return fail("is in the map but private", *page);
    if (page->hash != hash) return fail("is under another page's hash", *page);
    if ((page->index == 0) != (page->parent == nullptr)) return fail("has a wrong parent", *page);
    if (page->parent != nullptr) {
      const auto parent = pages_.find(page->parent->hash);
      if (parent == pages_.end() || parent->second != page->parent) {
        return fail("outlived its parent", *page);
      }
      ++followers[page->parent];
    }
    if (page->references > 0) continue;
    ++unreferenced;
    const auto queued = evictable_.find(page->last_used);
    if (queued == evictable_.end() || queued->second != page) return fail("is not queued", *page);
  }
  for (const auto& [page, count] : followers) {
    if (page->references < count) return fail("has more followers than references", *page);
  }
  if (unreferenced != evictable_.size()) {
    return InternalError("prefix cache: the queue holds pages that are in use");
  }
  return OkStatus();
}

}  // namespace lode
