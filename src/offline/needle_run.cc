// SPDX-License-Identifier: Apache-2.0
#include "offline/needle_run.h"

#include <algorithm>
#include <utility>

#include "kv/block_plan.h"
#include "offline/fidelity.h"
#include "offline/scoped_attention.h"

namespace lode {
namespace {

struct EncodedPrompt {
  std::vector<TokenId> tokens;
  int64_t context_tokens = 0;  // those that do not depend on the question, in whole tiles
};

Result<std::vector<TokenId>> Encode(const Engine& engine, const ChatTemplate* chat_template,
                                    const std::string& text, const std::string& answer_prefix) {
  const Tokenizer& tokenizer = engine.tokenizer();
  if (chat_template == nullptr) return tokenizer.Encode(text + answer_prefix);
  const std::vector<ChatMessage> messages = {{.role = "user", .content = text}};
  LODE_ASSIGN_OR_RETURN(std::vector<TokenId> tokens,
                        chat_template->RenderTokens(tokenizer, messages, {}));
  const std::vector<TokenId> prefix = tokenizer.Encode(answer_prefix, {.add_special = false});
  tokens.insert(tokens.end(), prefix.begin(), prefix.end());
  return tokens;
}

Result<EncodedPrompt> EncodePrompt(const Engine& engine, const ChatTemplate* chat_template,
                                   const NeedlePrompt& prompt) {
  EncodedPrompt encoded;
  LODE_ASSIGN_OR_RETURN(
      encoded.tokens,
      Encode(engine, chat_template, prompt.context + prompt.question, prompt.answer_prefix));
  LODE_ASSIGN_OR_RETURN(const std::vector<TokenId> context,
                        Encode(engine, chat_template, prompt.context, ""));
  const auto shared =
      std::mismatch(encoded.tokens.begin(), encoded.tokens.end(), context.begin(), context.end());
  encoded.context_tokens = (shared.first - encoded.tokens.begin()) / BlockPlan::kMaxTileTokens *
                           BlockPlan::kMaxTileTokens;
  return encoded;
}

// The likeliest tokens behind the prompt, whose last `question` tokens are run first.
Result<NeedleAnswer> Answer(Engine& engine, const std::string& attention,
                            const EncodedPrompt& prompt, int64_t answer_tokens,
                            Progress& progress) {
  engine.Truncate(prompt.context_tokens);
  LODE_ASSIGN_OR_RETURN(auto tested, engine.MakeAttention(attention));
  const ScopedAttention in_use(engine, std::move(tested));
  LODE_RETURN_IF_ERROR(progress.Append(
      engine, std::span(prompt.tokens).subspan(static_cast<size_t>(engine.cached_length()))));
  NeedleAnswer answer;
  while (static_cast<int64_t>(answer.token_ids.size()) < answer_tokens) {
    const auto logits = engine.last_logits();
    const auto best =
        static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    if (engine.tokenizer().IsEndOfGeneration(best)) break;
    answer.token_ids.push_back(best);
    if (static_cast<int64_t>(answer.token_ids.size()) == answer_tokens) break;
    LODE_RETURN_IF_ERROR(progress.Append(engine, {&answer.token_ids.back(), 1}));
  }
  answer.text = engine.tokenizer().Decode(answer.token_ids);
  return answer;
}

Result<NeedleSample> RunPrompt(Engine& engine, const NeedleOptions& options,
                               const NeedlePrompt& prompt, Progress& progress) {
  LODE_ASSIGN_OR_RETURN(const EncodedPrompt encoded,
                        EncodePrompt(engine, options.chat_template, prompt));
  NeedleSample sample;
  sample.prompt_tokens = static_cast<int64_t>(encoded.tokens.size());
  sample.question_tokens = sample.prompt_tokens - encoded.context_tokens;
  sample.references = prompt.references;
  engine.ResetCache();
  {
    LODE_ASSIGN_OR_RETURN(auto exact, engine.MakeAttention(kExactAttention));
    const ScopedAttention in_use(engine, std::move(exact));
    LODE_RETURN_IF_ERROR(progress.Append(
        engine, std::span(encoded.tokens).first(static_cast<size_t>(encoded.context_tokens))));
  }
  const auto run = [&](const std::string& attention) -> Result<NeedleAnswer> {
    LODE_ASSIGN_OR_RETURN(NeedleAnswer answer,
                          Answer(engine, attention, encoded, prompt.answer_tokens, progress));
    answer.score = ScoreAnswer(answer.text, prompt.references);
    return answer;
  };
  LODE_ASSIGN_OR_RETURN(sample.exact, run(kExactAttention));
  for (const std::string& attention : options.attentions) {
    LODE_ASSIGN_OR_RETURN(NeedleAnswer answer, run(attention));
    sample.answers.push_back(std::move(answer));
  }
  return sample;
}

NeedleScore Mean(std::string task, std::span<const NeedleSample* const> samples,
                 size_t num_attentions) {
  NeedleScore score;
  score.task = std::move(task);
  score.samples = static_cast<int64_t>(samples.size());
  score.scores.assign(num_attentions, 0.0);
  score.identical.assign(num_attentions, 0);
  const auto count = static_cast<double>(samples.size());
  for (const NeedleSample* sample : samples) {
    score.exact += sample->exact.score / count;
    for (size_t i = 0; i < num_attentions; ++i) {
      score.scores[i] += sample->answers[i].score / count;
      score.identical[i] += sample->answers[i].token_ids == sample->exact.token_ids ? 1 : 0;
    }
  }
  return score;
}

}  // namespace

std::vector<NeedleScore> NeedleReport::ByTask() const {
  std::vector<NeedleScore> scores;
  std::vector<const NeedleSample*> of_task;
  for (size_t i = 0; i < samples.size(); ++i) {
    of_task.push_back(&samples[i]);
    if (i + 1 < samples.size() && samples[i + 1].task == samples[i].task) continue;
    scores.push_back(Mean(samples[i].task, of_task, attentions.size()));
    of_task.clear();
  }
  return scores;
}

NeedleScore NeedleReport::Total() const {
  std::vector<const NeedleSample*> all;
  all.reserve(samples.size());
  for (const NeedleSample& sample : samples) all.push_back(&sample);
  return Mean("total", all, attentions.size());
}

Result<NeedleReport> RunNeedles(Engine& engine, const NeedleOptions& options) {
  for (const std::string& name : options.attentions) {
    LODE_RETURN_IF_ERROR(CheckAttentionName(name));
  }
  // Prompts differ in how much they leave of this.
  constexpr int64_t kTokensPerAnswer = 192;
  const int64_t work =
      options.max_tokens + kTokensPerAnswer * (1 + static_cast<int64_t>(options.attentions.size()));
  const int64_t prompts = static_cast<int64_t>(options.tasks.size()) * options.samples;
  Progress progress(options.on_progress, prompts * work);
  NeedleReport report;
  report.attentions = options.attentions;
  for (const std::string& task : options.tasks) {
    for (int64_t i = 0; i < options.samples; ++i) {
      Status encoded;
      const NeedleSpec spec = {
          .task = task,
          .seed = options.seed + static_cast<uint64_t>(i),
          .max_tokens = options.max_tokens,
          .haystack = options.haystack,
          .count_tokens = [&](const NeedlePrompt& prompt) {
            const auto tokens = Encode(engine, options.chat_template,
                                       prompt.context + prompt.question, prompt.answer_prefix);
            if (!tokens.ok()) encoded = tokens.status();
            return tokens.ok() ? static_cast<int64_t>(tokens->size()) : options.max_tokens;
          }};
      auto prompt = MakeNeedlePrompt(spec);
      LODE_RETURN_IF_ERROR(encoded);
      LODE_RETURN_IF_ERROR(prompt.status());
      LODE_ASSIGN_OR_RETURN(NeedleSample sample, RunPrompt(engine, options, *prompt, progress));
      sample.task = task;
      report.samples.push_back(std::move(sample));
      LODE_RETURN_IF_ERROR(progress.MoveTo(static_cast<int64_t>(report.samples.size()) * work));
    }
  }
  return report;
}

}  // namespace lode
