// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE (GPT-2, Qwen, Llama 3, DeepSeek V3): NFC if the model wants it, pre-tokenizer,
// then merges within each word, starting from single bytes. Any bytes can be encoded and come back.
#include <fmt/format.h>

#include <array>

#include "tokenizer/byte_level.h"
#include "tokenizer/merge.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/tokenizer_base.h"
#include "tokenizer/unicode.h"

namespace lode {
namespace {

using ByteTokens = std::array<TokenId, 256>;

class ByteLevelBpe final : public TokenizerBase {
 public:
  static Result<std::unique_ptr<Tokenizer>> Build(const TokenizerSpec& spec) {
    LODE_ASSIGN_OR_RETURN(std::unique_ptr<PreTokenizer> pre,
                          PreTokenizer::Create(spec.pre_tokenizer));
    std::unique_ptr<ByteLevelBpe> bpe(new ByteLevelBpe(spec, std::move(pre)));
    LODE_RETURN_IF_ERROR(bpe->FindByteTokens(spec));
    LODE_ASSIGN_OR_RETURN(bpe->merges_, BuildMergeTable(spec, bpe->vocab_));
    return std::unique_ptr<Tokenizer>(std::move(bpe));
  }

  std::string_view kind() const override { return kind_; }

 private:
  ByteLevelBpe(const TokenizerSpec& spec, std::unique_ptr<PreTokenizer> pre)
      : TokenizerBase(spec),
        kind_("bpe/" + spec.pre_tokenizer),
        pre_(std::move(pre)),
        merges_(0),
        normalize_nfc_(spec.normalize_nfc),
        ignore_merges_(spec.ignore_merges) {}

  Status FindByteTokens(const TokenizerSpec& spec) {
    for (int byte = 0; byte < 256; ++byte) {
      const std::string text = ByteLevelCharacter(static_cast<uint8_t>(byte));
      byte_tokens_[static_cast<size_t>(byte)] = vocab_.Find(text);
      if (vocab_.Find(text) < 0) {
        return CorruptionError(
            fmt::format("{}: no token for byte 0x{:02X} (\"{}\")", spec.origin, byte, text));
      }
    }
    return OkStatus();
  }

  void EncodePlain(std::string_view text, Before /*before*/,
                   std::vector<TokenId>* ids) const override {
    std::string normalized;
    if (normalize_nfc_) text = ToNfc(text, &normalized);
    MergeScratch scratch;
    std::string spelled;
    pre_->Split(text, [&](std::string_view word) {
      if (ignore_merges_ && AppendWholeWord(word, &spelled, ids)) return;
      AppendMerged(word, &scratch, ids);
    });
  }

  // Llama 3: a word that is a token is that token, whatever the merges would give.
  bool AppendWholeWord(std::string_view word, std::string* spelled,
                       std::vector<TokenId>* ids) const {
    spelled->clear();
    for (const char c : word) *spelled += ByteLevelCharacter(static_cast<uint8_t>(c));
    const TokenId id = vocab_.Find(*spelled);
    if (id < 0 || type(id) != TokenType::kNormal) return false;
    ids->push_back(id);
    return true;
  }

  void AppendMerged(std::string_view word, MergeScratch* scratch, std::vector<TokenId>* ids) const {
    scratch->symbols.resize(word.size());
    for (size_t i = 0; i < word.size(); ++i) {
      scratch->symbols[i] = {static_cast<uint32_t>(i), 1,
                             byte_tokens_[static_cast<uint8_t>(word[i])]};
    }
    MergeSymbols(*scratch, [this](const Symbol& left, const Symbol& right) {
      const MergeTable::Merge* merge = merges_.Find(left.id, right.id);
      return merge == nullptr ? PairMerge{} : PairMerge{merge->rank, merge->id};
    });
    for (const Symbol& symbol : scratch->symbols) ids->push_back(symbol.id);
  }

  // A token of characters outside of the byte alphabet stands for its own text, as in Hugging Face.
  std::string Spelling(TokenId id) const override {
    std::string bytes;
    if (type(id) == TokenType::kUserDefined || !DecodeByteLevel(vocab_.text(id), &bytes)) {
      return std::string(vocab_.text(id));
    }
    return bytes;
  }

  std::string kind_;
  std::unique_ptr<PreTokenizer> pre_;
  MergeTable merges_;
  ByteTokens byte_tokens_{};
  bool normalize_nfc_;
  bool ignore_merges_;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> BuildByteLevelBpe(const TokenizerSpec& spec) {
  return ByteLevelBpe::Build(spec);
}

}  // namespace lode
