// SPDX-License-Identifier: Apache-2.0
#include "cli/memory_audit.h"

#include <memory>
#include <utility>

#include "offline/fidelity.h"
#include "offline/scoped_attention.h"

namespace lode::cli {
Result<MemoryAudit> AuditMemory(Engine& engine, std::span<const TokenId> tokens,
                                const std::vector<std::string>& attentions,
                                const MemoryAtLoad& at_load, ProgressCallback on_progress) {
  MemoryAudit audit;
  audit.before_load_bytes = at_load.before.current_bytes;
  audit.loaded_bytes = at_load.after.current_bytes;
  const auto prompt = tokens.first(tokens.size() - 1);
  audit.tokens = static_cast<int64_t>(prompt.size());
  // Making a calibration takes memory and gives it back: before anything is measured.
  std::vector<std::unique_ptr<Attention>> tested;
  for (const std::string& name : attentions) {
    LODE_ASSIGN_OR_RETURN(tested.emplace_back(), engine.MakeAttention(name));
  }
  engine.ResetCache();
  Progress progress(std::move(on_progress), audit.tokens + static_cast<int64_t>(attentions.size()));
  {
    LODE_ASSIGN_OR_RETURN(auto exact, engine.MakeAttention(kExactAttention));
    const ScopedAttention in_use(engine, std::move(exact));
    LODE_RETURN_IF_ERROR(progress.Append(engine, prompt));
  }
  audit.prompt_bytes = ReadResidentMemory().current_bytes;
  audit.weight_bytes = engine.model().weight_bytes();
  const KvCacheStats stats = engine.cache().stats();
  audit.kv_bytes = stats.block_bytes + stats.open_bytes;
  audit.kv_metadata_bytes = stats.metadata_bytes;
  EngineOptions planned = engine.options();
  planned.context_len = audit.tokens;
  LODE_ASSIGN_OR_RETURN(audit.plan, PlanMemory(engine.source(), planned));
  const ModelConfig& config = engine.model().config();
  const SparseOptions& sparse = engine.options().sparse;
  for (size_t i = 0; i < attentions.size(); ++i) {
    const int64_t before = ReadResidentMemory().anonymous_bytes;
    const ScopedAttention in_use(engine, std::move(tested[i]));
    LODE_RETURN_IF_ERROR(progress.Append(engine, tokens.last(1)));
    MemoryAudit::Growth growth = {.attention = attentions[i]};
    growth.resident_bytes = ReadResidentMemory().anonymous_bytes - before;
    growth.index_bytes = PlanIndex(growth.attention, config, sparse, audit.tokens);
    if (NeedsCalibration(growth.attention) && sparse.scores == SparseOptions::Scores::kBuckets) {
      audit.index_graph = IndexGraph::Of({.tokens = audit.tokens,
                                          .num_layers = config.num_layers,
                                          .num_kv_heads = config.num_kv_heads,
                                          .head_dim = config.head_dim});
    }
    audit.attentions.push_back(std::move(growth));
    engine.Truncate(audit.tokens);
  }
  return audit;
}

}  // namespace lode::cli
