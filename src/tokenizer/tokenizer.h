// SPDX-License-Identifier: Apache-2.0
// Tokenizer: text <-> token ids, equal to the reference (Hugging Face tokenizers) for the supported
// kinds: byte-level BPE (GPT-2, Qwen2, Llama 3, DeepSeek V3 pre-tokenizers) and SentencePiece-style
// BPE (Llama 2, Gemma). Linear time and constant stack in the length of the text. Immutable after
// loading: any number of threads.
#ifndef LODE_TOKENIZER_TOKENIZER_H_
#define LODE_TOKENIZER_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "formats/weight_source.h"

namespace lode {

using TokenId = int32_t;

// A piece of text that stands for another one until control tokens have been found, so that what it
// stands for can never become one.
struct Placeholder {
  std::string mark;
  std::string original;
};

// What stands before a text that is encoded: nothing, an added token such as a control token, or
// text that it goes on with.
enum class Before : uint8_t { kNothing, kToken, kText };

struct EncodeOptions {
  // Prepend BOS / append EOS as the model's metadata says.
  bool add_special = true;
  // Text such as "<|im_end|>" becomes a control token; only for template-made text.
  bool parse_special = false;
  // Put back after control tokens were split out.
  std::span<const Placeholder> placeholders = {};
  // For a text in parts: BOS and the space that some models put before a text come where there is
  // nothing before it, EOS where nothing follows.
  Before before = Before::kNothing;
  bool more_follows = false;
};

class Tokenizer {
 public:
  // From GGUF metadata or the folder's tokenizer.json + tokenizer_config.json. Unsupported: unknown
  // model or pre-tokenizer name (named); Corruption: ill-formed vocabulary.
  static Result<std::unique_ptr<Tokenizer>> Load(const WeightSource& source);
  virtual ~Tokenizer() = default;

  // InvalidArgument when text is not UTF-8? No: ill-formed bytes are encoded like any byte, so
  // encoding never fails.
  virtual std::vector<TokenId> Encode(std::string_view text,
                                      const EncodeOptions& options = {}) const = 0;
  // Bytes of one token (possibly part of a UTF-8 character); control tokens give "" unless
  // show_special.
  virtual std::string TokenBytes(TokenId id, bool show_special = false) const = 0;
  // The tokens' bytes joined; may be ill-formed UTF-8 when the ids are. Decode(Encode(x)) == x for
  // every x when add_special is false, with the reference's own exceptions: models that normalize
  // to NFC (kind "bpe/qwen2") give x in NFC, and SentencePiece-style models spell U+2581 as a
  // space.
  virtual std::string Decode(const std::vector<TokenId>& ids, bool show_special = false) const = 0;

  virtual int64_t vocab_size() const = 0;
  virtual TokenId bos() const = 0;  // -1 when the model has none
  virtual TokenId eos() const = 0;  // -1 when the model has none
  virtual bool adds_bos() const = 0;
  // Decoding drops one space at the start of the text (Llama 2's prefix space).
  virtual bool strips_leading_space() const { return false; }
  // End of sequence, end of turn, end of message: generation stops here. Includes
  // generation_config.json's list.
  virtual bool IsEndOfGeneration(TokenId id) const = 0;
  virtual bool IsControl(TokenId id) const = 0;
  // The id of exactly this token text, control tokens included; -1 when there is none.
  virtual TokenId Find(std::string_view token_text) const = 0;
  // The texts of all control tokens, for marking them in text that must not contain any.
  virtual std::vector<std::string_view> control_texts() const { return {}; }
  virtual std::string_view kind() const = 0;  // "bpe/qwen2", "spm"
};

// Streams token bytes as text without ever splitting a UTF-8 character.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  // Text that is complete after this token (may be empty).
  std::string Push(TokenId id);
  // The incomplete rest, ill-formed bytes as U+FFFD. Call once at the end.
  std::string Finish();

 private:
  const Tokenizer& tokenizer_;
  std::string pending_;
  bool at_start_ = true;
};

}  // namespace lode

#endif  // LODE_TOKENIZER_TOKENIZER_H_
