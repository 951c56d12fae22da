// SPDX-License-Identifier: Apache-2.0
// Console: what the verbs of `lode` say, and where. Model text and asked-for results go to stdout;
// progress, timings, hints and errors go to stderr, so a pipe carries only the answer.
//
// Colours appear only on a terminal and without NO_COLOR; progress bars only on a terminal. A
// closed pipe ends the process by SIGPIPE, as any Unix tool; every other failed write to stdout (a
// full disk) is an Io error that the verb returns.
#ifndef LODE_CLI_CONSOLE_H_
#define LODE_CLI_CONSOLE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace lode::cli {

enum class Style : uint8_t { kBold, kDim, kRed, kGreen };

class Console {
 public:
  Console();

  // Writes all of text at once, unbuffered.
  Status Out(std::string_view text);
  // The same to stderr; a failure there has nowhere to be reported.
  void Err(std::string_view text);
  // text in a style, or as it is when that stream shows no colours.
  std::string StyleOut(Style style, std::string_view text) const;
  std::string StyleErr(Style style, std::string_view text) const;

  bool stdin_is_terminal() const { return stdin_is_terminal_; }
  bool stdout_is_terminal() const { return stdout_is_terminal_; }
  bool stderr_is_terminal() const { return stderr_is_terminal_; }

 private:
  bool stdin_is_terminal_;
  bool stdout_is_terminal_;
  bool stderr_is_terminal_;
  bool colour_allowed_;
};

// One line on stderr that shows how far a long job is and when it will be done:
//   prefill  [#######             ]  12,288 / 32,768 tokens  118 tokens/s  3:12 left
// Silent when stderr is no terminal, and for the first second.
class ProgressBar {
 public:
  // Jobs in bytes are shown in MiB. The caller erases the bar with Finish before other output.
  ProgressBar(Console& console, std::string label, std::string unit);
  void Update(int64_t done, int64_t total);
  void Finish();

 private:
  Console& console_;
  std::string label_;
  std::string unit_;
  Stopwatch stopwatch_;
  double last_drawn_ = 0.0;
  bool visible_ = false;
  int64_t first_done_ = -1;                          // where a resumed job started
  std::vector<std::pair<int64_t, double>> history_;  // (done, seconds)
};

// Seconds left of a job whose time grows as a*n + b*n^2 (prefill: later tokens see more keys),
// fitted to the progress so far: (work done, seconds), ascending. Negative when it cannot be told.
double SecondsLeft(const std::vector<std::pair<int64_t, double>>& history, int64_t total);

// "1,234,567"; "469 MiB", "1.25 GiB"; "3:07", "1:02:03".
std::string FormatCount(int64_t count);
std::string FormatBytes(int64_t bytes);
std::string FormatDuration(double seconds);
// A number with this many decimals, whatever the locale.
std::string FormatFixed(double value, int decimals);

// Rows of cells as aligned columns, two blanks apart. The first column is left-aligned, the others
// are right-aligned. Width is counted in characters, not bytes.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);

// `status` with a second line that says what to do about it.
Status WithHint(const Status& status, std::string_view hint);

// The candidate most like `word`, or "" when none is near.
std::string NearestName(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace lode::cli

#endif  // LODE_CLI_CONSOLE_H_
