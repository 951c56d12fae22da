// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <memory>

namespace lode {
namespace {

// In the order of preference.
constexpr std::array<KvDTypes, 4> kCandidates = {
    KvDTypes(KvDType::kInt8), KvDTypes(KvDType::kInt8, KvDType::kInt4), KvDTypes(KvDType::kInt6),
    KvDTypes(KvDType::kInt4)};

// Written for this test. Long enough for kKvTestTokens tokens of any tokenizer.
constexpr std::string_view kText =
    R"(The keeper of the lighthouse wrote a line in his book every evening: the height of the tide,
the wind, and the name of every ship that passed. On 14 March 1873 he counted 27 of them, and on the
next day none, because the fog lay on the water like wool. "If nobody sees the lamp," his daughter
asked, "does it still have to burn?" He answered that it has to burn most of all when nobody sees
it.

def mean_height(tides):
    """Mean of the heights in metres, or 0.0 for an empty list."""
    if not tides:
        return 0.0
    return sum(t.height for t in tides) / len(tides)

| day | ships | tide (m) |
|---|---|---|
| 14 | 27 | 3.4 |
| 15 | 0 | 3.1 |

Of the 27 ships that passed on the first day, nine were steamers; the rest went under sail. On the
second day the keeper of the lighthouse wrote in his book: no ships, tide 3.1 metres, fog.)";

int64_t NumScored(int64_t num_tokens) {
  return num_tokens - num_tokens * 2 / 3;
}

// Logits become log-probabilities.
void LogSoftmax(std::span<float> row) {
  const float largest = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float x : row) sum += std::exp(double{x} - double{largest});
  const auto shift = static_cast<float>(double{largest} + std::log(sum));
  for (float& x : row) x -= shift;
}

}  // namespace

std::vector<TokenId> KvTestTokens(const Tokenizer& tokenizer) {
  std::vector<TokenId> tokens = tokenizer.Encode(kText);
  tokens.resize(std::min(tokens.size(), static_cast<size_t>(kKvTestTokens)));
  return tokens;
}

Result<std::vector<float>> KvTestLogProbs(KvTestBench& bench, KvDTypes dtypes,
                                          std::span<const TokenId> tokens) {
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  const int64_t vocab_size = bench.model.config().vocab_size;
  KvCacheOptions options = bench.kv;
  options.dtypes = dtypes;
  options.max_tokens = num_tokens;
  options.memory_bytes = 0;
  // Tiles of 32 tokens from the start, which are the least exact: those of a long text.
  options.block_size = BlockPlan::kMaxBlockTokens;
  options.memory_bytes = 0;
  LODE_ASSIGN_OR_RETURN(const std::unique_ptr<KvCache> cache, KvCache::Create(options));
  LODE_ASSIGN_OR_RETURN(const SequenceId sequence, cache->AddSequence());
  LODE_RETURN_IF_ERROR(cache->Extend(sequence, num_tokens));
  Batch batch;
  batch.token_ids.assign(tokens.begin(), tokens.end());
  batch.segments.push_back({sequence, 0, 0, num_tokens});
  for (int64_t i = num_tokens - NumScored(num_tokens); i < num_tokens; ++i) {
    batch.logits_tokens.push_back(i);
  }
  std::vector<float> logits(static_cast<size_t>(NumScored(num_tokens) * vocab_size));
  LODE_RETURN_IF_ERROR(
      bench.model.Forward(batch, *cache, bench.attention, bench.pool, logits.data()));
  bench.pool.ParallelFor(NumScored(num_tokens), [&](int64_t row, int) {
    LogSoftmax(std::span(logits).subspan(static_cast<size_t>(row * vocab_size),
                                         static_cast<size_t>(vocab_size)));
  });
  return logits;
}

double MeanKl(std::span<const float> reference, std::span<const float> found, int64_t vocab_size) {
  double sum = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    sum += std::exp(double{reference[i]}) * (double{reference[i]} - double{found[i]});
  }
  return sum * static_cast<double>(vocab_size) / static_cast<double>(reference.size());
}

Result<KvChoice> ChooseKvDTypes(KvTestBench& bench, const Tokenizer& tokenizer, int64_t context_len,
                                int64_t budget_bytes) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<TokenId> tokens = KvTestTokens(tokenizer);
  LODE_ASSIGN_OR_RETURN(const std::vector<float> reference,
                        KvTestLogProbs(bench, KvDType::kF16, tokens));
  KvChoice choice;
  std::string tried;
  for (const KvDTypes& candidate : kCandidates) {
    KvCacheOptions options = bench.kv;
    options.dtypes = candidate;
    if (budget_bytes > 0 && KvCache::BytesFor(options, context_len) > budget_bytes) {
      tried += fmt::format("{} does not fit, ", KvDTypesName(candidate));
      continue;
    }
    LODE_ASSIGN_OR_RETURN(const std::vector<float> found, KvTestLogProbs(bench, candidate, tokens));
    const double kl = MeanKl(reference, found, bench.model.config().vocab_size);
    tried += fmt::format("{} differs from f16 by {:.1e} nats per token (bound {}), ",
                         KvDTypesName(candidate), kl, kMaxKvKl);
    if (!(kl <= kMaxKvKl)) continue;
    choice.dtypes = candidate;
    break;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  choice.reason = fmt::format("KV cache in {}: {}tested in {:.1f} s", KvDTypesName(choice.dtypes),
                              tried, seconds.count());
  return choice;
}

}  // namespace lode
