// SPDX-License-Identifier: Apache-2.0
#include "cli/verify_options.h"

#include <algorithm>
#include <string_view>

#include "offline/fidelity.h"
#include "offline/needles.h"

namespace lode::cli {
namespace {

std::vector<std::string> SplitAtCommas(const std::string& text) {
  std::vector<std::string> parts = {""};
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

}  // namespace

void VerifyOptions::AddTo(Args& args) {
  model.context = 8192;
  model.attention = "csa_hca";
  model.sparse.audit_interval = 1;
  model.AddTo(args);
  args.Group("Verification");
  args.Text("-f, --file", "PATH", &file,
            "The text; - is standard input. It must be longer than the context, but for --tasks.");
  args.Int("--steps", "N", &steps, {.min = 1, .max = 4096},
           "Tokens that are decoded behind the prompt and compared.");
  args.Int("--sparse-prefill", "N", &sparse_prefill, {.min = 0, .max = int64_t{1} << 30},
           "Tokens of the prompt's end that the attention under test processes too, in a second "
           "row; 0: no such row.");
  args.Int("--variants", "N", &variants, {.min = 0, .max = 100'000},
           "Variants of a sentence whose neighbours are compared; 0: none.");
  args.Text("--sentence-embeddings", "PATH", &sentence_embeddings,
            "The folder of an installed sentence-embedding model (the Python package wordllama): "
            "also compare passages with what the model repeats of them, from their summaries "
            "alone too. It takes a text of 6,144 tokens and a context of 1,024.");
  args.Flag("--json", &as_json, "Print JSON.");
  args.Flag("--no-chat", &no_chat,
            "Passages and questions are asked as plain text, whether there is a chat template.");
  args.Group("Questions instead of next tokens");
  args.Text("--tasks", "NAME,...", &task_names,
            "Ask for what was hidden in the text (or in noise, without one): niah_single_1, "
            "niah_single_2, niah_multikey_1, "
            "niah_multivalue, niah_multiquery, vt, cwe, or all.");
  args.Int("--samples", "N", &samples, {.min = 1, .max = 10'000}, "Prompts per task.");
  args.Int("--seed", "N", &seed, {.min = 0}, "Of the first prompt of each task.");
}

Status VerifyOptions::Resolve() {
  attentions = SplitAtCommas(model.attention);
  for (const std::string& name : attentions) {
    LODE_RETURN_IF_ERROR(CheckAttentionName(name).WithContext("--attention"));
  }
  if (!model.prefill_attention.empty()) {
    return InvalidArgumentError(
        "--prefill-attention: verify prefills with flash, expected --sparse-prefill N instead");
  }
  model.attention = kExactAttention;
  LODE_RETURN_IF_ERROR(model.Resolve().status());
  if (!task_names.empty() && !sentence_embeddings.empty()) {
    return InvalidArgumentError("--sentence-embeddings: not with --tasks, which ask for words");
  }
  const auto known = NeedleTasks();
  if (task_names == "all") {
    tasks.assign(known.begin(), known.end());
  } else if (!task_names.empty()) {
    tasks = SplitAtCommas(task_names);
  }
  const auto unknown = std::ranges::find_if(tasks, [&](const std::string& name) {
    return std::ranges::find(known, name) == known.end();
  });
  if (unknown == tasks.end()) return OkStatus();
  std::string names;
  for (const std::string_view task : known) names.append(task).append(", ");
  return InvalidArgumentError("--tasks: expected some of " + names + "or all, found '" + *unknown +
                              "'");
}

}  // namespace lode::cli
