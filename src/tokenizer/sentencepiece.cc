// SPDX-License-Identifier: Apache-2.0
// SentencePiece-style BPE (Llama 2, Gemma): spaces are written as U+2581, merges start from
// characters and run over the whole text, a character without a token becomes the tokens of its
// bytes ("<0x0A>").
//
// With a list of merges (tokenizer.json) their order decides. With scores only (GGUF) any two
// neighbours whose joined text is a token merge; the order is the one in which Hugging Face writes
// the list when it converts such a model: higher score, then longer left part, then longer right
// part, then lower id.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>

#include "tokenizer/merge.h"
#include "tokenizer/tokenizer_base.h"
#include "tokenizer/unicode.h"

namespace lode {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// The byte that "<0xNN>" names; -1 unless the text is exactly of this form.
int ParseByteToken(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  const int high = HexDigit(text[3]);
  const int low = HexDigit(text[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  result.reserve(text.size() + text.size() / 4);
  size_t begin = 0;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, begin)) {
    result.append(text.substr(begin, at - begin));
    result.append(to);
    begin = at + from.size();
  }
  result.append(text.substr(begin));
  return result;
}

class SentencePiece final : public TokenizerBase {
 public:
  static Result<std::unique_ptr<Tokenizer>> Build(const TokenizerSpec& spec) {
    std::unique_ptr<SentencePiece> spm(new SentencePiece(spec));
    LODE_RETURN_IF_ERROR(spm->FindByteTokens(spec));
    if (spec.merges.empty()) {
      LODE_RETURN_IF_ERROR(spm->RankScores(spec));
    } else {
      LODE_ASSIGN_OR_RETURN(spm->merges_, BuildMergeTable(spec, spm->vocab_));
    }
    return std::unique_ptr<Tokenizer>(std::move(spm));
  }

  std::string_view kind() const override { return "spm"; }

 private:
  explicit SentencePiece(const TokenizerSpec& spec)
      : TokenizerBase(spec), unknown_(spec.unknown), space_prefix_(spec.space_prefix) {}

  Status FindByteTokens(const TokenizerSpec& spec) {
    byte_tokens_.fill(-1);
    for (TokenId id = 0; id < vocab_size(); ++id) {
      if (type(id) != TokenType::kByte) continue;
      const int byte = ParseByteToken(vocab_.text(id));
      if (byte < 0) {
        return CorruptionError(
            fmt::format("{}: token {} has the type of a byte but the text \"{}\", expected <0xNN> "
                        "with two hexadecimal digits",
                        spec.origin, id, vocab_.text(id)));
      }
      byte_tokens_[static_cast<size_t>(byte)] = id;
    }
    const auto missing = std::find(byte_tokens_.begin(), byte_tokens_.end(), -1);
    if (missing != byte_tokens_.end() && unknown_ < 0) {
      return CorruptionError(fmt::format("{}: no token for byte 0x{:02X} and no unknown token",
                                         spec.origin, missing - byte_tokens_.begin()));
    }
    return OkStatus();
  }

  // order_[id]: the place of the token's score among all different scores, highest first.
  Status RankScores(const TokenizerSpec& spec) {
    if (spec.scores.empty()) {
      return CorruptionError(
          fmt::format("{}: a SentencePiece-style vocabulary needs scores or merges", spec.origin));
    }
    for (size_t id = 0; id < spec.scores.size(); ++id) {
      if (!std::isnan(spec.scores[id])) continue;
      return CorruptionError(fmt::format("{}: the score of token {} is NaN", spec.origin, id));
    }
    std::vector<TokenId> ids(spec.scores.size());
    std::iota(ids.begin(), ids.end(), 0);
    const auto score = [&](TokenId id) { return spec.scores[static_cast<size_t>(id)]; };
    std::sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) { return score(a) > score(b); });
    order_.resize(ids.size());
    uint32_t place = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i > 0 && score(ids[i]) != score(ids[i - 1])) ++place;
      order_[static_cast<size_t>(ids[i])] = place;
    }
    return OkStatus();
  }

  void EncodePlain(std::string_view text, Before before, std::vector<TokenId>* ids) const override {
    std::string normalized = ReplaceAll(text, " ", kSpaceMark);
    if (WantsPrefix(normalized, before)) normalized.insert(0, kSpaceMark);
    MergeScratch scratch;
    SplitCharacters(normalized, &scratch.symbols);
    if (merges_.has_value()) {
      MergeSymbols(scratch, [this](const Symbol& left, const Symbol& right) {
        const MergeTable::Merge* merge =
            left.mergeable && right.mergeable ? merges_->Find(left.id, right.id) : nullptr;
        return merge == nullptr ? PairMerge{} : PairMerge{merge->rank, merge->id};
      });
    } else {
      MergeSymbols(scratch, [&](const Symbol& left, const Symbol& right) {
        return MergeByScore(normalized, left, right);
      });
    }
    AppendIds(scratch.symbols, ids);
  }

  bool WantsPrefix(std::string_view normalized, Before before) const {
    if (before == Before::kText) return false;
    switch (space_prefix_) {
      case SpacePrefix::kNone:
        return false;
      case SpacePrefix::kEveryPart:
        return true;
      case SpacePrefix::kEveryPartUnlessSpace:
        return !normalized.starts_with(kSpaceMark);
      case SpacePrefix::kFirstUnlessSpace:
        return before == Before::kNothing && !normalized.starts_with(kSpaceMark);
    }
    return false;
  }

  // One symbol per character, or per byte of a character that has no token.
  void SplitCharacters(std::string_view text, std::vector<Symbol>* symbols) const {
    symbols->reserve(text.size());
    for (size_t i = 0; i < text.size();) {
      const size_t length = std::max<size_t>(1, Utf8Length(text.substr(i)));
      const auto begin = static_cast<uint32_t>(i);
      const TokenId id = FindText(text.substr(i, length));
      if (id >= 0) {
        symbols->push_back({begin, static_cast<uint32_t>(length), id});
      } else if (HasByteTokens(text.substr(i, length))) {
        for (uint32_t k = 0; k < length; ++k) {
          symbols->push_back(
              {begin + k, 1, byte_tokens_[static_cast<uint8_t>(text[i + k])], false});
        }
      } else {
        symbols->push_back({begin, static_cast<uint32_t>(length), unknown_, false});
      }
      i += length;
    }
  }

  // The token of this text that plain text may become: never a control or byte token, although
  // "<s>" and "<0x0A>" can be spelled.
  TokenId FindText(std::string_view text) const {
    const TokenId id = vocab_.Find(text);
    const bool plain =
        id >= 0 && (type(id) == TokenType::kNormal || type(id) == TokenType::kUserDefined);
    return plain ? id : -1;
  }

  bool HasByteTokens(std::string_view character) const {
    return std::all_of(character.begin(), character.end(),
                       [this](char c) { return byte_tokens_[static_cast<uint8_t>(c)] >= 0; });
  }

  PairMerge MergeByScore(std::string_view text, const Symbol& left, const Symbol& right) const {
    if (!left.mergeable || !right.mergeable) return {};
    const TokenId id = FindText(text.substr(left.begin, left.size + right.size));
    if (id < 0) return {};
    // Length of the left part in characters, the order Hugging Face sorts by; of two merges into
    // the same token it decides alone, and different tokens of one score and length are told apart
    // by the right part and the id.
    const uint64_t left_length = Characters(text, left);
    const uint64_t right_length = Characters(text, right);
    return {static_cast<uint64_t>(order_[static_cast<size_t>(id)]) << 40 |
                (255 - std::min<uint64_t>(255, left_length)) << 32 |
                (255 - std::min<uint64_t>(255, right_length)) << 24 | static_cast<uint64_t>(id),
            id};
  }

  static uint64_t Characters(std::string_view text, const Symbol& symbol) {
    const std::string_view piece = text.substr(symbol.begin, symbol.size);
    return static_cast<uint64_t>(std::count_if(piece.begin(), piece.end(), [](char c) {
      return (static_cast<uint8_t>(c) & 0xC0) != 0x80;
    }));
  }

  // Neighbouring unknown characters give one unknown token, as in Hugging Face (fuse_unk).
  void AppendIds(const std::vector<Symbol>& symbols, std::vector<TokenId>* ids) const {
    bool after_unknown = false;
    for (const Symbol& symbol : symbols) {
      const bool is_unknown = !symbol.mergeable && symbol.id == unknown_;
      if (!is_unknown || !after_unknown) ids->push_back(symbol.id);
      after_unknown = is_unknown;
    }
  }

  std::string Spelling(TokenId id) const override {
    const std::string_view text = vocab_.text(id);
    if (type(id) == TokenType::kByte) {
      return std::string(1, static_cast<char>(ParseByteToken(text)));
    }
    return ReplaceAll(text, kSpaceMark, " ");
  }

  std::optional<MergeTable> merges_;  // else by score
  std::vector<uint32_t> order_;
  std::array<TokenId, 256> byte_tokens_{};
  TokenId unknown_;
  SpacePrefix space_prefix_;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> BuildSentencePiece(const TokenizerSpec& spec) {
  return SentencePiece::Build(spec);
}

}  // namespace lode
