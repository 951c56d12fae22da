// SPDX-License-Identifier: Apache-2.0
// index_graph: text 1's whole scheme as written, with nothing behind it. A baseline to compare
// with; plain loops, whose times say nothing.
//
// Of the tokens before a query, the newest `window` are attended to as they are. Those before them
// are cut into summaries of min(1024, max(64, 1000000 / position)) tokens, one key and one value
// each, and of each bucket of sign bits (retrieval/sign_codes.h) three keys are kept with their
// values: a query meets those of its own bucket. Every other key and value counts for nothing, as
// if it were gone. Tokens that no whole summary stands for yet count to the window.
//
// Where the text is silent: a summary of n tokens weighs as n keys; a key that is kept is part of
// its summary too; queries see summary_ratio of the summaries, by q.k (the text has 0.001, here all
// of them by default); layers that slide are exact.
#ifndef LODE_ATTENTION_INDEX_GRAPH_ATTENTION_H_
#define LODE_ATTENTION_INDEX_GRAPH_ATTENTION_H_

#include <cstdint>
#include <memory>

#include "attention/attention.h"
#include "retrieval/calibration.h"

namespace lode {

// Uses window, update_interval, summary, summary_ratio, hash_dim and seed of the options; a seed of
// 0 is the fingerprint. With Summary::kFeedForward summaries end where a call's tokens begin, whose
// rows come after it (so the window may be longer), and a summary with a token that has no rows is
// one of means, with a warning: another attention processed it, or it was summarised before a
// truncation.
std::unique_ptr<Attention> CreateIndexGraphAttention(const SparseOptions& options,
                                                     const ModelFingerprint& fingerprint);

// What it keeps of one layer and KV head: sign bits of all keys, and summaries in f32.
int64_t IndexGraphStateBytes(const SparseOptions& options, int64_t head_dim, int64_t tokens);

}  // namespace lode

#endif  // LODE_ATTENTION_INDEX_GRAPH_ATTENTION_H_
