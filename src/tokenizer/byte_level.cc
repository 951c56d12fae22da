// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/byte_level.h"

#include <array>

#include "tokenizer/unicode.h"

namespace lode {
namespace {

constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
         (byte >= 0xAE && byte <= 0xFF);
}

struct Tables {
  std::array<uint16_t, 256> character{};  // of each byte
  std::array<int16_t, 0x180> byte{};      // of each character, -1 when it stands for none
};

constexpr Tables MakeTables() {
  Tables tables;
  for (auto& byte : tables.byte) byte = -1;
  uint16_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const uint16_t character = StandsForItself(byte) ? static_cast<uint16_t>(byte) : next++;
    tables.character[static_cast<size_t>(byte)] = character;
    tables.byte[character] = static_cast<int16_t>(byte);
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

}  // namespace

std::string ByteLevelCharacter(uint8_t byte) {
  std::string text;
  AppendUtf8(kTables.character[byte], &text);
  return text;
}

bool DecodeByteLevel(std::string_view text, std::string* bytes) {
  bytes->clear();
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8Length(text.substr(i));
    const char32_t character = length == 0 ? 0xFFFD : DecodeUtf8(text.substr(i), length);
    const int byte = character < kTables.byte.size() ? kTables.byte[character] : -1;
    if (byte < 0) {
      bytes->clear();
      return false;
    }
    bytes->push_back(static_cast<char>(byte));
    i += length;
  }
  return true;
}

}  // namespace lode
