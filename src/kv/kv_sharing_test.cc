// SPDX-License-Identifier: Apache-2.0
// What sequences share and what it costs: forks, prefixes, eviction, preemption, defragmentation.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <map>
#include <random>
#include <string>
#include <thread>

#include "base/topology.h"
#include "kv/kv_cache_test_support.h"

namespace lode {
namespace {

KvCacheOptions Small(int64_t block_size = 32, int64_t max_tokens = 2000) {
  KvCacheOptions options = {.num_layers = 2, .num_kv_heads = 2, .head_dim = 8};
  options.block_size = block_size;
  options.max_tokens = max_tokens;
  return options;
}

Text Counting(int32_t first, int64_t size) {
  Text text(static_cast<size_t>(size));
  for (size_t i = 0; i < text.size(); ++i) text[i] = first + static_cast<int32_t>(i);
  return text;
}

// `text` up to `size`, then other tokens up to `total`.
Text Diverge(Text text, int64_t size, int64_t total, int32_t other) {
  text.resize(static_cast<size_t>(size));
  while (static_cast<int64_t>(text.size()) < total) text.push_back(other++);
  return text;
}

bool Never() {
  return false;
}

TEST(KvSharingTest, FindsTheBeginningsOfOlderTexts) {
  const auto cache = CreateKvCache(Small());
  const Text first = Counting(1, 700), second = Counting(10'000, 400);
  for (const Text& text : {first, second}) {
    const SequenceId s = *cache->AddSequence();
    EXPECT_EQ(cache->AttachPrefix(s, text), 0);
    ASSERT_TRUE(GrowTo(*cache, s, text).ok());
    cache->RemoveSequence(s);
  }
  // The first again, whole; edited near its end; edited in the middle (case B32).
  for (const int64_t edit : {700, 680, 350, 3}) {
    const Text text = Diverge(first, edit, 720, 50'000);
    const SequenceId s = *cache->AddSequence();
    const int64_t expected = cache->PrefixLength(text);
    const int64_t found = cache->AttachPrefix(s, text);
    EXPECT_EQ(found, expected);
    EXPECT_EQ(found, cache->plan().FirstPosition(cache->plan().NumFullBlocks(edit)));
    ASSERT_TRUE(GrowTo(*cache, s, text).ok());
    EXPECT_TRUE(Holds(*cache, s, text));
    cache->RemoveSequence(s);
    EXPECT_WHOLE(*cache);
  }
  const KvCacheStats stats = cache->stats();
  EXPECT_EQ(stats.prefix.lookups, 6);
  EXPECT_EQ(stats.prefix.collisions, 0);
  EXPECT_GT(stats.hit_rate(), 0.4);
  EXPECT_LT(stats.hit_rate(), 1.0);
  EXPECT_EQ(stats.prefix.misses[static_cast<size_t>(PrefixMiss::kUnknown)], 6);
}

TEST(KvSharingTest, SharedPagesAreStoredOnce) {
  const auto cache = CreateKvCache(Small());
  const Text text = Counting(1, 512);
  const SequenceId a = *cache->AddSequence();
  ASSERT_TRUE(GrowTo(*cache, a, text).ok());
  const int64_t one = cache->stats().block_bytes;
  const SequenceId b = *cache->AddSequence(), c = *cache->AddSequence();
  EXPECT_EQ(cache->AttachPrefix(b, text), 512);
  // c computes the same text without looking it up first: its pages give way to a's.
  ASSERT_TRUE(GrowTo(*cache, c, text).ok());
  EXPECT_EQ(cache->stats().block_bytes, one);
  for (const SequenceId s : {a, b, c}) EXPECT_TRUE(Holds(*cache, s, text));
  const SequenceId d = *cache->AddSequence("another tenant");
  EXPECT_EQ(cache->AttachPrefix(d, text), 0);
  EXPECT_WHOLE(*cache);
}

TEST(KvSharingTest, ForksGoTheirOwnWays) {
  for (const int64_t block_size : {8, 32, 64, 128}) {
    const auto cache = CreateKvCache(Small(block_size, 8000));
    for (const int64_t length : {0, 5, 8, 100, 1300, 1500}) {
      const Text text = Counting(static_cast<int32_t>(length), length);
      const SequenceId a = *cache->AddSequence();
      ASSERT_TRUE(GrowTo(*cache, a, text).ok());
      const SequenceId b = *cache->Fork(a), c = *cache->Fork(b);
      const Text text_a = Diverge(text, length, length + 150, 70'000);
      const Text text_b = Diverge(text, length, length + 90, 80'000);
      ASSERT_TRUE(GrowTo(*cache, a, text_a).ok());
      ASSERT_TRUE(GrowTo(*cache, b, text_b).ok());
      EXPECT_TRUE(Holds(*cache, a, text_a)) << block_size << " " << length;
      EXPECT_TRUE(Holds(*cache, b, text_b)) << block_size << " " << length;
      EXPECT_TRUE(Holds(*cache, c, text)) << block_size << " " << length;
      EXPECT_WHOLE(*cache);
      for (const SequenceId s : {b, a, c}) cache->RemoveSequence(s);
      EXPECT_WHOLE(*cache);
    }
  }
}

TEST(KvSharingTest, WritingAfterATruncationLeavesSharedBlocksAlone) {
  for (const int64_t block_size : {8, 32, 128}) {
    const auto cache = CreateKvCache(Small(block_size, 8000));
    const Text text = Counting(1, 1500);
    const SequenceId a = *cache->AddSequence(), b = *cache->AddSequence();
    ASSERT_TRUE(GrowTo(*cache, a, text).ok());
    cache->AttachPrefix(b, text);
    for (const int64_t cut : {1499, 1400, 1300, 1280, 1220, 700, 130, 70, 7, 0}) {
      ASSERT_EQ(cache->Truncate(a, std::min(cut, cache->Length(a))), cut);
      const Text other = Diverge(text, cut, cut + 40, 90'000 + static_cast<int32_t>(cut));
      ASSERT_TRUE(GrowTo(*cache, a, other).ok());
      EXPECT_TRUE(Holds(*cache, a, other)) << block_size << " " << cut;
      ASSERT_EQ(cache->Truncate(a, cut), cut);
      EXPECT_WHOLE(*cache);
    }
    Text known = text;
    known.resize(static_cast<size_t>(cache->Length(b)));
    EXPECT_TRUE(Holds(*cache, b, known)) << block_size;
  }
}

TEST(KvSharingTest, MemoryIsTakenFromCachedTextsFirst) {
  const auto cache = CreateKvCache(Small(32, 1000));
  Text text;
  for (int32_t round = 0; round < 20; ++round) {
    text = Counting(round * 1000, 600);
    const SequenceId s = *cache->AddSequence();
    ASSERT_TRUE(GrowTo(*cache, s, text).ok()) << round;
    cache->RemoveSequence(s);
    EXPECT_LE(cache->stats().block_bytes, cache->stats().budget_bytes);
    EXPECT_WHOLE(*cache);
  }
  EXPECT_GT(cache->stats().prefix.evicted_pages, 100);
  EXPECT_GT(cache->stats().eviction_rate(), 0.0);
  // What a sequence uses never goes: the next one is told that there is no room.
  const SequenceId a = *cache->AddSequence();
  EXPECT_EQ(cache->AttachPrefix(a, text), 592) << "the newest text is still there";
  ASSERT_TRUE(GrowTo(*cache, a, text).ok());
  const SequenceId b = *cache->AddSequence();
  const Status full = cache->Extend(b, 600);
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(full.message().find("capacity of one sequence"), std::string::npos) << full.message();
  EXPECT_TRUE(Holds(*cache, a, text));
  // Unless it is preempted. Computed again, it finds what was not needed.
  cache->Preempt(a);
  EXPECT_EQ(cache->Length(a), 0);
  ASSERT_TRUE(cache->Extend(b, 600).ok());
  EXPECT_GT(cache->AttachPrefix(a, text), 0);
  EXPECT_LT(cache->Length(a), 592);
  EXPECT_EQ(cache->stats().preemptions, 1);
  EXPECT_WHOLE(*cache);
}

TEST(KvSharingTest, BudgetInBytesIsNeverExceeded) {
  KvCacheOptions options = Small();
  const int64_t open = KvCache::BytesFor(options, 0);
  const int64_t block = KvCache::BytesFor(options, 1152 + 32) - KvCache::BytesFor(options, 1152);
  options.memory_bytes = open + block - 1;
  const auto refused = KvCache::Create(options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find(std::to_string(open + block)), std::string::npos);
  options.memory_bytes = -1;
  EXPECT_EQ(KvCache::Create(options).status().code(), StatusCode::kInvalidArgument);
  options.block_size = 0;
  EXPECT_EQ(KvCache::Create(options).status().code(), StatusCode::kInvalidArgument);

  options = Small();
  options.memory_bytes = KvCache::BytesFor(options, 500) + open;
  const auto cache = CreateKvCache(options);
  const SequenceId a = *cache->AddSequence();
  ASSERT_TRUE(GrowTo(*cache, a, Counting(1, 500)).ok());
  cache->RemoveSequence(a);
  // Cached pages make room for open tiles as well.
  std::vector<SequenceId> many;
  for (;;) {
    const auto s = cache->AddSequence();
    EXPECT_LE(cache->bytes_in_use(), options.memory_bytes);
    if (!s.ok()) {
      EXPECT_EQ(s.status().code(), StatusCode::kResourceExhausted);
      break;
    }
    many.push_back(*s);
  }
  EXPECT_GT(many.size(), 2u);
  EXPECT_LT(cache->bytes_in_use() + open, options.memory_bytes + open);
  EXPECT_WHOLE(*cache);
  for (const SequenceId s : many) cache->RemoveSequence(s);
  cache->DropCached();
  EXPECT_EQ(cache->bytes_in_use(), 0);
}

// Case B52: 100 unrelated texts, 200 MiB in all, leave no more than the budget in memory.
TEST(KvSharingTest, UnrelatedTextsTakeNoMoreMemoryThanTheBudget) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have their own pages";
#endif
  constexpr int64_t kMiB = int64_t{1} << 20;
  KvCacheOptions options = {.num_layers = 2, .num_kv_heads = 2, .head_dim = 64};  // 1 KiB a token
  options.max_tokens = 2048;
  options.memory_bytes = 8 * kMiB;
  const int64_t before = ReadResidentMemory().anonymous_bytes;
  const auto cache = CreateKvCache(options);
  int64_t most = 0;
  for (int32_t i = 0; i < 100; ++i) {
    const SequenceId s = *cache->AddSequence();
    const Text text = Counting(i * 10'000, 2048);
    EXPECT_EQ(cache->AttachPrefix(s, text), 0);
    ASSERT_TRUE(GrowTo(*cache, s, text).ok());
    EXPECT_LE(cache->bytes_in_use(), options.memory_bytes);
    cache->RemoveSequence(s);
    most = std::max(most, ReadResidentMemory().anonymous_bytes - before);
  }
  EXPECT_LT(most, options.memory_bytes + 8 * kMiB) << "with the rows that are stored, 2 MiB";
  // A text that no budget holds is refused before memory is taken, and what is cached stays.
  const int64_t pages = cache->stats().prefix.cached_pages;
  const SequenceId s = *cache->AddSequence();
  EXPECT_EQ(cache->Extend(s, 10'000).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(cache->stats().prefix.cached_pages, pages);
  EXPECT_WHOLE(*cache);
}

// Case B35: 16 clients take turns on four sequences; each has a codeword in everything it computes.
// The tokens are the same for all, so that only the salt keeps them apart, or (without salts) each
// has its codeword in its text. Memory is scarce, so that pages go and are computed again.
TEST(KvSharingTest, CodewordsStayWithTheirClients) {
  for (const bool salted : {true, false}) {
    const auto cache = CreateKvCache(Small(16, 2000));
    std::mt19937 random(23);
    std::map<int32_t, SequenceId> open;  // by client
    int64_t found = 0;
    for (int round = 0; round < 16 * 200; ++round) {
      const auto client = static_cast<int32_t>(random() % 16);
      const int32_t codeword = 1'000'000 + client;
      Text text = Counting(1, 24 + static_cast<int64_t>(random() % 180));
      if (!salted) text[20] = codeword;
      Text contents = text;
      contents[0] = codeword;
      if (!open.contains(client)) {
        if (open.size() == 4) {
          const auto other = std::next(open.begin(), random() % 4);
          cache->RemoveSequence(other->second);
          open.erase(other);
        }
        open[client] = *cache->AddSequence(salted ? std::to_string(client) : "");
      }
      const SequenceId s = open[client];
      if (!salted) contents = text;
      found += cache->AttachPrefix(s, text);
      ASSERT_TRUE(GrowTo(*cache, s, text, contents).ok()) << round;
      ASSERT_TRUE(Holds(*cache, s, contents)) << salted << " " << round;
    }
    EXPECT_GT(found, 10'000) << "of the client's own";
    EXPECT_GT(cache->stats().prefix.evicted_pages, 100);
    EXPECT_WHOLE(*cache);
  }
}

// A request that is cancelled half-way, 500 times: nothing is left behind but cached pages.
TEST(KvSharingTest, CancelsLeaveTheAccountsAsTheyWere) {
  const auto cache = CreateKvCache(Small(32, 3000));
  const SequenceId stays = *cache->AddSequence();
  const Text text = Counting(1, 300);
  ASSERT_TRUE(GrowTo(*cache, stays, text).ok());
  cache->DropCached();
  const int64_t baseline = cache->bytes_in_use();
  std::mt19937 random(11);
  for (int32_t i = 0; i < 500; ++i) {
    const SequenceId s = *cache->AddSequence();
    Text other = Diverge(text, static_cast<int64_t>(random() % 301), 500, i * 1000);
    cache->AttachPrefix(s, other);
    other.resize(static_cast<size_t>(cache->Length(s)) + random() % 200);
    ASSERT_TRUE(GrowTo(*cache, s, other).ok());
    // Slots are reserved, one layer is stored, then the client goes away.
    ASSERT_TRUE(cache->Extend(s, 64).ok());
    std::vector<float> rows(64 * 16);
    cache->Store(0, s, static_cast<int64_t>(other.size()), 64, rows.data(), rows.data());
    if (i % 2 == 0) cache->Truncate(s, static_cast<int64_t>(other.size()));
    cache->RemoveSequence(s);
    EXPECT_LE(cache->stats().block_bytes, cache->stats().budget_bytes);
  }
  EXPECT_WHOLE(*cache);
  EXPECT_TRUE(Holds(*cache, stays, text));
  cache->DropCached();
  EXPECT_EQ(cache->bytes_in_use(), baseline);
  EXPECT_EQ(cache->stats().sequences, 1);
}

TEST(KvSharingTest, DefragmentationPutsTextsInOnePiece) {
  const auto cache = CreateKvCache(Small(32, 100'000));
  std::map<SequenceId, Text> texts;
  for (int32_t i = 0; i < 16; ++i) texts[*cache->AddSequence()] = {};
  // All grow in turns, so that their blocks interleave; half of them end.
  for (int round = 0; round < 90; ++round) {
    for (auto& [s, text] : texts) {
      text = Diverge(text, static_cast<int64_t>(text.size()),
                     static_cast<int64_t>(text.size()) + 24, s * 100'000 + round * 24);
      ASSERT_TRUE(GrowTo(*cache, s, text).ok());
    }
  }
  for (SequenceId s = 0; s < 16; s += 2) {
    cache->RemoveSequence(s);
    texts.erase(s);
  }
  EXPECT_GT(cache->stats().fragmentation_rate(), 0.5);
  int calls = 0;
  const KvDefragmentation part = cache->Defragment([&] { return ++calls > 5; });
  EXPECT_FALSE(part.finished);
  EXPECT_GT(part.moved_blocks, 0);
  EXPECT_WHOLE(*cache);
  EXPECT_TRUE(cache->Defragment(Never).finished);
  EXPECT_LT(cache->stats().fragmentation_rate(), 0.05);
  EXPECT_EQ(cache->Defragment(Never).moved_blocks, 0) << "nothing is left to do";
  for (const auto& [s, text] : texts) EXPECT_TRUE(Holds(*cache, s, text));
  EXPECT_WHOLE(*cache);
  // Ended texts were moved as well, and are still found.
  const SequenceId s = *cache->AddSequence();
  Text ended;
  for (int round = 0; round < 90; ++round) {
    ended = Diverge(ended, static_cast<int64_t>(ended.size()),
                    static_cast<int64_t>(ended.size()) + 24, round * 24);
  }
  const int64_t found = cache->AttachPrefix(s, ended);
  EXPECT_GT(found, 2100);
  ended.resize(static_cast<size_t>(found));
  EXPECT_TRUE(Holds(*cache, s, ended));
}

// Case B33 through the whole cache: hashes of 8 bits.
TEST(KvSharingTest, CollidingTextsNeverMix) {
  KvCacheOptions options = Small(8, 4000);
  options.prefix_hash_bits = 8;
  const auto cache = CreateKvCache(options);
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    Text text(8 + random() % 60);
    for (size_t i = 0; i < text.size(); ++i) {
      text[i] = static_cast<int32_t>(i % 8 == 0 ? random() % 5 : i);
    }
    const SequenceId s = *cache->AddSequence();
    cache->AttachPrefix(s, text);
    ASSERT_TRUE(GrowTo(*cache, s, text).ok());
    ASSERT_TRUE(Holds(*cache, s, text)) << round;
    cache->RemoveSequence(s);
  }
  EXPECT_GT(cache->stats().prefix.collisions, 100);
  EXPECT_GT(cache->stats().prefix.found_blocks, 100);
  EXPECT_WHOLE(*cache);
}

// Blocks past 2^31 and 2^32 bytes of a layer, through tables and attention's eyes. The first
// sequence only reserves: its blocks never get memory.
TEST(KvSharingTest, BlocksBeyond32Bits) {
  KvCacheOptions options = {.num_layers = 1, .num_kv_heads = 8, .head_dim = 1024};
  options.dtypes = KvDType::kF32;  // 64 KiB per token
  options.max_tokens = int64_t{1} << 18;
  const auto cache = CreateKvCache(options);
  for (const int64_t reserved : {int64_t{1} << 15, int64_t{1} << 16, int64_t{3} << 15}) {
    const SequenceId far = *cache->AddSequence(), s = *cache->AddSequence();
    ASSERT_TRUE(cache->Extend(far, reserved).ok());
    const Text text = Counting(static_cast<int32_t>(reserved), 200);
    ASSERT_TRUE(GrowTo(*cache, s, text).ok());
    EXPECT_TRUE(Holds(*cache, s, text));
  }
  EXPECT_GT(cache->stats().block_bytes, int64_t{1} << 33);
}

// 64 sequences in 64 threads that share beginnings, fork, end and evict each other's texts.
TEST(KvSharingTest, SixtyFourSequencesInSixtyFourThreads) {
  const auto cache = CreateKvCache(Small(16, 12'000));
  constexpr int kThreads = 64;
  std::barrier start(kThreads);
  std::atomic<int> wrong = 0, refused = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      start.arrive_and_wait();
      for (int round = 0; round < 12; ++round) {
        const auto shared = static_cast<int64_t>(random() % 120);
        Text text = Diverge(Counting(static_cast<int32_t>(random() % 3), 150), shared, 150,
                            1'000 * (t * 100 + round));
        const auto s = cache->AddSequence();
        if (!s.ok()) continue;
        cache->AttachPrefix(*s, text);
        if (!GrowTo(*cache, *s, text).ok()) ++refused;
        if (cache->Length(*s) == 150) {
          wrong += !Holds(*cache, *s, text);
          const auto fork = cache->Fork(*s);
          const int64_t kept = cache->Truncate(*s, static_cast<int64_t>(random() % 150));
          text.resize(static_cast<size_t>(kept));
          if (GrowTo(*cache, *s, Diverge(text, kept, 160, t)).ok()) {
            wrong += !Holds(*cache, *s, Diverge(text, kept, 160, t));
          }
          if (fork.ok()) cache->RemoveSequence(*fork);
        }
        if (round % 4 == 3) (void)cache->stats();
        cache->RemoveSequence(*s);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LT(refused, kThreads * 12);
  EXPECT_WHOLE(*cache);
  EXPECT_GT(cache->stats().prefix.found_blocks, 0);
  cache->DropCached();
  EXPECT_EQ(cache->bytes_in_use(), 0);
}

// The whole cache against plain texts: every sequence must hold its own.
TEST(KvSharingTest, EqualsAModelUnderRandomOperations) {
  for (const int64_t block_size : {8, 32, 128}) {
    KvCacheOptions options = Small(block_size, 3000);
    options.num_kv_heads = 3;
    const auto cache = CreateKvCache(options);
    std::map<SequenceId, Text> model;
    std::mt19937 random(static_cast<unsigned>(block_size));
    const auto some = [&] { return std::next(model.begin(), random() % model.size()); };
    int64_t checked = 0;
    for (int step = 0; step < 12'000; ++step) {
      const uint32_t choice = model.empty() ? 0 : random() % 100;
      if (choice < 6) {
        if (model.size() >= 12) continue;
        const SequenceId s = *cache->AddSequence();
        Text text(random() % 300);
        for (size_t i = 0; i < text.size(); ++i) {  // a few texts that branch
          text[i] = static_cast<int32_t>(i % 40 == 0 ? random() % 2 : i);
        }
        text.resize(static_cast<size_t>(cache->AttachPrefix(s, text)));
        model[s] = text;
      } else if (choice < 55) {
        auto& [s, text] = *some();
        Text longer = text;
        for (size_t n = random() % (random() % 8 == 0 ? 200 : 20); n > 0; --n) {
          const size_t i = longer.size();
          longer.push_back(static_cast<int32_t>(i % 40 == 0 ? random() % 2 : i));
        }
        if (GrowTo(*cache, s, longer).ok()) text = longer;
      } else if (choice < 70) {
        auto& [s, text] = *some();
        const int64_t cut = static_cast<int64_t>(random() % (text.size() + 1));
        const int64_t kept = cache->Truncate(s, cut);
        ASSERT_LE(kept, cut);
        text.resize(static_cast<size_t>(kept));
      } else if (choice < 75) {
        if (model.size() >= 12) continue;
        const auto& [s, text] = *some();
        const auto fork = cache->Fork(s);
        if (fork.ok()) model[*fork] = Text(text);
      } else if (choice < 80) {
        const auto it = some();
        cache->RemoveSequence(it->first);
        model.erase(it);
      } else if (choice < 82) {
        auto& [s, text] = *some();
        cache->Preempt(s);
        text.clear();
      } else if (choice < 83) {
        int calls = static_cast<int>(random() % 20);
        (void)cache->Defragment([&] { return --calls < 0; });
      } else {
        const auto& [s, text] = *some();
        ASSERT_EQ(cache->Length(s), static_cast<int64_t>(text.size()));
        if (text.empty()) continue;
        const size_t p = random() % text.size();
        ASSERT_TRUE(HoldsAt(*cache, s, static_cast<int64_t>(p), Beginnings(text)[p]))
            << block_size << " " << step << " " << p;
        ++checked;
      }
      if (step % 500 == 0) {
        const Status whole = cache->CheckIntegrity();
        ASSERT_TRUE(whole.ok()) << step << " " << whole.ToString();
        for (const auto& [s, text] : model) ASSERT_TRUE(Holds(*cache, s, text)) << step;
        const KvCacheStats stats = cache->stats();
        for (const double ratio : {stats.hit_rate(), stats.fragmentation_rate()}) {
          ASSERT_TRUE(ratio >= 0.0 && ratio <= 1.0);
        }
      }
    }
    EXPECT_GT(checked, 1000);
    EXPECT_GT(cache->stats().prefix.found_blocks, 100);
    EXPECT_GT(cache->stats().prefix.evicted_pages, 100);
    for (const auto& [s, text] : model) cache->RemoveSequence(s);
    cache->DropCached();
    EXPECT_EQ(cache->bytes_in_use(), 0);
    EXPECT_WHOLE(*cache);
  }
}

}  // namespace
}  // namespace lode
