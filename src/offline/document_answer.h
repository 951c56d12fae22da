// SPDX-License-Identifier: Apache-2.0
// A document and a question behind it, answered greedily by one attention after another.
//
// The document is prefilled once, with exact attention; the question and the answer are processed
// by the attention under test, as they are when it serves a cached document.
#ifndef LODE_OFFLINE_DOCUMENT_ANSWER_H_
#define LODE_OFFLINE_DOCUMENT_ANSWER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "offline/progress.h"
#include "tokenizer/chat_template.h"

namespace lode {

struct DocumentPrompt {
  std::vector<TokenId> tokens;
  int64_t context_tokens = 0;  // those that do not depend on the question, in whole tiles
};

struct Answer {
  std::string text;
  std::vector<TokenId> token_ids;  // without the end token
};

// `text` as a user's message and `answer_prefix` as the beginning of the model's; without a
// template both as plain text.
Result<std::vector<TokenId>> EncodePrompt(const Engine& engine, const ChatTemplate* chat_template,
                                          const std::string& text,
                                          const std::string& answer_prefix);
Result<DocumentPrompt> EncodeDocument(const Engine& engine, const ChatTemplate* chat_template,
                                      const std::string& context, const std::string& question,
                                      const std::string& answer_prefix);

// Puts the document, and nothing else, into the engine's cache.
Status PrefillDocument(Engine& engine, const DocumentPrompt& prompt, Progress& progress);

// The likeliest tokens behind the prompt, `answer_tokens` of them or as many as come before the
// end token. The cache holds the document and may hold more. Errors: those of
// Engine::MakeAttention and Progress::Append.
Result<Answer> AnswerDocument(Engine& engine, const std::string& attention,
                              const DocumentPrompt& prompt, int64_t answer_tokens,
                              Progress& progress);

// The same by csa_hca, whatever the engine's options, that reads nothing of the first
// context_tokens but their first page: every other page is its summary. What comes behind, up to 31
// tokens of the document among it, is read exactly. An index is made for every token.
Result<Answer> AnswerFromSummaries(Engine& engine, const DocumentPrompt& prompt,
                                   int64_t answer_tokens, Progress& progress);

}  // namespace lode

#endif  // LODE_OFFLINE_DOCUMENT_ANSWER_H_
