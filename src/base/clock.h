// SPDX-License-Identifier: Apache-2.0
// Stopwatch: elapsed wall time on the monotonic clock.
#ifndef LODE_BASE_CLOCK_H_
#define LODE_BASE_CLOCK_H_

#include <chrono>

namespace lode {

class Stopwatch {
 public:
  // Seconds since construction or the last Restart.
  double Seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  void Restart() { start_ = Clock::now(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

}  // namespace lode

#endif  // LODE_BASE_CLOCK_H_
