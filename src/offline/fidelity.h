// SPDX-License-Identifier: Apache-2.0
// Fidelity: how far the next-token distributions of an attention are from those of exact attention,
// on the same cache in the same run.
//
// The prompt is prefilled with `flash`. Then the text goes on token by token (teacher forced), once
// with `flash` for reference and once with each attention asked for; the cache is cut back in
// between. Only what the attention under test computes differs: setup "decode". In setup "prompt
// end and decode" it also processes the last tokens of the prompt, as a question behind a long
// document would be, so that its errors reach the cache.
#ifndef LODE_OFFLINE_FIDELITY_H_
#define LODE_OFFLINE_FIDELITY_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "base/status.h"
#include "engine/engine.h"
#include "offline/progress.h"

namespace lode {

// The reference of all comparisons.
inline constexpr char kExactAttention[] = "flash";

struct FidelityOptions {
  std::vector<std::string> attentions;  // names of the registry
  int64_t prompt_tokens = 0;            // rounded down to whole tiles of the cache
  int64_t steps = 64;                   // tokens that are decoded
  int64_t cached_tokens = 0;            // of the prompt, in the engine's cache from exact attention
  int64_t sparse_prefill = 256;  // of the prompt's end, rounded up likewise; 0: no such setup
  ProgressCallback on_progress;
};

struct FidelityRow {
  std::string attention;
  int64_t sparse_prefill = 0;  // tokens of the prompt that it processed; 0: setup "decode"
  double mean_kl = 0.0;        // nats per token, of the exact distribution to this one
  double max_kl = 0.0;
  double same_top1 = 0.0;         // share of steps with the same likeliest token
  double perplexity_ratio = 0.0;  // to exact attention
  // Of all that it computed; nothing counted for exact attentions.
  AttentionCounters counters;

  double bytes_share = 0.0;  // of keys, values, codes and means, read, to those of an f16 cache

  // Of the keys that queries attend to, those that were read.
  double KeysReadShare() const;
  // Mean share of softmax mass in summaries, over the queries that left keys out.
  double UnreadShare() const;
  // Means over the audits of the attention itself (SparseOptions::audit_interval); without any row
  // audited, nothing is known.
  bool audited() const { return counters.audits.rows > 0; }
  double MissedMass() const { return counters.audits.missed_mass / counters.audits.rows; }
  double Recall() const { return counters.audits.recall / counters.audits.rows; }
  // AuditCounters::code_recall, where keys are ranked by codes and there are enough of them.
  bool has_code_recall() const { return counters.audits.code_rows > 0; }
  double CodeRecall() const { return counters.audits.code_recall / counters.audits.code_rows; }
};

struct FidelityReport {
  int64_t prompt_tokens = 0;
  int64_t steps = 0;
  double exact_perplexity = 0.0;  // of the decoded tokens
  std::vector<FidelityRow> rows;  // all of setup "decode", then all of the other
};

// Cost: one prefill, steps x (1 + 2 attentions) decode steps, 4 bytes x steps x vocabulary.
// text: the prompt and what follows, at least one token more than prompt and steps.
// InvalidArgument: too few tokens, prompt or steps not positive, an unknown attention.
// ResourceExhausted: the engine's context is too small.
Result<FidelityReport> MeasureFidelity(Engine& engine, std::span<const TokenId> text,
                                       const FidelityOptions& options);

// InvalidArgument as MeasureFidelity, before anything is run.
Status CheckFidelityOptions(std::span<const TokenId> text, const FidelityOptions& options);

// Kullback-Leibler divergence in nats of softmax(logits) from softmax(exact), both [vocab_size].
double KlDivergence(std::span<const float> exact, std::span<const float> logits);
// Natural logarithm of the probability of `token`.
double LogProbabilityOf(std::span<const float> logits, TokenId token);

}  // namespace lode

#endif  // LODE_OFFLINE_FIDELITY_H_
