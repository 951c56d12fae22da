// SPDX-License-Identifier: Apache-2.0
#include "offline/output_audit.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "offline/fidelity.h"
#include "offline/scoped_attention.h"

namespace lode {

void OutputErrors::Add(double cosine, double error) {
  Add({.outputs = 1,
       .mean_cosine = cosine,
       .min_cosine = cosine,
       .mean_error = error,
       .max_error = error});
}

void OutputErrors::Add(const OutputErrors& other) {
  if (other.outputs == 0) return;
  outputs += other.outputs;
  const double weight = static_cast<double>(other.outputs) / static_cast<double>(outputs);
  mean_cosine += weight * (other.mean_cosine - mean_cosine);
  mean_error += weight * (other.mean_error - mean_error);
  min_cosine = std::min(min_cosine, other.min_cosine);
  max_error = std::max(max_error, other.max_error);
}

OutputAudit::OutputAudit(std::unique_ptr<Attention> exact, std::unique_ptr<Attention> tested)
    : exact_(std::move(exact)), tested_(std::move(tested)) {}

void OutputAudit::Forward(const AttentionInputs& inputs, const KvCache& cache, ThreadPool& pool,
                          float* out, int64_t out_stride) {
  exact_->Forward(inputs, cache, pool, out, out_stride);
  const int64_t head_dim = cache.options().head_dim, width = inputs.num_heads * head_dim;
  outputs_.resize(static_cast<size_t>(inputs.num_tokens * width));
  tested_->Forward(inputs, cache, pool, outputs_.data(), width);
  const auto layer = static_cast<size_t>(inputs.layer);
  layers_.resize(std::max(layers_.size(), layer + 1));
  for (int64_t i = 0; i < inputs.num_tokens * inputs.num_heads; ++i) {
    const float* exact = out + i / inputs.num_heads * out_stride + i % inputs.num_heads * head_dim;
    const float* tested = &outputs_[static_cast<size_t>(i * head_dim)];
    double dot = 0.0, exact_squares = 0.0, tested_squares = 0.0, error_squares = 0.0;
    for (int64_t d = 0; d < head_dim; ++d) {
      const double a = exact[d], b = tested[d];
      dot += a * b;
      exact_squares += a * a;
      tested_squares += b * b;
      error_squares += (a - b) * (a - b);
    }
    // An output of zeros is met by zeros alone.
    if (exact_squares == 0.0 || tested_squares == 0.0) {
      const bool same = error_squares == 0.0;
      layers_[layer].Add(same ? 1.0 : 0.0, same ? 0.0 : 1.0);
    } else {
      layers_[layer].Add(dot / std::sqrt(exact_squares * tested_squares),
                         std::sqrt(error_squares / exact_squares));
    }
  }
}

void OutputAudit::Truncate(SequenceId sequence, int64_t length) {
  exact_->Truncate(sequence, length);
  tested_->Truncate(sequence, length);
}

Result<OutputAuditReport> AuditOutputs(Engine& engine, std::span<const TokenId> text,
                                       const OutputAuditOptions& options) {
  FidelityOptions like;
  like.attentions = options.attentions;
  like.prompt_tokens = options.prompt_tokens;
  like.steps = options.steps;
  LODE_RETURN_IF_ERROR(CheckFidelityOptions(text, like));
  OutputAuditReport report;
  report.prompt_tokens =
      options.prompt_tokens / BlockPlan::kMaxTileTokens * BlockPlan::kMaxTileTokens;
  report.steps = options.steps;
  const auto prompt = static_cast<size_t>(report.prompt_tokens);
  const auto steps = static_cast<size_t>(options.steps);
  Progress progress(
      options.on_progress,
      report.prompt_tokens + options.steps * static_cast<int64_t>(options.attentions.size()));
  if (options.cached_tokens == 0) engine.ResetCache();
  const auto cached =
      static_cast<size_t>(engine.Truncate(std::min(options.cached_tokens, report.prompt_tokens)));
  LODE_RETURN_IF_ERROR(progress.MoveTo(static_cast<int64_t>(cached)));
  {
    LODE_ASSIGN_OR_RETURN(auto exact, engine.MakeAttention(kExactAttention));
    const ScopedAttention in_use(engine, std::move(exact));
    LODE_RETURN_IF_ERROR(progress.Append(engine, text.subspan(cached, prompt - cached)));
  }
  for (const std::string& attention : options.attentions) {
    engine.Truncate(report.prompt_tokens);
    LODE_ASSIGN_OR_RETURN(auto exact, engine.MakeAttention(kExactAttention));
    LODE_ASSIGN_OR_RETURN(auto tested, engine.MakeAttention(attention));
    auto audit = std::make_unique<OutputAudit>(std::move(exact), std::move(tested));
    const OutputAudit& found = *audit;
    const ScopedAttention in_use(engine, std::move(audit));
    for (size_t step = 0; step < steps; ++step) {
      LODE_RETURN_IF_ERROR(progress.Append(engine, text.subspan(prompt + step, 1)));
    }
    OutputAuditReport::Row row = {.attention = attention, .layers = found.layers(), .all = {}};
    for (const OutputErrors& layer : row.layers) row.all.Add(layer);
    report.rows.push_back(std::move(row));
  }
  return report;
}

}  // namespace lode
