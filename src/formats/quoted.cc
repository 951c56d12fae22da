// SPDX-License-Identifier: Apache-2.0
#include "formats/quoted.h"

#include <cstddef>

namespace lode {

std::string Quoted(std::string_view text) {
  constexpr size_t kMaxBytes = 80;
  constexpr char kHexDigits[] = "0123456789abcdef";
  std::string out = "'";
  for (const char c : text.substr(0, kMaxBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += "\\x";
      out += kHexDigits[byte >> 4];
      out += kHexDigits[byte & 15];
    } else {
      out += c;
    }
  }
  if (text.size() > kMaxBytes) out += "...";
  return out + "'";
}

}  // namespace lode
