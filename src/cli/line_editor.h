// SPDX-License-Identifier: Apache-2.0
// LineEditor: one line of input on a terminal, with cursor keys, history and whole UTF-8
// characters. A line longer than the terminal scrolls sideways.
//
// Keys: arrows, Home, End, Delete, Backspace, Ctrl+A E B F K U W L, up and down for history. Text
// pasted with line breaks stays one message (bracketed paste). Small enough to have no dependency.
#ifndef LODE_CLI_LINE_EDITOR_H_
#define LODE_CLI_LINE_EDITOR_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lode::cli {

enum class LineEvent : uint8_t { kLine, kInterrupt, kEnd };  // Enter, Ctrl+C, Ctrl+D on no text

// The text being edited and the keys that change it: no terminal in here, so it can be tested.
class LineBuffer {
 public:
  explicit LineBuffer(const std::vector<std::string>& history) : history_(history) {}

  const std::string& text() const { return text_; }
  size_t cursor() const { return cursor_; }  // byte offset, at a character's border

  void Insert(std::string_view text);
  void Backspace();
  void Delete();
  void Left();
  void Right();
  void Home() { cursor_ = 0; }
  void End() { cursor_ = text_.size(); }
  void DeleteToEnd() { text_.resize(cursor_); }
  void DeleteToStart();
  void DeleteWord();
  void Older();
  void Newer();

 private:
  size_t Before(size_t at) const;  // border of the character before / after a byte offset
  size_t After(size_t at) const;
  void Show(size_t index);

  const std::vector<std::string>& history_;
  std::string text_;
  std::string draft_;    // what was typed before history was looked at
  size_t from_end_ = 0;  // 0: the draft; n: the n-th newest line of history
  size_t cursor_ = 0;
};

// Columns that text takes on a terminal (wide East Asian characters and emoji take two).
int64_t DisplayColumns(std::string_view text);

class LineEditor {
 public:
  // Reads one line from the terminal on stdin, echoing to stderr.
  LineEvent Read(const std::string& prompt, std::string* line);
  // Up and down offer it from now on.
  void AddHistory(const std::string& line);

 private:
  std::vector<std::string> history_;
};

}  // namespace lode::cli

#endif  // LODE_CLI_LINE_EDITOR_H_
