// SPDX-License-Identifier: Apache-2.0
#include "cli/memory_audit.h"

#include <memory>
#include <utility>

#include "offline/fidelity.h"
#include "offline/scoped_attention.h"
#include "retrieval/page_index.h"

namespace lode::cli {
namespace {

// Of the whole pages of so many tokens, in all layers and heads that have a projection.
int64_t IndexBytes(const Calibration& calibration, int64_t tokens) {
  int64_t bytes = 0;
  for (int64_t layer = 0; layer < calibration.num_layers(); ++layer) {
    for (int64_t head = 0; head < calibration.num_kv_heads(); ++head) {
      const HeadProjection* projection = calibration.Find(layer, head);
      if (projection != nullptr) bytes += PageIndex::BytesFor(projection->head_dim(), tokens);
    }
  }
  return bytes;
}

}  // namespace

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
  for (size_t i = 0; i < attentions.size(); ++i) {
    const int64_t before = ReadResidentMemory().anonymous_bytes;
    const ScopedAttention in_use(engine, std::move(tested[i]));
    LODE_RETURN_IF_ERROR(progress.Append(engine, tokens.last(1)));
    MemoryAudit::Growth growth = {.attention = attentions[i]};
    growth.resident_bytes = ReadResidentMemory().anonymous_bytes - before;
    if (NeedsCalibration(growth.attention)) {
      LODE_ASSIGN_OR_RETURN(const auto calibration, engine.FindCalibration());
      growth.index_bytes = IndexBytes(*calibration, audit.tokens);
    }
    audit.attentions.push_back(std::move(growth));
    engine.Truncate(audit.tokens);
  }
  return audit;
}

}  // namespace lode::cli
