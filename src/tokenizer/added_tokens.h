// SPDX-License-Identifier: Apache-2.0
// AddedTokens: finds added tokens in raw text, the longest at the leftmost place, as Hugging Face's
// AddedVocabulary does. Texts are kept sorted; a match narrows the range of candidates byte by
// byte, so thousands of tokens with one beginning (Gemma's "<unused99>") cost no more than a few.
#ifndef LODE_TOKENIZER_ADDED_TOKENS_H_
#define LODE_TOKENIZER_ADDED_TOKENS_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "tokenizer/tokenizer_spec.h"

namespace lode {

// Immutable: any number of threads.
class AddedTokens {
 public:
  // Copies the texts. Tokens with an empty text are ignored.
  explicit AddedTokens(const std::vector<AddedToken>& tokens);

  // Calls part(text, -1) for plain text (never empty) and part(text, id) for added tokens, in
  // order. Control tokens are plain text unless parse_control.
  void Split(std::string_view text, bool parse_control,
             FunctionRef<void(std::string_view, TokenId)> part) const;
  bool empty() const { return tokens_.empty(); }

 private:
  struct Token {
    std::string text;
    AddedToken flags;  // flags.text is not used
  };
  // The longest token at the start of `text`; null when there is none.
  const Token* LongestAt(std::string_view text) const;

  std::vector<Token> tokens_;               // sorted by text
  std::array<uint32_t, 257> first_byte_{};  // tokens starting with b: [first_byte_[b], [b + 1])
};

}  // namespace lode

#endif  // LODE_TOKENIZER_ADDED_TOKENS_H_
