// SPDX-License-Identifier: Apache-2.0
// TokenizerSpec: everything that defines a tokenizer, as plain data. GGUF metadata and Hugging Face
// files are both read into it, tests fill it by hand, and BuildTokenizer turns it into a Tokenizer.
//
// Nouns: a token is a piece of text with an id. An added token is matched in the raw text before
// anything else; a control token is an added token that only templates may write. A pre-tokenizer
// cuts text into words that merges never cross. A merge joins two neighbouring tokens into one.
#ifndef LODE_TOKENIZER_TOKENIZER_SPEC_H_
#define LODE_TOKENIZER_TOKENIZER_SPEC_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "formats/weight_source.h"
#include "tokenizer/tokenizer.h"

namespace lode {

// The numbers are those of GGUF's tokenizer.ggml.token_type.
enum class TokenType : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,      // an added token, matched only with parse_special
  kUserDefined = 4,  // an added token, always matched
  kUnused = 5,
  kByte = 6,  // "<0x0A>": one byte of a character that has no token
};

// How an added token behaves beyond its TokenType; Hugging Face's flags of the same names.
struct AddedToken {
  TokenId id = -1;
  std::string_view text;
  bool control = false;
  bool lstrip = false;       // swallows white space before it
  bool rstrip = false;       // swallows white space after it
  bool single_word = false;  // not inside a word
};

enum class TokenizerKind : uint8_t { kByteLevelBpe, kSentencePiece };

// Where a SentencePiece-style tokenizer puts a space that the text does not have. A part is the
// text between two added tokens.
enum class SpacePrefix : uint8_t {
  kNone,
  kEveryPart,             // always (SentencePiece; Hugging Face's Prepend normalizer)
  kEveryPartUnlessSpace,  // unless the part starts with a space (Metaspace "always")
  kFirstUnlessSpace,      // the same, only at the start of the text (Metaspace "first")
};

struct TokenizerSpec {
  std::string origin;  // the file, for error messages
  TokenizerKind kind = TokenizerKind::kByteLevelBpe;
  std::string pre_tokenizer;   // byte-level BPE: a name of KnownPreTokenizers()
  bool normalize_nfc = false;  // text is brought to Unicode NFC first, as Hugging Face does
  bool ignore_merges = false;  // a word that is a token needs no merges (Llama 3)

  // SentencePiece style. Decoding drops the space that the prefix added.
  SpacePrefix space_prefix = SpacePrefix::kNone;

  std::vector<std::string_view> tokens;  // by id
  std::vector<TokenType> types;          // as many as tokens
  std::vector<float> scores;             // SentencePiece style without merges: higher merges first
  std::vector<std::pair<std::string_view, std::string_view>> merges;  // earlier merges first
  std::vector<AddedToken> added;

  TokenId bos = -1;
  TokenId eos = -1;
  TokenId unknown = -1;
  bool add_bos = false;
  bool add_eos = false;
  std::vector<TokenId> end_of_generation;  // besides eos

  // Strings that the views above point to when the file does not hold them ready-made.
  std::deque<std::string> owned;
};

// From "tokenizer.ggml.*" keys. Errors: NotFound (no vocabulary), Unsupported (unknown model or
// pre-tokenizer, named), Corruption (array lengths, ids out of range). Views live as long as
// `metadata`'s file.
Result<TokenizerSpec> SpecFromGguf(const Metadata& metadata);

// From the texts of a Hugging Face folder; `config` (tokenizer_config.json) and `generation`
// (generation_config.json) may be empty. Errors: Corruption (JSON), Unsupported (a normalizer,
// pre-tokenizer or model that is not implemented, named). The spec owns its strings.
Result<TokenizerSpec> SpecFromHuggingFace(std::string_view origin, std::string_view tokenizer_json,
                                          std::string_view config, std::string_view generation);

// Copies what it needs: the spec may go afterwards. Errors: Corruption (duplicate or missing
// pieces, malformed byte tokens), Unsupported (pre-tokenizer name).
Result<std::unique_ptr<Tokenizer>> BuildTokenizer(const TokenizerSpec& spec);

}  // namespace lode

#endif  // LODE_TOKENIZER_TOKENIZER_SPEC_H_
