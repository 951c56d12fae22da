// SPDX-License-Identifier: Apache-2.0
// NFC by utf8proc's tables: its own whole-string function sorts combining marks by exchanging
// neighbours, which is quadratic on hostile text, so the sort is done here.
#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace lode {
namespace {

uint8_t Byte(std::string_view text, size_t i) {
  return static_cast<uint8_t>(text[i]);
}

// Bytes of a character that starts with `lead`, and the range of its second byte (Unicode 15,
// table 3-7); length 0 for a byte that starts nothing.
struct LeadByte {
  size_t length;
  uint8_t second_min;
  uint8_t second_max;
};

LeadByte ClassifyLead(uint8_t lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead < 0xC2) return {0, 0, 0};
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead < 0xF0) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead < 0xF4) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// How many bytes at the start of `text` are the start of one character (at most its length).
size_t ValidPrefix(std::string_view text, const LeadByte& lead) {
  if (lead.length == 0) return 0;
  size_t count = 1;
  while (count < lead.length && count < text.size()) {
    const uint8_t min = count == 1 ? lead.second_min : 0x80;
    const uint8_t max = count == 1 ? lead.second_max : 0xBF;
    if (Byte(text, count) < min || Byte(text, count) > max) break;
    ++count;
  }
  return count;
}

// Could this character change under NFC, or make its predecessor change? True for combining marks,
// decomposable characters and Hangul vowels and tails; may be true for more, never for less.
bool MayChangeUnderNfc(char32_t code_point) {
  if (code_point < 0x300) return false;
  if (code_point >= 0x1100 && code_point <= 0x11FF) return true;
  const utf8proc_property_t* property =
      utf8proc_get_property(static_cast<utf8proc_int32_t>(code_point));
  return property->combining_class != 0 || property->decomp_seqindex != UINT16_MAX ||
         property->category == UTF8PROC_CATEGORY_MN || property->category == UTF8PROC_CATEGORY_MC;
}

bool PassesNfcQuickCheck(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    // Everything below U+0300 (lead byte below 0xCC) is NFC and combines with nothing before it.
    if (Byte(text, i) < 0xCC) {
      ++i;
      continue;
    }
    const size_t length = Utf8Length(text.substr(i));
    if (length > 1 && MayChangeUnderNfc(DecodeUtf8(text.substr(i), length))) return false;
    i += std::max<size_t>(length, 1);
  }
  return true;
}

utf8proc_propval_t CombiningClass(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

// Stable order by combining class within each run of combining marks (Unicode 15, D109). The marks
// are sorted as numbers: class, place in the run, code point (8, 35 and 21 bits).
void SortCombiningMarks(std::vector<utf8proc_int32_t>& points) {
  constexpr int kPointBits = 21;
  constexpr int kPlaceBits = 35;
  const auto is_mark = [](utf8proc_int32_t point) {
    return point >= 0x300 && CombiningClass(point) != 0;
  };
  std::vector<uint64_t> keys;
  for (auto begin = points.begin(); begin != points.end();) {
    begin = std::find_if(begin, points.end(), is_mark);
    const auto end = std::find_if_not(begin, points.end(), is_mark);
    keys.clear();
    for (auto mark = begin; mark != end; ++mark) {
      keys.push_back(static_cast<uint64_t>(CombiningClass(*mark)) << (kPlaceBits + kPointBits) |
                     static_cast<uint64_t>(mark - begin) << kPointBits |
                     static_cast<uint64_t>(*mark));
    }
    std::sort(keys.begin(), keys.end());
    std::transform(keys.begin(), keys.end(), begin, [](uint64_t key) {
      return static_cast<utf8proc_int32_t>(key & ((1u << kPointBits) - 1));
    });
    begin = end;
  }
}

void AppendNfc(std::string_view well_formed, std::string* out) {
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const auto decompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
  std::vector<utf8proc_int32_t> points;
  points.reserve(well_formed.size());
  for (size_t i = 0; i < well_formed.size();) {
    const size_t length = Utf8Length(well_formed.substr(i));
    const auto point = static_cast<utf8proc_int32_t>(DecodeUtf8(well_formed.substr(i), length));
    i += length;
    utf8proc_int32_t parts[16];  // a canonical decomposition has at most 4 code points
    const utf8proc_ssize_t count =
        point < 0xC0 ? 0 : utf8proc_decompose_char(point, parts, 16, decompose, nullptr);
    LODE_CHECK(count >= 0 && count <= 16);
    if (count == 0) {
      points.push_back(point);
    } else {
      points.insert(points.end(), parts, parts + count);
    }
  }
  SortCombiningMarks(points);
  const utf8proc_ssize_t composed = utf8proc_normalize_utf32(
      points.data(), static_cast<utf8proc_ssize_t>(points.size()), options);
  LODE_CHECK(composed >= 0);
  for (utf8proc_ssize_t i = 0; i < composed; ++i) {
    AppendUtf8(static_cast<char32_t>(points[static_cast<size_t>(i)]), out);
  }
}

}  // namespace

size_t Utf8Length(std::string_view text) {
  const LeadByte lead = ClassifyLead(Byte(text, 0));
  return ValidPrefix(text, lead) == lead.length ? lead.length : 0;
}

size_t IncompleteUtf8Tail(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const std::string_view tail = text.substr(text.size() - back);
    const LeadByte lead = ClassifyLead(Byte(tail, 0));
    if (lead.length == 0) continue;  // a continuation byte: the lead is further back
    return back < lead.length && ValidPrefix(tail, lead) == back ? back : 0;
  }
  return 0;
}

char32_t DecodeUtf8(std::string_view text, size_t length) {
  if (length == 1) return Byte(text, 0);
  char32_t value = Byte(text, 0) & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) value = value << 6 | (Byte(text, i) & 0x3Fu);
  return value;
}

void AppendUtf8(char32_t code_point, std::string* out) {
  const auto put = [out](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
    return;
  }
  if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
  } else {
    if (code_point < 0x10000) {
      put(0xE0 | code_point >> 12);
    } else {
      put(0xF0 | code_point >> 18);
      put(0x80 | (code_point >> 12 & 0x3F));
    }
    put(0x80 | (code_point >> 6 & 0x3F));
  }
  put(0x80 | (code_point & 0x3F));
}

void ForEachUtf8Run(std::string_view text, FunctionRef<void(std::string_view, bool)> run) {
  size_t begin = 0;
  bool well_formed = true;
  size_t i = 0;
  while (i < text.size()) {
    const size_t length = Byte(text, i) < 0x80 ? 1 : Utf8Length(text.substr(i));
    if ((length > 0) != well_formed) {
      if (i > begin) run(text.substr(begin, i - begin), well_formed);
      begin = i;
      well_formed = length > 0;
    }
    i += std::max<size_t>(length, 1);
  }
  if (i > begin) run(text.substr(begin), well_formed);
}

std::string ReplaceIllFormed(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    const LeadByte lead = ClassifyLead(Byte(rest, 0));
    const size_t valid = ValidPrefix(rest, lead);
    if (valid > 0 && valid == lead.length) {
      result.append(rest.substr(0, valid));
    } else {
      result.append("\xEF\xBF\xBD");
    }
    i += std::max<size_t>(valid, 1);
  }
  return result;
}

bool IsWhiteSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool IsWordCharacter(char32_t c) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NO) ||
         category == UTF8PROC_CATEGORY_PC;
}

std::string_view ToNfc(std::string_view text, std::string* storage) {
  if (PassesNfcQuickCheck(text)) return text;
  storage->clear();
  storage->reserve(text.size());
  ForEachUtf8Run(text, [&](std::string_view run, bool well_formed) {
    if (well_formed) {
      AppendNfc(run, storage);
    } else {
      storage->append(run);
    }
  });
  return *storage;
}

}  // namespace lode
