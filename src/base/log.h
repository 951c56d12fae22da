// SPDX-License-Identifier: Apache-2.0
// One levelled logger to stderr. Model text and results go to stdout, from cli only; kernels and
// tensor never log.
#ifndef LODE_BASE_LOG_H_
#define LODE_BASE_LOG_H_

#include <string_view>

namespace lode {

enum class LogLevel : int { kDebug, kInfo, kWarning, kError };

// Messages below `level` are dropped. Default: kWarning. Thread safe.
void SetLogLevel(LogLevel level);
// Writes "warning: message" to stderr as one line. Thread safe.
void Log(LogLevel level, std::string_view message);

inline void LogDebug(std::string_view message) {
  Log(LogLevel::kDebug, message);
}
inline void LogInfo(std::string_view message) {
  Log(LogLevel::kInfo, message);
}
inline void LogWarning(std::string_view message) {
  Log(LogLevel::kWarning, message);
}
inline void LogError(std::string_view message) {
  Log(LogLevel::kError, message);
}

}  // namespace lode

#endif  // LODE_BASE_LOG_H_
