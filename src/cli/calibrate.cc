// SPDX-License-Identifier: Apache-2.0
// `lode calibrate`: fits the key projections of csa_hca on texts of the user's choice.
#include <string>
#include <vector>

#include "base/topology.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/model_options.h"
#include "cli/text_input.h"
#include "engine/calibrate.h"
#include "formats/weight_source.h"
#include "tokenizer/tokenizer.h"

namespace lode::cli {
namespace {

struct CalibrateArgs {
  std::string model, output;
  TextOptions text;
  int64_t threads = 0, max_tokens = 8192;
};

Result<std::vector<TokenId>> ReadTokens(Console& console, const Args& args,
                                        const CalibrateArgs& options, const Tokenizer& tokenizer) {
  LODE_ASSIGN_OR_RETURN(const TextInput input, ReadTextInput(console, args, options.text));
  const std::string text = input.file && !input.file->empty() ? *input.file
                           : input.prompt                     ? *input.prompt
                                          : std::string(BuiltInCalibrationText());
  std::vector<TokenId> tokens = tokenizer.Encode(text);
  if (static_cast<int64_t>(tokens.size()) > options.max_tokens) {
    console.Err("the first " + std::to_string(options.max_tokens) + " of " +
                std::to_string(tokens.size()) + " tokens are used\n");
    tokens.resize(static_cast<size_t>(options.max_tokens));
  }
  return tokens;
}

}  // namespace

Status RunCalibrate(Console& console, const ArgList& list) {
  CalibrateArgs options;
  Args args("calibrate", "-m MODEL [-f FILE] -o FILE",
            "Fits the key codes of csa_hca to a model: runs it over a text and keeps what its keys "
            "and queries are like. Without -f and -p a built-in text of prose and code is used, as "
            "`lode run --attention csa_hca` does at first use. The file fits this model only.",
            "  lode calibrate -m MODEL -f reports.txt -o reports.calibration\n"
            "  lode run -m MODEL --attention csa_hca --calibration reports.calibration -f r.txt\n");
  args.Text("-m, --model", "MODEL", &options.model,
            "A file, a folder, or a name fetched by `lode pull`.");
  options.text.AddTo(args);
  args.Text("-o, --output", "FILE", &options.output, "Where the calibration is written.");
  args.Int("-t, --threads", "N", &options.threads, {.min = 0, .max = 1024},
           "Threads; 0: as many CPUs as affinity and the control group's quota allow.");
  args.Int("--max-tokens", "N", &options.max_tokens, {.min = 64, .max = 1 << 20},
           "Tokens of the text to use.");
  LODE_ASSIGN_OR_RETURN(const bool proceed, args.Parse(list, console));
  if (!proceed) return OkStatus();
  if (options.output.empty()) return InvalidArgumentError("missing -o FILE");

  LODE_ASSIGN_OR_RETURN(const std::string path, ResolveModel(options.model));
  LODE_ASSIGN_OR_RETURN(const auto source, OpenWeights(path));
  LODE_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(*source));
  LODE_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens,
                        ReadTokens(console, args, options, *tokenizer));
  ThreadPool pool(options.threads > 0 ? static_cast<int>(options.threads)
                                      : UsableThreads().threads);
  ModelLoadOptions load;
  load.context_len = static_cast<int64_t>(tokens.size());
  LODE_ASSIGN_OR_RETURN(const auto model, LoadModel(*source, load, pool));

  const InterruptGuard interrupt;
  ProgressBar bar(console, "calibrating", "tokens");
  CalibrateOptions calibrate;
  calibrate.on_progress = [&](int64_t done, int64_t total) {
    bar.Update(done, total);
    return !interrupt.interrupted();
  };
  const std::vector<std::vector<TokenId>> texts = {tokens};
  const Result<Calibration> calibration = Calibrate(*source, *model, texts, calibrate, pool);
  bar.Finish();
  LODE_RETURN_IF_ERROR(calibration.status());
  LODE_RETURN_IF_ERROR(SaveCalibration(*calibration, options.output));
  return console.Out(options.output + "\n");
}

}  // namespace lode::cli
