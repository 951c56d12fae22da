// SPDX-License-Identifier: Apache-2.0
// Summary texts: what a model says of a passage of which it reads nothing but summaries.
//
// The model is asked to repeat a passage, and answers three ways: by exact attention, by the
// attentions under test, and by summaries alone (AnswerFromSummaries). How much of the passage an
// answer keeps is the cosine of two sentence embeddings: the answer's, and that of as much of the
// passage's beginning. It means something only beside two others: that of exact attention's answer,
// which a perfect summary would reach, and that with other passages, which an answer that knows
// nothing of its own would reach.
#ifndef LODE_OFFLINE_SUMMARY_TEXTS_H_
#define LODE_OFFLINE_SUMMARY_TEXTS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "offline/progress.h"
#include "offline/sentence_embedder.h"
#include "tokenizer/chat_template.h"

namespace lode {

// How the answers by summaries alone are called among the others.
inline constexpr char kSummariesAlone[] = "summaries alone";

struct SummaryTextOptions {
  std::vector<std::string> attentions = {};
  int64_t passages = 8;  // at least 2, spread over the text
  int64_t passage_tokens = 768;
  int64_t answer_tokens = 128;
  // Null: plain text.
  const ChatTemplate* chat_template = nullptr;
  ProgressCallback on_progress = {};  // in tokens, about
};

// Means over passages.
struct SummaryTextRow {
  std::string attention;
  double own = 0.0;     // cosine of the answer with the beginning of its passage
  double others = 0.0;  // with those of the others
  int64_t nearest = 0;  // answers to which no other passage is as near as their own
  std::vector<std::string> answers = {};  // per passage
};

struct SummaryTextReport {
  int64_t passage_tokens = 0;
  int64_t answer_tokens = 0;
  double beginnings_cosine = 0.0;       // of two different ones
  std::vector<std::string> beginnings;  // of the passages, as long as an answer may be
  std::vector<SummaryTextRow> rows;     // exact attention, those asked for, summaries alone
};

// Sets the figures of a row from its answers, each of which should be one of `beginnings`, at least
// two.
void CompareTexts(const SentenceEmbedder& embedder, std::span<const std::string> beginnings,
                  SummaryTextRow& row);

// InvalidArgument: fewer than 2 passages, a text that is too short for them, or a context that is
// too short for one with its question and answer.
Status CheckSummaryTextOptions(const Engine& engine, std::span<const TokenId> text,
                               const SummaryTextOptions& options);

// Leaves a passage in the engine's cache. Errors: those of the check and of Progress::Append. Cost
// per passage: its prefill, and for each row the question and answer.
Result<SummaryTextReport> TellSummaries(Engine& engine, std::span<const TokenId> text,
                                        const SentenceEmbedder& embedder,
                                        const SummaryTextOptions& options);

}  // namespace lode

#endif  // LODE_OFFLINE_SUMMARY_TEXTS_H_
