// SPDX-License-Identifier: Apache-2.0
#include "base/parse_number.h"

#include <charconv>
#include <string>
#include <system_error>

namespace lode {
namespace {

std::string RangeText(IntRange range) {
  const bool has_min = range.min != std::numeric_limits<int64_t>::min();
  const bool has_max = range.max != std::numeric_limits<int64_t>::max();
  if (has_min && has_max) {
    return " from " + std::to_string(range.min) + " to " + std::to_string(range.max);
  }
  if (has_min) return " of at least " + std::to_string(range.min);
  if (has_max) return " of at most " + std::to_string(range.max);
  return "";
}

}  // namespace

Result<int64_t> ParseInteger(std::string_view text, IntRange range) {
  const auto error = [&] {
    return InvalidArgumentError("expected an integer" + RangeText(range) + ", found '" +
                                std::string(text) + "'");
  };
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, code] = std::from_chars(text.data(), end, value);
  if (code != std::errc()) return error();
  const std::string_view suffix(rest, end - rest);
  const int64_t factor = suffix.empty()  ? 1
                         : suffix == "k" ? 1000
                         : suffix == "K" ? 1024
                         : suffix == "m" ? 1000 * 1000
                         : suffix == "M" ? 1024 * 1024
                                         : 0;
  if (factor == 0 || __builtin_mul_overflow(value, factor, &value)) return error();
  if (value < range.min || value > range.max) return error();
  return value;
}

Result<float> ParseReal(std::string_view text) {
  float value = 0.0f;
  const char* end = text.data() + text.size();
  const auto [rest, code] = std::from_chars(text.data(), end, value);
  if (code != std::errc() || rest != end) {
    return InvalidArgumentError("expected a number, found '" + std::string(text) + "'");
  }
  return value;
}

}  // namespace lode
