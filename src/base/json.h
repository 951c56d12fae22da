// SPDX-License-Identifier: Apache-2.0
// JsonWriter: builds one JSON text, indented by two spaces, in the order of the calls.
//
// Numbers are written by std::to_chars, so a locale with decimal commas cannot break them, and a
// double reads back as the same double. Text that is not UTF-8 is written with U+FFFD in place of
// the ill-formed bytes, so the result always parses.
#ifndef LODE_BASE_JSON_H_
#define LODE_BASE_JSON_H_

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lode {

// "text" with quotes and escapes, as JSON writes it.
std::string JsonQuote(std::string_view text);

// The shortest decimal that reads back as value, whatever the locale; "null" unless finite.
std::string JsonNumber(double value);

class JsonWriter {
 public:
  // kLines: indented. kCompact: one line, for JSON Lines.
  enum class Style : uint8_t { kLines, kCompact };
  explicit JsonWriter(Style style = Style::kLines) : style_(style) {}

  JsonWriter& BeginObject() { return Open('{'); }
  JsonWriter& EndObject() { return Close('}'); }
  JsonWriter& BeginArray() { return Open('['); }
  JsonWriter& EndArray() { return Close(']'); }
  // The name of the next value; only inside an object.
  JsonWriter& Key(std::string_view key);
  JsonWriter& Value(std::string_view text);
  JsonWriter& Value(const char* text) { return Value(std::string_view(text)); }
  JsonWriter& Value(bool value) { return Raw(value ? "true" : "false"); }
  JsonWriter& Value(double value) { return Raw(JsonNumber(value)); }
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  JsonWriter& Value(T value) {
    return Raw(std::to_string(value));
  }
  JsonWriter& Null() { return Raw("null"); }
  template <class T>
  JsonWriter& Field(std::string_view key, const T& value) {
    Key(key);
    return Value(value);
  }

  // The text so far; complete when every Begin has its End.
  const std::string& text() const { return text_; }

 private:
  JsonWriter& Open(char bracket);
  JsonWriter& Close(char bracket);
  JsonWriter& Raw(std::string_view token);
  // Comma, line break and indent before the next value or key.
  void Separate();

  Style style_;
  std::string text_;
  std::vector<bool> has_items_;  // per open bracket
  bool after_key_ = false;
};

}  // namespace lode

#endif  // LODE_BASE_JSON_H_
