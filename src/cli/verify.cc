// SPDX-License-Identifier: Apache-2.0
// `lode verify`: what an attention loses against exact attention, measured on the user's own model
// and text.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/model_options.h"
#include "cli/text_input.h"
#include "cli/verify_report.h"
#include "offline/fidelity.h"
#include "offline/needle_run.h"

namespace lode::cli {
namespace {

struct VerifyOptions {
  ModelOptions model;
  std::string file;
  int64_t steps = 64, sparse_prefill = 256;
  std::string task_names;
  int64_t samples = 4, seed = 1;
  bool no_chat = false, as_json = false;

  std::vector<std::string> attentions;  // of model.attention
  std::vector<std::string> tasks;       // of task_names; none: fidelity

  void AddTo(Args& args);
  // Splits the lists and checks their names.
  Status Resolve();
};

void VerifyOptions::AddTo(Args& args) {
  model.context = 8192;
  model.attention = "csa_hca";
  model.AddTo(args);
  args.Group("Verification");
  args.Text("-f, --file", "PATH", &file,
            "The text; - is standard input. It must be longer than the context, but for --tasks.");
  args.Int("--steps", "N", &steps, {.min = 1, .max = 4096},
           "Tokens that are decoded behind the prompt and compared.");
  args.Int("--sparse-prefill", "N", &sparse_prefill, {.min = 0, .max = int64_t{1} << 30},
           "Tokens of the prompt's end that the attention under test processes too, in a second "
           "row; 0: no such row.");
  args.Flag("--json", &as_json, "Print JSON.");
  args.Group("Questions instead of next tokens");
  args.Text("--tasks", "NAME,...", &task_names,
            "Ask for what was hidden in the text (or in noise, without one): niah_single_1, "
            "niah_single_2, niah_multikey_1, "
            "niah_multivalue, niah_multiquery, vt, cwe, or all.");
  args.Int("--samples", "N", &samples, {.min = 1, .max = 10'000}, "Prompts per task.");
  args.Int("--seed", "N", &seed, {.min = 0}, "Of the first prompt of each task.");
  args.Flag("--no-chat", &no_chat, "Prompts are plain text, whether there is a chat template.");
}

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

Status VerifyOptions::Resolve() {
  attentions = SplitAtCommas(model.attention);
  for (const std::string& name : attentions) {
    LODE_RETURN_IF_ERROR(CheckAttentionName(name).WithContext("--attention"));
  }
  model.attention = kExactAttention;
  LODE_RETURN_IF_ERROR(model.Resolve().status());
  const auto known = NeedleTasks();
  if (task_names == "all") {
    tasks.assign(known.begin(), known.end());
  } else if (!task_names.empty()) {
    tasks = SplitAtCommas(task_names);
  }
  for (const std::string& name : tasks) {
    if (std::ranges::find(known, name) != known.end()) continue;
    std::string names;
    for (const std::string_view task : known) names += std::string(task) + ", ";
    return InvalidArgumentError("--tasks: expected some of " + names + "or all, found '" + name +
                                "'");
  }
  return OkStatus();
}

// Runs a measurement that tells its progress; Ctrl+C ends it with Cancelled.
template <class Measure>
auto WithProgress(Console& console, const char* label, const Measure& measure) {
  const InterruptGuard interrupt;
  ProgressBar bar(console, label, "tokens");
  auto result = measure([&](int64_t done, int64_t total) {
    bar.Update(done, total);
    return !interrupt.interrupted();
  });
  bar.Finish();
  return result;
}

Status CheckFidelity(Console& console, Engine& engine, const VerifyOptions& options,
                     const std::string& text, VerifyReport& report) {
  FidelityOptions fidelity;
  fidelity.attentions = options.attentions;
  fidelity.steps = options.steps;
  fidelity.prompt_tokens = report.context - options.steps;
  fidelity.sparse_prefill = options.sparse_prefill;
  const std::vector<TokenId> tokens = engine.tokenizer().Encode(text);
  auto result = WithProgress(console, "fidelity", [&](ProgressCallback on_progress) {
    fidelity.on_progress = std::move(on_progress);
    return MeasureFidelity(engine, tokens, fidelity);
  });
  if (result.status().code() == StatusCode::kInvalidArgument) {
    return WithHint(result.status(), "-c sets the context, --steps how much of it is decoded");
  }
  LODE_RETURN_IF_ERROR(result.status());
  report.fidelity = std::move(result).value();
  return OkStatus();
}

Status CheckTasks(Console& console, Engine& engine, const VerifyOptions& options,
                  const std::string& text, VerifyReport& report) {
  NeedleOptions needles;
  needles.attentions = options.attentions;
  needles.tasks = options.tasks;
  needles.samples = options.samples;
  needles.seed = static_cast<uint64_t>(options.seed);
  needles.max_tokens = report.context;
  needles.haystack = text;
  const auto chat_template = engine.chat_template();
  if (!options.no_chat && chat_template.ok()) needles.chat_template = *chat_template;
  auto result = WithProgress(console, "tasks", [&](ProgressCallback on_progress) {
    needles.on_progress = std::move(on_progress);
    return RunNeedles(engine, needles);
  });
  LODE_RETURN_IF_ERROR(result.status());
  report.tasks = std::move(result).value();
  return OkStatus();
}

}  // namespace

Status RunVerify(Console& console, const ArgList& list) {
  VerifyOptions options;
  Args args("verify", "-m MODEL -f FILE [--attention NAME,...] [OPTIONS]",
            "Measures what an attention loses against exact attention, in one run over one cache. "
            "The context holds the prompt, which exact attention processes, and the tokens that "
            "are decoded behind it.",
            "  lode verify -m MODEL -f book.txt\n"
            "  lode verify -m MODEL -f book.txt -c 32K --csa-top-k 4096 --json\n"
            "  lode verify -m MODEL -f book.txt --tasks niah_single_2,vt --samples 10\n");
  options.AddTo(args);
  LODE_ASSIGN_OR_RETURN(const bool proceed, args.Parse(list, console));
  if (!proceed) return OkStatus();
  LODE_RETURN_IF_ERROR(options.Resolve());
  std::string text;
  if (args.Given("--file")) {
    LODE_ASSIGN_OR_RETURN(text, ReadText(options.file));
  } else if (options.tasks.empty()) {
    return InvalidArgumentError("expected a text: -f FILE");
  }

  LODE_ASSIGN_OR_RETURN(const auto engine, LoadEngine(console, options.model));
  VerifyReport report;
  report.model = engine->options().model_path;
  report.kv_dtype = KvDTypesName(engine->options().kv_dtypes);
  report.context = engine->options().context_len;
  const auto check = options.tasks.empty() ? CheckFidelity : CheckTasks;
  LODE_RETURN_IF_ERROR(check(console, *engine, options, text, report));
  return console.Out(options.as_json ? report.AsJson() : report.AsText());
}

}  // namespace lode::cli
