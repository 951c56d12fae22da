// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <atomic>
#include <cstdio>
#include <string>

namespace lode {
namespace {

std::atomic<LogLevel> log_level{LogLevel::kWarning};

std::string_view LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug: ";
    case LogLevel::kInfo:
      return "";
    case LogLevel::kWarning:
      return "warning: ";
    case LogLevel::kError:
      return "error: ";
  }
  return "";
}

}  // namespace

void SetLogLevel(LogLevel level) {
  log_level.store(level, std::memory_order_relaxed);
}

void Log(LogLevel level, std::string_view message) {
  if (level < log_level.load(std::memory_order_relaxed)) return;
  std::string line(LevelName(level));
  line.append(message).push_back('\n');
  std::fwrite(line.data(), 1, line.size(), stderr);  // One write, so lines of threads do not mix.
}

}  // namespace lode
