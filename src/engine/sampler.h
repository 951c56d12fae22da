// SPDX-License-Identifier: Apache-2.0
// Sampler: logits to a token. Order of the steps (docs/sampling.md): logit bias, repetition /
// presence / frequency penalties, (temperature 0: argmax, lowest id on ties), temperature, top-k,
// typical, top-p, min-p, draw.
#ifndef LODE_ENGINE_SAMPLER_H_
#define LODE_ENGINE_SAMPLER_H_

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"

namespace lode {

struct SamplingParams {
  float temperature = 0.0f;         // 0: greedy
  int32_t top_k = 0;                // 0: off
  float top_p = 1.0f;               // 1: off
  float min_p = 0.0f;               // 0: off
  float typical_p = 1.0f;           // 1: off
  float repetition_penalty = 1.0f;  // 1: off
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  int32_t penalty_window = -1;  // last n tokens (prompt included) the penalties look at; -1: all
  std::map<int32_t, float> logit_bias;
  uint64_t seed = 0;          // equal seeds give equal draws
  int32_t num_logprobs = -1;  // -1: none; n: the chosen token's log probability and the n best

  // InvalidArgument names the parameter, the range and the value.
  Status Validate(int64_t vocab_size) const;
};

struct TokenLogprobs {
  float chosen = 0.0f;                         // natural log, of the unmodified model distribution
  std::vector<std::pair<int32_t, float>> top;  // best first
};

struct SampledToken {
  int32_t id = 0;
  TokenLogprobs logprobs;  // filled when asked for
};

class Sampler {
 public:
  Sampler(const SamplingParams& params, int64_t vocab_size);
  // Tokens the penalties know about: the prompt's, then each accepted one.
  void Accept(int32_t id);
  // logits [vocab_size], modified in place. Internal error on a NaN logit. One thread.
  Result<SampledToken> Sample(std::span<float> logits);

 private:
  SamplingParams params_;
  int64_t vocab_size_;
  uint64_t random_state_[4];
  std::vector<int32_t> history_;
  std::vector<std::pair<float, int32_t>> candidates_;
};

}  // namespace lode

#endif  // LODE_ENGINE_SAMPLER_H_
