// SPDX-License-Identifier: Apache-2.0
// What `lode verify` found, as tables and as JSON.
#ifndef LODE_CLI_VERIFY_REPORT_H_
#define LODE_CLI_VERIFY_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "cli/memory_audit.h"
#include "offline/fidelity.h"
#include "offline/needle_run.h"
#include "offline/output_audit.h"
#include "offline/similar_sentences.h"
#include "offline/summary_texts.h"

namespace lode::cli {

// One member per check; those that were not asked for stay empty.
struct VerifyReport {
  std::string model;
  std::string kv_dtype;
  int64_t context = 0;
  std::optional<MemoryAudit> memory;
  std::optional<FidelityReport> fidelity;
  std::optional<OutputAuditReport> outputs;
  std::optional<SimilarityReport> sentences;
  std::optional<SummaryTextReport> summaries;
  std::optional<NeedleReport> tasks;

  // Tables with a heading each, a blank line between them.
  std::string AsText() const;
  // One object; a check that was not run has no member.
  std::string AsJson() const;
};

}  // namespace lode::cli

#endif  // LODE_CLI_VERIFY_REPORT_H_
