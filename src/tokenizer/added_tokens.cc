// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/added_tokens.h"

#include <algorithm>
#include <tuple>

#include "tokenizer/unicode.h"

namespace lode {
namespace {

// The last character of `text`, U+FFFD when it is ill-formed; `text` must not be empty.
char32_t LastCharacter(std::string_view text, size_t* length) {
  for (size_t back = 1; back <= std::min<size_t>(4, text.size()); ++back) {
    const std::string_view tail = text.substr(text.size() - back);
    if (Utf8Length(tail) != back) continue;
    *length = back;
    return DecodeUtf8(tail, back);
  }
  *length = 1;
  return 0xFFFD;
}

char32_t FirstCharacter(std::string_view text, size_t* length) {
  *length = Utf8Length(text);
  if (*length > 0) return DecodeUtf8(text, *length);
  *length = 1;
  return 0xFFFD;
}

bool TouchesWord(std::string_view before, std::string_view after) {
  size_t length = 0;
  return (!before.empty() && IsWordCharacter(LastCharacter(before, &length))) ||
         (!after.empty() && IsWordCharacter(FirstCharacter(after, &length)));
}

size_t TrailingSpace(std::string_view text) {
  size_t count = 0;
  size_t length = 0;
  while (count < text.size() &&
         IsWhiteSpace(LastCharacter(text.substr(0, text.size() - count), &length))) {
    count += length;
  }
  return count;
}

size_t LeadingSpace(std::string_view text) {
  size_t count = 0;
  size_t length = 0;
  while (count < text.size() && IsWhiteSpace(FirstCharacter(text.substr(count), &length))) {
    count += length;
  }
  return count;
}

}  // namespace

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens) {
  for (const AddedToken& token : tokens) {
    if (!token.text.empty()) tokens_.push_back({std::string(token.text), token});
  }
  std::sort(tokens_.begin(), tokens_.end(), [](const Token& a, const Token& b) {
    return std::tie(a.text, a.flags.id) < std::tie(b.text, b.flags.id);
  });
  size_t next = 0;
  for (size_t byte = 0; byte < 256; ++byte) {
    first_byte_[byte] = static_cast<uint32_t>(next);
    while (next < tokens_.size() && static_cast<uint8_t>(tokens_[next].text[0]) == byte) ++next;
  }
  first_byte_[256] = static_cast<uint32_t>(next);
}

const AddedTokens::Token* AddedTokens::LongestAt(std::string_view text) const {
  const auto first = static_cast<uint8_t>(text[0]);
  auto low = tokens_.begin() + first_byte_[first];
  auto high = tokens_.begin() + first_byte_[first + 1];
  const Token* longest = nullptr;
  // Invariant: the tokens in [low, high) are those that agree with the first `depth` bytes; one of
  // exactly that length comes first.
  for (size_t depth = 1; low != high; ++depth) {
    if (low->text.size() == depth) {
      longest = &*low;
      low = std::find_if(low, high, [&](const Token& t) { return t.text.size() > depth; });
    }
    if (depth == text.size()) break;
    const auto wanted = static_cast<uint8_t>(text[depth]);
    low = std::partition_point(
        low, high, [&](const Token& t) { return static_cast<uint8_t>(t.text[depth]) < wanted; });
    high = std::partition_point(
        low, high, [&](const Token& t) { return static_cast<uint8_t>(t.text[depth]) == wanted; });
  }
  return longest;
}

void AddedTokens::Split(std::string_view text, bool parse_control,
                        FunctionRef<void(std::string_view, TokenId)> part) const {
  size_t plain = 0;  // start of the plain text not yet given out
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (first_byte_[byte] == first_byte_[byte + 1]) {
      ++i;
      continue;
    }
    const Token* token = LongestAt(text.substr(i));
    if (token == nullptr) {
      ++i;
      continue;
    }
    size_t begin = i;
    size_t end = i + token->text.size();
    i = end;
    if (token->flags.control && !parse_control) continue;
    if (token->flags.single_word && TouchesWord(text.substr(0, begin), text.substr(end))) continue;
    if (token->flags.lstrip) begin -= TrailingSpace(text.substr(plain, begin - plain));
    if (token->flags.rstrip) end += LeadingSpace(text.substr(end));
    if (begin > plain) part(text.substr(plain, begin - plain), -1);
    part(text.substr(begin, end - begin), token->flags.id);
    plain = end;
    i = end;
  }
  if (plain < text.size()) part(text.substr(plain), -1);
}

}  // namespace lode
