// SPDX-License-Identifier: Apache-2.0
// MemoryPlan: what running a model will take, from its headers alone, before anything is loaded.
#ifndef LODE_CLI_MEMORY_PLAN_H_
#define LODE_CLI_MEMORY_PLAN_H_

#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "engine/engine.h"
#include "formats/weight_source.h"
#include "models/model_config.h"

namespace lode::cli {

struct MemoryPlan {
  int64_t weight_bytes = 0;      // repacked matrices, and norms and biases
  int64_t kv_bytes = 0;          // keys and values of `context` tokens
  int64_t index_bytes = 0;       // what the attention keeps of these tokens besides (its index)
  int64_t activation_bytes = 0;  // buffers of the largest step, logits
  int64_t tokenizer_bytes = 0;   // vocabulary tables
  int64_t program_bytes = 0;     // code, libraries, thread stacks
  // Pages of the model's files that stay mapped: headers, and the embedding rows of the tokens met.
  // The system may drop them under pressure.
  int64_t mapped_bytes = 0;
  int64_t total_bytes() const {
    return weight_bytes + kv_bytes + index_bytes + activation_bytes + tokenizer_bytes +
           program_bytes + mapped_bytes;
  }
  // The files themselves, which the system keeps cached while it has room; not part of the total.
  int64_t file_cache_bytes = 0;
};

// What an attention of this name keeps of so many tokens, calibrations left aside.
int64_t PlanIndex(std::string_view attention, const ModelConfig& config,
                  const SparseOptions& sparse, int64_t tokens);

// Different tokens in a text of num_tokens, roughly: vocabulary grows as the square root of length
// (Heaps' law).
int64_t DistinctTokens(int64_t num_tokens);

// The plan for a full context of options.context_len tokens (0: the model's own). Measured against
// the resident memory of a run: within 5 % (docs/cli.md).
Result<MemoryPlan> PlanMemory(const WeightSource& source, const EngineOptions& options);

// The largest context that fits into `available` bytes, a multiple of the cache's block; 0: not
// even one.
Result<int64_t> LargestContext(const WeightSource& source, EngineOptions options,
                               int64_t available);

}  // namespace lode::cli

#endif  // LODE_CLI_MEMORY_PLAN_H_
