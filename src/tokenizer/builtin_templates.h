// SPDX-License-Identifier: Apache-2.0
// Chat templates of families whose files often come without one.
#ifndef LODE_TOKENIZER_BUILTIN_TEMPLATES_H_
#define LODE_TOKENIZER_BUILTIN_TEMPLATES_H_

#include <string>
#include <string_view>

#include "tokenizer/tokenizer.h"

namespace lode {

// The Jinja source for `architecture` (GGUF's general.architecture) if the vocabulary has the
// control tokens it writes; "" when there is none.
std::string BuiltinTemplate(std::string_view architecture, const Tokenizer& tokenizer);

}  // namespace lode

#endif  // LODE_TOKENIZER_BUILTIN_TEMPLATES_H_
