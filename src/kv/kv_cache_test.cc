// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_cache.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>

#include "kv/block_pool.h"
#include "kv/codec.h"

namespace lode {
namespace {

constexpr int64_t kTokens = KvCache::kBlockTokens;

KvCacheOptions Small(KvDType dtype = KvDType::kF16) {
  return {.num_layers = 2, .num_kv_heads = 3, .head_dim = 16, .dtype = dtype, .max_tokens = 320};
}

std::unique_ptr<KvCache> Create(const KvCacheOptions& options) {
  Result<std::unique_ptr<KvCache>> cache = KvCache::Create(options);
  EXPECT_TRUE(cache.ok()) << cache.status().ToString();
  return std::move(cache).value();
}

// A key component that names its place; exact in f16 and f32.
float Mark(int32_t layer, SequenceId sequence, int64_t position, int32_t head) {
  return static_cast<float>(position % 256 + 256 * (layer + 2 * (head % 2)) + 4 * (sequence % 8)) /
         4.0f;
}

void StoreMarks(KvCache& cache, int32_t layer, SequenceId sequence, int64_t first, int64_t n) {
  const int64_t heads = cache.options().num_kv_heads, head_dim = cache.options().head_dim;
  std::vector<float> k(static_cast<size_t>(n * heads * head_dim)), v(k.size());
  for (size_t i = 0; i < k.size(); ++i) {
    const auto token = static_cast<int64_t>(i) / (heads * head_dim);
    const auto head = static_cast<int32_t>(static_cast<int64_t>(i) / head_dim % heads);
    k[i] = Mark(layer, sequence, first + token, head);
    v[i] = -k[i];
  }
  cache.Store(layer, sequence, first, n, k.data(), v.data());
}

void ExpectMarks(const KvCache& cache, int32_t layer, SequenceId sequence, int64_t position) {
  const KvCodec& codec = CodecFor(cache.options().dtype);
  const int64_t head_dim = cache.options().head_dim, slot = position % kTokens;
  const BlockId block = cache.page_table(sequence)[static_cast<size_t>(position / kTokens)];
  std::vector<float> tile(static_cast<size_t>(head_dim * kTokens));
  for (int32_t head = 0; head < cache.options().num_kv_heads; ++head) {
    const float expected = Mark(layer, sequence, position, head);
    codec.decode_keys(cache.KeyBlock(layer, head, block), head_dim, tile.data());
    ASSERT_EQ(tile[static_cast<size_t>((head_dim - 1) * kTokens + slot)], expected) << position;
    codec.decode_values(cache.ValueBlock(layer, head, block), head_dim, tile.data(), head_dim);
    ASSERT_EQ(tile[static_cast<size_t>(slot * head_dim)], -expected) << position;
  }
}

TEST(KvCacheTest, RefusesNonsense) {
  const auto code = [](KvCacheOptions options) {
    const auto cache = KvCache::Create(options);
    return cache.ok() ? StatusCode::kOk : cache.status().code();
  };
  KvCacheOptions o = Small();
  EXPECT_EQ(code(o), StatusCode::kOk);
  (o = Small()).num_layers = 0;
  EXPECT_EQ(code(o), StatusCode::kInvalidArgument);
  (o = Small()).num_kv_heads = -1;
  EXPECT_EQ(code(o), StatusCode::kInvalidArgument);
  for (const int32_t head_dim : {0, 12, -8, 1 << 20}) {
    (o = Small()).head_dim = head_dim;
    EXPECT_EQ(code(o), StatusCode::kInvalidArgument) << head_dim;
  }
  for (const int64_t max_tokens : {int64_t{0}, int64_t{-5}, INT64_MAX}) {
    (o = Small()).max_tokens = max_tokens;
    EXPECT_EQ(code(o), StatusCode::kInvalidArgument) << max_tokens;
  }
  // 2^35 tokens: a valid size that no 47-bit address space holds.
  o = {.num_layers = 100, .num_kv_heads = 64, .head_dim = 128, .max_tokens = int64_t{1} << 35};
  EXPECT_EQ(code(o), StatusCode::kResourceExhausted);
}

TEST(KvCacheTest, StoresAcrossBlockBordersAndSequences) {
  const std::unique_ptr<KvCache> cache = Create(Small());
  const SequenceId a = *cache->AddSequence(), b = *cache->AddSequence();
  // Grown in turns, so that the blocks of the two interleave.
  for (const auto& [sequence, n] : std::vector<std::pair<SequenceId, int64_t>>{
           {a, 1}, {b, 33}, {a, 30}, {a, 2}, {b, 31}, {a, 70}, {b, 1}}) {
    const int64_t first = cache->Length(sequence);
    ASSERT_TRUE(cache->Extend(sequence, n).ok());
    for (int32_t layer = 0; layer < 2; ++layer) StoreMarks(*cache, layer, sequence, first, n);
  }
  EXPECT_EQ(cache->Length(a), 103);
  EXPECT_EQ(cache->Length(b), 65);
  for (const SequenceId s : {a, b}) {
    for (int64_t p = 0; p < cache->Length(s); ++p) {
      for (int32_t layer = 0; layer < 2; ++layer) ExpectMarks(*cache, layer, s, p);
    }
  }
}

TEST(KvCacheTest, FullCacheSaysSoAndStaysWhole) {
  const std::unique_ptr<KvCache> cache = Create(Small());
  const SequenceId a = *cache->AddSequence(), b = *cache->AddSequence();
  ASSERT_TRUE(cache->Extend(a, 290).ok());  // 10 blocks of 320 tokens
  const Status full = cache->Extend(b, 1);
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(full.message().find("320"), std::string::npos) << full.message();
  EXPECT_EQ(cache->Extend(a, INT64_MAX).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(cache->Length(a), 290);
  EXPECT_EQ(cache->Length(b), 0);
  EXPECT_TRUE(cache->Extend(a, 30).ok());  // the rest of the last block
  cache->Truncate(a, 100);
  EXPECT_TRUE(cache->Extend(b, 192).ok());
  EXPECT_EQ(cache->Extend(b, 1).code(), StatusCode::kResourceExhausted);
  cache->RemoveSequence(a);
  EXPECT_TRUE(cache->Extend(b, 1).ok());
}

TEST(KvCacheTest, BytesInUseCountBlocksHeld) {
  for (const KvCodec& codec : KvCodecs()) {
    const KvCacheOptions options = Small(codec.dtype);
    const std::unique_ptr<KvCache> cache = Create(options);
    const int64_t block = KvCache::BytesFor(options, 1);
    EXPECT_EQ(block, 2 * 3 * (codec.key_block_bytes(16) + codec.value_block_bytes(16)));
    EXPECT_EQ(KvCache::BytesFor(options, 0), 0);
    EXPECT_EQ(KvCache::BytesFor(options, 33), 2 * block);
    const SequenceId s = *cache->AddSequence();
    EXPECT_EQ(cache->bytes_in_use(), 0);
    ASSERT_TRUE(cache->Extend(s, 65).ok());
    EXPECT_EQ(cache->bytes_in_use(), 3 * block);
    cache->Truncate(s, 64);
    EXPECT_EQ(cache->bytes_in_use(), 2 * block);
    cache->RemoveSequence(s);
    EXPECT_EQ(cache->bytes_in_use(), 0);
  }
}

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(KvCacheTest, MemoryComesWithTokensAndGoesWithThem) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have their own pages";
#endif
  KvCacheOptions options = {.num_layers = 4, .num_kv_heads = 2, .head_dim = 64};
  options.max_tokens = int64_t{1} << 30;  // 2 TB of f16
  const int64_t before = ResidentBytes();
  const std::unique_ptr<KvCache> cache = Create(options);
  const SequenceId s = *cache->AddSequence();
  EXPECT_LT(ResidentBytes() - before, 1 << 20);
  ASSERT_TRUE(cache->Extend(s, 8192).ok());
  for (int32_t layer = 0; layer < 4; ++layer) StoreMarks(*cache, layer, s, 0, 8192);
  const auto used = static_cast<double>(cache->bytes_in_use());
  const auto resident = static_cast<double>(ResidentBytes() - before);
  EXPECT_NEAR(resident / used, 1.0, 0.25);  // the marks themselves are freed, mostly
  cache->Truncate(s, 0);
  EXPECT_LT(static_cast<double>(ResidentBytes() - before), resident - 0.9 * used);
}

// Blocks whose byte offset is past 2^31 and past 2^32, in a pool that is mostly address space.
TEST(KvCacheTest, AddressesBeyond32Bits) {
  KvCacheOptions options = {.num_layers = 1, .num_kv_heads = 2, .head_dim = 64};
  options.dtype = KvDType::kF32;
  options.max_tokens = (int64_t{1} << 25) + 64;  // a region of 2^33 bytes, 2^31 elements
  const std::unique_ptr<KvCache> cache = Create(options);
  const SequenceId s = *cache->AddSequence();
  ASSERT_TRUE(cache->Extend(s, options.max_tokens).ok());
  const std::vector<int64_t> borders = {int64_t{1} << 23, int64_t{1} << 24, int64_t{1} << 25};
  for (const int64_t border : borders) StoreMarks(*cache, 0, s, border - 40, 80);
  StoreMarks(*cache, 0, s, 0, 3);
  for (const int64_t border : borders) {
    for (int64_t p = border - 40; p < border + 40; ++p) ExpectMarks(*cache, 0, s, p);
  }
  for (int64_t p = 0; p < 3; ++p) ExpectMarks(*cache, 0, s, p);
}

TEST(BlockPoolTest, EqualsAModelUnderRandomOperations) {
  const auto pool = BlockPool::Create({.num_blocks = 300, .block_bytes = {64, 4096}});
  ASSERT_TRUE(pool.ok());
  std::map<BlockId, std::byte> held;  // id -> what was written there
  std::mt19937 generator(1);
  for (int step = 0; step < 20000; ++step) {
    const bool grow = generator() % 1000 < (step / 2000 % 2 == 0 ? 600u : 400u);
    if (grow && (*pool)->num_free() > 0) {
      const BlockId block = (*pool)->Allocate();
      ASSERT_TRUE(block >= 0 && block < 300);
      const auto mark = static_cast<std::byte>(generator());
      ASSERT_TRUE(held.emplace(block, mark).second) << "handed out twice";
      (*pool)->data(0, block)[0] = (*pool)->data(1, block)[4095] = mark;
    } else if (!grow && !held.empty()) {
      const auto victim = std::next(held.begin(), generator() % held.size());
      ASSERT_EQ((*pool)->data(0, victim->first)[0], victim->second);
      ASSERT_EQ((*pool)->data(1, victim->first)[4095], victim->second);
      (*pool)->Free(victim->first);
      held.erase(victim);
    }
    ASSERT_EQ((*pool)->num_used(), static_cast<int64_t>(held.size()));
  }
  for (const auto& [block, mark] : held) ASSERT_EQ((*pool)->data(0, block)[0], mark);
}

}  // namespace
}  // namespace lode
