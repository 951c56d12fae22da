// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <chrono>

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lode {
namespace {

// How long a worker spins for the next region before it parks. Regions of one decode step follow
// each other within microseconds; between two requests nothing may spin.
constexpr auto kSpinTime = std::chrono::microseconds(200);
constexpr int kSpinsBetweenClockReads = 64;

// Set in ThreadPool::region_ while workers may join; the bits below count those inside.
constexpr uint32_t kOpen = uint32_t{1} << 31;

void Relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until `done()` or until the spin time is over; says whether it was done.
template <class Done>
bool SpinUntil(Done done) {
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    for (int i = 0; i < kSpinsBetweenClockReads; ++i) {
      if (done()) return true;
      Relax();
    }
    if (std::chrono::steady_clock::now() - start > kSpinTime) return false;
  }
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {
  LODE_CHECK(num_threads >= 1);
  workers_.reserve(num_threads - 1);
  for (int worker = 1; worker < num_threads; ++worker) {
    workers_.emplace_back([this, worker] { WorkerLoop(worker); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(int64_t num_tasks, Task task) {
  if (num_tasks <= 0) return;
  if (num_tasks == 1 || num_threads_ == 1) {
    for (int64_t i = 0; i < num_tasks; ++i) task(i, 0);
    return;
  }
  task_ = &task;
  num_tasks_ = num_tasks;
  next_task_.store(0, std::memory_order_relaxed);
  region_.store(kOpen, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  RunTasks(0);
  region_.fetch_and(~kOpen, std::memory_order_acq_rel);
  // Those inside are each in their last task; where threads outnumber CPUs they need this one.
  const auto all_left = [this] { return region_.load(std::memory_order_acquire) == 0; };
  while (!SpinUntil(all_left)) std::this_thread::yield();
  task_ = nullptr;
}

bool ThreadPool::Join() {
  uint32_t region = region_.load(std::memory_order_acquire);
  while ((region & kOpen) != 0) {
    if (region_.compare_exchange_weak(region, region + 1, std::memory_order_acq_rel)) return true;
  }
  return false;
}

void ThreadPool::RunTasks(int worker) {
  const Task& task = *task_;
  while (true) {
    const int64_t index = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (index >= num_tasks_) return;
    task(index, worker);
  }
}

void ThreadPool::WorkerLoop(int worker) {
  uint32_t seen = 0;
  while (true) {
    const auto changed = [&] { return generation_.load(std::memory_order_acquire) != seen; };
    while (!SpinUntil(changed)) generation_.wait(seen, std::memory_order_acquire);
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    if (!Join()) continue;
    RunTasks(worker);
    region_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace lode
