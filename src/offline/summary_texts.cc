// SPDX-License-Identifier: Apache-2.0
#include "offline/summary_texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "offline/document_answer.h"
#include "offline/fidelity.h"
#include "tokenizer/unicode.h"

namespace lode {
namespace {

// Long enough to fill the first page of a context, which is always read.
constexpr char kIntroduction[] =
    "You are given a passage of a longer text. Read it with care, word by word and sentence by "
    "sentence, for you will be asked to write it down again. The passage:\n\n";
constexpr char kQuestion[] = "\n\nRepeat the passage above word for word.";

// Tokens of instructions and a chat template, about.
constexpr int64_t kPromptTokens = 128;

}  // namespace

void CompareTexts(const SentenceEmbedder& embedder, std::span<const std::string> beginnings,
                  SummaryTextRow& row) {
  std::vector<std::vector<float>> vectors;
  for (const std::string& beginning : beginnings) vectors.push_back(embedder.Embed(beginning));
  const auto count = static_cast<double>(beginnings.size());
  row.own = row.others = 0.0;
  row.nearest = 0;
  for (size_t i = 0; i < vectors.size(); ++i) {
    const std::vector<float> answer = embedder.Embed(row.answers[i]);
    const double own = Cosine(answer, vectors[i]);
    bool nearest = true;
    for (size_t j = 0; j < vectors.size(); ++j) {
      if (j == i) continue;
      const double other = Cosine(answer, vectors[j]);
      row.others += other / (count * (count - 1.0));
      nearest = nearest && own > other;
    }
    row.own += own / count;
    row.nearest += nearest ? 1 : 0;
  }
}

Status CheckSummaryTextOptions(const Engine& engine, std::span<const TokenId> text,
                               const SummaryTextOptions& options) {
  const int64_t text_tokens = options.passages * options.passage_tokens;
  const int64_t context = options.passage_tokens + options.answer_tokens + kPromptTokens;
  if (options.passages >= 2 && options.passage_tokens >= 1 && options.answer_tokens >= 1 &&
      std::ssize(text) >= text_tokens && engine.options().context_len >= context) {
    return OkStatus();
  }
  return InvalidArgumentError(fmt::format(
      "summary texts: expected at least 2 passages, a text of {} tokens for {} of {}, and a "
      "context of {}, found a text of {} and a context of {}",
      text_tokens, options.passages, options.passage_tokens, context, text.size(),
      engine.options().context_len));
}

Result<SummaryTextReport> TellSummaries(Engine& engine, std::span<const TokenId> text,
                                        const SentenceEmbedder& embedder,
                                        const SummaryTextOptions& options) {
  LODE_RETURN_IF_ERROR(CheckSummaryTextOptions(engine, text, options));
  const int64_t stride = std::ssize(text) / options.passages;
  SummaryTextReport report;
  report.passage_tokens = options.passage_tokens;
  report.answer_tokens = options.answer_tokens;
  std::vector<std::string> attentions = {kExactAttention};
  attentions.insert(attentions.end(), options.attentions.begin(), options.attentions.end());
  for (const std::string& attention : attentions) report.rows.push_back({.attention = attention});
  report.rows.push_back({.attention = kSummariesAlone});

  const int64_t work =
      options.passage_tokens + options.answer_tokens * static_cast<int64_t>(report.rows.size());
  Progress progress(options.on_progress, options.passages * work);
  const int64_t beginning_tokens = std::min(options.answer_tokens, options.passage_tokens);
  const auto decode = [&](const std::vector<TokenId>& tokens) {
    return ReplaceIllFormed(engine.tokenizer().Decode(tokens));
  };
  std::vector<std::vector<float>> vectors;
  for (int64_t i = 0; i < options.passages; ++i) {
    const auto first = text.begin() + i * stride;
    const std::string passage = decode({first, first + options.passage_tokens});
    report.beginnings.push_back(decode({first, first + beginning_tokens}));
    vectors.push_back(embedder.Embed(report.beginnings.back()));
    LODE_ASSIGN_OR_RETURN(
        const DocumentPrompt prompt,
        EncodeDocument(engine, options.chat_template, kIntroduction + passage, kQuestion, ""));
    LODE_RETURN_IF_ERROR(PrefillDocument(engine, prompt, progress));
    for (SummaryTextRow& row : report.rows) {
      LODE_ASSIGN_OR_RETURN(
          Answer answer,
          &row == &report.rows.back()
              ? AnswerFromSummaries(engine, prompt, options.answer_tokens, progress)
              : AnswerDocument(engine, row.attention, prompt, options.answer_tokens, progress));
      row.answers.push_back(ReplaceIllFormed(answer.text));
    }
    LODE_RETURN_IF_ERROR(progress.MoveTo((i + 1) * work));
  }
  const auto pairs = static_cast<double>(options.passages * (options.passages - 1)) / 2;
  for (size_t i = 0; i < vectors.size(); ++i) {
    for (size_t j = 0; j < i; ++j)
      report.beginnings_cosine += Cosine(vectors[i], vectors[j]) / pairs;
  }
  for (SummaryTextRow& row : report.rows) CompareTexts(embedder, report.beginnings, row);
  return report;
}

}  // namespace lode
