// SPDX-License-Identifier: Apache-2.0
// ThreadPool: fork-join over a fixed set of threads, made for regions of 20 us to 100 ms.
//
// A region is published by bumping a generation counter; workers spin on it for a bounded time,
// then park on the futex behind std::atomic::wait, so an idle process uses no CPU. Tasks are handed
// out by an atomic counter: which worker runs a task is not fixed, so a task must not let its
// result depend on the worker index. A worker joins a region only while it is open, and the caller
// closes it when no task is left: on a busy machine nobody waits for a worker that never got a CPU.
#ifndef LODE_BASE_THREAD_POOL_H_
#define LODE_BASE_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/function_ref.h"

namespace lode {

class ThreadPool {
 public:
  // Starts num_threads - 1 workers; the caller of ParallelFor is the remaining thread. num_threads
  // >= 1.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls task(index, worker) once for every index in [0, num_tasks), worker in [0, num_threads()),
  // and returns when all have returned. One caller at a time; not reentrant from inside a task.
  // Cost: about 1 us at two threads.
  void ParallelFor(int64_t num_tasks, FunctionRef<void(int64_t index, int worker)> task);

 private:
  using Task = FunctionRef<void(int64_t, int)>;
  void WorkerLoop(int worker);
  bool Join();  // enters the open region; false when there is none
  void RunTasks(int worker);

  const int num_threads_;
  std::vector<std::thread> workers_;
  const Task* task_ = nullptr;  // valid while a region is open
  int64_t num_tasks_ = 0;
  alignas(64) std::atomic<int64_t> next_task_{0};
  alignas(64) std::atomic<uint32_t> generation_{
      0};                                        // bumped once a region; what idle workers watch
  alignas(64) std::atomic<uint32_t> region_{0};  // kOpen while workers may join, plus those inside
  std::atomic<bool> stop_{false};
};

}  // namespace lode

#endif  // LODE_BASE_THREAD_POOL_H_
