// SPDX-License-Identifier: Apache-2.0
#include "cli/line_editor.h"

#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

namespace lode::cli {
namespace {

bool IsContinuation(char c) {
  return (static_cast<uint8_t>(c) & 0xc0) == 0x80;
}

// The code point at text[*at]; moves *at behind it. Ill-formed bytes count as one each.
uint32_t NextCodePoint(std::string_view text, size_t* at) {
  const uint8_t first = static_cast<uint8_t>(text[(*at)++]);
  uint32_t code = first < 0x80   ? first
                  : first < 0xe0 ? first & 0x1f
                  : first < 0xf0 ? first & 0x0f
                                 : first & 0x07;
  while (*at < text.size() && IsContinuation(text[*at])) {
    code = code << 6 | (static_cast<uint8_t>(text[(*at)++]) & 0x3f);
  }
  return code;
}

bool IsWide(uint32_t code) {
  constexpr uint32_t kWide[][2] = {{0x1100, 0x115f},  {0x2e80, 0xa4cf},   {0xac00, 0xd7a3},
                                   {0xf900, 0xfaff},  {0xfe30, 0xfe6f},   {0xff00, 0xff60},
                                   {0xffe0, 0xffe6},  {0x1f300, 0x1f64f}, {0x1f900, 0x1f9ff},
                                   {0x20000, 0x3fffd}};
  return std::any_of(std::begin(kWide), std::end(kWide),
                     [code](const auto& range) { return code >= range[0] && code <= range[1]; });
}

bool IsCombining(uint32_t code) {
  return (code >= 0x300 && code <= 0x36f) || code == 0x200d || (code >= 0xfe00 && code <= 0xfe0f);
}

int64_t TerminalColumns() {
  winsize size = {};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 8) return size.ws_col;
  return 80;
}

void Echo(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno != EINTR) return;
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
}

// Keys one by one instead of lines; the old state comes back at the end. Ctrl+C is a key here.
class RawTerminal {
 public:
  RawTerminal() {
    ::tcgetattr(STDIN_FILENO, &saved_);
    termios raw = saved_;
    raw.c_iflag &= ~static_cast<tcflag_t>(ICRNL | IXON);
    raw.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON | ISIG | IEXTEN);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    ::tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    Echo("\x1b[?2004h");  // bracketed paste
  }
  ~RawTerminal() {
    Echo("\x1b[?2004l");
    ::tcsetattr(STDIN_FILENO, TCSADRAIN, &saved_);
  }
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;

 private:
  termios saved_ = {};
};

// The next byte of input, or -1 at its end.
int ReadByte() {
  unsigned char c = 0;
  while (true) {
    const ssize_t got = ::read(STDIN_FILENO, &c, 1);
    if (got == 1) return c;
    if (got == 0 || errno != EINTR) return -1;
  }
}

// What follows ESC: "[A", "[3~", "OH", ... as one string.
std::string ReadEscape() {
  std::string sequence;
  const int first = ReadByte();
  if (first != '[' && first != 'O') return sequence;
  sequence += static_cast<char>(first);
  while (sequence.size() < 16) {
    const int c = ReadByte();
    if (c < 0) break;
    sequence += static_cast<char>(c);
    if (c >= 0x40 && c <= 0x7e) break;
  }
  return sequence;
}

// Pasted text up to its end mark, line breaks as \n.
std::string ReadPaste() {
  constexpr std::string_view kEnd = "\x1b[201~";
  std::string text;
  while (!text.ends_with(kEnd)) {
    const int c = ReadByte();
    if (c < 0) return text;
    text += c == '\r' ? '\n' : static_cast<char>(c);
  }
  text.resize(text.size() - kEnd.size());
  return text;
}

void ApplyEscape(LineBuffer& buffer, const std::string& sequence) {
  if (sequence == "[A") buffer.Older();
  if (sequence == "[B") buffer.Newer();
  if (sequence == "[C") buffer.Right();
  if (sequence == "[D") buffer.Left();
  if (sequence == "[H" || sequence == "OH" || sequence == "[1~") buffer.Home();
  if (sequence == "[F" || sequence == "OF" || sequence == "[4~") buffer.End();
  if (sequence == "[3~") buffer.Delete();
  if (sequence == "[200~") buffer.Insert(ReadPaste());
}

void ApplyControl(LineBuffer& buffer, int key) {
  constexpr auto ctrl = [](char letter) { return letter - '@'; };
  if (key == ctrl('A')) buffer.Home();
  if (key == ctrl('E')) buffer.End();
  if (key == ctrl('B')) buffer.Left();
  if (key == ctrl('F')) buffer.Right();
  if (key == ctrl('D')) buffer.Delete();
  if (key == ctrl('H') || key == 0x7f) buffer.Backspace();
  if (key == ctrl('K')) buffer.DeleteToEnd();
  if (key == ctrl('U')) buffer.DeleteToStart();
  if (key == ctrl('W')) buffer.DeleteWord();
  if (key == ctrl('P')) buffer.Older();
  if (key == ctrl('N')) buffer.Newer();
  if (key == ctrl('L')) Echo("\x1b[H\x1b[2J");
}

// Control characters of pasted text must not reach the terminal.
std::string Printable(std::string_view text) {
  std::string out;
  for (const char c : text) out += static_cast<uint8_t>(c) < 0x20 || c == 0x7f ? ' ' : c;
  return out;
}

void Redraw(const std::string& prompt, const LineBuffer& buffer) {
  const int64_t room = TerminalColumns() - DisplayColumns(prompt) - 1;
  const std::string text = Printable(buffer.text());
  // The shown part starts as late as needed for the cursor to be visible.
  size_t begin = 0;
  while (DisplayColumns(std::string_view(text).substr(begin, buffer.cursor() - begin)) >= room) {
    NextCodePoint(text, &begin);
  }
  size_t end = begin;
  for (size_t next = begin; next < text.size();) {
    NextCodePoint(text, &next);
    if (DisplayColumns(std::string_view(text).substr(begin, next - begin)) > room) break;
    end = next;
  }
  const int64_t column = DisplayColumns(prompt) + DisplayColumns(std::string_view(text).substr(
                                                      begin, buffer.cursor() - begin));
  Echo("\r" + prompt + text.substr(begin, end - begin) + "\x1b[K\r" +
       (column > 0 ? "\x1b[" + std::to_string(column) + "C" : ""));
}

}  // namespace

int64_t DisplayColumns(std::string_view text) {
  int64_t columns = 0;
  for (size_t at = 0; at < text.size();) {
    const uint32_t code = NextCodePoint(text, &at);
    columns += IsCombining(code) ? 0 : IsWide(code) ? 2 : 1;
  }
  return columns;
}

size_t LineBuffer::Before(size_t at) const {
  while (at > 0 && IsContinuation(text_[--at])) {
  }
  return at;
}

size_t LineBuffer::After(size_t at) const {
  if (at < text_.size()) ++at;
  while (at < text_.size() && IsContinuation(text_[at])) ++at;
  return at;
}

void LineBuffer::Insert(std::string_view text) {
  text_.insert(cursor_, text);
  cursor_ += text.size();
}

void LineBuffer::Left() {
  cursor_ = Before(cursor_);
}

void LineBuffer::Right() {
  cursor_ = After(cursor_);
}

void LineBuffer::Backspace() {
  const size_t begin = Before(cursor_);
  text_.erase(begin, cursor_ - begin);
  cursor_ = begin;
}

void LineBuffer::Delete() {
  text_.erase(cursor_, After(cursor_) - cursor_);
}

void LineBuffer::DeleteToStart() {
  text_.erase(0, cursor_);
  cursor_ = 0;
}

void LineBuffer::DeleteWord() {
  size_t begin = cursor_;
  while (begin > 0 && text_[begin - 1] == ' ') --begin;
  while (begin > 0 && text_[begin - 1] != ' ') --begin;
  text_.erase(begin, cursor_ - begin);
  cursor_ = begin;
}

void LineBuffer::Show(size_t from_end) {
  if (from_end_ == 0) draft_ = text_;
  from_end_ = from_end;
  text_ = from_end == 0 ? draft_ : history_[history_.size() - from_end];
  cursor_ = text_.size();
}

void LineBuffer::Older() {
  if (from_end_ < history_.size()) Show(from_end_ + 1);
}

void LineBuffer::Newer() {
  if (from_end_ > 0) Show(from_end_ - 1);
}

void LineEditor::AddHistory(const std::string& line) {
  if (!line.empty() && (history_.empty() || history_.back() != line)) history_.push_back(line);
}

LineEvent LineEditor::Read(const std::string& prompt, std::string* line) {
  constexpr int kCtrlC = 3, kCtrlD = 4, kEscape = 27;
  const RawTerminal raw;
  LineBuffer buffer(history_);
  const auto finish = [&](LineEvent event) {
    *line = buffer.text();
    Echo("\r\n");
    return event;
  };
  while (true) {
    Redraw(prompt, buffer);
    const int key = ReadByte();
    if (key < 0) return finish(LineEvent::kEnd);
    if (key == '\r' || key == '\n') {
      buffer.End();
      Redraw(prompt, buffer);
      return finish(LineEvent::kLine);
    }
    if (key == kCtrlC) return finish(LineEvent::kInterrupt);
    if (key == kCtrlD && buffer.text().empty()) return finish(LineEvent::kEnd);
    if (key == kEscape) {
      ApplyEscape(buffer, ReadEscape());
    } else if (key < 0x20 || key == 0x7f) {
      ApplyControl(buffer, key);
    } else {
      // All bytes of the character, so that no half of it is ever drawn.
      std::string character(1, static_cast<char>(key));
      const int following = key >= 0xf0 ? 3 : key >= 0xe0 ? 2 : key >= 0xc0 ? 1 : 0;
      for (int i = 0; i < following; ++i) character += static_cast<char>(ReadByte());
      buffer.Insert(character);
    }
  }
}

}  // namespace lode::cli
