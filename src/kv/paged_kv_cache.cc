// SPDX-License-Identifier: Apache-2.0
#include "kv/paged_kv_cache.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"

namespace lode {
namespace {

// All that a block's bytes depend on besides tokens and salt.
std::string Fingerprint(const KvCacheOptions& options) {
  return options.fingerprint + "|" + std::to_string(options.num_layers) + "|" +
         std::to_string(options.num_kv_heads) + "|" + std::to_string(options.head_dim) + "|" +
         KvDTypesName(options.dtypes) + "|" + std::to_string(options.block_size) +
         (options.adaptive_blocks ? "" : " fixed") + "|" +
         std::to_string(options.int4_fallback_threshold) + "|" +
         std::to_string(options.value_group);
}

}  // namespace

PagedKvCache::Sequence::Sequence(const KvCacheOptions& options, const KvLayout& layout,
                                 const Hash128& text_root)
    : root(text_root),
      stored(static_cast<size_t>(options.num_layers), 0),
      tables(static_cast<size_t>(layout.num_layers() * layout.num_groups())),
      open(options.num_layers, options.num_kv_heads, options.head_dim, options.dtypes) {}

PagedKvCache::PagedKvCache(const KvCacheOptions& options, std::unique_ptr<const KvLayout> layout,
                           std::unique_ptr<PageStore> store)
    : options_(options),
      layout_(std::move(layout)),
      store_(std::move(store)),
      open_bytes_(OpenTiles::BytesFor(options.num_layers, options.num_kv_heads, options.head_dim,
                                      options.dtypes)),
      sequences_(kMaxSequences) {}

PagedKvCache::~PagedKvCache() {
  for (size_t id = 0; id < kMaxSequences; ++id) {
    if (sequences_[id] != nullptr) RemoveSequence(static_cast<SequenceId>(id));
  }
}

const PagedKvCache::Sequence& PagedKvCache::Get(SequenceId sequence) const {
  LODE_CHECK(sequence >= 0 && static_cast<size_t>(sequence) < kMaxSequences);
  const Sequence* s = sequences_[static_cast<size_t>(sequence)].load(std::memory_order_acquire);
  LODE_CHECK(s != nullptr);
  return *s;
}

PagedKvCache::Sequence& PagedKvCache::Get(SequenceId sequence) {
  return const_cast<Sequence&>(std::as_const(*this).Get(sequence));
}

// A budget in bytes covers open tiles; one in tokens leaves them out.
bool PagedKvCache::ReserveOpenTiles() {
  return options_.memory_bytes == 0 || store_->Reserve(open_bytes_);
}

Result<SequenceId> PagedKvCache::Insert(std::unique_ptr<Sequence> sequence) {
  const auto lock = ids_mutex_.Lock();
  for (size_t id = 0; id < kMaxSequences; ++id) {
    if (sequences_[id].load(std::memory_order_relaxed) != nullptr) continue;
    sequences_[id].store(sequence.release(), std::memory_order_release);
    num_sequences_.fetch_add(1, std::memory_order_relaxed);
    return static_cast<SequenceId>(id);
  }
  return ResourceExhaustedError("KV cache: " + std::to_string(kMaxSequences) +
                                " sequences are all there can be at a time");
}

Result<SequenceId> PagedKvCache::AddSequence(std::string_view salt) {
  if (!ReserveOpenTiles()) {
    return ResourceExhaustedError(
        "KV cache: the open tiles of another sequence take " + std::to_string(open_bytes_) +
        " bytes, " + std::to_string(store_->budget_bytes() - store_->reserved_bytes()) + " of " +
        std::to_string(store_->budget_bytes()) + " are left");
  }
  auto id = Insert(std::make_unique<Sequence>(options_, *layout_,
                                              PrefixCache::Root(Fingerprint(options_), salt)));
  if (!id.ok() && options_.memory_bytes > 0) store_->Unreserve(open_bytes_);
  return id;
}

Result<SequenceId> PagedKvCache::Fork(SequenceId sequence) {
  Sequence& from = Get(sequence);
  const int64_t length = LeastStored(from);
  LODE_CHECK(std::ranges::all_of(from.stored, [&](int64_t s) { return s == length; }));
  if (!ReserveOpenTiles()) {
    return ResourceExhaustedError("KV cache: no room for the open tiles of a fork");
  }
  auto fork = std::make_unique<Sequence>(options_, *layout_, from.root);
  fork->open.CopyFrom(from.open);
  fork->length = length;
  fork->stored = from.stored;
  fork->token_ids = from.token_ids;
  const int64_t shared = plan().NumFullBlocks(length);
  // Pages that two sequences hold already are published by neither.
  from.offered = fork->offered = std::max(from.offered, shared);
  for (int64_t i = 0; i < shared; ++i) PushPage(*fork, from.pages[static_cast<size_t>(i)]);
  if (shared > 0) store_->prefix().Acquire(fork->pages.back());
  const int64_t num_pages = layout_->NumPages(length);
  if (num_pages > shared && !AddPages(*fork, num_pages)) {
    DropPages(*fork, 0);
    if (options_.memory_bytes > 0) store_->Unreserve(open_bytes_);
    return ResourceExhaustedError("KV cache: no room to copy a fork's last block");
  }
  for (int64_t i = shared; i < num_pages; ++i) {
    store_->CopyBlocks(*from.pages[static_cast<size_t>(i)], *fork->pages[static_cast<size_t>(i)]);
  }
  return Insert(std::move(fork));
}

void PagedKvCache::RemoveSequence(SequenceId sequence) {
  Sequence& s = Get(sequence);
  DropPages(s, 0);
  if (options_.memory_bytes > 0) store_->Unreserve(open_bytes_);
  const auto lock = ids_mutex_.Lock();
  sequences_[static_cast<size_t>(sequence)].store(nullptr, std::memory_order_release);
  num_sequences_.fetch_sub(1, std::memory_order_relaxed);
  delete &s;
}

void PagedKvCache::Preempt(SequenceId sequence) {
  Reset(Get(sequence));
  preemptions_.fetch_add(1, std::memory_order_relaxed);
}

void PagedKvCache::Reset(Sequence& s) {
  DropPages(s, 0);
  s.length = s.offered = 0;
  s.token_ids.clear();
  std::ranges::fill(s.stored, 0);
}

Status PagedKvCache::DoesNotFit(const Sequence& s, int64_t num_tokens) const {
  const int64_t held = layout_->PagesBytes(static_cast<int64_t>(s.pages.size()));
  const int64_t room = store_->budget_bytes() - store_->reserved_bytes() + held;
  return ResourceExhaustedError(
      "KV cache: " + std::to_string(num_tokens) + " more tokens do not fit: the sequence has " +
      std::to_string(s.length) + ", room is left for " +
      std::to_string(std::max(int64_t{0}, layout_->LongestWithin(room) - s.length)) +
      ", capacity of one sequence is " +
      std::to_string(layout_->LongestWithin(store_->budget_bytes())) + " tokens in " +
      std::to_string(store_->budget_bytes()) + " bytes");
}

Status PagedKvCache::Extend(SequenceId sequence, int64_t num_tokens) {
  Sequence& s = Get(sequence);
  LODE_CHECK(num_tokens >= 0);
  int64_t length = 0;
  if (__builtin_add_overflow(s.length, num_tokens, &length) ||
      !AddPages(s, layout_->NumPages(length))) {
    return DoesNotFit(s, num_tokens);
  }
  s.length = length;
  return OkStatus();
}

// Private pages up to num_pages; false, and nothing is added, when they do not fit.
bool PagedKvCache::AddPages(Sequence& s, int64_t num_pages) {
  const auto held = static_cast<int64_t>(s.pages.size());
  if (num_pages <= held) return true;
  const int64_t bytes = layout_->PagesBytes(num_pages) - layout_->PagesBytes(held);
  if (!store_->Reserve(bytes)) return false;
  int64_t used = 0;
  for (int64_t i = held; i < num_pages; ++i) {
    Page* page = store_->NewPage(i, s.pages.empty() ? nullptr : s.pages.back());
    if (page == nullptr) {
      store_->Unreserve(bytes - used);
      DropPages(s, held);
      return false;
    }
    used += page->bytes;
    PushPage(s, page);
  }
  return true;
}

void PagedKvCache::PushPage(Sequence& s, Page* page) {
  s.pages.push_back(page);
  for (size_t i = 0; i < s.tables.size(); ++i) {
    s.tables[i].PushBack({.block = page->blocks[i], .format = page->format});
  }
}

// Copies the page's block ids into the tables.
void PagedKvCache::SetEntries(Sequence& s, int64_t index) {
  const Page* page = s.pages[static_cast<size_t>(index)];
  for (size_t i = 0; i < s.tables.size(); ++i) {
    s.tables[i].Set(index, {.block = page->blocks[i], .format = page->format});
  }
}

// Keeps the first num_pages pages.
void PagedKvCache::DropPages(Sequence& s, int64_t num_pages) {
  if (static_cast<int64_t>(s.pages.size()) <= num_pages) return;
  Page* old_tail = s.pages.back();
  if (num_pages > 0) store_->prefix().Acquire(s.pages[static_cast<size_t>(num_pages - 1)]);
  store_->Release(old_tail);
  s.pages.resize(static_cast<size_t>(num_pages));
  for (PageTable& table : s.tables) table.Shrink(num_pages);
}

// Replaces the last page, which others may use, by a private copy; false when it does not fit.
bool PagedKvCache::CopyPage(Sequence& s, int64_t index) {
  LODE_CHECK(index + 1 == static_cast<int64_t>(s.pages.size()));
  Page* shared = s.pages.back();
  if (!store_->Reserve(shared->bytes)) return false;
  if (shared->parent != nullptr) store_->prefix().Acquire(shared->parent);
  Page* copy = store_->NewPage(index, shared->parent);
  if (copy == nullptr) {
    store_->Unreserve(shared->bytes);
    if (shared->parent != nullptr) store_->Release(shared->parent);
    return false;
  }
  store_->CopyBlocks(*shared, *copy);
  s.pages.back() = copy;
  SetEntries(s, index);
  store_->Release(shared);
  return true;
}

// new_length, or the first position of its tile when a layer sealed that in a type that cannot be
// opened again.
int64_t PagedKvCache::ShortenToWhole(const Sequence& s, int64_t new_length) const {
  const int64_t tile = plan().TileOf(new_length);
  const int64_t first = plan().FirstPositionOfTile(tile);
  const int64_t end = first + plan().TileTokens(tile);
  if (new_length == first || layout_->range(layout_->RangeOf(plan().IndexOf(first))).can_reopen()) {
    return new_length;
  }
  const bool sealed = std::ranges::any_of(s.stored, [&](int64_t stored) { return stored >= end; });
  return sealed ? first : new_length;
}

int64_t PagedKvCache::Truncate(SequenceId sequence, int64_t new_length) {
  Sequence& s = Get(sequence);
  LODE_CHECK(new_length >= 0 && new_length <= s.length);
  if (new_length == s.length) return new_length;
  new_length = ShortenToWhole(s, new_length);
  const int64_t tile = plan().TileOf(new_length);
  const int64_t first = plan().FirstPositionOfTile(tile);
  for (int32_t layer = 0; layer < options_.num_layers; ++layer) {
    int64_t& stored = s.stored[static_cast<size_t>(layer)];
    if (stored <= new_length) continue;
    if (new_length > first && stored >= first + plan().TileTokens(tile)) {
      for (int32_t head = 0; head < options_.num_kv_heads; ++head) {
        const Place place = PlaceOf(s, layer, head, tile);
        s.open.Reopen(layer, head, Shape(tile), place.keys, place.values);
      }
    }
    stored = new_length;
  }
  DropPages(s, layout_->NumPages(new_length));
  // A block of several tiles that others may use must not be written to.
  const int64_t full = plan().NumFullBlocks(new_length);
  const auto held = static_cast<int64_t>(s.pages.size());
  if (held > full && held <= s.offered && !CopyPage(s, held - 1)) {
    DropPages(s, full);
    new_length = plan().FirstPosition(full);
    for (int64_t& stored : s.stored) stored = std::min(stored, new_length);
  }
  s.length = new_length;
  s.offered = std::min(s.offered, full);
  s.token_ids.resize(std::min(s.token_ids.size(), static_cast<size_t>(new_length)));
  return new_length;
}

void PagedKvCache::Store(int32_t layer, SequenceId sequence, int64_t first_position,
                         int64_t num_tokens, const float* k, const float* v) {
  Sequence& s = Get(sequence);
  LODE_CHECK(layer >= 0 && layer < options_.num_layers);
  int64_t& stored = s.stored[static_cast<size_t>(layer)];
  LODE_CHECK(first_position == stored && num_tokens >= 0 && stored + num_tokens <= s.length);
  const int64_t row = int64_t{options_.num_kv_heads} * options_.head_dim;
  for (int64_t done = 0; done < num_tokens;) {
    const int64_t tile = plan().TileOf(stored);
    const int64_t slot = stored - plan().FirstPositionOfTile(tile);
    const int64_t n = std::min(plan().TileTokens(tile) - slot, num_tokens - done);
    for (int32_t head = 0; head < options_.num_kv_heads; ++head) {
      const int64_t offset = done * row + head * options_.head_dim;
      s.open.Store(layer, head, Shape(tile), slot, n, k + offset, v + offset, row);
      if (slot + n < plan().TileTokens(tile)) continue;
      const Place place = PlaceOf(s, layer, head, tile);
      s.open.Seal(layer, head, Shape(tile), *place.range->key_codec, place.keys,
                  *place.range->value_codec, place.values);
    }
    done += n;
    stored += n;
  }
}

PagedKvCache::Place PagedKvCache::PlaceOf(const Sequence& s, int32_t layer, int32_t kv_head,
                                          int64_t tile) const {
  const int64_t first = plan().FirstPositionOfTile(tile);
  const int64_t index = plan().IndexOf(first);
  const int32_t group = layout_->GroupOf(kv_head);
  const int32_t head = kv_head - layout_->FirstHead(group);
  const PageTable::Entry entry =
      s.tables[static_cast<size_t>(layer * layout_->num_groups() + group)][index];
  const BlockRange& range = layout_->range(entry.format);
  const int64_t tile_in_block = (first - plan().FirstPosition(index)) / range.shape.tokens;
  std::byte* block = store_->data(layer, entry.block);
  return {.range = &range,
          .keys = block + layout_->KeyOffset(range, head, tile_in_block),
          .values = block + layout_->ValueOffset(range, group, head, tile_in_block)};
}

KvTile PagedKvCache::Tile(SequenceId sequence, int32_t layer, int32_t kv_head, int64_t tile) const {
  const Sequence& s = Get(sequence);
  const int64_t stored = s.stored[static_cast<size_t>(layer)];
  LODE_DCHECK(plan().FirstPositionOfTile(tile) < stored);
  if (plan().FirstPositionOfTile(tile) + plan().TileTokens(tile) > stored) {
    return s.open.Tile(layer, kv_head, Shape(tile));
  }
  const Place place = PlaceOf(s, layer, kv_head, tile);
  return {.keys = place.keys,
          .values = place.values,
          .key_codec = place.range->key_codec,
          .value_codec = place.range->value_codec,
          .shape = place.range->shape};
}

int64_t PagedKvCache::LeastStored(const Sequence& s) const {
  return *std::ranges::min_element(s.stored);
}

int64_t PagedKvCache::PrefixLength(std::span<const int32_t> token_ids,
                                   std::string_view salt) const {
  const int64_t pages =
      store_->prefix().CountPages(PrefixCache::Root(Fingerprint(options_), salt), token_ids);
  return plan().FirstPosition(pages);
}

int64_t PagedKvCache::AttachPrefix(SequenceId sequence, std::span<const int32_t> token_ids,
                                   int64_t own_length) {
  Sequence& s = Get(sequence);
  const PrefixCache::Found found = store_->prefix().Find(s.root, token_ids);
  const int64_t length = plan().FirstPosition(static_cast<int64_t>(found.pages.size()));
  if (length <= own_length) {
    if (!found.pages.empty()) store_->Release(found.pages.back());
    return Truncate(sequence, own_length);
  }
  Reset(s);
  for (Page* page : found.pages) PushPage(s, page);
  s.offered = static_cast<int64_t>(found.pages.size());
  s.length = length;
  std::ranges::fill(s.stored, length);
  s.token_ids.assign(token_ids.begin(), token_ids.begin() + length);
  return length;
}

void PagedKvCache::Publish(SequenceId sequence, int64_t first_position,
                           std::span<const int32_t> token_ids) {
  Sequence& s = Get(sequence);
  if (first_position != static_cast<int64_t>(s.token_ids.size())) return;
  LODE_CHECK(first_position + static_cast<int64_t>(token_ids.size()) <= s.length);
  s.token_ids.insert(s.token_ids.end(), token_ids.begin(), token_ids.end());
  const int64_t known = std::min(LeastStored(s), static_cast<int64_t>(s.token_ids.size()));
  for (; s.offered < plan().NumFullBlocks(known); ++s.offered) PublishPage(s, s.offered);
}

void PagedKvCache::PublishPage(Sequence& s, int64_t index) {
  const auto i = static_cast<size_t>(index);
  Page* page = s.pages[i];
  const auto tokens = std::span(s.token_ids)
                          .subspan(static_cast<size_t>(plan().FirstPosition(index)),
                                   static_cast<size_t>(plan().Tokens(index)));
  Page* known = store_->prefix().Publish(page, s.root, tokens);
  if (known == page) return;
  // Another sequence published this text: go on with its page. The reference that the next page, or
  // the sequence, had on ours goes to that one.
  s.pages[i] = known;
  SetEntries(s, index);
  if (i + 1 < s.pages.size()) store_->SetParent(s.pages[i + 1], known);
  store_->Release(page);
}

KvDefragmentation PagedKvCache::Defragment(FunctionRef<bool()> should_stop) {
  std::unordered_map<const Page*, std::vector<Sequence*>> users;
  std::vector<Page*> tails;
  for (const auto& slot : sequences_) {
    Sequence* s = slot.load(std::memory_order_acquire);
    if (s == nullptr || s->pages.empty()) continue;
    tails.push_back(s->pages.back());
    for (const Page* page : s->pages) users[page].push_back(s);
  }
  const KvDefragmentation result = store_->Defragment(tails, should_stop, [&](Page& page) {
    const auto it = users.find(&page);
    if (it == users.end()) return;
    for (Sequence* s : it->second) SetEntries(*s, page.index);
  });
  defragmentations_.fetch_add(1, std::memory_order_relaxed);
  moved_blocks_.fetch_add(result.moved_blocks, std::memory_order_relaxed);
  return result;
}

int64_t PagedKvCache::bytes_in_use() const {
  const int64_t open = num_sequences_.load(std::memory_order_relaxed) * open_bytes_;
  return store_->reserved_bytes() + (options_.memory_bytes == 0 ? open : 0);
}

KvCacheStats PagedKvCache::stats() const {
  KvCacheStats stats;
  stats.seconds = age_.Seconds();
  stats.sequences = num_sequences_.load(std::memory_order_relaxed);
  stats.open_bytes = stats.sequences * open_bytes_;
  store_->AddStats(stats);
  stats.block_bytes = stats.pools().used_bytes;
  stats.preemptions = preemptions_.load(std::memory_order_relaxed);
  stats.defragmentations = defragmentations_.load(std::memory_order_relaxed);
  stats.moved_blocks = moved_blocks_.load(std::memory_order_relaxed);
  return stats;
}

Status PagedKvCache::CheckIntegrity() const {
  std::unordered_set<Page*> pages;
  std::unordered_map<const Page*, int64_t> references;
  const auto add_chain = [&](Page* page) {
    for (; page != nullptr && pages.insert(page).second; page = page->parent) {
      if (page->parent != nullptr) ++references[page->parent];
    }
  };
  int64_t reserved = 0;
  for (const auto& slot : sequences_) {
    const Sequence* s = slot.load();
    if (s == nullptr) continue;
    if (options_.memory_bytes > 0) reserved += open_bytes_;
    LODE_RETURN_IF_ERROR(CheckTables(*s));
    if (s->pages.empty()) continue;
    ++references[s->pages.back()];
    add_chain(s->pages.back());
  }
  for (Page* page : store_->prefix().PagesParentsFirst()) add_chain(page);
  for (const Page* page : pages) {
    reserved += page->bytes;
    if (page->references == references[page]) continue;
    return InternalError("KV cache: page " + std::to_string(page->index) + " has " +
                         std::to_string(page->references) + " references, expected " +
                         std::to_string(references[page]));
  }
  if (reserved != store_->reserved_bytes()) {
    return InternalError("KV cache: " + std::to_string(store_->reserved_bytes()) +
                         " bytes are reserved, " + std::to_string(reserved) + " are used");
  }
  return store_->CheckIntegrity(std::vector<Page*>(pages.begin(), pages.end()));
}

Status PagedKvCache::CheckTables(const Sequence& s) const {
  for (size_t i = 0; i < s.pages.size(); ++i) {
    const Page* page = s.pages[i];
    bool right = page->index == static_cast<int64_t>(i) &&
                 page->parent == (i == 0 ? nullptr : s.pages[i - 1]);
    for (size_t t = 0; t < s.tables.size() && right; ++t) {
      const PageTable::Entry entry = s.tables[t][page->index];
      right = entry.block == page->blocks[t] && entry.format == page->format;
    }
    if (!right) return InternalError("KV cache: a page table disagrees with its pages");
  }
  for (const PageTable& table : s.tables) {
    if (table.size() != static_cast<int64_t>(s.pages.size())) {
      return InternalError("KV cache: a page table's size");
    }
  }
  return OkStatus();
}

}  // namespace lode
