// SPDX-License-Identifier: Apache-2.0
// IndexGraph: the bytes of what text 1 keeps of a context in place of all keys and values, part by
// part, by its own rules. It is there to compare with: lodestone keeps every key and value, and of
// each bucket (sign_codes.h) positions only.
#ifndef LODE_RETRIEVAL_INDEX_GRAPH_H_
#define LODE_RETRIEVAL_INDEX_GRAPH_H_

#include <cstdint>

namespace lode {

struct IndexGraphShape {
  int64_t tokens = 0;
  int64_t num_layers = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
};

// The text gives one bucket map for the whole model (2 bytes per token), but keys are hashed per
// layer and KV head: so maps are counted here. A summary stands for the same tokens in all of them:
// one table of pointers will do, as in the text.
struct IndexGraph {
  int64_t buckets = 0;                // per layer and KV head: SignCodes::NumBuckets
  int64_t summaries = 0;              // of the whole text: NumSummaries
  int64_t bucket_map_bytes = 0;       // u16 [layers][heads][tokens]
  int64_t summary_pointer_bytes = 0;  // i32 [tokens]
  int64_t sparse_key_bytes = 0;       // f16 [layers][heads][buckets][3][head_dim]
  int64_t summary_token_bytes = 0;  // f16 [layers][heads][summaries][2][head_dim], keys and values

  static IndexGraph Of(const IndexGraphShape& shape);
  // Tokens that a summary which begins at a position stands for: min(1024, max(64, 1000000 /
  // position)).
  static int64_t SummaryTokens(int64_t position);
  // Summaries of so many tokens, the last for what is left.
  static int64_t NumSummaries(int64_t tokens);

  int64_t total_bytes() const {
    return bucket_map_bytes + summary_pointer_bytes + sparse_key_bytes + summary_token_bytes;
  }
};

}  // namespace lode

#endif  // LODE_RETRIEVAL_INDEX_GRAPH_H_
