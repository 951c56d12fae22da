// SPDX-License-Identifier: Apache-2.0
// `lode eval perplexity`: how well a model predicts a text, by the sliding-window recipe of Hugging
// Face's documentation. scripts/perplexity_reference.py does the same with transformers.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/model_options.h"
#include "cli/perplexity.h"
#include "cli/text_input.h"
#include "kernels/softmax.h"

namespace lode::cli {
namespace {

// Log probability of `target` under the softmax of logits; scratch is overwritten.
double LogProbability(std::span<const float> logits, TokenId target, std::vector<float>& scratch) {
  scratch.assign(logits.begin(), logits.end());
  kernels::Softmax(scratch.data(), static_cast<int64_t>(scratch.size()));
  // The likeliest token's probability is e^(max - log sum) and never underflows, as the target's
  // may.
  const size_t best = std::max_element(logits.begin(), logits.end()) - logits.begin();
  const double log_sum = logits[best] - std::log(static_cast<double>(scratch[best]));
  return logits[target] - log_sum;
}

struct Score {
  int64_t windows = 0;
  int64_t count = 0;     // scored tokens
  double sum = 0.0;      // of their negative log probabilities
  double squares = 0.0;  // of the same

  double mean() const { return sum / static_cast<double>(count); }
  double perplexity() const { return std::exp(mean()); }
  // Half of the 95 % interval of the mean, as if tokens were independent.
  double mean_margin() const {
    if (count < 2) return 0.0;
    const double n = static_cast<double>(count);
    const double variance = std::max(0.0, (squares - sum * sum / n) / (n - 1));
    return 1.96 * std::sqrt(variance / n);
  }
};

struct EvalOptions {
  ModelOptions model;
  TextOptions text;
  int64_t window = 512, stride = 256, max_windows = 0;
  bool as_json = false;
};

Result<Score> ScoreText(Console& console, Engine& engine, const EvalOptions& options,
                        const std::vector<TokenId>& tokens) {
  const bool has_bos = engine.tokenizer().adds_bos();
  std::vector<PerplexityWindow> windows = PerplexityWindows(
      static_cast<int64_t>(tokens.size()), options.window, options.stride, has_bos);
  if (options.max_windows > 0 && static_cast<int64_t>(windows.size()) > options.max_windows) {
    windows.resize(static_cast<size_t>(options.max_windows));
  }
  const InterruptGuard interrupt;
  ProgressBar bar(console, "perplexity", "windows");
  Score score;
  std::vector<float> scratch;
  for (const PerplexityWindow& window : windows) {
    std::vector<TokenId> fed;
    if (has_bos) fed.push_back(engine.tokenizer().bos());
    fed.insert(fed.end(), tokens.begin() + window.begin, tokens.begin() + window.end);
    LODE_RETURN_IF_ERROR(engine.Evaluate(fed, [&](int64_t position, std::span<const float> logits) {
      // Logits at a position predict the text token after it.
      const int64_t predicted = window.begin + position + (has_bos ? 0 : 1);
      if (predicted < window.first_scored || predicted >= window.end) return;
      const double surprise = -LogProbability(logits, tokens[predicted], scratch);
      ++score.count;
      score.sum += surprise;
      score.squares += surprise * surprise;
    }));
    ++score.windows;
    bar.Update(score.windows, static_cast<int64_t>(windows.size()));
    if (interrupt.interrupted()) return CancelledError("interrupted");
  }
  bar.Finish();
  if (score.count == 0) return InvalidArgumentError("the text has no token that can be scored");
  return score;
}

Status Print(Console& console, const Engine& engine, const EvalOptions& options,
             int64_t text_tokens, const Score& score) {
  const bool has_bos = engine.tokenizer().adds_bos();
  const double low = std::exp(score.mean() - score.mean_margin());
  const double high = std::exp(score.mean() + score.mean_margin());
  if (options.as_json) {
    JsonWriter json;
    json.BeginObject().Field("perplexity", score.perplexity());
    json.Field("interval_low", low).Field("interval_high", high);
    json.Field("mean_negative_log_probability", score.mean());
    json.Field("scored_tokens", score.count).Field("text_tokens", text_tokens);
    json.Field("windows", score.windows).Field("window", options.window);
    json.Field("stride", options.stride).Key("bos");
    has_bos ? json.Value(engine.tokenizer().bos()) : json.Null();
    return console.Out(json.EndObject().text() + "\n");
  }
  return console.Out(
      "perplexity " + FormatFixed(score.perplexity(), 4) + "  (95 % interval " +
      FormatFixed(low, 4) + " to " + FormatFixed(high, 4) + ", tokens taken as independent)\n" +
      "window " + std::to_string(options.window) + ", stride " + std::to_string(options.stride) +
      ", BOS " + (has_bos ? "in every window" : "none") + ", " + FormatCount(score.count) + " of " +
      FormatCount(text_tokens) + " tokens scored in " + FormatCount(score.windows) + " windows\n");
}

Status EvalPerplexity(Console& console, const ArgList& list) {
  EvalOptions options;
  Args args("eval perplexity", "-m MODEL -f FILE [OPTIONS]",
            "Measures how well a model predicts a text: e to the mean negative log probability of "
            "its tokens. Windows of --window tokens start every --stride tokens; each token is "
            "scored once, in the first window that holds it. If the model adds a BOS token, every "
            "window starts with one. Figures compare only at equal window, stride and text.",
            "  lode eval perplexity -m MODEL -f book.txt\n"
            "  lode eval perplexity -m MODEL -f book.txt --window 2048 --stride 1024 --json\n"
            "  lode eval perplexity -m MODEL -f book.txt --activations f32 --kv-cache-dtype f32\n");
  options.model.AddTo(args);
  args.Group("Text");
  options.text.AddTo(args);
  args.Int("--window", "N", &options.window, {.min = 2, .max = int64_t{1} << 30},
           "Tokens the model sees at once, BOS included.");
  args.Int("--stride", "N", &options.stride, {.min = 1, .max = int64_t{1} << 30},
           "Tokens from one window's start to the next.");
  args.Int("--max-windows", "N", &options.max_windows, {.min = 0},
           "Stop after so many windows; 0: the whole text.");
  args.Flag("--json", &options.as_json, "Print JSON.");
  LODE_ASSIGN_OR_RETURN(const bool proceed, args.Parse(list, console));
  if (!proceed) return OkStatus();
  if (options.model.context != 0) return InvalidArgumentError("-c: use --window instead");
  options.model.context = options.window;
  LODE_RETURN_IF_ERROR(options.model.Resolve().status());
  LODE_ASSIGN_OR_RETURN(const TextInput input, ReadTextInput(console, args, options.text));
  if (input.prompt.has_value() == input.file.has_value()) {
    return InvalidArgumentError("expected a text: -f FILE, -p TEXT or a pipe");
  }
  LODE_ASSIGN_OR_RETURN(const auto engine, LoadEngine(console, options.model));
  if (options.stride > options.window - (engine->tokenizer().adds_bos() ? 1 : 0)) {
    return InvalidArgumentError("--stride: " + std::to_string(options.stride) +
                                " would leave tokens between windows unscored, expected at most "
                                "the window's " +
                                std::to_string(options.window) + " tokens less one for BOS");
  }
  const std::vector<TokenId> tokens = engine->tokenizer().Encode(
      input.prompt ? *input.prompt : *input.file, {.add_special = false});
  LODE_ASSIGN_OR_RETURN(const Score score, ScoreText(console, *engine, options, tokens));
  return Print(console, *engine, options, static_cast<int64_t>(tokens.size()), score);
}

}  // namespace

Status RunEval(Console& console, const ArgList& list) {
  if (!list.empty() && list.front() == "perplexity") {
    return EvalPerplexity(console, ArgList(list.begin() + 1, list.end()));
  }
  if (!list.empty() && (list.front() == "--help" || list.front() == "-h")) {
    return EvalPerplexity(console, {"--help"});
  }
  return WithHint(InvalidArgumentError(list.empty() ? "eval: missing what to evaluate"
                                                    : "eval: unknown '" + list.front() + "'"),
                  "lode eval perplexity -m MODEL -f FILE");
}

}  // namespace lode::cli
