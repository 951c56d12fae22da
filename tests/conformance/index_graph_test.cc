// SPDX-License-Identifier: Apache-2.0
// index_graph against a plain statement of text 1's scheme. It drops most keys, so `eager` is only
// asked where the window holds everything.
#include "attention/index_graph_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "attention/kv_chunk.h"
#include "attention/sparse_index.h"
#include "base/aligned_vector.h"
#include "csa_hca_fixture.h"
#include "retrieval/index_graph.h"

namespace lode {
namespace {

using Summary = SparseOptions::Summary;

constexpr double kTolerance = 1e-5;  // sums in double over the same f32 numbers, in another order
constexpr int64_t kHeadDim = 64, kGroup = 7;

std::unique_ptr<Attention> Create(const SparseOptions& options) {
  return CreateIndexGraphAttention(options, ModelFingerprint{});
}

struct Tokens {
  std::vector<std::vector<float>> keys, values;
};

Tokens TokensOf(const KvCache& cache, int32_t kv_head, int64_t length) {
  Tokens tokens;
  AlignedVector<float> keys(kHeadDim * kPageTokens), values(keys.size());
  for (int64_t page = 0; page < length; page += kPageTokens) {
    const int64_t end = std::min(page + kPageTokens, length);
    const KvChunk chunk(cache, 0, 1, kv_head, page, end);
    chunk.DecodeKeys(keys.data());
    chunk.DecodeValues(values.data(), kHeadDim);
    for (int64_t t = 0; t < end - page; ++t) {
      std::vector<float> key(kHeadDim), value(kHeadDim);
      for (int64_t d = 0; d < kHeadDim; ++d) {
        key[static_cast<size_t>(d)] = keys[static_cast<size_t>(d * kPageTokens + t)];
        value[static_cast<size_t>(d)] = values[static_cast<size_t>(t * kHeadDim + d)];
      }
      tokens.keys.push_back(std::move(key));
      tokens.values.push_back(std::move(value));
    }
  }
  return tokens;
}

// What the last token of `length` attends to, in one KV head and for its first query.
std::vector<double> Expected(const Tokens& tokens, const float* queries, int64_t length,
                             const SparseOptions& options) {
  struct Item {
    std::vector<double> key, value;
    double tokens;
  };
  std::vector<Item> items;
  int64_t begin = 0;
  const int64_t left =
      (length - options.window) / options.update_interval * options.update_interval;
  while (begin + IndexGraph::SummaryTokens(begin) <= left) {
    const int64_t size = IndexGraph::SummaryTokens(begin);
    Item item = {std::vector<double>(kHeadDim), std::vector<double>(kHeadDim),
                 static_cast<double>(size)};
    for (int64_t i = begin; i < begin + size; ++i) {
      for (size_t d = 0; d < kHeadDim; ++d) {
        item.key[d] += tokens.keys[static_cast<size_t>(i)][d] / item.tokens;
        item.value[d] += tokens.values[static_cast<size_t>(i)][d] / item.tokens;
      }
    }
    if (options.summary != Summary::kNone) items.push_back(std::move(item));
    begin += size;
  }
  const auto score = [&](const Item& item) {
    double sum = 0.0;
    for (size_t d = 0; d < kHeadDim; ++d) sum += queries[d] * item.key[d];
    return sum;
  };
  std::ranges::sort(items, std::greater<>(), score);
  items.resize(static_cast<size_t>(
      std::ceil(options.summary_ratio * static_cast<double>(items.size()) - 1e-3)));
  std::set<int64_t> positions;
  for (int64_t i = begin; i < length; ++i) positions.insert(i);
  SparseOptions by_buckets = options;
  by_buckets.scores = SparseOptions::Scores::kBuckets;
  SignCodes signs(kHeadDim, SignOptionsOf(by_buckets, ModelFingerprint{}));
  signs.Update(begin / kPageTokens, [&](int64_t page, float* out) {
    for (int64_t d = 0; d < kHeadDim; ++d) {
      for (int64_t t = 0; t < kPageTokens; ++t) {
        out[d * kPageTokens + t] =
            tokens.keys[static_cast<size_t>(page * kPageTokens + t)][static_cast<size_t>(d)];
      }
    }
  });
  if (signs.num_pages() > 0) {
    const auto buckets = signs.Buckets(signs.num_pages());
    const auto met = signs.BucketsOf(queries, 1, std::ssize(buckets));
    const auto& bucket = buckets[static_cast<size_t>(met[0])];
    positions.insert(bucket.positions.begin(), bucket.positions.begin() + bucket.count);
  }
  for (const int64_t position : positions) {
    const auto& key = tokens.keys[static_cast<size_t>(position)];
    const auto& value = tokens.values[static_cast<size_t>(position)];
    items.push_back({{key.begin(), key.end()}, {value.begin(), value.end()}, 1.0});
  }
  double sum = 0.0;
  std::vector<double> out(kHeadDim);
  for (const Item& item : items) {
    const double weight = item.tokens * std::exp(score(item) / 8.0);
    sum += weight;
    for (size_t d = 0; d < kHeadDim; ++d) out[d] += weight * item.value[d];
  }
  for (double& x : out) x /= sum;
  return out;
}

// Tells the attention rows [n, num_kv_heads, head_dim].
void AddRows(Attention& attention, const Case& c, int64_t first, const std::vector<float>& k,
             const std::vector<float>& v) {
  attention.AddFeedForward({.layer = 1,
                            .sequence = 0,
                            .first_position = first,
                            .num_tokens = std::ssize(k) / (c.num_kv_heads * kHeadDim),
                            .num_kv_heads = c.num_kv_heads,
                            .head_dim = kHeadDim,
                            .k = k.data(),
                            .v = v.data()});
}

TEST(IndexGraphAttention, FollowsThePlainStatement) {
  for (const SparseOptions& options :
       {SparseOptions{.window = 300, .seed = 3},
        SparseOptions{.window = 300, .summary = Summary::kNone, .seed = 3},
        SparseOptions{.window = 300, .update_interval = 1000, .summary_ratio = 0.3, .seed = 3}}) {
    const Case c = {.length = 2500};
    Fixture f(c);
    const auto attention = Create(options);
    const std::vector<float> out = f.Run(*attention, 2499, 1, 1);
    for (int32_t head = 0; head < c.num_kv_heads; ++head) {
      const std::vector<double> expected =
          Expected(TokensOf(f.cache(), head, 2500), f.Query(2499, head * kGroup), 2500, options);
      for (size_t d = 0; d < kHeadDim; ++d) {
        EXPECT_NEAR(out[static_cast<size_t>(head * kGroup * kHeadDim) + d], expected[d], kTolerance)
            << head << " " << d;
      }
    }
    const AttentionCounters counters = attention->counters();
    EXPECT_EQ(counters.rows, 14);
    EXPECT_LT(counters.keys_read, counters.keys / (options.update_interval > 1 ? 2 : 3));
    EXPECT_EQ(counters.unread_share > 0.0, options.summary == Summary::kMean);
  }
}

TEST(IndexGraphAttention, AWindowThatHoldsEverythingIsExact) {
  Fixture f({.length = 400});
  const auto attention = Create({.window = 400});
  EXPECT_LT(RelativeError(f.Run(*attention, 0, 400, 77, 2), f.Truth(0, 400)), kTolerance);
  EXPECT_EQ(attention->counters().rows, 0);
}

TEST(IndexGraphAttention, ALayerThatSlidesIsExact) {
  Fixture f({.length = 1500, .window = 90});
  const auto attention = Create({.window = 64});
  EXPECT_LT(RelativeError(f.Run(*attention, 1490, 10, 10), f.Truth(1490, 10)), 1e-4);
}

TEST(IndexGraphAttention, HowATextGrewDoesNotMatter) {
  const SparseOptions options = {.window = 64};
  Fixture f({.length = 1700});
  const std::vector<float> whole = f.Run(*Create(options), 1650, 50, 50);
  const auto stepwise = Create(options);
  f.Run(*stepwise, 1100, 7, 7);
  EXPECT_EQ(f.Run(*stepwise, 1650, 50, 1, 2), whole);
  stepwise->Truncate(0, 1640);
  EXPECT_EQ(f.Run(*stepwise, 1650, 50, 3), whole);
  stepwise->Truncate(0, 1060);  // a summary ends at 1,024, less than a window before
  EXPECT_EQ(f.Run(*stepwise, 1060, 1, 1), f.Run(*Create(options), 1060, 1, 1));
}

// Whatever the steps, no summary of a prompt has to do without rows.
TEST(IndexGraphAttention, RowsThatComeAfterTheirStepAreWaitedFor) {
  const Case c = {.length = 1400};
  Fixture f(c);
  const SparseOptions options = {.window = 64, .summary = Summary::kFeedForward};
  for (const int64_t chunk : {48, 400}) {
    const auto attention = Create(options);
    for (int64_t first = 0; first < c.length; first += chunk) {
      const int64_t n = std::min(chunk, c.length - first);
      const std::vector<float> out = f.Run(*attention, first, n, n);
      const auto size = static_cast<size_t>(n * c.num_kv_heads * kHeadDim);
      AddRows(*attention, c, first, std::vector<float>(size, 0.0f), std::vector<float>(size, 7.0f));
      if (first < 1200) continue;
      // The summary of the first 1,024 tokens has a tenth of the weight or so, and values of 7.
      double mean = 0.0;
      for (const float x : out) mean += x / static_cast<double>(out.size());
      EXPECT_GT(mean, 0.4) << first << ": means would be near 0";
    }
  }
}

// Rows from the feed-forward half stand in for keys and values, where all of a summary's are known.
TEST(IndexGraphAttention, FeedForwardRowsMakeSummaries) {
  const Case c = {.length = 1200};
  Fixture f(c);
  const SparseOptions means = {.window = 64},
                      rows = {.window = 64, .summary = Summary::kFeedForward};
  const std::vector<float> by_means = f.Run(*Create(means), 1199, 1, 1);
  const auto attention = Create(rows);
  EXPECT_TRUE(attention->WantsFeedForward());
  EXPECT_FALSE(Create(means)->WantsFeedForward());
  EXPECT_EQ(f.Run(*attention, 1199, 1, 1), by_means) << "no rows came";

  // Values that are 1 everywhere, for the only summary, whose key outweighs all else.
  const auto told = Create(rows);
  for (int64_t first = 0; first < 1199; first += 11) {
    const int64_t n = 11, width = c.num_kv_heads * kHeadDim;
    std::vector<float> k, v(static_cast<size_t>(n * width), 1.0f);
    for (int64_t i = 0; i < n * c.num_kv_heads; ++i) {
      const float* query = f.Query(1199, i % c.num_kv_heads * kGroup);
      for (int64_t d = 0; d < kHeadDim; ++d) k.push_back(20.0f * query[d]);
    }
    AddRows(*told, c, first, k, v);
  }
  const std::vector<float> out = f.Run(*told, 1199, 1, 1);
  for (int32_t head = 0; head < c.num_kv_heads; ++head) {
    for (int64_t d = 0; d < kHeadDim; ++d) {
      EXPECT_NEAR(out[static_cast<size_t>(head * kGroup * kHeadDim + d)], 1.0f, 1e-4f);
    }
  }
}

}  // namespace
}  // namespace lode
