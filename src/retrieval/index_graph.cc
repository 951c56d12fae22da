// SPDX-License-Identifier: Apache-2.0
#include "retrieval/index_graph.h"

#include <algorithm>

#include "retrieval/sign_codes.h"

namespace lode {
namespace {

constexpr int64_t kCoarsest = 1024, kFinest = 64;  // tokens per summary
constexpr int64_t kScale = 1'000'000;              // positions times tokens, between these
constexpr int64_t kHalfBytes = 2;                  // of an f16 and of a u16
constexpr int64_t kPointerBytes = 4;

}  // namespace

int64_t IndexGraph::SummaryTokens(int64_t position) {
  return position == 0 ? kCoarsest : std::clamp(kScale / position, kFinest, kCoarsest);
}

int64_t IndexGraph::NumSummaries(int64_t tokens) {
  int64_t summaries = 0;
  for (int64_t position = 0; position < tokens; ++summaries) position += SummaryTokens(position);
  return summaries;
}

IndexGraph IndexGraph::Of(const IndexGraphShape& shape) {
  const int64_t heads = shape.num_layers * shape.num_kv_heads;
  IndexGraph graph;
  graph.buckets = SignCodes::NumBuckets(shape.tokens);
  graph.summaries = NumSummaries(shape.tokens);
  graph.bucket_map_bytes = heads * shape.tokens * kHalfBytes;
  graph.summary_pointer_bytes = shape.tokens * kPointerBytes;
  graph.sparse_key_bytes =
      heads * graph.buckets * SignCodes::kKeysKept * shape.head_dim * kHalfBytes;
  graph.summary_token_bytes = heads * graph.summaries * 2 * shape.head_dim * kHalfBytes;
  return graph;
}

}  // namespace lode
