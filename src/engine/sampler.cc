// SPDX-License-Identifier: Apache-2.0
// A vocabulary of 151,936 logits is too large to sort once a token, so candidates are found by one
// pass with a small heap; only a filter that really needs every token (typical sampling without
// top-k) sorts them all.
#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>

#include "base/check.h"

namespace lode {
namespace {

using Candidate = std::pair<float, int32_t>;  // logit, id

constexpr int64_t kMaxHeapCandidates = 4096;  // above this, nth_element is cheaper than a heap
constexpr int64_t kFirstTopPCandidates = 256;
constexpr int64_t kBlock = 1024;

// Larger logit first, then lower id: the total order behind every "best".
bool Better(const Candidate& a, const Candidate& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

// Loops over a vocabulary use the vector types of GCC and Clang: without -ffast-math neither
// compiler may vectorise a sum or a maximum by itself.
constexpr int64_t kLanes = 4;  // what every x86-64 and AArch64 has
using Floats [[gnu::vector_size(sizeof(float) * kLanes)]] = float;
using Ints [[gnu::vector_size(sizeof(int32_t) * kLanes)]] = int32_t;

Floats LoadLanes(const float* from) {
  Floats lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

Floats Splat(float x) {
  return Floats{} + x;
}

// e^x for x <= 0, 0 below -87; relative error below 3e-7. (std::exp takes 2 ms for a vocabulary.)
// Method: x = n ln 2 + r, |r| <= ln 2 / 2, Taylor polynomial of e^r, n added to the exponent bits.
Floats ExpOfNegative(Floats x) {
  const Floats lowest = Splat(-87.0f);
  const Floats round = Splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Floats clamped = x > lowest ? x : lowest;
  const Floats shifted = clamped * 1.44269504f + round;
  const Floats n = shifted - round;
  const Floats r = (clamped - n * 0.693145752f) - n * 1.42860677e-6f;
  Floats y = Splat(1.0f / 5040);
  for (const float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
    y = y * r + c;
  }
  const Ints exponent = std::bit_cast<Ints>(shifted) - std::bit_cast<Ints>(round);
  const Floats scale = std::bit_cast<Floats>((exponent + 127) << 23);
  return x > lowest ? y * scale : Floats{};
}

// The weight e^((logit - max) / temperature) of a token: its probability up to the common factor.
float Weight(float logit, float max_logit, float temperature) {
  return ExpOfNegative(Splat((logit - max_logit) / temperature))[0];
}

double SumOfWeights(std::span<const float> logits, float max_logit, float temperature) {
  double total = 0.0;
  while (!logits.empty()) {
    const size_t size = std::min<size_t>(logits.size(), static_cast<size_t>(kBlock));
    Floats sums = {};
    size_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
      sums += ExpOfNegative((LoadLanes(&logits[i]) - max_logit) / temperature);
    }
    for (; i < size; ++i) total += Weight(logits[i], max_logit, temperature);
    for (int64_t lane = 0; lane < kLanes; ++lane) total += sums[lane];
    logits = logits.subspan(size);
  }
  return total;
}

double SumOfWeights(const std::vector<Candidate>& candidates, float max_logit, float temperature) {
  double total = 0.0;
  for (const auto& [logit, id] : candidates) total += Weight(logit, max_logit, temperature);
  return total;
}

bool AnyAbove(Floats x, float threshold) {
  const Ints above = x > Splat(threshold);
  const auto words = std::bit_cast<std::array<uint64_t, sizeof(Ints) / sizeof(uint64_t)>>(above);
  return (words[0] | words[1]) != 0;
}

struct Max {
  float logit = -std::numeric_limits<float>::infinity();
  int32_t id = 0;  // the lowest with that logit
};

// The largest of a block; NaN when any of its logits is NaN.
float BlockMax(std::span<const float> block) {
  Floats maxima = Splat(-std::numeric_limits<float>::infinity());
  Ints nan = {};
  size_t i = 0;
  for (; i + kLanes <= block.size(); i += kLanes) {
    const Floats x = LoadLanes(&block[i]);
    maxima = x > maxima ? x : maxima;
    nan |= x != x;
  }
  float result = -std::numeric_limits<float>::infinity();
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    if (nan[lane] != 0) return std::numeric_limits<float>::quiet_NaN();
    result = std::max(result, maxima[lane]);
  }
  for (; i < block.size(); ++i) {
    if (std::isnan(block[i])) return block[i];
    result = std::max(result, block[i]);
  }
  return result;
}

// Internal error unless the largest logit is finite and no logit is NaN.
Result<Max> FindMax(std::span<const float> logits) {
  Max best;
  size_t best_block = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const size_t size = std::min<size_t>(logits.size() - begin, static_cast<size_t>(kBlock));
    const float block_max = BlockMax(logits.subspan(begin, size));
    if (std::isnan(block_max)) {
      const auto at = std::find_if(logits.begin(), logits.end(), [](float x) { return x != x; });
      return InternalError("the model gave NaN as logit of token " +
                           std::to_string(at - logits.begin()));
    }
    if (block_max > best.logit) {
      best.logit = block_max;
      best_block = begin;
    }
  }
  if (!std::isfinite(best.logit)) {
    return InternalError("the model's largest logit is " + std::to_string(best.logit) +
                         ", expected a finite number");
  }
  const auto at = std::find(logits.begin() + best_block, logits.end(), best.logit);
  best.id = static_cast<int32_t>(at - logits.begin());
  return best;
}

// The `count` best tokens of logits, best first.
void CollectTop(std::span<const float> logits, int64_t count, std::vector<Candidate>& out) {
  const int64_t size = static_cast<int64_t>(logits.size());
  out.clear();
  if (count >= size || count > kMaxHeapCandidates) {
    count = std::min(count, size);
    for (int64_t id = 0; id < size; ++id) out.emplace_back(logits[id], static_cast<int32_t>(id));
    std::nth_element(out.begin(), out.begin() + (count - 1), out.end(), Better);
    out.resize(count);
    std::sort(out.begin(), out.end(), Better);
    return;
  }
  for (int64_t id = 0; id < count; ++id) out.emplace_back(logits[id], static_cast<int32_t>(id));
  std::make_heap(out.begin(), out.end(), Better);  // its front is the worst candidate
  for (int64_t id = count; id < size; ++id) {
    // Ids ascend, so an equal logit loses the tie.
    while (id + kLanes <= size && !AnyAbove(LoadLanes(&logits[id]), out.front().first))
      id += kLanes;
    if (id == size) break;
    if (logits[id] <= out.front().first) continue;
    std::pop_heap(out.begin(), out.end(), Better);
    out.back() = {logits[id], static_cast<int32_t>(id)};
    std::push_heap(out.begin(), out.end(), Better);
  }
  std::sort_heap(out.begin(), out.end(), Better);
}

TokenLogprobs LogprobsOf(std::span<const float> logits, float max_logit, int32_t chosen,
                         int32_t num_top, std::vector<Candidate>& scratch) {
  const double log_sum = max_logit + std::log(SumOfWeights(logits, max_logit, 1.0f));
  TokenLogprobs result;
  result.chosen = static_cast<float>(logits[chosen] - log_sum);
  if (num_top == 0) return result;
  CollectTop(logits, num_top, scratch);
  for (const auto& [logit, id] : scratch) {
    result.top.emplace_back(id, static_cast<float>(logit - log_sum));
  }
  return result;
}

Status CheckRange(const char* name, double value, bool ok, const char* range) {
  if (ok) return OkStatus();
  return InvalidArgumentError(std::string(name) + ": expected " + range + ", found " +
                              std::to_string(value));
}

}  // namespace

Status SamplingParams::Validate(int64_t vocab_size) const {
  const auto finite = [](float x) { return std::isfinite(x); };
  LODE_RETURN_IF_ERROR(CheckRange("temperature", temperature,
                                  finite(temperature) && temperature >= 0,
                                  "a finite number of at least 0"));
  LODE_RETURN_IF_ERROR(CheckRange("top_k", top_k, top_k >= 0, "0 (off) or more"));
  LODE_RETURN_IF_ERROR(CheckRange("top_p", top_p, top_p > 0 && top_p <= 1, "0 < top_p <= 1"));
  LODE_RETURN_IF_ERROR(CheckRange("min_p", min_p, min_p >= 0 && min_p <= 1, "0 <= min_p <= 1"));
  LODE_RETURN_IF_ERROR(
      CheckRange("typical_p", typical_p, typical_p > 0 && typical_p <= 1, "0 < typical_p <= 1"));
  LODE_RETURN_IF_ERROR(CheckRange("repetition_penalty", repetition_penalty,
                                  finite(repetition_penalty) && repetition_penalty > 0,
                                  "a finite number above 0"));
  LODE_RETURN_IF_ERROR(CheckRange("presence_penalty", presence_penalty, finite(presence_penalty),
                                  "a finite number"));
  LODE_RETURN_IF_ERROR(CheckRange("frequency_penalty", frequency_penalty, finite(frequency_penalty),
                                  "a finite number"));
  LODE_RETURN_IF_ERROR(CheckRange("penalty_window", penalty_window, penalty_window >= -1,
                                  "-1 (all tokens) or more"));
  LODE_RETURN_IF_ERROR(CheckRange("num_logprobs", num_logprobs,
                                  num_logprobs >= -1 && num_logprobs <= vocab_size,
                                  "-1 (none) to the vocabulary's size"));
  for (const auto& [id, bias] : logit_bias) {
    LODE_RETURN_IF_ERROR(
        CheckRange("logit_bias token", id, id >= 0 && id < vocab_size, "an id of the vocabulary"));
    LODE_RETURN_IF_ERROR(CheckRange("logit_bias", bias, finite(bias), "a finite number"));
  }
  return OkStatus();
}

Sampler::Sampler(const SamplingParams& params, int64_t vocab_size)
    : params_(params), vocab_size_(vocab_size), random_(params.seed) {
  LODE_CHECK(vocab_size > 0);
}

bool Sampler::UsesPenalties() const {
  return params_.penalty_window != 0 &&
         (params_.repetition_penalty != 1.0f || params_.presence_penalty != 0.0f ||
          params_.frequency_penalty != 0.0f);
}

void Sampler::Accept(int32_t id) {
  if (!UsesPenalties()) return;
  LODE_CHECK(id >= 0 && id < vocab_size_);
  history_.push_back(id);
  ++counts_[id];
  const int64_t window = params_.penalty_window;
  if (window < 0 || static_cast<int64_t>(history_.size()) <= window) return;
  const auto leaving = counts_.find(history_[history_.size() - 1 - window]);
  if (--leaving->second == 0) counts_.erase(leaving);
}

void Sampler::ApplyBiasAndPenalties(std::span<float> logits) {
  for (const auto& [id, bias] : params_.logit_bias) logits[id] += bias;
  for (const auto& [id, count] : counts_) {
    float& logit = logits[id];
    // Division would raise a negative logit, so the penalty multiplies there (CTRL, section 4.1).
    logit = logit > 0 ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
    logit -= params_.presence_penalty + params_.frequency_penalty * static_cast<float>(count);
  }
}

Result<SampledToken> Sampler::Sample(std::span<float> logits) {
  LODE_CHECK(static_cast<int64_t>(logits.size()) == vocab_size_);
  const bool wants_logprobs = params_.num_logprobs >= 0;
  LODE_ASSIGN_OR_RETURN(const Max model_max, FindMax(logits));
  if (wants_logprobs) unmodified_.assign(logits.begin(), logits.end());

  Max best = model_max;
  if (!params_.logit_bias.empty() || !counts_.empty()) {
    ApplyBiasAndPenalties(logits);
    LODE_ASSIGN_OR_RETURN(best, FindMax(logits));
  }
  SampledToken token;
  if (params_.temperature == 0.0f) {
    token.id = best.id;
  } else {
    SelectCandidates(logits, best.logit);
    token.id = candidates_.empty() ? DrawFromAll(logits, best.logit) : DrawCandidate(best.logit);
  }
  if (wants_logprobs) {
    token.logprobs =
        LogprobsOf(unmodified_, model_max.logit, token.id, params_.num_logprobs, candidates_);
  }
  return token;
}

// candidates_ stays empty when no filter is on: Draw then looks at all logits.
void Sampler::SelectCandidates(std::span<const float> logits, float max_logit) {
  candidates_.clear();
  const bool has_top_k = params_.top_k > 0 && params_.top_k < vocab_size_;
  const bool has_typical = params_.typical_p < 1.0f;
  const bool has_top_p = params_.top_p < 1.0f;
  const float temperature = params_.temperature;
  if (has_top_k || has_typical) {
    CollectTop(logits, has_top_k ? params_.top_k : vocab_size_, candidates_);
    if (has_typical) KeepTypical(max_logit);
    if (has_top_p) {
      KeepTopP(max_logit, params_.top_p * SumOfWeights(candidates_, max_logit, temperature));
    }
  } else if (has_top_p) {
    // The kept set is usually tiny: collect more only when it is not.
    const double wanted = params_.top_p * SumOfWeights(logits, max_logit, temperature);
    for (int64_t count = kFirstTopPCandidates;; count *= 16) {
      CollectTop(logits, count, candidates_);
      if (count >= vocab_size_) break;
      if (SumOfWeights(candidates_, max_logit, temperature) >= wanted) break;
    }
    KeepTopP(max_logit, wanted);
  } else if (params_.min_p > 0.0f) {
    const float threshold = MinPThreshold(max_logit);
    for (int64_t id = 0; id < vocab_size_; ++id) {
      if (logits[id] >= threshold) candidates_.emplace_back(logits[id], static_cast<int32_t>(id));
    }
    std::sort(candidates_.begin(), candidates_.end(), Better);
  }
  if (!candidates_.empty() && params_.min_p > 0.0f) KeepMinP();
}

// Locally typical sampling (Meister et al. 2023): the tokens whose surprise -ln p is nearest to the
// distribution's entropy, until their probabilities reach typical_p.
void Sampler::KeepTypical(float max_logit) {
  double total = 0.0, weighted = 0.0;
  for (const auto& [logit, id] : candidates_) {
    const double weight = Weight(logit, max_logit, params_.temperature);
    total += weight;
    if (weight > 0) weighted += weight * ((logit - max_logit) / params_.temperature);
  }
  // -ln p = ln(total) - scaled logit, so entropy = ln(total) - weighted / total, and the distance
  // of a surprise from it is |scaled logit - weighted / total|.
  const double mean = weighted / total;
  const auto distance = [&](const Candidate& c) {
    return std::abs((c.first - max_logit) / params_.temperature - mean);
  };
  std::stable_sort(candidates_.begin(), candidates_.end(),
                   [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
  KeepTopP(max_logit, params_.typical_p * total);
  std::sort(candidates_.begin(), candidates_.end(), Better);
}

// Keeps the shortest prefix of candidates_ whose weights reach `wanted`, at least one.
void Sampler::KeepTopP(float max_logit, double wanted) {
  double sum = 0.0;
  size_t kept = 0;
  while (kept < candidates_.size()) {
    sum += Weight(candidates_[kept].first, max_logit, params_.temperature);
    ++kept;
    if (sum >= wanted) break;
  }
  candidates_.resize(kept);
}

float Sampler::MinPThreshold(float best) const {
  return best + params_.temperature * std::log(params_.min_p);
}

// Keeps the tokens at least min_p times as likely as the best one left.
void Sampler::KeepMinP() {
  const float threshold = MinPThreshold(candidates_.front().first);
  while (candidates_.back().first < threshold) candidates_.pop_back();
}

int32_t Sampler::DrawCandidate(float max_logit) {
  const float temperature = params_.temperature;
  double rest = random_.NextUnit() * SumOfWeights(candidates_, max_logit, temperature);
  int32_t last =
      candidates_.front().second;  // of positive weight: the draw if rounding leaves rest
  for (const auto& [logit, id] : candidates_) {
    const double weight = Weight(logit, max_logit, temperature);
    if (weight > 0) last = id;
    if ((rest -= weight) < 0) break;
  }
  return last;
}

int32_t Sampler::DrawFromAll(std::span<const float> logits, float max_logit) {
  // Sums of blocks first, so that only one block's weights are looked at one by one.
  const float temperature = params_.temperature;
  block_sums_.clear();
  for (int64_t begin = 0; begin < vocab_size_; begin += kBlock) {
    const int64_t size = std::min(vocab_size_ - begin, kBlock);
    block_sums_.push_back(SumOfWeights(logits.subspan(begin, size), max_logit, temperature));
  }
  double rest = random_.NextUnit() * std::accumulate(block_sums_.begin(), block_sums_.end(), 0.0);
  size_t block = 0;
  while (block + 1 < block_sums_.size() && rest >= block_sums_[block]) rest -= block_sums_[block++];
  while (block > 0 && block_sums_[block] == 0.0) --block;  // only when rounding left a rest

  const int64_t begin = static_cast<int64_t>(block) * kBlock;
  const int64_t end = std::min(vocab_size_, begin + kBlock);
  int64_t last = begin;
  for (int64_t id = begin; id < end; ++id) {
    const double weight = Weight(logits[id], max_logit, temperature);
    if (weight > 0) last = id;
    if ((rest -= weight) < 0) break;
  }
  return static_cast<int32_t>(last);
}

}  // namespace lode
