// SPDX-License-Identifier: Apache-2.0
// GPT-2's mapping of bytes to printable characters, in which byte-level vocabularies are written:
// printable Latin-1 stands for itself, the other 68 bytes for U+0100 onwards in order.
#ifndef LODE_TOKENIZER_BYTE_LEVEL_H_
#define LODE_TOKENIZER_BYTE_LEVEL_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace lode {

// The UTF-8 text of the character that stands for `byte`.
std::string ByteLevelCharacter(uint8_t byte);

// The bytes that `text` stands for; false, and nothing in `bytes`, when a character stands for
// none.
bool DecodeByteLevel(std::string_view text, std::string* bytes);

}  // namespace lode

#endif  // LODE_TOKENIZER_BYTE_LEVEL_H_
