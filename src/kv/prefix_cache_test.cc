// SPDX-License-Identifier: Apache-2.0
#include "kv/prefix_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "kv/page_table.h"

namespace lode {
namespace {

constexpr int64_t kBlock = 8;
const Hash128 kRoot = PrefixCache::Root("model", "");

// Texts as strings, one letter per block of eight tokens.
std::vector<int32_t> Tokens(const std::string& text) {
  std::vector<int32_t> tokens;
  for (const char letter : text) {
    for (int32_t i = 0; i < kBlock; ++i) tokens.push_back(letter * 100 + i);
  }
  return tokens;
}

// A sequence as the cache has it: computes the blocks that it does not find, publishes them.
class Sequence {
 public:
  explicit Sequence(PrefixCache& cache, Hash128 root = kRoot) : cache_(cache), root_(root) {}

  PrefixCache::Found Attach(const std::string& text) {
    PrefixCache::Found found = cache_.Find(root_, Tokens(text));
    tail_ = found.pages.empty() ? nullptr : found.pages.back();
    text_ = text.substr(0, found.pages.size());
    return found;
  }
  void Append(char letter) {
    auto* page =
        new Page{.index = static_cast<int64_t>(text_.size()), .parent = tail_, .bytes = 10};
    text_ += letter;
    Page* known = cache_.Publish(page, root_, Tokens(std::string(1, letter)));
    tail_ = known;
    if (known != page) cache_.Release(page, dead_);
    // The new page's reference on its parent died with it, where it did.
    dead_.clear();
  }
  void Run(const std::string& text) {
    Attach(text);
    while (text_.size() < text.size()) Append(text[text_.size()]);
  }
  void Fork(const Sequence& other) {
    tail_ = other.tail_;
    text_ = other.text_;
    if (tail_ != nullptr) cache_.Acquire(tail_);
  }
  void Truncate(size_t blocks) {
    Page* old = tail_;
    for (; text_.size() > blocks; text_.pop_back()) tail_ = tail_->parent;
    if (tail_ == old) return;
    if (tail_ != nullptr) cache_.Acquire(tail_);
    cache_.Release(old, dead_);
    dead_.clear();
  }
  void End() {
    if (tail_ != nullptr) cache_.Release(tail_, dead_);
    dead_.clear();
    tail_ = nullptr;
    text_.clear();
  }
  const std::string& text() const { return text_; }
  Page* tail() const { return tail_; }

 private:
  PrefixCache& cache_;
  const Hash128 root_;
  Page* tail_ = nullptr;
  std::string text_;
  std::vector<std::unique_ptr<Page>> dead_;
};

TEST(PrefixCacheTest, FindsTheLongestBeginning) {
  PrefixCache cache{BlockPlan(8)};
  Sequence a(cache), b(cache);
  a.Run("abcd");
  a.End();
  EXPECT_EQ(cache.stats().cached_pages, 4);
  PrefixCache::Found found = b.Attach("abxy");
  ASSERT_EQ(found.pages.size(), 2u);
  EXPECT_EQ(found.miss, PrefixMiss::kUnknown);
  EXPECT_EQ(found.pages[1]->parent, found.pages[0]);
  EXPECT_EQ(found.pages[1]->token_ids, Tokens("b"));
  b.End();
  EXPECT_EQ(b.Attach("bcd").miss, PrefixMiss::kUnknown) << "a block counts at its place only";
  EXPECT_EQ(cache.Find(kRoot, std::vector<int32_t>(7)).miss, PrefixMiss::kTooShort);
  found = b.Attach("abcd");
  EXPECT_EQ(found.miss, PrefixMiss::kNone);
  EXPECT_EQ(found.pages.size(), 4u);
  b.End();
  const PrefixCacheStats stats = cache.stats();
  EXPECT_EQ(stats.lookups, 5);  // with the first Run's
  EXPECT_EQ(stats.found_blocks, 6);
  EXPECT_EQ(stats.wanted_blocks, 4 + 4 + 3 + 0 + 4);
  EXPECT_EQ(stats.found_tokens, 48);
  EXPECT_TRUE(cache.CheckIntegrity().ok());
}

TEST(PrefixCacheTest, GivesUpLeavesLeastRecentlyUsedFirst) {
  PrefixCache cache{BlockPlan(8)};
  Sequence s(cache);
  for (const char* text : {"abc", "xy", "abd"}) s.Run(text), s.End();
  const auto evict = [&](int64_t bytes) {
    std::string gone;
    for (const auto& page : cache.Evict(bytes)) {
      gone += static_cast<char>(page->token_ids[0] / 100);
    }
    return gone;
  };
  EXPECT_EQ(evict(1), "c");
  EXPECT_EQ(evict(20), "yx") << "x became a leaf and is as old as y";
  PrefixCache::Found found = s.Attach("abc");
  EXPECT_EQ(found.pages.size(), 2u);
  EXPECT_EQ(found.miss, PrefixMiss::kEvicted);
  EXPECT_EQ(evict(1000), "d") << "what a sequence uses stays";
  s.End();
  EXPECT_EQ(evict(1000), "ba");
  EXPECT_EQ(cache.stats().cached_pages, 0);
  EXPECT_EQ(cache.stats().evicted_pages, 6);
}

TEST(PrefixCacheTest, SaltAndModelKeepTextsApart) {
  // Hashes of no bit at all: everything collides, and only the comparison is left.
  for (const int bits : {128, 8, 0}) {
    PrefixCache cache(BlockPlan(8), bits);
    Sequence a(cache), b(cache, PrefixCache::Root("model", "tenant")),
        c(cache, PrefixCache::Root("mode", "l"));
    a.Run("abc");
    EXPECT_TRUE(b.Attach("abc").pages.empty());
    EXPECT_TRUE(c.Attach("abc").pages.empty());
    a.End();
  }
}

// Case B33: with 8 bits of hash, texts collide all the time; none may ever see another's pages.
TEST(PrefixCacheTest, CollisionsAreCountedMisses) {
  PrefixCache cache(BlockPlan(8), 8);
  std::mt19937 random(7);
  int64_t found_blocks = 0, collided = 0;
  for (int round = 0; round < 20'000; ++round) {
    Sequence s(cache);
    std::string text(1 + random() % 6, 'a');
    for (char& letter : text) letter = static_cast<char>('a' + random() % 6);
    const PrefixCache::Found found = s.Attach(text);
    for (size_t i = 0; i < found.pages.size(); ++i) {
      ASSERT_EQ(found.pages[i]->token_ids, Tokens(text.substr(i, 1)));
      ASSERT_EQ(found.pages[i]->parent, i == 0 ? nullptr : found.pages[i - 1]);
    }
    found_blocks += static_cast<int64_t>(found.pages.size());
    collided += found.miss == PrefixMiss::kCollision;
    while (s.text().size() < text.size()) s.Append(text[s.text().size()]);
    s.End();
    if (round % 50 == 0) (void)cache.Evict(200);
    if (round % 1000 == 0) {
      ASSERT_TRUE(cache.CheckIntegrity().ok());
    }
  }
  EXPECT_GT(found_blocks, 100);
  EXPECT_GT(collided, 100);
  EXPECT_GE(cache.stats().collisions, collided);
}

// What the cache should hold, by plain means: a map from text to page, searched from end to end.
class Model {
 public:
  struct Entry {
    int64_t users = 0;
    uint64_t last_used = 0;
  };
  size_t Find(const std::string& text) const {
    size_t found = 0;
    while (found < text.size() && pages.contains(text.substr(0, found + 1))) ++found;
    return found;
  }
  void Publish(const std::string& text) {
    for (size_t n = 1; n <= text.size(); ++n) pages.try_emplace(text.substr(0, n));
  }
  void Use(const std::string& text) {
    if (!text.empty()) ++pages.at(text).users;
  }
  void Leave(const std::string& text) {
    if (text.empty()) return;
    --pages.at(text).users;
    pages.at(text).last_used = ++clock;
  }
  bool HasFollower(const std::string& text) const {
    const auto next = std::next(pages.find(text));
    return next != pages.end() && next->first.starts_with(text);
  }
  // The text of the page that goes next; empty when none may.
  std::string EvictOne() {
    auto oldest = pages.end();
    for (auto it = pages.begin(); it != pages.end(); ++it) {
      if (it->second.users > 0 || HasFollower(it->first)) continue;
      if (oldest == pages.end() || it->second.last_used < oldest->second.last_used) oldest = it;
    }
    if (oldest == pages.end()) return "";
    const std::string text = oldest->first;
    const uint64_t last_used = oldest->second.last_used;
    pages.erase(oldest);
    const auto parent = pages.find(text.substr(0, text.size() - 1));
    if (parent != pages.end()) {
      parent->second.last_used = std::max(parent->second.last_used, last_used);
    }
    return text;
  }
  std::map<std::string, Entry> pages;
  uint64_t clock = 0;
};

TEST(PrefixCacheTest, EqualsAModelUnderRandomOperations) {
  PrefixCache cache{BlockPlan(8)};
  Model model;
  std::vector<Sequence> sequences;
  sequences.reserve(12);
  for (int i = 0; i < 12; ++i) sequences.emplace_back(cache);
  std::mt19937 random(3);
  const auto letter = [&] { return static_cast<char>('a' + random() % 3); };
  for (int step = 0; step < 600'000; ++step) {
    Sequence& s = sequences[random() % sequences.size()];
    const std::string before = s.text();
    switch (random() % 8) {
      case 0: {  // a new text
        model.Leave(before);
        s.End();
        std::string text(random() % 7, 'a');
        for (char& c : text) c = letter();
        const size_t expected = model.Find(text);
        ASSERT_EQ(s.Attach(text).pages.size(), expected);
        model.Use(s.text());
        break;
      }
      case 1:
      case 2:
      case 3:
        if (before.size() >= 8) break;
        s.Append(letter());
        model.Publish(s.text());
        model.Use(s.text());
        if (!before.empty()) --model.pages.at(before).users;  // handed on, not left
        break;
      case 4: {
        const size_t keep = random() % (before.size() + 1);
        if (keep == before.size()) break;
        s.Truncate(keep);
        model.Use(s.text());
        model.Leave(before);
        break;
      }
      case 5: {
        const Sequence& other = sequences[random() % sequences.size()];
        if (&other == &s) break;
        model.Leave(before);
        s.End();
        s.Fork(other);
        model.Use(s.text());
        break;
      }
      case 6:
        model.Leave(before);
        s.End();
        break;
      default: {
        if (random() % 4 != 0) break;
        const auto gone = cache.Evict(1 + static_cast<int64_t>(random() % 60));
        for (const auto& page : gone) {
          const std::string text = model.EvictOne();
          ASSERT_EQ(page->index + 1, static_cast<int64_t>(text.size()));
          ASSERT_EQ(page->token_ids, Tokens(text.substr(text.size() - 1)));
        }
        if (gone.empty()) {
          ASSERT_EQ(model.EvictOne(), "");
        }
      }
    }
    if (step % 20'000 == 0) {
      const Status status = cache.CheckIntegrity();
      ASSERT_TRUE(status.ok()) << status.ToString();
      ASSERT_EQ(cache.stats().cached_pages, static_cast<int64_t>(model.pages.size()));
    }
  }
  for (Sequence& s : sequences) s.End();
  EXPECT_EQ(cache.Evict(INT64_MAX).size(), model.pages.size());
  EXPECT_EQ(cache.stats().collisions, 0);
}

TEST(PageTableTest, EqualsAVector) {
  PageTable table;
  std::vector<PageTable::Entry> expected;
  std::mt19937 random(5);
  for (int step = 0; step < 100'000; ++step) {
    const uint32_t choice = random() % 1000;
    if (choice < 600) {
      expected.push_back({.block = static_cast<BlockId>(random()), .format = uint8_t(random())});
      table.PushBack(expected.back());
    } else if (choice < 995 && !expected.empty()) {
      const size_t i = random() % expected.size();
      expected[i].block = static_cast<BlockId>(random());
      table.Set(static_cast<int64_t>(i), expected[i]);
    } else if (choice == 999 || (choice >= 995 && !expected.empty())) {
      expected.resize(expected.empty() ? 0 : random() % expected.size());
      table.Shrink(static_cast<int64_t>(expected.size()));
    }
    ASSERT_EQ(table.size(), static_cast<int64_t>(expected.size()));
    if (!expected.empty()) {
      const size_t i = random() % expected.size();
      ASSERT_EQ(table[static_cast<int64_t>(i)], expected[i]);
    }
  }
  table.Shrink(0);
  EXPECT_EQ(table.memory_bytes(), 0);
}

}  // namespace
}  // namespace lode
