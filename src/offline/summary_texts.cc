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

using Vectors = std::vector<std::vector<float>>;

// answers[i] should be beginnings[i].
void Compare(const SentenceEmbedder& embedder, const Vectors& beginnings, SummaryTextRow& row) {
  const auto count = static_cast<double>(beginnings.size());
  for (size_t i = 0; i < beginnings.size(); ++i) {
    const std::vector<float> answer = embedder.Embed(row.answers[i]);
    const double own = Cosine(answer, beginnings[i]);
    bool nearest = true;
    for (size_t j = 0; j < beginnings.size(); ++j) {
      if (j == i) continue;
      const double other = Cosine(answer, beginnings[j]);
      row.others += other / (count * (count - 1.0));
      nearest = nearest && own > other;
    }
    row.own += own / count;
    row.nearest += nearest ? 1 : 0;
  }
}

}  // namespace

Result<SummaryTextReport> TellSummaries(Engine& engine, std::span<const TokenId> text,
                                        const SentenceEmbedder& embedder,
                                        const SummaryTextOptions& options) {
  const int64_t stride = std::ssize(text) / std::max<int64_t>(options.passages, 1);
  if (options.passages < 2 || options.passage_tokens < 1 || stride < options.passage_tokens) {
    return InvalidArgumentError(fmt::format(
        "summary texts: expected at least 2 passages and a text as long as all of them, found {} "
        "of {} tokens and a text of {}",
        options.passages, options.passage_tokens, text.size()));
  }
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
  Vectors vectors;
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
  const auto pairs = static_cast<double>(options.passages * (options.passages - 1) / 2);
  for (size_t i = 0; i < vectors.size(); ++i) {
    for (size_t j = 0; j < i; ++j)
      report.beginnings_cosine += Cosine(vectors[i], vectors[j]) / pairs;
  }
  for (SummaryTextRow& row : report.rows) Compare(embedder, vectors, row);
  return report;
}

}  // namespace lode
