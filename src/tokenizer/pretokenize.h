// SPDX-License-Identifier: Apache-2.0
// PreTokenizer: cuts text into the words that byte-level BPE merges never cross, with the regular
// expressions that the models were trained with, compiled by PCRE2's JIT.
//
// Every expression is a list of alternatives that cover all text, so a word is a match, or the gap
// between two matches ("Isolated" in Hugging Face's terms). Matching is linear: each alternative
// consumes what it looks at, and `\s+(?!\S)` backs off one character only.
#ifndef LODE_TOKENIZER_PRETOKENIZE_H_
#define LODE_TOKENIZER_PRETOKENIZE_H_

#include <memory>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "base/status.h"

namespace lode {

// Immutable after Create: any number of threads.
class PreTokenizer {
 public:
  // `name` as in GGUF's tokenizer.ggml.pre. Unsupported: an unknown name (the message lists the
  // known ones). There is no default: a wrong expression gives plausible but wrong ids.
  static Result<std::unique_ptr<PreTokenizer>> Create(std::string_view name);
  virtual ~PreTokenizer() = default;

  // Calls `word` for each word of `text` in order. Bytes that are not UTF-8 come as words of their
  // own, one per maximal run.
  virtual void Split(std::string_view text, FunctionRef<void(std::string_view)> word) const = 0;
};

// The name of a known pre-tokenizer whose published expressions are exactly these, in order; ""
// when there is none. `byte_level_regex` tells that the ByteLevel step applies GPT-2's expression.
std::string_view PreTokenizerName(const std::vector<std::string_view>& expressions,
                                  bool byte_level_regex);

}  // namespace lode

#endif  // LODE_TOKENIZER_PRETOKENIZE_H_
