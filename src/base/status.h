// SPDX-License-Identifier: Apache-2.0
// Status and Result<T>: how every fallible function of lodestone reports failure.
//
// A message says what went wrong, where (file, tensor or key, byte offset), what was expected and
// what was found. Bad input never aborts the process: it becomes a Status that travels up to cli or
// server, which print it. CHECK (check.h) is only for our own mistakes.
#ifndef LODE_BASE_STATUS_H_
#define LODE_BASE_STATUS_H_

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"

namespace lode {

enum class StatusCode : int {
  kOk = 0,
  kInvalidArgument,    // the caller's value is out of range or of the wrong kind
  kNotFound,           // a file, key or tensor that must exist does not
  kCorruption,         // a file contradicts itself or its format
  kUnsupported,        // well formed, but lodestone does not implement it
  kResourceExhausted,  // memory, budget or context does not suffice
  kIo,                 // the operating system refused
  kCancelled,          // the user or the client asked to stop
  kInternal,           // our own mistake, caught
};

// "InvalidArgument", "NotFound", ...
std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // "Corruption: model.gguf: ..."; "Ok" when ok.
  std::string ToString() const;
  // The same status with `context` and ": " before its message; unchanged when ok.
  Status WithContext(std::string_view context) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() {
  return Status();
}
Status InvalidArgumentError(std::string message);
Status NotFoundError(std::string message);
Status CorruptionError(std::string message);
Status UnsupportedError(std::string message);
Status ResourceExhaustedError(std::string message);
Status IoError(std::string message);
Status CancelledError(std::string message);
Status InternalError(std::string message);

// A value of type T or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  Result(Status status) : state_(std::move(status)) {
    LODE_CHECK(!std::get<Status>(state_).ok());  // An ok Result must hold a value.
  }

  bool ok() const { return std::holds_alternative<T>(state_); }
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }
  // Precondition of the accessors: ok().
  const T& value() const& { return Get(); }
  T& value() & { return const_cast<T&>(Get()); }
  T&& value() && { return std::move(const_cast<T&>(Get())); }
  const T& operator*() const { return Get(); }
  T& operator*() { return value(); }
  const T* operator->() const { return &Get(); }
  T* operator->() { return &value(); }

 private:
  const T& Get() const {
    LODE_CHECK(ok());
    return std::get<T>(state_);
  }
  std::variant<Status, T> state_;
};

}  // namespace lode

#define LODE_CONCAT_INNER_(a, b) a##b
#define LODE_CONCAT_(a, b) LODE_CONCAT_INNER_(a, b)

// Returns the Status of `expr` from the enclosing function unless it is ok.
#define LODE_RETURN_IF_ERROR(expr)                                                     \
  do {                                                                                 \
    if (::lode::Status lode_status_ = (expr); !lode_status_.ok()) return lode_status_; \
  } while (false)

// LODE_ASSIGN_OR_RETURN(auto x, F()): assigns the value of Result F() to `auto x`, or returns its
// Status.
#define LODE_ASSIGN_OR_RETURN(lhs, expr) \
  LODE_ASSIGN_OR_RETURN_IMPL_(LODE_CONCAT_(lode_result_, __LINE__), lhs, expr)
#define LODE_ASSIGN_OR_RETURN_IMPL_(result, lhs, expr) \
  auto result = (expr);                                \
  if (!result.ok()) return result.status();            \
  lhs = std::move(result).value()

#endif  // LODE_BASE_STATUS_H_
