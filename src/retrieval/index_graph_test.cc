// SPDX-License-Identifier: Apache-2.0
#include "retrieval/index_graph.h"

#include <gtest/gtest.h>

namespace lode {
namespace {

// Text 1: 1,000 tokens per summary at position 1,000 and 64 at 500,000.
TEST(IndexGraph, SummariesGrowFinerWithThePosition) {
  EXPECT_EQ(IndexGraph::NumSummaries(0), 0);
  EXPECT_EQ(IndexGraph::NumSummaries(1), 1);
  EXPECT_EQ(IndexGraph::NumSummaries(1024), 1);
  EXPECT_EQ(IndexGraph::NumSummaries(1025), 2);
  EXPECT_EQ(IndexGraph::NumSummaries(1024 + 976), 2) << "a million over 1,024 tokens";
  EXPECT_EQ(IndexGraph::NumSummaries(1024 + 976 + 1), 3);
  EXPECT_EQ(IndexGraph::NumSummaries(500'000 + 64 * 100) - IndexGraph::NumSummaries(500'000), 100);
}

// A 7B model without grouped heads (32 layers, 32 heads of 128) at a million tokens. The text says
// 2 MB, 4 MB, 1.2 GB and 2.8 GB.
TEST(IndexGraph, CountsTextOnesParts) {
  const IndexGraph graph =
      IndexGraph::Of({.tokens = 1'000'000, .num_layers = 32, .num_kv_heads = 32, .head_dim = 128});
  EXPECT_EQ(graph.buckets, 1953);
  EXPECT_EQ(graph.bucket_map_bytes, 1024 * int64_t{2'000'000}) << "2 MB per layer and head";
  EXPECT_EQ(graph.summary_pointer_bytes, 4'000'000);
  EXPECT_EQ(graph.sparse_key_bytes, int64_t{1953} * 3 * 1024 * 128 * 2) << "1.5 GB";
  // 1 / granularity, summed: 122 up to position 15,625, then a 64th of the tokens.
  EXPECT_NEAR(static_cast<double>(graph.summaries), 122 + 984'375 / 64.0, 5);
  EXPECT_EQ(graph.summary_token_bytes, graph.summaries * 2 * 1024 * 128 * 2);
  EXPECT_EQ(graph.total_bytes(), graph.bucket_map_bytes + graph.summary_pointer_bytes +
                                     graph.sparse_key_bytes + graph.summary_token_bytes);
}

TEST(IndexGraph, AShortTextHasOneBucket) {
  const IndexGraph graph =
      IndexGraph::Of({.tokens = 300, .num_layers = 1, .num_kv_heads = 2, .head_dim = 8});
  EXPECT_EQ(graph.buckets, 1);
  EXPECT_EQ(graph.summaries, 1);
  EXPECT_EQ(graph.total_bytes(), 2 * 300 * 2 + 300 * 4 + 2 * 3 * 8 * 2 + 2 * 2 * 8 * 2);
}

}  // namespace
}  // namespace lode
