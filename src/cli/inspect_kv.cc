// SPDX-License-Identifier: Apache-2.0
// `lode inspect --kv`: what the cache counted while it answered some prompts.
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/kv_report.h"
#include "cli/model_options.h"
#include "cli/text_input.h"

namespace lode::cli {

Status RunInspectKv(Console& console, const ArgList& list) {
  ModelOptions options;
  std::vector<std::string> prompts, files;
  int64_t max_tokens = 16;
  bool kv = false, as_json = false;
  Args args("inspect", "--kv -m MODEL (-f FILE | -p TEXT)... [OPTIONS]",
            "Continues the given texts one after the other, and shows what the cache counted: "
            "blocks, prefixes found and missed with the reason, evictions, fragmentation, waits.",
            "  lode inspect --kv -m MODEL -f report.txt\n"
            "  lode inspect --kv -m MODEL -f a.txt -f b.txt -f a.txt   is a still known?\n"
            "  lode inspect --kv -m MODEL -p Hello --json\n");
  options.AddTo(args);
  args.Group("Run");
  args.Flag("--kv", &kv, "Show the cache instead of the file.");
  args.Texts("-f, --file", "FILE", &files, "A text to continue. May be repeated.");
  args.Texts("-p, --prompt", "TEXT", &prompts, "A text to continue, after the files.");
  args.Int("-n, --max-tokens", "N", &max_tokens, {.min = 1, .max = int64_t{1} << 30},
           "Tokens to generate after each.");
  args.Flag("--json", &as_json, "Print JSON.");
  LODE_ASSIGN_OR_RETURN(const bool proceed, args.Parse(list, console));
  if (!proceed) return OkStatus();
  if (files.empty() && prompts.empty()) {
    return InvalidArgumentError("--kv shows the cache of a run: give a text with -f or -p");
  }
  std::vector<std::string> texts;
  for (const std::string& file : files) {
    LODE_ASSIGN_OR_RETURN(std::string text, ReadText(file));
    texts.push_back(std::move(text));
  }
  texts.insert(texts.end(), prompts.begin(), prompts.end());

  LODE_ASSIGN_OR_RETURN(const auto engine, LoadEngine(console, options));
  for (const std::string& text : texts) {
    GenerateRequest request;
    request.prompt = engine->tokenizer().Encode(text);
    request.max_tokens = max_tokens;
    request.sampling.temperature = 0.0f;
    request.ignore_eos = true;
    const auto result = StreamAnswer(console, *engine, std::move(request), /*show_text=*/false);
    LODE_RETURN_IF_ERROR(result.status());
    console.Err(DescribeTimings(*result) + "\n");
    if (result->finish_reason == FinishReason::kCancelled) return CancelledError("interrupted");
  }
  const KvCacheStats stats = engine->cache().stats();
  if (!as_json) return console.Out(KvStatsText(stats));
  JsonWriter json;
  KvStatsJson(stats, json);
  return console.Out(json.text() + "\n");
}

}  // namespace lode::cli
