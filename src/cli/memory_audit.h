// SPDX-License-Identifier: Apache-2.0
// MemoryAudit: what a run was planned to take, what its parts count themselves, and what the
// process really holds.
#ifndef LODE_CLI_MEMORY_AUDIT_H_
#define LODE_CLI_MEMORY_AUDIT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/topology.h"
#include "cli/memory_plan.h"
#include "engine/engine.h"
#include "offline/progress.h"
#include "retrieval/index_graph.h"

namespace lode::cli {

struct MemoryAudit {
  int64_t tokens = 0;  // in the cache
  MemoryPlan plan;     // for so many
  // As the parts count themselves.
  int64_t weight_bytes = 0;
  int64_t kv_bytes = 0;           // blocks and open tiles
  int64_t kv_metadata_bytes = 0;  // pages and tables, about
  // Resident memory of the process.
  int64_t before_load_bytes = 0;
  int64_t loaded_bytes = 0;  // 0: not known
  int64_t prompt_bytes = 0;  // with the prompt in the cache
  // Per attention.
  struct Growth {
    std::string attention;
    int64_t index_bytes = 0;  // what it keeps of the prompt, as it is laid out
    // What its first step behind the prompt added: its index and buffers, less what fits into
    // memory that was used and given back before.
    int64_t resident_bytes = 0;
  };
  std::vector<Growth> attentions;
  // Of so many tokens, where text 1's buckets rank pages.
  std::optional<IndexGraph> index_graph;

  // Share by which the plan is above what was measured with the prompt in the cache.
  double plan_error() const {
    return static_cast<double>(plan.total_bytes() - prompt_bytes) /
           static_cast<double>(prompt_bytes);
  }
};

// Resident memory before and after the model was loaded.
struct MemoryAtLoad {
  ResidentMemory before, after;
};

// Prefills all but the last token with exact attention, and runs the last with each attention; the
// others stay in the cache. Run it first: memory that was used and given back may stay resident.
// Precondition: at least two tokens. Errors: those of Engine::Append and MakeAttention; Cancelled.
Result<MemoryAudit> AuditMemory(Engine& engine, std::span<const TokenId> tokens,
                                const std::vector<std::string>& attentions,
                                const MemoryAtLoad& at_load, ProgressCallback on_progress);

}  // namespace lode::cli

#endif  // LODE_CLI_MEMORY_AUDIT_H_
