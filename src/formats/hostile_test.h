// SPDX-License-Identifier: Apache-2.0
// Support for tests of hostile files: a refusal must be quick, small and say what it found.
#ifndef LODE_FORMATS_HOSTILE_TEST_H_
#define LODE_FORMATS_HOSTILE_TEST_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace lode {

// Peak resident memory of this process in bytes.
inline int64_t PeakMemoryBytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

// Calls open(), which must fail with `code` and a message that holds every one of `parts`, in under
// 100 ms and 10 MB.
template <class Open>
void ExpectRefused(const Open& open, StatusCode code, const std::vector<std::string>& parts) {
  const int64_t memory_before = PeakMemoryBytes();
  const auto start = std::chrono::steady_clock::now();
  const Status status = open();
  const auto elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(status.code(), code) << status.ToString();
  for (const std::string& part : parts) EXPECT_THAT(status.message(), testing::HasSubstr(part));
  EXPECT_LT(elapsed, std::chrono::milliseconds(100));
  EXPECT_LT(PeakMemoryBytes() - memory_before, 10'000'000);
}

inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace lode

#endif  // LODE_FORMATS_HOSTILE_TEST_H_
