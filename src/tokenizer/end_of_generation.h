// SPDX-License-Identifier: Apache-2.0
// Control tokens that end an answer in the known families. Files name one EOS id, but chat models
// end a turn with another token as often as not.
#ifndef LODE_TOKENIZER_END_OF_GENERATION_H_
#define LODE_TOKENIZER_END_OF_GENERATION_H_

#include <string_view>

namespace lode {

inline bool IsEndOfGenerationText(std::string_view text) {
  for (const std::string_view end : {"<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>",
                                     "<|end_of_text|>", "<end_of_turn>", "<|end|>",
                                     "<\xEF\xBD\x9C"
                                     "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>"}) {
    if (text == end) return true;
  }
  return false;
}

}  // namespace lode

#endif  // LODE_TOKENIZER_END_OF_GENERATION_H_
