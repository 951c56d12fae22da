// SPDX-License-Identifier: Apache-2.0
#include "offline/document_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "kv/block_plan.h"
#include "offline/fidelity.h"
#include "offline/scoped_attention.h"

namespace lode {
namespace {

// Appends tokens behind what the cache holds.
using Append = std::function<Status(std::span<const TokenId>)>;

Result<Answer> AnswerGreedily(Engine& engine, const DocumentPrompt& prompt, int64_t answer_tokens,
                              const Append& append) {
  LODE_RETURN_IF_ERROR(
      append(std::span(prompt.tokens).subspan(static_cast<size_t>(engine.cached_length()))));
  Answer answer;
  while (std::ssize(answer.token_ids) < answer_tokens) {
    const auto logits = engine.last_logits();
    const auto best =
        static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    if (engine.tokenizer().IsEndOfGeneration(best)) break;
    answer.token_ids.push_back(best);
    if (std::ssize(answer.token_ids) == answer_tokens) break;
    LODE_RETURN_IF_ERROR(append({&answer.token_ids.back(), 1}));
  }
  answer.text = engine.tokenizer().Decode(answer.token_ids);
  return answer;
}

}  // namespace

Result<std::vector<TokenId>> EncodePrompt(const Engine& engine, const ChatTemplate* chat_template,
                                          const std::string& text,
                                          const std::string& answer_prefix) {
  const Tokenizer& tokenizer = engine.tokenizer();
  if (chat_template == nullptr) return tokenizer.Encode(text + answer_prefix);
  const std::vector<ChatMessage> messages = {{.role = "user", .content = text}};
  LODE_ASSIGN_OR_RETURN(std::vector<TokenId> tokens,
                        chat_template->RenderTokens(tokenizer, messages, {}));
  const std::vector<TokenId> prefix = tokenizer.Encode(answer_prefix, {.add_special = false});
  tokens.insert(tokens.end(), prefix.begin(), prefix.end());
  return tokens;
}

Result<DocumentPrompt> EncodeDocument(const Engine& engine, const ChatTemplate* chat_template,
                                      const std::string& context, const std::string& question,
                                      const std::string& answer_prefix) {
  DocumentPrompt prompt;
  LODE_ASSIGN_OR_RETURN(prompt.tokens,
                        EncodePrompt(engine, chat_template, context + question, answer_prefix));
  LODE_ASSIGN_OR_RETURN(const std::vector<TokenId> document,
                        EncodePrompt(engine, chat_template, context, ""));
  const auto shared =
      std::mismatch(prompt.tokens.begin(), prompt.tokens.end(), document.begin(), document.end());
  prompt.context_tokens = (shared.first - prompt.tokens.begin()) / BlockPlan::kMaxTileTokens *
                          BlockPlan::kMaxTileTokens;
  return prompt;
}

Status PrefillDocument(Engine& engine, const DocumentPrompt& prompt, Progress& progress) {
  engine.ResetCache();
  LODE_ASSIGN_OR_RETURN(auto exact, engine.MakeAttention(kExactAttention));
  const ScopedAttention in_use(engine, std::move(exact));
  return progress.Append(
      engine, std::span(prompt.tokens).first(static_cast<size_t>(prompt.context_tokens)));
}

Result<Answer> AnswerDocument(Engine& engine, const std::string& attention,
                              const DocumentPrompt& prompt, int64_t answer_tokens,
                              Progress& progress) {
  engine.Truncate(prompt.context_tokens);
  LODE_ASSIGN_OR_RETURN(auto tested, engine.MakeAttention(attention));
  const ScopedAttention in_use(engine, std::move(tested));
  return AnswerGreedily(engine, prompt, answer_tokens, [&](std::span<const TokenId> tokens) {
    return progress.Append(engine, tokens);
  });
}

Result<Answer> AnswerFromSummaries(Engine& engine, const DocumentPrompt& prompt,
                                   int64_t answer_tokens, Progress& progress) {
  engine.Truncate(prompt.context_tokens);
  // One by one, so that the window of each token begins where the document ends.
  const auto append = [&](std::span<const TokenId> tokens) -> Status {
    for (const TokenId& token : tokens) {
      const int64_t window = engine.cached_length() + 1 - prompt.context_tokens;
      LODE_ASSIGN_OR_RETURN(
          auto summaries,
          engine.MakeAttention(fmt::format("csa_hca:csa_index=codes:csa_top_k=0:csa_max_error=0:"
                                           "csa_max_unread=0:csa_oversample=1:hca_summary=mean:"
                                           "hca_summary_ratio=1:hca_update_interval=1:"
                                           "hca_window={}",
                                           window)));
      const ScopedAttention in_use(engine, std::move(summaries));
      LODE_RETURN_IF_ERROR(progress.Append(engine, {&token, 1}));
    }
    return OkStatus();
  };
  return AnswerGreedily(engine, prompt, answer_tokens, append);
}

}  // namespace lode
