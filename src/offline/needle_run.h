// SPDX-License-Identifier: Apache-2.0
// Answers needle prompts with exact attention and with others, and compares the answers.
//
// Each context is prefilled once, with exact attention; the question and the answer are processed
// by the attention under test, as they are when it serves a cached document.
#ifndef LODE_OFFLINE_NEEDLE_RUN_H_
#define LODE_OFFLINE_NEEDLE_RUN_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "offline/document_answer.h"
#include "offline/needles.h"
#include "offline/progress.h"
#include "tokenizer/chat_template.h"

namespace lode {

struct NeedleOptions {
  std::vector<std::string> attentions;  // names of the registry
  std::vector<std::string> tasks;       // of NeedleTasks()
  int64_t samples = 1;                  // prompts per task
  uint64_t seed = 1;
  int64_t max_tokens = 0;  // of prompt and answer
  std::string_view haystack;
  // The prompt is a user's message and the answer's beginning is the model's; null: plain text.
  const ChatTemplate* chat_template = nullptr;
  ProgressCallback on_progress;  // in tokens, about
};

struct NeedleAnswer : Answer {
  double score = 0.0;  // ScoreAnswer
};

struct NeedleSample {
  std::string task;
  int64_t prompt_tokens = 0;
  int64_t question_tokens = 0;  // of these, processed by the attention under test
  std::vector<std::string> references;
  NeedleAnswer exact;
  std::vector<NeedleAnswer> answers;  // per attention
};

struct NeedleScore {
  std::string task;
  int64_t samples = 0;
  double exact = 0.0;              // mean score
  std::vector<double> scores;      // per attention
  std::vector<int64_t> identical;  // answers with the same tokens as exact attention's
};

struct NeedleReport {
  std::vector<std::string> attentions;
  std::vector<NeedleSample> samples;

  // One per task, in the order of the samples.
  std::vector<NeedleScore> ByTask() const;
  // Over all samples.
  NeedleScore Total() const;
};

// Cost per prompt: a prefill of max_tokens, and for each attention the question and up to 128
// greedy tokens. Errors: those of MakeNeedlePrompt and CheckAttentionName; ResourceExhausted when
// the engine's context is smaller than max_tokens.
Result<NeedleReport> RunNeedles(Engine& engine, const NeedleOptions& options);

}  // namespace lode

#endif  // LODE_OFFLINE_NEEDLE_RUN_H_
