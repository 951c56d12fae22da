// SPDX-License-Identifier: Apache-2.0
#include "kv/layer_pool.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <barrier>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>

namespace lode {
namespace {

std::unique_ptr<LayerPool> Create(int64_t reserve_bytes, std::vector<int64_t> block_bytes) {
  auto pool = LayerPool::Create(reserve_bytes, std::move(block_bytes));
  EXPECT_TRUE(pool.ok()) << pool.status().ToString();
  return std::move(pool).value();
}

// Writes or checks a mark at both ends of a block.
void Mark(const LayerPool& pool, int32_t size_class, BlockId block, uint64_t mark) {
  std::byte* data = pool.data(block);
  std::memcpy(data, &mark, sizeof(mark));
  std::memcpy(data + pool.block_bytes(size_class) - sizeof(mark), &mark, sizeof(mark));
}
bool HasMark(const LayerPool& pool, int32_t size_class, BlockId block, uint64_t mark) {
  uint64_t first = 0, last = 0;
  const std::byte* data = pool.data(block);
  std::memcpy(&first, data, sizeof(mark));
  std::memcpy(&last, data + pool.block_bytes(size_class) - sizeof(mark), sizeof(mark));
  return first == mark && last == mark;
}

TEST(LayerPoolTest, RefusesNonsense) {
  const auto code = [](int64_t reserve_bytes, std::vector<int64_t> block_bytes) {
    const auto pool = LayerPool::Create(reserve_bytes, std::move(block_bytes));
    return pool.ok() ? StatusCode::kOk : pool.status().code();
  };
  EXPECT_EQ(code(1 << 20, {64, 4096}), StatusCode::kOk);
  EXPECT_EQ(code(1000, {64}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(-5, {64}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(SlabSpace::kMaxReserveBytes + SlabSpace::kSlabUnit, {64}),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code(1 << 20, {}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(1 << 20, {64, 0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(1 << 20, {100}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(1 << 20, {1 << 21}), StatusCode::kInvalidArgument);
}

TEST(LayerPoolTest, UsesUpItsReservationAndSaysSo) {
  const auto pool = Create(4 * SlabSpace::kSlabUnit, {4096, 65536});
  std::vector<BlockId> blocks(64);
  ASSERT_TRUE(pool->Allocate(0, blocks));
  BlockId one[1];
  EXPECT_FALSE(pool->Allocate(0, one));
  EXPECT_FALSE(pool->Allocate(1, one));
  EXPECT_FALSE(pool->AllocateRun(1, one));
  ASSERT_TRUE(pool->CheckIntegrity().ok());
  // All or nothing: 65 do not fit, and 64 still do.
  pool->Free(0, blocks);
  std::vector<BlockId> more(65);
  EXPECT_FALSE(pool->Allocate(0, more));
  EXPECT_EQ(pool->stats().used_blocks, 0);
  ASSERT_TRUE(pool->Allocate(0, blocks));
  // Freed blocks that lie in the thread's list serve another class when their slab is empty.
  pool->Free(0, std::span(blocks).first(16));
  EXPECT_TRUE(pool->Allocate(1, one)) << pool->stats().slab_bytes;
  EXPECT_TRUE(pool->CheckIntegrity().ok());
}

TEST(LayerPoolTest, AFreshSequenceLiesInOnePiece) {
  const auto pool = Create(int64_t{1} << 30, {1024, 8192});
  std::vector<BlockId> blocks(500);
  ASSERT_TRUE(pool->Allocate(1, blocks));
  std::vector<BlockId> one(1);
  for (int i = 0; i < 500; ++i) {  // and so does one that grows by a block at a time
    ASSERT_TRUE(pool->Allocate(1, one));
    blocks.push_back(one[0]);
  }
  int64_t breaks = 0;
  for (size_t i = 1; i < blocks.size(); ++i) breaks += blocks[i] != blocks[i - 1] + 8192 / 64;
  EXPECT_LT(breaks, 5);
}

// Every operation against a std::map from block to what was written there.
TEST(LayerPoolTest, EqualsAModelUnderRandomOperations) {
  const std::vector<int64_t> sizes = {64, 1088, 4096, 20480, 69632};
  const auto pool = Create(int64_t{1} << 30, sizes);
  struct Held {
    int32_t size_class;
    uint64_t mark;
  };
  std::map<BlockId, Held> held;
  std::vector<BlockId> ids;  // the keys of held, for a random choice
  std::mt19937 random(1);
  int64_t used_bytes = 0;
  for (int step = 0; step < 300'000; ++step) {
    const bool grow = random() % 1000 < (step / 30'000 % 2 == 0 ? 560u : 430u);
    const auto c = static_cast<int32_t>(random() % sizes.size());
    if (grow) {
      std::vector<BlockId> out(1 + (random() % 16 == 0 ? random() % 40 : 0));
      const bool run = random() % 8 == 0;
      ASSERT_TRUE(run ? pool->AllocateRun(c, out) : pool->Allocate(c, out));
      for (size_t i = 0; i < out.size(); ++i) {
        const auto unit = static_cast<BlockId>(sizes[static_cast<size_t>(c)] / kBlockIdUnit);
        if (run && i > 0) {
          ASSERT_EQ(out[i], out[i - 1] + unit);
        }
        const auto [it, inserted] = held.emplace(out[i], Held{c, random()});
        ASSERT_TRUE(inserted) << "handed out twice";
        // No overlap with the neighbours in memory.
        if (it != held.begin()) {
          const auto before = std::prev(it);
          const int64_t bytes = sizes[static_cast<size_t>(before->second.size_class)];
          ASSERT_LE(before->first + bytes / kBlockIdUnit, it->first);
        }
        if (std::next(it) != held.end()) {
          ASSERT_LE(out[i] + unit, std::next(it)->first);
        }
        Mark(*pool, c, out[i], it->second.mark);
        ids.push_back(out[i]);
        used_bytes += sizes[static_cast<size_t>(c)];
      }
    } else {
      for (size_t n = random() % 6; n > 0 && !ids.empty(); --n) {
        std::swap(ids[random() % ids.size()], ids.back());
        const auto it = held.find(ids.back());
        ASSERT_TRUE(HasMark(*pool, it->second.size_class, it->first, it->second.mark));
        pool->Free(it->second.size_class, {&it->first, 1});
        used_bytes -= sizes[static_cast<size_t>(it->second.size_class)];
        held.erase(it);
        ids.pop_back();
      }
    }
    if (random() % 5000 == 0) pool->Flush();
    if (random() % 5000 == 0) pool->Trim();
    if (random() % 5000 == 0) pool->JoinPages();
    if (step % 10'000 == 0) {
      const Status status = pool->CheckIntegrity();
      ASSERT_TRUE(status.ok()) << status.ToString();
      const LayerPoolStats stats = pool->stats();
      ASSERT_EQ(stats.used_blocks, static_cast<int64_t>(held.size()));
      ASSERT_EQ(stats.used_bytes, used_bytes);
      ASSERT_LE(stats.used_bytes, stats.touched_bytes);
      ASSERT_LE(stats.touched_bytes, stats.slab_bytes);
    }
  }
  for (const auto& [block, h] : held) {
    ASSERT_TRUE(HasMark(*pool, h.size_class, block, h.mark));
    pool->Free(h.size_class, {&block, 1});
  }
  pool->Flush();
  EXPECT_EQ(pool->stats().slab_bytes, 0);
  EXPECT_EQ(pool->stats().touched_bytes, 0);
  EXPECT_TRUE(pool->CheckIntegrity().ok());
}

// Pages of [begin, begin + bytes) that are in memory.
int64_t ResidentPages(const std::byte* begin, int64_t bytes) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  std::vector<unsigned char> pages(static_cast<size_t>(bytes / page));
  EXPECT_EQ(mincore(const_cast<std::byte*>(begin), static_cast<size_t>(bytes), pages.data()), 0);
  int64_t resident = 0;
  for (const unsigned char p : pages) resident += p & 1;
  return resident;
}

TEST(LayerPoolTest, MemoryGoesBackToTheSystem) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have their own pages";
#endif
  const auto pool = Create(int64_t{1} << 28, {8192});
  std::vector<BlockId> blocks(2048);
  ASSERT_TRUE(pool->Allocate(0, blocks));
  EXPECT_EQ(blocks[0], 0u);
  const int64_t bytes = int64_t{1} << 24;
  EXPECT_EQ(ResidentPages(pool->data(0), bytes), 0) << "memory comes when it is written";
  for (const BlockId block : blocks) std::memset(pool->data(block), 1, 8192);
  EXPECT_EQ(ResidentPages(pool->data(0), bytes), 4096);
  // Every second block: no slab is empty, but Trim finds the pages between.
  std::vector<BlockId> odd, even;
  for (size_t i = 0; i < blocks.size(); ++i) (i % 2 == 0 ? even : odd).push_back(blocks[i]);
  pool->Free(0, odd);
  pool->Trim();
  EXPECT_EQ(ResidentPages(pool->data(0), bytes), 2048);
  EXPECT_EQ(pool->stats().touched_bytes, 1024 * 8192);
  for (const BlockId block : even) EXPECT_EQ(pool->data(block)[8191], std::byte{1});
  pool->Free(0, even);
  pool->Flush();
  EXPECT_EQ(ResidentPages(pool->data(0), bytes), 0);
}

// Whether the system makes huge pages is its own affair.
TEST(LayerPoolTest, JoinedPagesKeepWhatTheyHold) {
  const auto pool = Create(int64_t{64} << 20, {8192});
  std::vector<BlockId> blocks(2048);
  ASSERT_TRUE(pool->Allocate(0, blocks));
  for (size_t i = 0; i < blocks.size(); ++i) Mark(*pool, 0, blocks[i], i);
  pool->JoinPages();
  for (size_t i = 0; i < blocks.size(); ++i) ASSERT_TRUE(HasMark(*pool, 0, blocks[i], i)) << i;
  pool->Free(0, blocks);
  pool->Flush();
  EXPECT_EQ(ResidentPages(pool->data(0), int64_t{2048} * 8192), 0);
  ASSERT_TRUE(pool->Allocate(0, blocks));
  for (size_t i = 0; i < blocks.size(); ++i) Mark(*pool, 0, blocks[i], i + 1);
  pool->JoinPages();
  for (size_t i = 0; i < blocks.size(); ++i) ASSERT_TRUE(HasMark(*pool, 0, blocks[i], i + 1)) << i;
}

// Offsets past 2^31 bytes, 2^32 bytes and 2^31 f32 elements, in a pool that is mostly addresses.
TEST(LayerPoolTest, AddressesBeyond32Bits) {
  const int64_t block_bytes = int64_t{48} << 20;
  const auto pool = Create(int64_t{20} << 30, {block_bytes, 2048});
  std::vector<BlockId> blocks(220);
  ASSERT_TRUE(pool->Allocate(0, blocks));
  for (size_t i = 0; i < blocks.size(); ++i) Mark(*pool, 0, blocks[i], i);
  int64_t farthest = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_TRUE(HasMark(*pool, 0, blocks[i], i)) << i;
    farthest = std::max<int64_t>(farthest, pool->data(blocks[i]) - pool->data(0));
  }
  EXPECT_GT(farthest, int64_t{1} << 33);
  BlockId last[1];
  ASSERT_TRUE(pool->Allocate(1, last));
  EXPECT_GT(pool->data(last[0]) - pool->data(0), farthest);
  Mark(*pool, 1, last[0], 77);
  for (size_t i = 0; i < blocks.size(); ++i) ASSERT_TRUE(HasMark(*pool, 0, blocks[i], i)) << i;
}

// 64 threads, each a sequence that grows and shrinks; blocks wander between threads by way of the
// common space.
TEST(LayerPoolTest, SixtyFourThreads) {
  const auto pool = Create(int64_t{1} << 30, {1024, 4096});
  constexpr int kThreads = 64;
  constexpr int kSteps = 2000;
  std::barrier start(kThreads);
  std::vector<std::thread> threads;
  std::vector<int> damaged(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<std::pair<int32_t, BlockId>> held;
      start.arrive_and_wait();
      for (int step = 0; step < kSteps; ++step) {
        const auto c = static_cast<int32_t>(random() % 2);
        if (random() % 100 < (step / 200 % 2 == 0 ? 60u : 40u)) {
          BlockId out[3];
          const std::span<BlockId> wanted(out, 1 + random() % 3);
          if (!pool->Allocate(c, wanted)) ++damaged[static_cast<size_t>(t)];
          for (const BlockId block : wanted) {
            Mark(*pool, c, block, static_cast<uint64_t>(t));
            held.emplace_back(c, block);
          }
        } else if (!held.empty()) {
          std::swap(held[random() % held.size()], held.back());
          const auto [size_class, block] = held.back();
          held.pop_back();
          if (!HasMark(*pool, size_class, block, static_cast<uint64_t>(t))) {
            ++damaged[static_cast<size_t>(t)];
          }
          pool->Free(size_class, {&block, 1});
        }
        if (step % 1000 == 999 && t % 16 == 0) pool->Trim();
        if (step % 1000 == 499 && t % 16 == 8) pool->JoinPages();
        if (step % 500 == 0) (void)pool->stats();
      }
      for (const auto& [size_class, block] : held) pool->Free(size_class, {&block, 1});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : damaged) EXPECT_EQ(count, 0);
  const Status status = pool->CheckIntegrity();
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(pool->stats().used_blocks, 0);
  EXPECT_GT(pool->stats().refills, 0);
  pool->Flush();
  EXPECT_EQ(pool->stats().slab_bytes, 0);
}

}  // namespace
}  // namespace lode
