// SPDX-License-Identifier: Apache-2.0
// Quoted: names and strings out of untrusted files, made safe for one line of an error message.
#ifndef LODE_FORMATS_QUOTED_H_
#define LODE_FORMATS_QUOTED_H_

#include <string>
#include <string_view>

namespace lode {

// 'text' in quotes, control characters as \xNN and at most 80 bytes of it ("..." then follows), so
// that a hostile name can neither move the terminal's cursor nor fill the screen.
std::string Quoted(std::string_view text);

}  // namespace lode

#endif  // LODE_FORMATS_QUOTED_H_
