// SPDX-License-Identifier: Apache-2.0
// `lode run`: one answer to a prompt, a file or both; a chat when there is neither and stdin is a
// terminal.
#include <string>
#include <utility>
#include <vector>

#include "cli/answer.h"
#include "cli/chat.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/prompt.h"
#include "cli/sampling_options.h"
#include "cli/text_input.h"
#include "engine/prompt_marks.h"

namespace lode::cli {
namespace {

struct RunOptions {
  ModelOptions model;
  TextOptions text;
  SamplingOptions sampling;
  std::string system;
  std::vector<std::string> stop;
  int64_t max_tokens = 0;
  bool chat = false, no_chat = false;
  bool ignore_eos = false, as_json = false, quiet = false;

  void AddTo(Args& args);
};

void RunOptions::AddTo(Args& args) {
  model.AddTo(args);
  args.Group("Prompt");
  text.AddTo(args);
  args.Flag("--chat", &chat,
            "The text is a user's message: the default if the model has a template.");
  args.Flag("--no-chat", &no_chat, "The text is to be continued as it is.");
  args.Text("--system", "TEXT", &system, "A system message before the user's.");
  args.Group("Answer");
  args.Int("-n, --max-tokens, --predict", "N", &max_tokens, {.min = 0, .max = int64_t{1} << 30},
           "Most tokens of the answer; 0: to its end or the end of the context.");
  args.Texts("--stop", "TEXT", &stop, "End the answer before this text. May be repeated.");
  args.Flag("--ignore-eos", &ignore_eos, "Go on after the model's own end (for measurements).");
  args.Flag("--json", &as_json, "Print one JSON object with text, token counts and timings.");
  args.Flag("-q, --quiet", &quiet, "No timings.");
  sampling.AddTo(args);
}

Result<MarkedPrompt> MakePrompt(const Engine& engine, const RunOptions& options,
                                const std::string& text) {
  const auto chat_template = engine.chat_template();
  const bool as_chat = options.chat || (!options.no_chat && chat_template.ok());
  if (!as_chat) {
    if (!options.system.empty()) {
      return InvalidArgumentError(
          "--system needs a chat: the model has no chat template, or "
          "--no-chat was given");
    }
    return EncodePrompt(engine, text);
  }
  LODE_RETURN_IF_ERROR(chat_template.status());
  LODE_ASSIGN_OR_RETURN(
      const RenderedPrompt prompt,
      RenderUserMessage(**chat_template, engine.tokenizer(), options.system, text));
  return EncodePrompt(engine, prompt.text, prompt.encode_options());
}

Status AnswerOnce(Console& console, Engine& engine, const RunOptions& options,
                  const SamplingParams& sampling, const std::string& text) {
  GenerateRequest request;
  LODE_ASSIGN_OR_RETURN(MarkedPrompt prompt, MakePrompt(engine, options, text));
  if (prompt.tokens.empty()) return InvalidArgumentError("the prompt is empty");
  request.prompt = std::move(prompt.tokens);
  request.exact = std::move(prompt.exact);
  request.max_tokens = options.max_tokens;
  request.sampling = sampling;
  request.stop = options.stop;
  request.ignore_eos = options.ignore_eos;
  const auto result = StreamAnswer(console, engine, std::move(request), !options.as_json);
  if (result.status().code() == StatusCode::kResourceExhausted) {
    return WithHint(result.status(),
                    "-c N sets the context, -n N the length of the answer; `lode "
                    "plan` shows what fits into memory");
  }
  LODE_RETURN_IF_ERROR(result.status());
  if (options.as_json) {
    LODE_RETURN_IF_ERROR(console.Out(AnswerJson(engine, *result, sampling.seed) + "\n"));
  } else if (!result->text.ends_with('\n')) {
    LODE_RETURN_IF_ERROR(console.Out("\n"));
  }
  if (!options.quiet && !options.as_json) {
    console.Err(console.StyleErr(Style::kDim, DescribeTimings(*result)) + "\n");
  }
  if (result->finish_reason == FinishReason::kCancelled) return CancelledError("interrupted");
  return OkStatus();
}

}  // namespace

Status RunRun(Console& console, const ArgList& list) {
  RunOptions options;
  Args args("run", "-m MODEL [-p TEXT | -f FILE] [OPTIONS]",
            "Answers a prompt, or chats when there is no prompt and standard input is a terminal. "
            "With -f and -p together the file comes first and the prompt is a question about it. "
            "The answer goes to standard output, everything else to standard error.",
            "  lode run -m MODEL                                     chat; /help explains\n"
            "  lode run -m MODEL -p 'Write a haiku about rivers.'\n"
            "  lode run -m MODEL -f report.txt -p 'Who wrote this?'\n"
            "  git diff | lode run -m MODEL --system 'Review this.' > review.txt\n"
            "  lode run -m MODEL --no-chat -p 'def fib(n):' -n 64\n"
            "  lode run -m MODEL -p Hello --temperature 0.8 --top-p 0.9 --seed 7 --json\n");
  options.AddTo(args);
  LODE_ASSIGN_OR_RETURN(const bool proceed, args.Parse(list, console));
  if (!proceed) return OkStatus();
  if (options.chat && options.no_chat) {
    return InvalidArgumentError("--chat and --no-chat: expected only one");
  }
  // The model's name is checked before a pipe is read to its end.
  LODE_RETURN_IF_ERROR(options.model.Resolve().status());
  LODE_ASSIGN_OR_RETURN(const TextInput input, ReadTextInput(console, args, options.text));
  const bool interactive = !input.prompt && !input.file;
  if (interactive && (options.no_chat || options.as_json)) {
    return InvalidArgumentError("--no-chat and --json need a prompt: -p, -f or a pipe");
  }
  LODE_ASSIGN_OR_RETURN(const auto engine, LoadEngine(console, options.model));
  LODE_ASSIGN_OR_RETURN(
      const SamplingParams sampling,
      options.sampling.Resolve(args, engine->source().metadata(), /*use_recommended=*/interactive));
  LODE_RETURN_IF_ERROR(sampling.Validate(engine->model().config().vocab_size));
  if (interactive) {
    return Chat(console, *engine,
                {.system = options.system,
                 .sampling = sampling,
                 .max_tokens = options.max_tokens,
                 .stop = options.stop,
                 .quiet = options.quiet});
  }
  return AnswerOnce(console, *engine, options, sampling, JoinInput(input));
}

}  // namespace lode::cli
