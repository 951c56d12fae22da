// SPDX-License-Identifier: Apache-2.0
// Output audit: the outputs of an attention beside those of exact attention, layer by layer, on the
// same queries, keys and values.
//
// Logits say how much is lost in all; this says where. Exact outputs go on to the next layer, so
// every layer is judged on its own and errors do not add up.
#ifndef LODE_OFFLINE_OUTPUT_AUDIT_H_
#define LODE_OFFLINE_OUTPUT_AUDIT_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "base/status.h"
#include "engine/engine.h"
#include "offline/progress.h"

namespace lode {

// Of the outputs [head_dim] of all heads and queries.
struct OutputErrors {
  int64_t outputs = 0;
  double mean_cosine = 1.0;  // with the exact output
  double min_cosine = 1.0;
  double mean_error = 0.0;  // length of the difference over that of the exact output
  double max_error = 0.0;

  void Add(double cosine, double error);
  void Add(const OutputErrors& other);
};

// Passes on what `exact` computes and compares `tested` with it.
class OutputAudit final : public Attention {
 public:
  OutputAudit(std::unique_ptr<Attention> exact, std::unique_ptr<Attention> tested);

  void Forward(const AttentionInputs& inputs, const KvCache& cache, ThreadPool& pool, float* out,
               int64_t out_stride) override;
  void Truncate(SequenceId sequence, int64_t length) override;
  bool WantsFeedForward() const override { return tested_->WantsFeedForward(); }
  void AddFeedForward(const FeedForwardRows& rows) override { tested_->AddFeedForward(rows); }
  AttentionCounters counters() const override { return tested_->counters(); }

  const std::vector<OutputErrors>& layers() const { return layers_; }

 private:
  const std::unique_ptr<Attention> exact_, tested_;
  std::vector<float> outputs_;  // of tested_, [num_tokens, num_heads, head_dim]
  std::vector<OutputErrors> layers_;
};

struct OutputAuditReport {
  struct Row {
    std::string attention;
    std::vector<OutputErrors> layers;
    OutputErrors all;
  };
  int64_t prompt_tokens = 0;
  int64_t steps = 0;
  std::vector<Row> rows;  // one per attention
};

struct OutputAuditOptions {
  std::vector<std::string> attentions;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, in the engine's cache from exact attention
  int64_t steps = 16;         // tokens that are decoded, teacher forced
  ProgressCallback on_progress;
};

// Options and text as MeasureFidelity has them, with its errors.
Result<OutputAuditReport> AuditOutputs(Engine& engine, std::span<const TokenId> text,
                                       const OutputAuditOptions& options);

}  // namespace lode

#endif  // LODE_OFFLINE_OUTPUT_AUDIT_H_
