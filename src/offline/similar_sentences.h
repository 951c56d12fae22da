// SPDX-License-Identifier: Apache-2.0
// Similar sentences: whether key codes find the same keys for sentences that say nearly the same.
//
// Behind a context stand variants of one sentence, each by itself. The query of a sentence's last
// token has the keys of the context as neighbours: the k keys with the largest softmax mass, summed
// over the query heads that share a KV head, which is how csa_hca ranks. Once masses are estimated
// from codes (retrieval/page_index.h), once they are exact. An index that works lets similar
// sentences share about as many neighbours by codes as they do by exact scores, and unrelated ones
// fewer; and the neighbours by codes are the exact ones.
//
// Where the engine's options rank by text 1's buckets (retrieval/sign_codes.h), it is also counted
// in how many buckets the queries of the variants fall, of which the text says at most three, and
// what share of the exact neighbours is among the keys that these buckets keep.
#ifndef LODE_OFFLINE_SIMILAR_SENTENCES_H_
#define LODE_OFFLINE_SIMILAR_SENTENCES_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "offline/progress.h"

namespace lode {

// Sentences that differ in two or three words; equal seeds give equal ones.
std::vector<std::string> SentenceVariants(int64_t count, uint64_t seed);

struct SimilarityOptions {
  int64_t context_tokens = 2048;  // at the text's beginning; whole pages of it
  int64_t variants = 1000;        // at least 2
  int64_t unrelated = 100;        // sentences of the text behind the context, to compare with
  int64_t neighbours = 32;        // k
  int64_t max_layers = 6;         // spread over those that are calibrated
  uint64_t seed = 1;
  ProgressCallback on_progress;  // in tokens, about
};

// Shares of k, means over pairs or sentences and over KV heads.
struct SimilarityRow {
  int32_t layer = 0;
  double shared_by_codes = 0.0;  // neighbours that two successive variants have in common
  double shared_exact = 0.0;
  double unrelated_by_codes = 0.0;  // the same of two unrelated sentences
  double unrelated_exact = 0.0;
  double recall = 0.0;  // exact neighbours of variants that are neighbours by codes
  // Only if the report has buckets. Means over query heads, but the last.
  double variant_buckets = 0.0;  // that the variants' queries fall in
  double one_bucket = 0.0;       // share of the variants in the one that most fall in
  double bucket_recall = 0.0;    // exact neighbours that the buckets of a variant's queries keep
};

struct SimilarityReport {
  int64_t context_tokens = 0;
  int64_t variants = 0;
  int64_t unrelated = 0;  // that the text had
  int64_t neighbours = 0;
  int64_t buckets = 0;  // of the context; 0: pages are not ranked by buckets
  std::vector<SimilarityRow> layers;
  SimilarityRow all;  // means over layers
};

// Leaves the context in the engine's cache. InvalidArgument: a text that is too short for the
// context; fewer than k keys or 2 variants. Unsupported: no layer has a calibration. Cost: a
// prefill of the context and of some fifteen tokens per sentence; variants x context x k words.
Result<SimilarityReport> CompareSimilarSentences(Engine& engine, std::span<const TokenId> text,
                                                 const SimilarityOptions& options);

}  // namespace lode

#endif  // LODE_OFFLINE_SIMILAR_SENTENCES_H_
