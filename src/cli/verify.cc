// SPDX-License-Identifier: Apache-2.0
// `lode verify`: what an attention loses against exact attention, measured on the user's own model
// and text.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/topology.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/memory_audit.h"
#include "cli/text_input.h"
#include "cli/verify_options.h"
#include "cli/verify_report.h"
#include "offline/fidelity.h"
#include "offline/needle_run.h"
#include "offline/output_audit.h"
#include "offline/sentence_embedder.h"
#include "offline/similar_sentences.h"
#include "offline/summary_texts.h"

namespace lode::cli {
namespace {

// Steps whose outputs are compared layer by layer: each gives an output per layer and head.
constexpr int64_t kOutputSteps = 16;

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

// Behind what needs the prompt: it leaves only its beginning in the cache.
Status CheckSentences(Console& console, Engine& engine, const VerifyOptions& options,
                      std::span<const TokenId> tokens, VerifyReport& report) {
  const bool calibrated = std::ranges::any_of(options.attentions, NeedsCalibration);
  if (options.variants == 0 || !calibrated) return OkStatus();
  SimilarityOptions sentences;
  // Sentences need room behind it.
  sentences.context_tokens = std::min(sentences.context_tokens, report.fidelity->prompt_tokens / 2);
  sentences.neighbours = std::min(sentences.neighbours, sentences.context_tokens);
  sentences.variants = options.variants;
  LODE_ASSIGN_OR_RETURN(report.sentences,
                        WithProgress(console, "sentences", [&](ProgressCallback on_progress) {
                          sentences.on_progress = std::move(on_progress);
                          return CompareSimilarSentences(engine, tokens, sentences);
                        }));
  return OkStatus();
}

SummaryTextOptions SummaryOptionsFor(const Engine& engine, const VerifyOptions& options) {
  SummaryTextOptions summaries;
  summaries.attentions = options.attentions;
  const auto chat_template = engine.chat_template();
  if (!options.no_chat && chat_template.ok()) summaries.chat_template = *chat_template;
  return summaries;
}

// Last of its group: it leaves nothing of the prompt in the cache.
Status CheckSummaries(Console& console, Engine& engine, const VerifyOptions& options,
                      const SentenceEmbedder& embedder, std::span<const TokenId> tokens,
                      VerifyReport& report) {
  SummaryTextOptions summaries = SummaryOptionsFor(engine, options);
  LODE_ASSIGN_OR_RETURN(report.summaries,
                        WithProgress(console, "summaries", [&](ProgressCallback on_progress) {
                          summaries.on_progress = std::move(on_progress);
                          return TellSummaries(engine, tokens, embedder, summaries);
                        }));
  return OkStatus();
}

// Memory comes first: what other checks have used and given back would count as used. Its prompt
// stays in the cache for them.
Status CheckAttentions(Console& console, Engine& engine, const VerifyOptions& options,
                       const std::string& text, const MemoryAtLoad& at_load,
                       const SentenceEmbedder* embedder, VerifyReport& report) {
  const std::vector<TokenId> tokens = engine.tokenizer().Encode(text);
  FidelityOptions fidelity;
  fidelity.attentions = options.attentions;
  fidelity.steps = options.steps;
  fidelity.prompt_tokens = report.context - options.steps;
  fidelity.sparse_prefill = options.sparse_prefill;
  const Status valid = CheckFidelityOptions(tokens, fidelity);
  if (!valid.ok()) {
    return WithHint(valid, "-c sets the context, --steps how much of it is decoded");
  }
  if (embedder != nullptr) {
    LODE_RETURN_IF_ERROR(CheckSummaryTextOptions(engine, tokens, SummaryOptionsFor(engine, options))
                             .WithContext("--sentence-embeddings"));
  }
  LODE_ASSIGN_OR_RETURN(report.memory,
                        WithProgress(console, "memory", [&](ProgressCallback on_progress) {
                          const auto prompt = static_cast<size_t>(fidelity.prompt_tokens);
                          return AuditMemory(engine, std::span(tokens).first(prompt + 1),
                                             options.attentions, at_load, std::move(on_progress));
                        }));
  // Before fidelity, which leaves the prompt's end as sparse attention made it.
  OutputAuditOptions outputs;
  outputs.attentions = options.attentions;
  outputs.prompt_tokens = fidelity.prompt_tokens;
  outputs.cached_tokens = engine.cached_length();
  outputs.steps = std::min(options.steps, kOutputSteps);
  LODE_ASSIGN_OR_RETURN(report.outputs,
                        WithProgress(console, "outputs", [&](ProgressCallback on_progress) {
                          outputs.on_progress = std::move(on_progress);
                          return AuditOutputs(engine, tokens, outputs);
                        }));
  engine.Truncate(report.outputs->prompt_tokens);
  fidelity.cached_tokens = engine.cached_length();
  LODE_ASSIGN_OR_RETURN(report.fidelity,
                        WithProgress(console, "fidelity", [&](ProgressCallback on_progress) {
                          fidelity.on_progress = std::move(on_progress);
                          return MeasureFidelity(engine, tokens, fidelity);
                        }));
  LODE_RETURN_IF_ERROR(CheckSentences(console, engine, options, tokens, report));
  if (embedder == nullptr) return OkStatus();
  return CheckSummaries(console, engine, options, *embedder, tokens, report);
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
  LODE_ASSIGN_OR_RETURN(report.tasks,
                        WithProgress(console, "tasks", [&](ProgressCallback on_progress) {
                          needles.on_progress = std::move(on_progress);
                          return RunNeedles(engine, needles);
                        }));
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
            "  lode verify -m MODEL -f book.txt --attention csa_hca,csa_hca:csa_top_k=1024\n"
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
  std::unique_ptr<SentenceEmbedder> embedder;
  if (!options.sentence_embeddings.empty()) {
    auto opened = SentenceEmbedder::Open(options.sentence_embeddings);
    if (!opened.ok()) return opened.status().WithContext("--sentence-embeddings");
    embedder = std::move(*opened);
  }

  MemoryAtLoad at_load;
  at_load.before = ReadResidentMemory();
  LODE_ASSIGN_OR_RETURN(const auto engine, LoadEngine(console, options.model));
  at_load.after = ReadResidentMemory();
  VerifyReport report;
  report.model = engine->options().model_path;
  report.kv_dtype = KvDTypesName(engine->options().kv_dtypes);
  report.context = engine->options().context_len;
  LODE_RETURN_IF_ERROR(options.tasks.empty() ? CheckAttentions(console, *engine, options, text,
                                                               at_load, embedder.get(), report)
                                             : CheckTasks(console, *engine, options, text, report));
  return console.Out(options.as_json ? report.AsJson() : report.AsText());
}

}  // namespace lode::cli
