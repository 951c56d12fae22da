// SPDX-License-Identifier: Apache-2.0
// CountedMutex: a mutex that knows how often, and for how long, threads had to wait for it.
// An uncontended Lock costs what a std::mutex costs.
#ifndef LODE_KV_COUNTED_MUTEX_H_
#define LODE_KV_COUNTED_MUTEX_H_

#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/clock.h"

namespace lode {

class CountedMutex {
 public:
  [[nodiscard]] std::unique_lock<std::mutex> Lock() {
    std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (lock.owns_lock()) return lock;
    const Stopwatch stopwatch;
    lock.lock();
    waits_.fetch_add(1, std::memory_order_relaxed);
    wait_nanoseconds_.fetch_add(static_cast<int64_t>(stopwatch.Seconds() * 1e9),
                                std::memory_order_relaxed);
    return lock;
  }
  int64_t waits() const { return waits_.load(std::memory_order_relaxed); }
  int64_t wait_nanoseconds() const { return wait_nanoseconds_.load(std::memory_order_relaxed); }

 private:
  std::mutex mutex_;
  std::atomic<int64_t> waits_{0};
  std::atomic<int64_t> wait_nanoseconds_{0};
};

}  // namespace lode

#endif  // LODE_KV_COUNTED_MUTEX_H_
