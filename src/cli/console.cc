// SPDX-License-Identifier: Apache-2.0
#include "cli/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace lode::cli {
namespace {

// Writes all of text; the errno of the first failure, or 0.
int WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

std::string Escape(Style style, std::string_view text) {
  const char* code = style == Style::kBold  ? "1"
                     : style == Style::kDim ? "2"
                     : style == Style::kRed ? "31"
                                            : "32";
  return "\x1b[" + std::string(code) + "m" + std::string(text) + "\x1b[0m";
}

int64_t TerminalColumns() {
  winsize size = {};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

// UTF-8 characters in text.
size_t Characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; });
}

}  // namespace

Console::Console()
    : stdin_is_terminal_(::isatty(STDIN_FILENO) == 1),
      stdout_is_terminal_(::isatty(STDOUT_FILENO) == 1),
      stderr_is_terminal_(::isatty(STDERR_FILENO) == 1) {
  const char* no_color = std::getenv("NO_COLOR");  // https://no-color.org
  const char* term = std::getenv("TERM");
  colour_allowed_ = (no_color == nullptr || *no_color == '\0') &&
                    (term == nullptr || std::strcmp(term, "dumb") != 0);
}

Status Console::Out(std::string_view text) {
  const int error = WriteAll(STDOUT_FILENO, text);
  if (error == 0) return OkStatus();
  return IoError(std::string("cannot write to standard output: ") + std::strerror(error));
}

void Console::Err(std::string_view text) {
  (void)WriteAll(STDERR_FILENO, text);
}

std::string Console::StyleOut(Style style, std::string_view text) const {
  return stdout_is_terminal_ && colour_allowed_ ? Escape(style, text) : std::string(text);
}

std::string Console::StyleErr(Style style, std::string_view text) const {
  return stderr_is_terminal_ && colour_allowed_ ? Escape(style, text) : std::string(text);
}

ProgressBar::ProgressBar(Console& console, std::string label, std::string unit)
    : console_(console), label_(std::move(label)), unit_(std::move(unit)) {}

void ProgressBar::Update(int64_t done, int64_t total) {
  constexpr double kFirstDraw = 1.0, kBetweenDraws = 0.1;  // seconds
  constexpr int64_t kBarColumns = 24;
  if (!console_.stderr_is_terminal() || total <= 0) return;
  if (first_done_ < 0) first_done_ = done;
  const double seconds = stopwatch_.Seconds();
  if (done > first_done_) history_.emplace_back(done - first_done_, seconds);
  if (seconds < kFirstDraw || (seconds - last_drawn_ < kBetweenDraws && done < total)) return;
  last_drawn_ = seconds;

  const bool is_bytes = unit_ == "bytes";
  const int64_t unit = is_bytes ? int64_t{1} << 20 : 1;
  const std::string unit_name = is_bytes ? "MiB" : unit_;
  const int64_t filled = std::clamp<int64_t>(done * kBarColumns / total, 0, kBarColumns);
  const double rate = static_cast<double>(done - first_done_) / static_cast<double>(unit) / seconds;
  const double left = SecondsLeft(history_, total - first_done_);
  std::string line = label_ + "  [" + std::string(filled, '#') +
                     std::string(kBarColumns - filled, ' ') + "]  " + FormatCount(done / unit) +
                     " / " + FormatCount(total / unit) + " " + unit_name + "  " +
                     FormatFixed(rate, rate < 10 ? 1 : 0) + " " + unit_name + "/s";
  if (left >= 0) line += "  " + FormatDuration(left) + " left";
  const int64_t columns = TerminalColumns();
  if (static_cast<int64_t>(line.size()) >= columns) line.resize(columns - 1);
  console_.Err("\r\x1b[K" + line);
  visible_ = true;
}

void ProgressBar::Finish() {
  if (visible_) console_.Err("\r\x1b[K");
  visible_ = false;
}

double SecondsLeft(const std::vector<std::pair<int64_t, double>>& history, int64_t total) {
  if (history.empty()) return -1.0;
  const auto [n, t] = history.back();
  if (n <= 0 || t <= 0) return -1.0;
  const double rate = t / static_cast<double>(n);
  double a = rate, b = 0.0;
  // Two points determine a and b: now, and halfway there.
  const auto half = std::lower_bound(history.begin(), history.end(), std::pair(n / 2, 0.0));
  if (half->first > 0 && half->first < n) {
    const double slope = (rate - half->second / static_cast<double>(half->first)) /
                         static_cast<double>(n - half->first);
    b = std::max(0.0, slope);
    a = std::max(0.0, rate - b * static_cast<double>(n));
  }
  const double whole = static_cast<double>(total);
  return std::max(0.0, a * whole + b * whole * whole - t);
}

std::string FormatCount(int64_t count) {
  std::string digits = std::to_string(count);
  const int64_t first = digits.front() == '-' ? 1 : 0;
  for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > first; at -= 3) {
    digits.insert(at, ",");
  }
  return digits;
}

std::string FormatFixed(double value, int decimals) {
  char buffer[400];  // the longest double has 309 digits before the point
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed, decimals);
  return std::string(buffer, end.ptr);
}

std::string FormatBytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(value) >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  const int decimals = unit == 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return FormatFixed(value, decimals) + " " + kUnits[unit];
}

std::string FormatDuration(double seconds) {
  const int64_t total = static_cast<int64_t>(std::ceil(std::clamp(seconds, 0.0, 1e9)));
  const auto two_digits = [](int64_t x) { return (x < 10 ? "0" : "") + std::to_string(x); };
  const int64_t minutes = total / 60;
  if (minutes < 60) return std::to_string(minutes) + ":" + two_digits(total % 60);
  return std::to_string(minutes / 60) + ":" + two_digits(minutes % 60) + ":" +
         two_digits(total % 60);
}

std::string FormatTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Characters(row[i]));
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - Characters(row[i]), ' ');
      line += (i == 0 ? "" : "  ") + (i == 0 ? row[i] + padding : padding + row[i]);
    }
    line.resize(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

Status WithHint(const Status& status, std::string_view hint) {
  if (status.ok()) return status;
  return Status(status.code(), status.message() + "\nhint: " + std::string(hint));
}

std::string NearestName(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    // Levenshtein distance, one row at a time.
    std::vector<size_t> row(candidate.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 0; i < word.size(); ++i) {
      size_t diagonal = std::exchange(row[0], i + 1);
      for (size_t j = 0; j < candidate.size(); ++j) {
        const size_t substituted = diagonal + (word[i] == candidate[j] ? 0 : 1);
        diagonal = row[j + 1];
        row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

}  // namespace lode::cli
