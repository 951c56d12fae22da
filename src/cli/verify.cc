// SPDX-License-Identifier: Apache-2.0
// `lode verify`: what an attention loses against exact attention, measured on the user's own model
// and text.
#include <algorithm>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/model_options.h"
#include "cli/text_input.h"
#include "cli/verify_report.h"
#include "offline/fidelity.h"

namespace lode::cli {
namespace {

struct VerifyOptions {
  ModelOptions model;
  std::string file;
  int64_t steps = 64, sparse_prefill = 256;
  bool as_json = false;

  std::vector<std::string> attentions;  // of model.attention

  void AddTo(Args& args);
};

void VerifyOptions::AddTo(Args& args) {
  model.context = 8192;
  model.attention = "csa_hca";
  model.AddTo(args);
  args.Group("Verification");
  args.Text("-f, --file", "PATH", &file,
            "The text; - is standard input. It must be longer than the context.");
  args.Int("--steps", "N", &steps, {.min = 1, .max = 4096},
           "Tokens that are decoded behind the prompt and compared.");
  args.Int("--sparse-prefill", "N", &sparse_prefill, {.min = 0, .max = int64_t{1} << 30},
           "Tokens of the prompt's end that the attention under test processes too, in a second "
           "row; 0: no such row.");
  args.Flag("--json", &as_json, "Print JSON.");
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

Status Fidelity(Console& console, Engine& engine, const VerifyOptions& options,
                const std::vector<TokenId>& text, VerifyReport& report) {
  const InterruptGuard interrupt;
  ProgressBar bar(console, "fidelity", "tokens");
  FidelityOptions fidelity;
  fidelity.attentions = options.attentions;
  fidelity.steps = options.steps;
  fidelity.prompt_tokens = report.context - options.steps;
  fidelity.sparse_prefill = options.sparse_prefill;
  fidelity.on_progress = [&](int64_t done, int64_t total) {
    bar.Update(done, total);
    return !interrupt.interrupted();
  };
  auto result = MeasureFidelity(engine, text, fidelity);
  bar.Finish();
  if (result.status().code() == StatusCode::kInvalidArgument) {
    return WithHint(result.status(), "-c sets the context, --steps how much of it is decoded");
  }
  LODE_RETURN_IF_ERROR(result.status());
  report.fidelity = std::move(result).value();
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
            "  lode verify -m MODEL -f book.txt -c 32K --csa-top-k 4096 --json\n");
  options.AddTo(args);
  LODE_ASSIGN_OR_RETURN(const bool proceed, args.Parse(list, console));
  if (!proceed) return OkStatus();
  options.attentions = SplitAtCommas(options.model.attention);
  for (const std::string& name : options.attentions) {
    LODE_RETURN_IF_ERROR(CheckAttentionName(name).WithContext("--attention"));
  }
  options.model.attention = kExactAttention;
  LODE_RETURN_IF_ERROR(options.model.Resolve().status());
  if (!args.Given("--file")) return InvalidArgumentError("expected a text: -f FILE");
  LODE_ASSIGN_OR_RETURN(const std::string text, ReadText(options.file));

  LODE_ASSIGN_OR_RETURN(const auto engine, LoadEngine(console, options.model));
  const std::vector<TokenId> tokens = engine->tokenizer().Encode(text);
  VerifyReport report;
  report.model = engine->options().model_path;
  report.kv_dtype = KvDTypesName(engine->options().kv_dtypes);
  report.context = engine->options().context_len;
  LODE_RETURN_IF_ERROR(Fidelity(console, *engine, options, tokens, report));
  return console.Out(options.as_json ? report.AsJson() : report.AsText());
}

}  // namespace lode::cli
