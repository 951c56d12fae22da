// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_cache.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <string>

#include "kv/codec.h"
#include "kv/kv_layout.h"

namespace lode {
namespace {

constexpr int64_t kTokens = kernels::kKvTileTokens;

KvCacheOptions Small(KvDType dtype = KvDType::kF16) {
  return {.num_layers = 2, .num_kv_heads = 3, .head_dim = 16, .dtypes = dtype, .max_tokens = 320};
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
  const int64_t head_dim = cache.options().head_dim;
  const int64_t index = cache.plan().TileOf(position);
  const int64_t slot = position - cache.plan().FirstPositionOfTile(index);
  std::vector<float> decoded(static_cast<size_t>(head_dim * kTokens));
  for (int32_t head = 0; head < cache.options().num_kv_heads; ++head) {
    const float expected = Mark(layer, sequence, position, head);
    const KvTile tile = cache.Tile(sequence, layer, head, index);
    ASSERT_EQ(tile.shape.tokens, cache.plan().TileTokens(index));
    tile.key_codec->decode_keys(tile.keys, tile.shape, decoded.data());
    ASSERT_EQ(decoded[static_cast<size_t>((head_dim - 1) * kTokens + slot)], expected) << position;
    tile.value_codec->decode_values(tile.values, tile.shape, decoded.data(), head_dim);
    ASSERT_EQ(decoded[static_cast<size_t>(slot * head_dim)], -expected) << position;
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
  ASSERT_TRUE(cache->Extend(a, 290).ok());  // blocks of 288 tokens, and an open tile
  const Status full = cache->Extend(b, 50);
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(full.message().find("335"), std::string::npos) << full.message();  // 320 + 15 open
  EXPECT_EQ(cache->Extend(a, INT64_MAX).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(cache->Length(a), 290);
  EXPECT_EQ(cache->Length(b), 0);
  EXPECT_TRUE(cache->Extend(a, 30).ok());  // the rest
  EXPECT_TRUE(cache->Extend(b, 7).ok());   // no block yet
  EXPECT_EQ(cache->Extend(b, 1).code(), StatusCode::kResourceExhausted);
  cache->Truncate(a, 100);
  EXPECT_TRUE(cache->Extend(b, 200).ok());
  EXPECT_EQ(cache->Extend(b, 40).code(), StatusCode::kResourceExhausted);
  cache->RemoveSequence(a);
  EXPECT_TRUE(cache->Extend(b, 40).ok());
}

TEST(KvCacheTest, BytesInUseCountBlocksHeldAndOpenTiles) {
  for (const KvCodec& codec : KvCodecs()) {
    KvCacheOptions options = Small(codec.dtype);
    options.int4_fallback_threshold = 0;
    const std::unique_ptr<KvCache> cache = Create(options);
    const KvCodec& open_codec = CodecFor(codec.open_dtype);
    // Two layers of three heads.
    const auto bytes = [](const KvCodec& c, int64_t tokens) {
      const KvTileShape shape = {.head_dim = 16, .tokens = tokens};
      return 2 * 3 * (c.key_tile_bytes(shape) + c.value_tile_bytes(shape));
    };
    const int64_t open = bytes(open_codec, 32), sink = bytes(open_codec, 8);
    EXPECT_EQ(KvCache::BytesFor(options, 7), open);
    EXPECT_EQ(KvCache::BytesFor(options, 8), open + sink);
    EXPECT_EQ(KvCache::BytesFor(options, 128), open + sink + 15 * bytes(codec, 8));
    EXPECT_EQ(KvCache::BytesFor(options, 1152 + 95),
              open + sink + 15 * bytes(codec, 8) + 64 * bytes(codec, 16) + 2 * bytes(codec, 32));
    EXPECT_EQ(KvCache::BytesPerToken(options), static_cast<double>(bytes(codec, 32)) / 32);
    EXPECT_EQ(cache->bytes_in_use(), 0);
    const SequenceId s = *cache->AddSequence();
    EXPECT_EQ(cache->bytes_in_use(), open);
    for (const int64_t length : {5, 8, 65, 200}) {
      ASSERT_TRUE(cache->Extend(s, length - cache->Length(s)).ok());
      EXPECT_EQ(cache->bytes_in_use(), KvCache::BytesFor(options, length));
    }
    cache->Truncate(s, 64);
    EXPECT_EQ(cache->bytes_in_use(), KvCache::BytesFor(options, 64));
    cache->RemoveSequence(s);
    EXPECT_EQ(cache->bytes_in_use(), 0);
  }
}

// Sinks in the open type, then int4, then int6; values keep theirs.
TEST(KvCacheTest, TypesChangeAtTheThreshold) {
  KvCacheOptions options = Small();
  options.dtypes = {KvDType::kInt4, KvDType::kF16};
  options.max_tokens = 4000;
  const auto key_types = [&](int64_t threshold) {
    options.int4_fallback_threshold = threshold;
    const std::unique_ptr<KvCache> cache = Create(options);
    const SequenceId s = *cache->AddSequence();
    EXPECT_TRUE(cache->Extend(s, 1400).ok());
    for (int32_t layer = 0; layer < 2; ++layer) StoreMarks(*cache, layer, s, 0, 1400);
    EXPECT_EQ(cache->bytes_in_use(), KvCache::BytesFor(options, 1400));
    std::vector<KvDType> types;
    for (int64_t tile = 0; tile < cache->plan().NumFullTiles(1400); ++tile) {
      const KvTile t = cache->Tile(s, 1, 2, tile);
      EXPECT_EQ(t.value_codec->dtype, KvDType::kF16);
      types.push_back(t.key_codec->dtype);
    }
    return types;
  };
  std::vector<KvDType> expected(87, KvDType::kInt4);  // 16 + 64 + 7
  expected[0] = KvDType::kF16;
  EXPECT_EQ(key_types(0), expected);
  std::fill(expected.begin() + 83, expected.end(), KvDType::kInt6);
  // A block that the threshold falls into stays as it is.
  for (const int64_t threshold : {1247, 1248, 1217}) EXPECT_EQ(key_types(threshold), expected);
  std::fill(expected.begin() + 1, expected.end(), KvDType::kInt6);
  EXPECT_EQ(key_types(8), expected);
  options.int4_fallback_threshold = -1;
  EXPECT_EQ(KvCache::Create(options).status().code(), StatusCode::kInvalidArgument);
}

TEST(KvCacheOptionsTest, GroupsOfValuesThatShareAScale) {
  KvCacheOptions options = {.num_layers = 1,
                            .num_kv_heads = 1,
                            .head_dim = 64,
                            .dtypes = KvDType::kInt4,
                            .max_tokens = 64};
  const double whole = KvCache::BytesPerToken(options);  // the default is more than a head has
  options.value_group = 64;
  EXPECT_EQ(KvCache::BytesPerToken(options), whole);
  options.value_group = 16;
  EXPECT_EQ(KvCache::BytesPerToken(options), whole + 3 * 2);  // three more f16 scales
  for (const int64_t wrong : {7, 0, -8, 12}) {
    options.value_group = wrong;
    const Status status = KvCache::Create(options).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << wrong;
    EXPECT_NE(status.message().find("a multiple of 8"), std::string::npos) << status.message();
  }
}

// All tiles of one layer and head, byte for byte as the kernels see them decoded.
std::vector<float> DecodeAll(const KvCache& cache, SequenceId sequence, int32_t layer,
                             int64_t stored) {
  const auto head_dim = static_cast<size_t>(cache.options().head_dim);
  std::vector<float> all;
  for (int64_t index = 0; index < cache.plan().NumTiles(stored); ++index) {
    const KvTile tile = cache.Tile(sequence, layer, 1, index);
    const int64_t n = std::min(tile.shape.tokens, stored - cache.plan().FirstPositionOfTile(index));
    std::vector<float> keys(head_dim * kTokens), values(keys.size());
    tile.key_codec->decode_keys(tile.keys, tile.shape, keys.data());
    tile.value_codec->decode_values(tile.values, tile.shape, values.data(),
                                    cache.options().head_dim);
    for (int64_t t = 0; t < n; ++t) {
      for (size_t d = 0; d < head_dim; ++d) {
        all.push_back(keys[d * kTokens + static_cast<size_t>(t)]);
        all.push_back(values[static_cast<size_t>(t) * head_dim + d]);
      }
    }
  }
  return all;
}

std::vector<KvDTypes> SomeTypes() {
  return {KvDType::kF32,
          KvDType::kF16,
          KvDType::kInt8,
          {KvDType::kInt8, KvDType::kF16},
          {KvDType::kF16, KvDType::kInt8}};
}

TEST(KvCacheTest, BitsDoNotDependOnTheCalls) {
  constexpr int64_t kLength = 150;
  for (const KvDTypes dtypes : SomeTypes()) {
    KvCacheOptions options = Small();
    options.dtypes = dtypes;
    options.max_tokens = 640;  // two sequences of small tiles
    const std::unique_ptr<KvCache> cache = Create(options);
    std::mt19937 generator(7);
    std::normal_distribution<float> normal;
    std::vector<float> k(kLength * 3 * 16), v(k.size());
    for (auto* values : {&k, &v}) {
      for (float& x : *values) x = normal(generator);
    }
    const auto store = [&](SequenceId s, int64_t n) {
      const int64_t first = cache->Length(s);
      ASSERT_TRUE(cache->Extend(s, n).ok());
      for (int32_t layer = 0; layer < 2; ++layer) {
        cache->Store(layer, s, first, n, k.data() + first * 48, v.data() + first * 48);
      }
    };
    const SequenceId whole = *cache->AddSequence(), pieces = *cache->AddSequence();
    store(whole, kLength);
    while (cache->Length(pieces) < kLength) {
      store(pieces, std::min<int64_t>(1 + generator() % 50, kLength - cache->Length(pieces)));
    }
    const std::vector<float> truth = DecodeAll(*cache, whole, 1, kLength);
    EXPECT_EQ(DecodeAll(*cache, pieces, 1, kLength), truth) << KvDTypesName(dtypes);
    // And not on what was stored there before: cut anywhere, store again.
    for (const int64_t cut : {149, 131, 128, 127, 64, 40, 1, 0}) {
      const int64_t kept = cache->Truncate(pieces, cut);
      // Row types can be cut anywhere, the others at the borders of their sealed tiles, in the sink
      // and in the open tile.
      const int64_t tile = cache->plan().TileOf(cut);
      const int64_t first = cache->plan().FirstPositionOfTile(tile);
      const bool exact = dtypes == KvDType::kF32 || dtypes == KvDType::kF16 || tile == 0 ||
                         first + cache->plan().TileTokens(tile) > kLength;
      EXPECT_EQ(kept, exact ? cut : first) << cut;
      EXPECT_EQ(cache->Length(pieces), kept);
      store(pieces, kLength - kept);
      EXPECT_EQ(DecodeAll(*cache, pieces, 1, kLength), truth) << KvDTypesName(dtypes) << cut;
    }
  }
}

// A step that failed between two layers leaves them with different numbers of stored tokens.
TEST(KvCacheTest, TruncatesLayersThatGotDifferentlyFar) {
  for (const KvDTypes dtypes : SomeTypes()) {
    KvCacheOptions options = Small();
    options.dtypes = dtypes;
    const std::unique_ptr<KvCache> cache = Create(options);
    const SequenceId s = *cache->AddSequence();
    ASSERT_TRUE(cache->Extend(s, 20).ok());
    for (int32_t layer = 0; layer < 2; ++layer) StoreMarks(*cache, layer, s, 0, 20);
    ASSERT_TRUE(cache->Extend(s, 30).ok());
    StoreMarks(*cache, 0, s, 20, 30);  // seals the first tile of layer 0 only
    const int64_t kept = cache->Truncate(s, 20);
    const bool exact = dtypes == KvDType::kF32 || dtypes == KvDType::kF16;
    EXPECT_EQ(kept, exact ? 20 : 16);
    ASSERT_TRUE(cache->Extend(s, 50 - kept).ok());
    for (int32_t layer = 0; layer < 2; ++layer) StoreMarks(*cache, layer, s, kept, 50 - kept);
    if (!exact) continue;  // marks come back exactly from row types only
    for (int64_t p = 0; p < 50; ++p) {
      for (int32_t layer = 0; layer < 2; ++layer) ExpectMarks(*cache, layer, s, p);
    }
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
  options.max_tokens = int64_t{1} << 28;  // 512 GB of f16
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

}  // namespace
}  // namespace lode
