// SPDX-License-Identifier: Apache-2.0
#include "cli/verify_claims.h"

#include "attention/attention.h"
#include "cli/console.h"

namespace lode::cli {
namespace {

constexpr double kClaimedRecall = 0.992;
constexpr double kClaimedBuckets = 3.0;
constexpr double kClaimedCosine = 0.82;
// Of the exact neighbours. A few are always found: the oldest keys of a text are among those that
// are kept, and its first one draws attention whatever is asked.
constexpr double kNothing = 0.1;

}  // namespace

std::vector<ClaimRow> ClaimsOfTextOne(const VerifyReport& report) {
  std::vector<ClaimRow> rows;
  if (report.fidelity) {
    for (const FidelityRow& row : report.fidelity->rows) {
      if (!NeedsCalibration(row.attention) || row.sparse_prefill > 0 || !row.audited()) continue;
      rows.push_back({"recall", "keys found (here: of the 256 heaviest, with window and sinks)",
                      row.attention, kClaimedRecall, row.Recall(), true});
      if (!row.has_code_recall()) continue;
      rows.push_back({"code_recall",
                      "keys found (here: of the 256 heaviest of the middle, among 1,024 by codes)",
                      row.attention, kClaimedRecall, row.CodeRecall(), true});
    }
  }
  if (report.sentences && report.sentences->buckets > 0) {
    const SimilarityReport& sentences = *report.sentences;
    rows.push_back({"variant_buckets",
                    "buckets that variants of a sentence fall in (of " +
                        FormatCount(sentences.buckets) + "; text 1: at most)",
                    "csa_hca", kClaimedBuckets, sentences.all.variant_buckets, false});
  }
  if (report.summaries) {
    for (const SummaryTextRow& row : report.summaries->rows) {
      if (row.attention != kSummariesAlone) continue;
      rows.push_back({"summary_cosine",
                      "cosine of what summaries say with the text (here: of a passage repeated)",
                      row.attention, kClaimedCosine, row.own, false});
    }
  }
  if (report.outputs) {
    for (const OutputAuditReport::Row& row : report.outputs->rows) {
      if (!NeedsCalibration(row.attention)) continue;
      rows.push_back({"cosine",
                      "cosine of summaries with the text (here: of outputs with exact ones)",
                      row.attention, kClaimedCosine, row.all.mean_cosine, false});
    }
  }
  return rows;
}

bool BucketsFindNothing(const SimilarityReport& report) {
  return report.buckets > 0 && report.all.bucket_recall < kNothing;
}

}  // namespace lode::cli
