// SPDX-License-Identifier: Apache-2.0
// What text 1 claims (docs/glossary.md), beside what `lode verify` has measured.
#ifndef LODE_CLI_VERIFY_CLAIMS_H_
#define LODE_CLI_VERIFY_CLAIMS_H_

#include <string>
#include <vector>

#include "cli/verify_report.h"

namespace lode::cli {

struct ClaimRow {
  std::string name;  // "recall", as in JSON
  std::string text;  // what it is a figure of
  std::string attention;
  double claimed = 0.0;
  double measured = 0.0;
  bool is_share = false;
};

// Of the figures that the report has; none for attentions that text 1 does not speak of.
std::vector<ClaimRow> ClaimsOfTextOne(const VerifyReport& report);

// Whether text 1's buckets keep so few of the keys that count that the rest of csa_hca does all
// the work.
bool BucketsFindNothing(const SimilarityReport& report);

}  // namespace lode::cli

#endif  // LODE_CLI_VERIFY_CLAIMS_H_
