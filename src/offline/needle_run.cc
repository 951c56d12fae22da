// SPDX-License-Identifier: Apache-2.0
#include "offline/needle_run.h"

#include <utility>

#include "offline/document_answer.h"
#include "offline/fidelity.h"

namespace lode {
namespace {

Result<NeedleSample> RunPrompt(Engine& engine, const NeedleOptions& options,
                               const NeedlePrompt& prompt, Progress& progress) {
  LODE_ASSIGN_OR_RETURN(const DocumentPrompt encoded,
                        EncodeDocument(engine, options.chat_template, prompt.context,
                                       prompt.question, prompt.answer_prefix));
  NeedleSample sample;
  sample.prompt_tokens = static_cast<int64_t>(encoded.tokens.size());
  sample.question_tokens = sample.prompt_tokens - encoded.context_tokens;
  sample.references = prompt.references;
  LODE_RETURN_IF_ERROR(PrefillDocument(engine, encoded, progress));
  const auto run = [&](const std::string& attention) -> Result<NeedleAnswer> {
    NeedleAnswer answer;
    LODE_ASSIGN_OR_RETURN(
        static_cast<Answer&>(answer),
        AnswerDocument(engine, attention, encoded, prompt.answer_tokens, progress));
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
      const NeedleSpec spec = {.task = task,
                               .seed = options.seed + static_cast<uint64_t>(i),
                               .max_tokens = options.max_tokens,
                               .haystack = options.haystack,
                               .count_tokens = [&](const NeedlePrompt& prompt) {
                                 const auto tokens = EncodePrompt(engine, options.chat_template,
                                                                  prompt.context + prompt.question,
                                                                  prompt.answer_prefix);
                                 if (!tokens.ok()) encoded = tokens.status();
                                 return tokens.ok() ? static_cast<int64_t>(tokens->size())
                                                    : options.max_tokens;
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
