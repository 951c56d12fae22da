// SPDX-License-Identifier: Apache-2.0
// TokenizerSpec from a Hugging Face folder's tokenizer.json, tokenizer_config.json and
// generation_config.json.
//
// tokenizer.json describes a pipeline of normalizer, pre-tokenizer, model, post-processor. Only the
// pipelines of the supported families are accepted, recognised by structure; anything else is
// Unsupported and named, because a step left out gives plausible but wrong ids.
#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <optional>

#include "tokenizer/end_of_generation.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/tokenizer_spec.h"

namespace lode {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581
constexpr int64_t kMaxTokens = int64_t{1} << 24;

std::string_view StringOr(const element& parent, std::string_view key, std::string_view fallback) {
  std::string_view value;
  return parent[key].get(value) == simdjson::SUCCESS ? value : fallback;
}

bool BoolOr(const element& parent, std::string_view key, bool fallback) {
  bool value = fallback;
  return parent[key].get(value) == simdjson::SUCCESS ? value : fallback;
}

// The member `key`, nothing when it is absent or null.
std::optional<element> Member(const element& parent, std::string_view key) {
  element value;
  if (parent[key].get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return value;
}

// The steps of a normalizer, pre-tokenizer or post-processor: those of a Sequence, or itself.
std::vector<element> Steps(const std::optional<element>& stage, std::string_view list_key) {
  if (!stage.has_value()) return {};
  if (StringOr(*stage, "type", "") != "Sequence") return {*stage};
  std::vector<element> steps;
  array list;
  if ((*stage)[list_key].get(list) == simdjson::SUCCESS) {
    for (const element step : list) steps.push_back(step);
  }
  return steps;
}

class Reader {
 public:
  Reader(std::string_view origin, size_t json_bytes) {
    spec_.origin = origin;
    // Strings of a JSON text are never longer than the text: the arena does not move.
    arena_ = &spec_.owned.emplace_back();
    arena_->reserve(json_bytes);
  }

  Result<TokenizerSpec> Read(const element& tokenizer, const std::optional<element>& config,
                             const std::optional<element>& generation) {
    LODE_RETURN_IF_ERROR(ReadNormalizer(Steps(Member(tokenizer, "normalizer"), "normalizers")));
    LODE_RETURN_IF_ERROR(
        ReadPreTokenizer(Steps(Member(tokenizer, "pre_tokenizer"), "pretokenizers")));
    LODE_RETURN_IF_ERROR(ReadModel(tokenizer));
    LODE_RETURN_IF_ERROR(ReadAddedTokens(tokenizer));
    LODE_RETURN_IF_ERROR(CheckPipeline());
    ReadPostProcessor(Steps(Member(tokenizer, "post_processor"), "processors"));
    if (config.has_value()) ReadConfig(*config);
    if (generation.has_value()) ReadGenerationConfig(*generation);
    return std::move(spec_);
  }

 private:
  Status Broken(std::string_view what) const {
    return CorruptionError(fmt::format("{}: tokenizer.json: {}", spec_.origin, what));
  }
  Status NotSupported(std::string_view what, const element& step) const {
    return UnsupportedError(fmt::format("{}: tokenizer.json: {} {} is not supported", spec_.origin,
                                        what, std::string(simdjson::minify(step))));
  }
  std::string_view Keep(std::string_view text) {
    const size_t begin = arena_->size();
    arena_->append(text);
    return std::string_view(*arena_).substr(begin);
  }

  Status ReadNormalizer(const std::vector<element>& steps) {
    for (const element& step : steps) {
      const std::string_view type = StringOr(step, "type", "");
      if (type == "NFC") {
        spec_.normalize_nfc = true;
      } else if (type == "Prepend" && StringOr(step, "prepend", "") == kSpaceMark) {
        spec_.space_prefix = SpacePrefix::kEveryPart;
      } else if (type == "Replace" && StringOr(step, "content", "") == kSpaceMark &&
                 StringPattern(step) == " ") {
        marks_spaces_ = true;
      } else {
        return NotSupported("normalizer", step);
      }
    }
    return OkStatus();
  }

  static std::string_view StringPattern(const element& step) {
    std::string_view text;
    return step["pattern"]["String"].get(text) == simdjson::SUCCESS ? text : "";
  }

  Status ReadPreTokenizer(const std::vector<element>& steps) {
    std::vector<std::string_view> expressions;
    for (const element& step : steps) {
      const std::string_view type = StringOr(step, "type", "");
      std::string_view expression;
      if (type == "Split" && step["pattern"]["Regex"].get(expression) == simdjson::SUCCESS &&
          StringOr(step, "behavior", "") == "Isolated" && !BoolOr(step, "invert", false)) {
        expressions.push_back(expression);
      } else if (type == "ByteLevel" && !BoolOr(step, "add_prefix_space", true)) {
        byte_level_ = true;
        const bool own_regex = BoolOr(step, "use_regex", true);
        spec_.pre_tokenizer = PreTokenizerName(expressions, own_regex);
        if (spec_.pre_tokenizer.empty()) {
          return UnsupportedError(
              fmt::format("{}: tokenizer.json: no known pre-tokenizer has the expressions \"{}\"{}",
                          spec_.origin, fmt::join(expressions, "\", \""),
                          own_regex ? " followed by ByteLevel's own" : ""));
        }
      } else if (type == "Metaspace" && !BoolOr(step, "split", true) &&
                 StringOr(step, "replacement", "") == kSpaceMark) {
        const std::string_view scheme = StringOr(step, "prepend_scheme", "always");
        marks_spaces_ = true;
        spec_.space_prefix = scheme == "never"   ? SpacePrefix::kNone
                             : scheme == "first" ? SpacePrefix::kFirstUnlessSpace
                                                 : SpacePrefix::kEveryPartUnlessSpace;
      } else if (type == "Split" && StringPattern(step) == " " && marks_spaces_) {
        // Gemma: after the normalizer there is no space left to split at.
      } else {
        return NotSupported("pre-tokenizer", step);
      }
    }
    return OkStatus();
  }

  Status ReadModel(const element& tokenizer) {
    const std::optional<element> model = Member(tokenizer, "model");
    if (!model.has_value()) return Broken("no \"model\"");
    const std::string_view type = StringOr(*model, "type", "BPE");
    if (type != "BPE") {
      return UnsupportedError(
          fmt::format("{}: tokenizer.json: model type \"{}\" is not supported (known: BPE)",
                      spec_.origin, type));
    }
    for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (StringOr(*model, key, "").empty()) continue;
      return UnsupportedError(fmt::format("{}: tokenizer.json: model.{} \"{}\" is not supported",
                                          spec_.origin, key, StringOr(*model, key, "")));
    }
    spec_.ignore_merges = BoolOr(*model, "ignore_merges", false);
    byte_fallback_ = BoolOr(*model, "byte_fallback", false);
    LODE_RETURN_IF_ERROR(ReadVocab(*model));
    LODE_RETURN_IF_ERROR(ReadMerges(*model));
    const std::string_view unknown = StringOr(*model, "unk_token", "");
    if (!unknown.empty()) spec_.unknown = IdOf(unknown);
    return OkStatus();
  }

  Status SetToken(int64_t id, std::string_view text, TokenType type) {
    if (id < 0 || id >= kMaxTokens) {
      return Broken(
          fmt::format("token \"{}\" has the id {}, expected 0 to {}", text, id, kMaxTokens - 1));
    }
    const auto index = static_cast<size_t>(id);
    if (index >= spec_.tokens.size()) {
      spec_.tokens.resize(index + 1);
      spec_.types.resize(index + 1, TokenType::kUnused);
    }
    spec_.tokens[index] = Keep(text);
    spec_.types[index] = type;
    return OkStatus();
  }

  Status ReadVocab(const element& model) {
    object vocab;
    if (model["vocab"].get(vocab) != simdjson::SUCCESS) return Broken("no object \"model.vocab\"");
    for (const auto& [text, value] : vocab) {
      int64_t id = -1;
      if (value.get(id) != simdjson::SUCCESS) {
        return Broken(fmt::format("the id of \"{}\" is not an integer", text));
      }
      const bool byte = byte_fallback_ && text.size() == 6 && text.starts_with("<0x");
      LODE_RETURN_IF_ERROR(SetToken(id, text, byte ? TokenType::kByte : TokenType::kNormal));
    }
    return OkStatus();
  }

  Status ReadMerges(const element& model) {
    array merges;
    if (model["merges"].get(merges) != simdjson::SUCCESS)
      return Broken("no array \"model.merges\"");
    spec_.merges.reserve(merges.size());
    for (const element merge : merges) {
      std::string_view text;
      std::string_view left;
      std::string_view right;
      if (merge.get(text) == simdjson::SUCCESS) {
        const size_t space = text.find(' ', 1);
        if (space != std::string_view::npos) {
          left = text.substr(0, space);
          right = text.substr(space + 1);
        }
      } else if (merge.at(0).get(left) != simdjson::SUCCESS ||
                 merge.at(1).get(right) != simdjson::SUCCESS) {
        left = {};
      }
      if (left.empty() || right.empty()) {
        return Broken(fmt::format("model.merges[{}] is not a pair of tokens", spec_.merges.size()));
      }
      spec_.merges.emplace_back(Keep(left), Keep(right));
    }
    return OkStatus();
  }

  Status ReadAddedTokens(const element& tokenizer) {
    array added;
    if (tokenizer["added_tokens"].get(added) != simdjson::SUCCESS) return OkStatus();
    for (const element token : added) {
      int64_t id = -1;
      std::string_view text;
      if (token["id"].get(id) != simdjson::SUCCESS ||
          token["content"].get(text) != simdjson::SUCCESS) {
        return Broken("an added token without id or content");
      }
      const bool control = BoolOr(token, "special", false);
      LODE_RETURN_IF_ERROR(
          SetToken(id, text, control ? TokenType::kControl : TokenType::kUserDefined));
      spec_.added.push_back({.id = static_cast<TokenId>(id),
                             .text = spec_.tokens[static_cast<size_t>(id)],
                             .control = control,
                             .lstrip = BoolOr(token, "lstrip", false),
                             .rstrip = BoolOr(token, "rstrip", false),
                             .single_word = BoolOr(token, "single_word", false)});
      if (control && IsEndOfGenerationText(text)) {
        spec_.end_of_generation.push_back(static_cast<TokenId>(id));
      }
    }
    return OkStatus();
  }

  Status CheckPipeline() {
    spec_.kind = byte_level_ ? TokenizerKind::kByteLevelBpe : TokenizerKind::kSentencePiece;
    if (byte_level_ && !marks_spaces_ && spec_.space_prefix == SpacePrefix::kNone) {
      return OkStatus();
    }
    if (!byte_level_ && marks_spaces_ && !spec_.normalize_nfc && !spec_.ignore_merges) {
      return spec_.merges.empty() ? Broken("model.merges is empty") : OkStatus();
    }
    return UnsupportedError(
        fmt::format("{}: tokenizer.json: the pipeline is neither byte-level BPE nor "
                    "SentencePiece-style (spaces "
                    "written as U+2581)",
                    spec_.origin));
  }

  // The token ids that TemplateProcessing puts around a single text.
  void ReadPostProcessor(const std::vector<element>& steps) {
    for (const element& step : steps) {
      array single;
      if (StringOr(step, "type", "") != "TemplateProcessing" ||
          step["single"].get(single) != simdjson::SUCCESS) {
        continue;
      }
      bool before = true;
      for (const element piece : single) {
        std::string_view name;
        if (piece["SpecialToken"]["id"].get(name) != simdjson::SUCCESS) {
          before = false;
        } else if (before) {
          spec_.bos = IdOf(name);
          spec_.add_bos = spec_.bos >= 0;
        } else {
          spec_.eos = IdOf(name);
          spec_.add_eos = spec_.eos >= 0;
        }
      }
    }
  }

  void ReadConfig(const element& config) {
    if (const TokenId bos = SpecialToken(config, "bos_token"); bos >= 0) spec_.bos = bos;
    if (const TokenId eos = SpecialToken(config, "eos_token"); eos >= 0) spec_.eos = eos;
    spec_.add_bos = BoolOr(config, "add_bos_token", spec_.add_bos) && spec_.bos >= 0;
    spec_.add_eos = BoolOr(config, "add_eos_token", spec_.add_eos) && spec_.eos >= 0;
  }

  // Written as a string or as an object with "content".
  TokenId SpecialToken(const element& config, std::string_view key) const {
    const std::optional<element> value = Member(config, key);
    if (!value.has_value()) return -1;
    std::string_view text;
    if (value->get(text) != simdjson::SUCCESS) text = StringOr(*value, "content", "");
    return IdOf(text);
  }

  void ReadGenerationConfig(const element& generation) {
    const std::optional<element> eos = Member(generation, "eos_token_id");
    if (!eos.has_value()) return;
    const auto add = [this](const element& value) {
      int64_t id = -1;
      if (value.get(id) == simdjson::SUCCESS && id >= 0 && id < kMaxTokens) {
        spec_.end_of_generation.push_back(static_cast<TokenId>(id));
      }
    };
    array list;
    if (eos->get(list) != simdjson::SUCCESS) {
      add(*eos);
      return;
    }
    for (const element id : list) add(id);
  }

  // Added tokens first, as they are few; -1 when there is none.
  TokenId IdOf(std::string_view text) const {
    const auto added = std::find_if(spec_.added.begin(), spec_.added.end(),
                                    [&](const AddedToken& token) { return token.text == text; });
    if (added != spec_.added.end()) return added->id;
    const auto token = std::find(spec_.tokens.begin(), spec_.tokens.end(), text);
    return token == spec_.tokens.end() || text.empty()
               ? -1
               : static_cast<TokenId>(token - spec_.tokens.begin());
  }

  TokenizerSpec spec_;
  std::string* arena_;
  bool byte_level_ = false;
  bool byte_fallback_ = false;
  bool marks_spaces_ = false;
};

// Parses `json`, which may be empty: nothing then.
Status Parse(std::string_view origin, std::string_view file, std::string_view json,
             simdjson::dom::parser* parser, std::optional<element>* root) {
  if (json.empty()) return OkStatus();
  element parsed;
  const auto error = parser->parse(json.data(), json.size()).get(parsed);
  if (error != simdjson::SUCCESS) {
    return CorruptionError(fmt::format("{}: {}: {}", origin, file, simdjson::error_message(error)));
  }
  *root = parsed;
  return OkStatus();
}

}  // namespace

Result<TokenizerSpec> SpecFromHuggingFace(std::string_view origin, std::string_view tokenizer_json,
                                          std::string_view config, std::string_view generation) {
  if (tokenizer_json.empty()) {
    return NotFoundError(fmt::format(
        "{}: no tokenizer.json (a tokenizer.model or vocab.json alone is not read)", origin));
  }
  simdjson::dom::parser parsers[3];
  std::optional<element> roots[3];
  LODE_RETURN_IF_ERROR(Parse(origin, "tokenizer.json", tokenizer_json, &parsers[0], &roots[0]));
  LODE_RETURN_IF_ERROR(Parse(origin, "tokenizer_config.json", config, &parsers[1], &roots[1]));
  LODE_RETURN_IF_ERROR(Parse(origin, "generation_config.json", generation, &parsers[2], &roots[2]));
  // Added tokens and merges repeat vocabulary texts at most once each in the JSON itself.
  return Reader(origin, tokenizer_json.size()).Read(*roots[0], roots[1], roots[2]);
}

}  // namespace lode
