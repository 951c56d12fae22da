// SPDX-License-Identifier: Apache-2.0
// Which types keys and values of the cache should have for a given model: measured, not guessed.
//
// How much a type costs depends on the model (Qwen2 has keys that coarse scales destroy). The test
// runs a short built-in text through the loaded model with f16 and with a candidate, and compares
// the distributions of the next token.
#ifndef LODE_ENGINE_KV_CHOICE_H_
#define LODE_ENGINE_KV_CHOICE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "kv/kv_cache.h"
#include "models/model.h"
#include "tokenizer/tokenizer.h"

namespace lode {

// A loaded model and what it runs with.
struct KvTestBench {
  Model& model;
  Attention& attention;
  ThreadPool& pool;
  KvCacheOptions kv;  // of the cache to come; its types and size are replaced
};

// The built-in text (prose, code, numbers), cut to kKvTestTokens tokens.
inline constexpr int64_t kKvTestTokens = 160;
std::vector<TokenId> KvTestTokens(const Tokenizer& tokenizer);

// Log-probabilities of the next token [scored, vocab_size], for the last third of the tokens, which
// see mostly full tiles. Cost: one prefill of the tokens.
Result<std::vector<float>> KvTestLogProbs(KvTestBench& bench, KvDTypes dtypes,
                                          std::span<const TokenId> tokens);
// Mean KL divergence in nats of log-probabilities from KvTestLogProbs to a reference.
double MeanKl(std::span<const float> reference, std::span<const float> found, int64_t vocab_size);

struct KvChoice {
  KvDTypes dtypes = KvDType::kF16;
  std::string reason;  // one line: what was chosen, what was measured, what it took
};

// Candidates above this mean KL are refused.
inline constexpr double kMaxKvKl = 0.02;

// The most exact types that are smaller than f16, stay below kMaxKvKl and hold context_len tokens
// in budget_bytes (0: any). Tries int8, then int8,int4, int6, int4, and stops at the first that
// does; f16 where none does. Cost: two prefills of kKvTestTokens tokens, one more per refused or
// too large candidate that is measured.
Result<KvChoice> ChooseKvDTypes(KvTestBench& bench, const Tokenizer& tokenizer, int64_t context_len,
                                int64_t budget_bytes);

}  // namespace lode

#endif  // LODE_ENGINE_KV_CHOICE_H_
