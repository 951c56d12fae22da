// SPDX-License-Identifier: Apache-2.0
// TokenizerBase: what byte-level BPE and SentencePiece-style tokenizers share: ids of special
// tokens, the split at added tokens, placeholders, BOS and EOS, decoding.
#ifndef LODE_TOKENIZER_TOKENIZER_BASE_H_
#define LODE_TOKENIZER_TOKENIZER_BASE_H_

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/tokenizer_spec.h"
#include "tokenizer/vocab.h"

namespace lode {

class TokenizerBase : public Tokenizer {
 public:
  std::vector<TokenId> Encode(std::string_view text, const EncodeOptions& options) const final;
  std::string TokenBytes(TokenId id, bool show_special) const final;
  std::string Decode(const std::vector<TokenId>& ids, bool show_special) const final;
  int64_t vocab_size() const final { return static_cast<int64_t>(types_.size()); }
  TokenId bos() const final { return bos_; }
  TokenId eos() const final { return eos_; }
  bool adds_bos() const final { return add_bos_; }
  bool strips_leading_space() const final { return strip_one_space_; }
  bool IsEndOfGeneration(TokenId id) const final;
  bool IsControl(TokenId id) const final;
  TokenId Find(std::string_view token_text) const final;
  std::vector<std::string_view> control_texts() const final;

 protected:
  // `spec` must have passed ValidateSpec.
  explicit TokenizerBase(const TokenizerSpec& spec);

  // Appends the ids of text without added tokens.
  virtual void EncodePlain(std::string_view text, Before before,
                           std::vector<TokenId>* ids) const = 0;
  // The text that a token of this type and spelling stands for.
  virtual std::string Spelling(TokenId id) const = 0;

  bool valid(TokenId id) const { return id >= 0 && id < vocab_size(); }
  TokenType type(TokenId id) const { return types_[static_cast<size_t>(id)]; }

  Vocab vocab_;                   // texts as in the file
  std::vector<TokenType> types_;  // by id

 private:
  void EncodeParts(std::string_view text, const EncodeOptions& options,
                   std::vector<TokenId>* ids) const;

  AddedTokens added_;
  std::vector<TokenId> end_of_generation_;  // sorted
  TokenId bos_;
  TokenId eos_;
  bool add_bos_;
  bool add_eos_;
  bool strip_one_space_;
};

// Array lengths, id ranges, and the presence of what `kind` needs. Errors: Corruption.
Status ValidateSpec(const TokenizerSpec& spec);

// The merges as a table. Errors: Corruption when a merge names a token that does not exist.
Result<MergeTable> BuildMergeTable(const TokenizerSpec& spec, const Vocab& vocab);

Result<std::unique_ptr<Tokenizer>> BuildByteLevelBpe(const TokenizerSpec& spec);
Result<std::unique_ptr<Tokenizer>> BuildSentencePiece(const TokenizerSpec& spec);

}  // namespace lode

#endif  // LODE_TOKENIZER_TOKENIZER_BASE_H_
