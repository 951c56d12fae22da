// SPDX-License-Identifier: Apache-2.0
// TokenizerSpec from GGUF metadata ("tokenizer.ggml.*").
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "tokenizer/end_of_generation.h"
#include "tokenizer/tokenizer_spec.h"

namespace lode {
namespace {

constexpr int64_t kMaxId = (int64_t{1} << 24) - 1;

Status ReadTypes(const Metadata& metadata, TokenizerSpec* spec) {
  if (!metadata.Has("tokenizer.ggml.token_type")) {
    spec->types.assign(spec->tokens.size(), TokenType::kNormal);
    return OkStatus();
  }
  LODE_ASSIGN_OR_RETURN(const std::vector<int64_t>* types,
                        metadata.GetInts("tokenizer.ggml.token_type"));
  spec->types.reserve(types->size());
  for (size_t i = 0; i < types->size(); ++i) {
    const int64_t type = (*types)[i];
    if (type < 0 || type > 6) {
      return CorruptionError(fmt::format("{}: tokenizer.ggml.token_type[{}] is {}, expected 0 to 6",
                                         spec->origin, i, type));
    }
    // 0 ("undefined") occurs in old files for ordinary tokens.
    spec->types.push_back(type == 0 ? TokenType::kNormal : static_cast<TokenType>(type));
  }
  return OkStatus();
}

Status ReadMerges(const Metadata& metadata, TokenizerSpec* spec) {
  LODE_ASSIGN_OR_RETURN(const std::vector<std::string_view>* merges,
                        metadata.GetStrings("tokenizer.ggml.merges"));
  spec->merges.reserve(merges->size());
  for (size_t i = 0; i < merges->size(); ++i) {
    const std::string_view merge = (*merges)[i];
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos) {
      return CorruptionError(
          fmt::format("{}: tokenizer.ggml.merges[{}] is \"{}\", expected two tokens and a space",
                      spec->origin, i, merge));
    }
    spec->merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  return OkStatus();
}

Status ReadScores(const Metadata& metadata, TokenizerSpec* spec) {
  LODE_ASSIGN_OR_RETURN(const std::vector<double>* scores,
                        metadata.GetFloats("tokenizer.ggml.scores"));
  spec->scores.assign(scores->begin(), scores->end());
  return OkStatus();
}

// Special ids. The boolean keys' defaults are those of the files written before the keys existed.
Status ReadSpecial(const Metadata& metadata, bool add_bos_default, TokenizerSpec* spec) {
  const auto id = [&](std::string_view key) {
    return metadata.GetIntOr(fmt::format("tokenizer.ggml.{}_token_id", key), -1, kMaxId, -1);
  };
  LODE_ASSIGN_OR_RETURN(const int64_t bos, id("bos"));
  LODE_ASSIGN_OR_RETURN(const int64_t eos, id("eos"));
  LODE_ASSIGN_OR_RETURN(const int64_t unknown, id("unknown"));
  spec->bos = static_cast<TokenId>(bos);
  spec->eos = static_cast<TokenId>(eos);
  spec->unknown = static_cast<TokenId>(unknown);
  for (const std::string_view key : {"eot", "eom"}) {
    LODE_ASSIGN_OR_RETURN(const int64_t end, id(key));
    if (end >= 0) spec->end_of_generation.push_back(static_cast<TokenId>(end));
  }
  LODE_ASSIGN_OR_RETURN(spec->add_bos, metadata.GetBoolOr("tokenizer.ggml.add_bos_token",
                                                          add_bos_default && bos >= 0));
  LODE_ASSIGN_OR_RETURN(spec->add_eos, metadata.GetBoolOr("tokenizer.ggml.add_eos_token", false));
  return OkStatus();
}

// Tokens of the control and user-defined types are matched in raw text.
void CollectAdded(TokenizerSpec* spec) {
  for (size_t i = 0; i < spec->tokens.size(); ++i) {
    const TokenType type = spec->types[i];
    const bool control = type == TokenType::kControl || type == TokenType::kUnknown;
    if (!control && type != TokenType::kUserDefined) continue;
    spec->added.push_back(
        {.id = static_cast<TokenId>(i), .text = spec->tokens[i], .control = control});
    if (type == TokenType::kControl && IsEndOfGenerationText(spec->tokens[i])) {
      spec->end_of_generation.push_back(static_cast<TokenId>(i));
    }
  }
}

// Converters to GGUF write the user-defined runs of spaces with plain spaces; in the model's own
// vocabulary they are runs of U+2581 like all others, which matters because merges run over them.
void RestoreSpaceMarks(TokenizerSpec* spec) {
  for (size_t i = 0; i < spec->tokens.size(); ++i) {
    const std::string_view text = spec->tokens[i];
    if (spec->types[i] != TokenType::kUserDefined || text.empty() ||
        text.find_first_not_of(' ') != std::string_view::npos) {
      continue;
    }
    std::string& marks = spec->owned.emplace_back();
    for (size_t k = 0; k < text.size(); ++k) marks += "\xE2\x96\x81";
    spec->tokens[i] = marks;
  }
}

}  // namespace

Result<TokenizerSpec> SpecFromGguf(const Metadata& metadata) {
  TokenizerSpec spec;
  spec.origin = metadata.origin();
  LODE_ASSIGN_OR_RETURN(const std::string_view model, metadata.GetString("tokenizer.ggml.model"));
  LODE_ASSIGN_OR_RETURN(const std::vector<std::string_view>* tokens,
                        metadata.GetStrings("tokenizer.ggml.tokens"));
  spec.tokens = *tokens;
  LODE_RETURN_IF_ERROR(ReadTypes(metadata, &spec));
  if (spec.types.size() != spec.tokens.size()) {
    return CorruptionError(fmt::format("{}: {} tokens but {} token types", spec.origin,
                                       spec.tokens.size(), spec.types.size()));
  }
  if (model == "gpt2") {
    spec.kind = TokenizerKind::kByteLevelBpe;
    LODE_ASSIGN_OR_RETURN(spec.pre_tokenizer, metadata.GetStringOr("tokenizer.ggml.pre", ""));
    const bool llama3 = spec.pre_tokenizer == "llama-bpe" || spec.pre_tokenizer == "llama3" ||
                        spec.pre_tokenizer == "llama-v3";
    spec.ignore_merges = llama3;
    spec.normalize_nfc = spec.pre_tokenizer == "qwen2";
    LODE_RETURN_IF_ERROR(ReadMerges(metadata, &spec));
    LODE_RETURN_IF_ERROR(ReadSpecial(metadata, llama3, &spec));
  } else if (model == "llama") {
    spec.kind = TokenizerKind::kSentencePiece;
    RestoreSpaceMarks(&spec);
    LODE_RETURN_IF_ERROR(ReadScores(metadata, &spec));
    LODE_RETURN_IF_ERROR(ReadSpecial(metadata, true, &spec));
    LODE_ASSIGN_OR_RETURN(const bool prefix,
                          metadata.GetBoolOr("tokenizer.ggml.add_space_prefix", true));
    spec.space_prefix = prefix ? SpacePrefix::kEveryPart : SpacePrefix::kNone;
  } else {
    return UnsupportedError(
        fmt::format("{}: tokenizer.ggml.model \"{}\" is not supported (known: gpt2, llama)",
                    spec.origin, model));
  }
  CollectAdded(&spec);
  return spec;
}

}  // namespace lode
