// SPDX-License-Identifier: Apache-2.0
// The options of `lode verify`.
#ifndef LODE_CLI_VERIFY_OPTIONS_H_
#define LODE_CLI_VERIFY_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/args.h"
#include "cli/model_options.h"

namespace lode::cli {

struct VerifyOptions {
  ModelOptions model;
  std::string file;
  std::string sentence_embeddings;  // a folder; none: no summary texts
  int64_t steps = 64, sparse_prefill = 256, variants = 1000;
  std::string task_names;
  int64_t samples = 4, seed = 1;
  bool no_chat = false, as_json = false;

  std::vector<std::string> attentions;  // of model.attention
  std::vector<std::string> tasks;       // of task_names; none: fidelity

  void AddTo(Args& args);
  // Splits the lists and checks their names.
  Status Resolve();
};

}  // namespace lode::cli

#endif  // LODE_CLI_VERIFY_OPTIONS_H_
