// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/tokenizer_base.h"

#include <fmt/format.h>

#include <algorithm>

#include "tokenizer/unicode.h"

namespace lode {
namespace {

size_t TotalBytes(const std::vector<std::string_view>& texts) {
  size_t bytes = 0;
  for (const std::string_view text : texts) bytes += text.size();
  return bytes;
}

Status CheckId(const TokenizerSpec& spec, std::string_view what, TokenId id) {
  if (id >= -1 && id < static_cast<int64_t>(spec.tokens.size())) return OkStatus();
  return CorruptionError(fmt::format("{}: {} is token {}, but the vocabulary has {} tokens",
                                     spec.origin, what, id, spec.tokens.size()));
}

std::string WithPlaceholdersRestored(std::string_view text,
                                     std::span<const Placeholder> placeholders) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const auto found =
        std::find_if(placeholders.begin(), placeholders.end(),
                     [&](const Placeholder& p) { return text.substr(i).starts_with(p.mark); });
    if (found == placeholders.end()) {
      result.push_back(text[i++]);
    } else {
      result.append(found->original);
      i += found->mark.size();
    }
  }
  return result;
}

}  // namespace

Status ValidateSpec(const TokenizerSpec& spec) {
  constexpr size_t kMaxTokens = size_t{1} << 24;
  const size_t count = spec.tokens.size();
  if (count == 0 || count > kMaxTokens) {
    return CorruptionError(fmt::format("{}: vocabulary of {} tokens, expected 1 to {}", spec.origin,
                                       count, kMaxTokens));
  }
  if (spec.types.size() != count) {
    return CorruptionError(
        fmt::format("{}: {} tokens but {} token types", spec.origin, count, spec.types.size()));
  }
  if (!spec.scores.empty() && spec.scores.size() != count) {
    return CorruptionError(
        fmt::format("{}: {} tokens but {} scores", spec.origin, count, spec.scores.size()));
  }
  LODE_RETURN_IF_ERROR(CheckId(spec, "BOS", spec.bos));
  LODE_RETURN_IF_ERROR(CheckId(spec, "EOS", spec.eos));
  LODE_RETURN_IF_ERROR(CheckId(spec, "the unknown token", spec.unknown));
  if (spec.add_bos && spec.bos < 0) {
    return CorruptionError(fmt::format("{}: adds BOS but names no BOS token", spec.origin));
  }
  if (spec.add_eos && spec.eos < 0) {
    return CorruptionError(fmt::format("{}: adds EOS but names no EOS token", spec.origin));
  }
  for (const AddedToken& added : spec.added) {
    LODE_RETURN_IF_ERROR(CheckId(spec, fmt::format("added token \"{}\"", added.text), added.id));
  }
  for (const TokenId id : spec.end_of_generation) {
    LODE_RETURN_IF_ERROR(CheckId(spec, "an end-of-generation token", id));
  }
  return OkStatus();
}

Result<MergeTable> BuildMergeTable(const TokenizerSpec& spec, const Vocab& vocab) {
  MergeTable table(spec.merges.size());
  std::string joined;
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto [left_text, right_text] = spec.merges[rank];
    joined.assign(left_text);
    joined.append(right_text);
    const TokenId left = vocab.Find(left_text);
    const TokenId right = vocab.Find(right_text);
    const TokenId result = vocab.Find(joined);
    if (left < 0 || right < 0 || result < 0) {
      return CorruptionError(
          fmt::format("{}: merge {} is \"{}\" + \"{}\", but \"{}\" is not in the vocabulary",
                      spec.origin, rank, left_text, right_text,
                      left < 0    ? left_text
                      : right < 0 ? right_text
                                  : joined));
    }
    table.Insert(left, right, {static_cast<uint32_t>(rank), result});
  }
  return table;
}

TokenizerBase::TokenizerBase(const TokenizerSpec& spec)
    : vocab_(spec.tokens.size(), TotalBytes(spec.tokens)),
      types_(spec.types),
      added_(spec.added),
      end_of_generation_(spec.end_of_generation),
      bos_(spec.bos),
      eos_(spec.eos),
      add_bos_(spec.add_bos),
      add_eos_(spec.add_eos),
      strip_one_space_(spec.space_prefix != SpacePrefix::kNone) {
  for (const std::string_view text : spec.tokens) vocab_.Append(text);
  // Of two tokens with one text the first is found, as a scan from the start would.
  for (TokenId id = 0; id < vocab_size(); ++id) {
    if (!vocab_.text(id).empty()) vocab_.Insert(id);
  }
  if (eos_ >= 0) end_of_generation_.push_back(eos_);
  std::sort(end_of_generation_.begin(), end_of_generation_.end());
}

std::vector<TokenId> TokenizerBase::Encode(std::string_view text,
                                           const EncodeOptions& options) const {
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 4 + 2);
  const bool starts = options.before == Before::kNothing;
  if (options.add_special && add_bos_ && starts) ids.push_back(bos_);
  EncodeParts(text, options, &ids);
  if (options.add_special && add_eos_ && !options.more_follows) ids.push_back(eos_);
  return ids;
}

void TokenizerBase::EncodeParts(std::string_view text, const EncodeOptions& options,
                                std::vector<TokenId>* ids) const {
  added_.Split(text, options.parse_special, [&](std::string_view part, TokenId id) {
    const Before before = part.data() == text.data() ? options.before : Before::kToken;
    if (id >= 0) {
      ids->push_back(id);
    } else if (options.placeholders.empty()) {
      EncodePlain(part, before, ids);
    } else {
      // Control tokens have been split out: what placeholders stand for can no longer be one.
      EncodeParts(WithPlaceholdersRestored(part, options.placeholders),
                  {.add_special = false, .parse_special = false, .before = before}, ids);
    }
  });
}

std::string TokenizerBase::TokenBytes(TokenId id, bool show_special) const {
  if (!valid(id)) return "";
  switch (type(id)) {
    case TokenType::kControl:
    case TokenType::kUnknown:
    case TokenType::kUnused:
      return show_special ? std::string(vocab_.text(id)) : "";
    case TokenType::kUserDefined:
    case TokenType::kNormal:
    case TokenType::kByte:
      return Spelling(id);
  }
  return "";
}

std::string TokenizerBase::Decode(const std::vector<TokenId>& ids, bool show_special) const {
  std::string text;
  for (const TokenId id : ids) text += TokenBytes(id, show_special);
  if (strip_one_space_ && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

bool TokenizerBase::IsEndOfGeneration(TokenId id) const {
  return std::binary_search(end_of_generation_.begin(), end_of_generation_.end(), id);
}

bool TokenizerBase::IsControl(TokenId id) const {
  return valid(id) && type(id) == TokenType::kControl;
}

TokenId TokenizerBase::Find(std::string_view token_text) const {
  return vocab_.Find(token_text);
}

std::vector<std::string_view> TokenizerBase::control_texts() const {
  std::vector<std::string_view> texts;
  for (TokenId id = 0; id < vocab_size(); ++id) {
    if (IsControl(id) || type(id) == TokenType::kUnknown) texts.push_back(vocab_.text(id));
  }
  return texts;
}

Result<std::unique_ptr<Tokenizer>> BuildTokenizer(const TokenizerSpec& spec) {
  LODE_RETURN_IF_ERROR(ValidateSpec(spec));
  return spec.kind == TokenizerKind::kByteLevelBpe ? BuildByteLevelBpe(spec)
                                                   : BuildSentencePiece(spec);
}

}  // namespace lode
