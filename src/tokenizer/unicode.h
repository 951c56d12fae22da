// SPDX-License-Identifier: Apache-2.0
// The little Unicode that tokenizers need: UTF-8 steps, white space, word characters, NFC.
#ifndef LODE_TOKENIZER_UNICODE_H_
#define LODE_TOKENIZER_UNICODE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "base/function_ref.h"

namespace lode {

// Length in bytes (1-4) of the UTF-8 character at the start of `text`, 0 when it is ill-formed
// (overlong, surrogate, above U+10FFFF, cut off). `text` must not be empty.
size_t Utf8Length(std::string_view text);

// How many bytes at the end of `text` (0-3) begin a UTF-8 character whose rest may still come.
size_t IncompleteUtf8Tail(std::string_view text);

// The code point of a well-formed character of `length` bytes.
char32_t DecodeUtf8(std::string_view text, size_t length);
void AppendUtf8(char32_t code_point, std::string* out);

// Calls `run` for maximal runs of well-formed and of ill-formed bytes, in order.
void ForEachUtf8Run(std::string_view text, FunctionRef<void(std::string_view, bool)> run);

// `text` with each maximal ill-formed subpart replaced by U+FFFD (Unicode 15, section 3.9).
std::string ReplaceIllFormed(std::string_view text);

bool IsWhiteSpace(char32_t code_point);     // Unicode White_Space
bool IsWordCharacter(char32_t code_point);  // letters, marks, numbers, connectors: `\w`

// Unicode NFC of well-formed text; ill-formed bytes are kept. Linear but for the sorting of runs of
// combining marks (n log n). `text` itself is returned, nothing copied, when it is NFC already by
// the quick check; otherwise `storage` holds the result.
std::string_view ToNfc(std::string_view text, std::string* storage);

}  // namespace lode

#endif  // LODE_TOKENIZER_UNICODE_H_
