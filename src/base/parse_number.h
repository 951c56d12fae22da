// SPDX-License-Identifier: Apache-2.0
// Numbers as users write them, whatever the locale.
#ifndef LODE_BASE_PARSE_NUMBER_H_
#define LODE_BASE_PARSE_NUMBER_H_

#include <cstdint>
#include <limits>
#include <string_view>

#include "base/status.h"

namespace lode {

struct IntRange {
  int64_t min = std::numeric_limits<int64_t>::min();
  int64_t max = std::numeric_limits<int64_t>::max();
};

// The integer that all of text spells, with an optional k K m M at the end. InvalidArgument says
// what was expected and found.
Result<int64_t> ParseInteger(std::string_view text, IntRange range);
Result<float> ParseReal(std::string_view text);

}  // namespace lode

#endif  // LODE_BASE_PARSE_NUMBER_H_
