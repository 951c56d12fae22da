// SPDX-License-Identifier: Apache-2.0
#include "offline/fidelity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kv/block_plan.h"
#include "offline/scoped_attention.h"

namespace lode {
namespace {

constexpr int64_t kTile = BlockPlan::kMaxTileTokens;

double LogSumExp(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

int64_t Best(std::span<const float> logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

// The text, what exact attention made of it, and where the comparison stands.
class Comparison {
 public:
  Comparison(Engine& engine, std::span<const TokenId> text, const FidelityOptions& options)
      : engine_(engine),
        text_(text),
        prompt_(static_cast<size_t>(options.prompt_tokens)),
        steps_(static_cast<size_t>(options.steps)),
        vocab_(static_cast<size_t>(engine.model().config().vocab_size)),
        progress_(options.on_progress, TotalTokens(options)) {}

  // Fills the cache, which has `cached` tokens of the prompt already, and the reference.
  Status RunExact(size_t cached, FidelityReport& report) {
    LODE_ASSIGN_OR_RETURN(auto exact, engine_.MakeAttention(kExactAttention));
    const ScopedAttention in_use(engine_, std::move(exact));
    if (cached == 0) engine_.ResetCache();
    LODE_RETURN_IF_ERROR(Keep(cached));
    LODE_RETURN_IF_ERROR(progress_.MoveTo(static_cast<int64_t>(cached)));
    LODE_RETURN_IF_ERROR(progress_.Append(engine_, text_.subspan(cached, prompt_ - cached)));
    exact_.reserve(steps_ * vocab_);
    double surprise = 0.0;
    LODE_RETURN_IF_ERROR(Decode([&](size_t step, std::span<const float> logits) {
      exact_.insert(exact_.end(), logits.begin(), logits.end());
      surprise -= LogProbabilityOf(logits, text_[prompt_ + step + 1]);
    }));
    exact_surprise_ = surprise / static_cast<double>(steps_);
    report.prompt_tokens = static_cast<int64_t>(prompt_);
    report.steps = static_cast<int64_t>(steps_);
    report.exact_perplexity = std::exp(exact_surprise_);
    return OkStatus();
  }

  // One attention; `sparse` tokens of the prompt's end are its own.
  Result<FidelityRow> Run(const std::string& attention, int64_t sparse) {
    const size_t shared = prompt_ - static_cast<size_t>(sparse);
    LODE_RETURN_IF_ERROR(Keep(shared));
    LODE_ASSIGN_OR_RETURN(auto tested, engine_.MakeAttention(attention));
    const ScopedAttention in_use(engine_, std::move(tested));
    LODE_RETURN_IF_ERROR(progress_.Append(engine_, text_.subspan(shared, prompt_ - shared)));
    FidelityRow row = {.attention = attention, .sparse_prefill = sparse, .counters = {}};
    double surprise = 0.0;
    LODE_RETURN_IF_ERROR(Decode([&](size_t step, std::span<const float> logits) {
      const auto exact = std::span<const float>(exact_).subspan(step * vocab_, vocab_);
      const double kl = KlDivergence(exact, logits);
      row.mean_kl += kl;
      row.max_kl = std::max(row.max_kl, kl);
      row.same_top1 += Best(exact) == Best(logits) ? 1.0 : 0.0;
      surprise -= LogProbabilityOf(logits, text_[prompt_ + step + 1]);
    }));
    const auto steps = static_cast<double>(steps_);
    row.mean_kl /= steps;
    row.same_top1 /= steps;
    row.perplexity_ratio = std::exp(surprise / steps - exact_surprise_);
    row.counters = engine_.attention().counters();
    const double f16_bytes = static_cast<double>(row.counters.keys) * 2.0 *
                             static_cast<double>(engine_.model().config().head_dim) * 2.0;
    if (row.counters.keys > 0) {
      row.bytes_share = static_cast<double>(row.counters.bytes_read) / f16_bytes;
    }
    return row;
  }

 private:
  static int64_t TotalTokens(const FidelityOptions& options) {
    const auto attentions = static_cast<int64_t>(options.attentions.size());
    int64_t total = options.prompt_tokens + options.steps * (1 + attentions);
    if (options.sparse_prefill > 0) total += attentions * (options.sparse_prefill + options.steps);
    return total;
  }

  // Cuts the cache back.
  Status Keep(size_t tokens) {
    const int64_t kept = engine_.Truncate(static_cast<int64_t>(tokens));
    if (kept == static_cast<int64_t>(tokens)) return OkStatus();
    return InternalError(fmt::format("the cache was to keep {} tokens and kept {}", tokens, kept));
  }

  // Decodes the tokens behind the prompt one by one: visit(step, logits after it).
  template <class Visit>
  Status Decode(const Visit& visit) {
    for (size_t step = 0; step < steps_; ++step) {
      LODE_RETURN_IF_ERROR(progress_.Append(engine_, text_.subspan(prompt_ + step, 1)));
      visit(step, engine_.last_logits());
    }
    return OkStatus();
  }

  Engine& engine_;
  const std::span<const TokenId> text_;
  const size_t prompt_, steps_, vocab_;
  Progress progress_;
  std::vector<float> exact_;  // logits [steps][vocab_size]
  double exact_surprise_ = 0.0;
};

}  // namespace

double FidelityRow::KeysReadShare() const {
  if (counters.keys == 0) return 1.0;
  return static_cast<double>(counters.keys_read) / static_cast<double>(counters.keys);
}

double FidelityRow::UnreadShare() const {
  return counters.rows == 0 ? 0.0 : counters.unread_share / counters.rows;
}

double KlDivergence(std::span<const float> exact, std::span<const float> logits) {
  const double exact_sum = LogSumExp(exact), sum = LogSumExp(logits);
  double kl = 0.0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double log_p = exact[i] - exact_sum;
    kl += std::exp(log_p) * (log_p - (logits[i] - sum));
  }
  return kl;
}

double LogProbabilityOf(std::span<const float> logits, TokenId token) {
  return logits[static_cast<size_t>(token)] - LogSumExp(logits);
}

Status CheckFidelityOptions(std::span<const TokenId> text, const FidelityOptions& options) {
  for (const std::string& name : options.attentions) {
    LODE_RETURN_IF_ERROR(CheckAttentionName(name));
  }
  if (options.prompt_tokens < kTile || options.steps < 1 || options.sparse_prefill < 0) {
    return InvalidArgumentError(fmt::format(
        "fidelity: expected a prompt of at least {} tokens, 1 step and no negative number, found "
        "{} tokens, {} steps, {} tokens of sparse prefill",
        kTile, options.prompt_tokens, options.steps, options.sparse_prefill));
  }
  const int64_t needed = options.prompt_tokens / kTile * kTile + options.steps + 1;
  if (static_cast<int64_t>(text.size()) >= needed) return OkStatus();
  return InvalidArgumentError(
      fmt::format("the text has {} tokens, a prompt of {} and {} steps need {}", text.size(),
                  options.prompt_tokens, options.steps, needed));
}

Result<FidelityReport> MeasureFidelity(Engine& engine, std::span<const TokenId> text,
                                       const FidelityOptions& asked) {
  LODE_RETURN_IF_ERROR(CheckFidelityOptions(text, asked));
  // The cache is cut back between tiles: there it forgets exactly what it is told to.
  FidelityOptions options = asked;
  options.prompt_tokens = asked.prompt_tokens / kTile * kTile;
  options.sparse_prefill =
      std::min((asked.sparse_prefill + kTile - 1) / kTile * kTile, options.prompt_tokens);
  FidelityReport report;
  Comparison comparison(engine, text, options);
  const int64_t cached = std::min(asked.cached_tokens / kTile * kTile, options.prompt_tokens);
  LODE_RETURN_IF_ERROR(comparison.RunExact(static_cast<size_t>(cached), report));
  // Those that keep the prompt's end as it is come first.
  std::vector<int64_t> setups = {0};
  if (options.sparse_prefill > 0) setups.push_back(options.sparse_prefill);
  for (const int64_t setup : setups) {
    for (const std::string& attention : options.attentions) {
      LODE_ASSIGN_OR_RETURN(FidelityRow row, comparison.Run(attention, setup));
      report.rows.push_back(std::move(row));
    }
  }
  return report;
}

}  // namespace lode
