// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <numeric>
#include <vector>

namespace lode {
namespace {

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(ThreadPoolTest, RunsEveryTaskOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (const int64_t tasks : {0, 1, 2, 7, 1000}) {
      std::vector<int> runs(tasks, 0);
      pool.ParallelFor(tasks, [&](int64_t index, int worker) {
        EXPECT_GE(worker, 0);
        EXPECT_LT(worker, threads);
        ++runs[index];
      });
      EXPECT_EQ(runs, std::vector<int>(tasks, 1)) << threads << " threads, " << tasks << " tasks";
    }
  }
}

TEST(ThreadPoolTest, AWorkerNeverRunsTwoTasksAtOnce) {
  constexpr int kThreads = 4;
  ThreadPool pool(kThreads);
  std::vector<int64_t> sums(kThreads, 0);  // plain memory per worker: tsan would object
  for (int round = 0; round < 200; ++round) {
    pool.ParallelFor(100, [&](int64_t index, int worker) { sums[worker] += index; });
  }
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), int64_t{0}), 200 * 4950);
}

// What one region wrote, the next one reads, on whichever thread: publication must be complete.
TEST(ThreadPoolTest, RegionsFollowEachOther) {
  ThreadPool pool(3);
  std::vector<int64_t> a(64, 1), b(64, 0);
  for (int round = 0; round < 2000; ++round) {
    pool.ParallelFor(64, [&](int64_t i, int) { b[i] = a[(i + 1) % 64] + 1; });
    pool.ParallelFor(64, [&](int64_t i, int) { a[i] = b[(i + 1) % 64]; });
  }
  for (const int64_t x : a) EXPECT_EQ(x, 2001);
}

// Workers park between regions and must wake up again.
TEST(ThreadPoolTest, WakesUpAfterParking) {
  ThreadPool pool(3);
  for (int round = 0; round < 30; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(round % 3));
    std::atomic<int> runs{0};
    pool.ParallelFor(3, [&](int64_t, int) { ++runs; });
    EXPECT_EQ(runs, 3);
  }
}

TEST(ThreadPoolTest, AnIdlePoolUsesNoCpu) {
  ThreadPool pool(4);
  pool.ParallelFor(4, [](int64_t, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // spin time is over
  const double before = CpuSeconds();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  // 0.5 s in a minute is the product's limit: 8 ms in a second.
  EXPECT_LT(CpuSeconds() - before, 0.008);
}

TEST(ThreadPoolTest, PoolsComeAndGo) {
  for (int round = 0; round < 50; ++round) {
    ThreadPool pool(1 + round % 4);
    if (round % 2 == 0) pool.ParallelFor(2, [](int64_t, int) {});
  }
}

}  // namespace
}  // namespace lode
