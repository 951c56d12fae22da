// SPDX-License-Identifier: Apache-2.0
// LODE_CHECK aborts on our own mistakes (never on input); LODE_DCHECK does so in debug builds,
// inside loops.
#ifndef LODE_BASE_CHECK_H_
#define LODE_BASE_CHECK_H_

namespace lode::internal {
// Prints "file:line: check failed: condition" to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);
}  // namespace lode::internal

#define LODE_CHECK(condition)                          \
  (static_cast<bool>(condition) ? static_cast<void>(0) \
                                : ::lode::internal::CheckFailed(__FILE__, __LINE__, #condition))

#ifdef NDEBUG
#define LODE_DCHECK(condition) static_cast<void>(0)
#else
#define LODE_DCHECK(condition) LODE_CHECK(condition)
#endif

#endif  // LODE_BASE_CHECK_H_
