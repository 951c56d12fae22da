// SPDX-License-Identifier: Apache-2.0
#include "base/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace lode {
namespace {

// A made-up /proc and /sys/fs/cgroup.
class TopologyTest : public testing::Test {
 protected:
  TopologyTest() {
    root_ = testing::TempDir() + "/topology_" +
            testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
    system_ = {.proc = root_ + "/proc", .cgroup = root_ + "/cgroup", .affinity = 8};
  }
  ~TopologyTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  std::string root_;
  SystemView system_;
};

TEST_F(TopologyTest, NothingReadableMeansAffinity) {
  const ThreadBudget budget = UsableThreads(system_);
  EXPECT_EQ(budget.threads, 8);
  EXPECT_FALSE(budget.limited_by_quota);
  EXPECT_EQ(budget.reason, "8 threads: affinity allows 8 CPUs, no CPU quota");
}

TEST_F(TopologyTest, V2QuotaIsRoundedDown) {
  Write("/proc/self/cgroup", "0::/app\n");
  Write("/cgroup/app/cpu.max", "250000 100000\n");
  const ThreadBudget budget = UsableThreads(system_);
  EXPECT_EQ(budget.threads, 2);
  EXPECT_TRUE(budget.limited_by_quota);
  EXPECT_EQ(budget.reason,
            "2 threads: affinity allows 8 CPUs, the control group's quota is 2.50 CPUs");
}

TEST_F(TopologyTest, V2QuotaOfAnAncestorCounts) {
  Write("/proc/self/cgroup", "0::/slice/app\n");
  Write("/cgroup/slice/app/cpu.max", "max 100000\n");
  Write("/cgroup/slice/cpu.max", "100000 100000\n");
  EXPECT_EQ(UsableThreads(system_).threads, 1);
}

TEST_F(TopologyTest, LessThanOneCpuStillMeansOneThread) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/cgroup/cpu.max", "20000 100000\n");
  EXPECT_EQ(UsableThreads(system_).threads, 1);
}

TEST_F(TopologyTest, V1QuotaInsideAContainer) {
  // The path is the host's; inside the container the group is the mount's root.
  Write("/proc/self/cgroup", "12:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n");
  Write("/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000\n");
  Write("/cgroup/cpu,cpuacct/cpu.cfs_period_us", "50000\n");
  EXPECT_EQ(UsableThreads(system_).threads, 3);
  Write("/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(UsableThreads(system_).threads, 8);
}

TEST_F(TopologyTest, AffinityLimitsAQuota) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/cgroup/cpu.max", "1600000 100000\n");
  system_.affinity = 1;
  EXPECT_EQ(UsableThreads(system_).threads, 1);
}

TEST_F(TopologyTest, HostileFilesDoNotLimit) {
  Write("/proc/self/cgroup", "nonsense\n0::relative\n:::\n");
  Write("/cgroup/cpu.max", "-5 0\n");
  EXPECT_EQ(UsableThreads(system_).threads, 8);
}

TEST_F(TopologyTest, MemoryOfTheMachine) {
  Write("/proc/meminfo", "MemTotal:       2000 kB\nMemFree: 1 kB\nMemAvailable:    1500 kB\n");
  const MemoryBudget memory = UsableMemory(system_);
  EXPECT_EQ(memory.total_bytes, 2000 * 1024);
  EXPECT_EQ(memory.available_bytes, 1500 * 1024);
  EXPECT_EQ(memory.reason, "of the machine");
}

TEST_F(TopologyTest, MemoryOfAV2Group) {
  Write("/proc/meminfo", "MemTotal:       2000 kB\nMemAvailable:    1500 kB\n");
  Write("/proc/self/cgroup", "0::/app\n");
  Write("/cgroup/app/memory.max", "1024000\n");
  Write("/cgroup/app/memory.current", "524000\n");
  Write("/cgroup/app/memory.stat", "anon 1\ninactive_file 100000\nactive_file 24000\n");
  const MemoryBudget memory = UsableMemory(system_);
  EXPECT_EQ(memory.total_bytes, 1024000);
  EXPECT_EQ(memory.available_bytes, 624000);
  EXPECT_EQ(memory.reason, "of the control group");
  Write("/cgroup/app/memory.max", "max\n");
  EXPECT_EQ(UsableMemory(system_).available_bytes, 1500 * 1024);
}

TEST_F(TopologyTest, MemoryOfAV1Group) {
  Write("/proc/meminfo", "MemTotal:       2000 kB\nMemAvailable:    1500 kB\n");
  Write("/proc/self/cgroup", "3:memory:/\n");
  Write("/cgroup/memory/memory.limit_in_bytes", "1000000\n");
  Write("/cgroup/memory/memory.usage_in_bytes", "900000\n");
  EXPECT_EQ(UsableMemory(system_).available_bytes, 100000);
  Write("/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // none
  EXPECT_EQ(UsableMemory(system_).available_bytes, 1500 * 1024);
}

TEST(TopologyOfThisMachineTest, IsPlausible) {
  EXPECT_GE(UsableThreads().threads, 1);
  const MemoryBudget memory = UsableMemory();
  EXPECT_GT(memory.available_bytes, 0);
  EXPECT_LE(memory.available_bytes, memory.total_bytes);
  const ResidentMemory resident = ReadResidentMemory();
  EXPECT_GT(resident.current_bytes, 0);
  EXPECT_GE(resident.peak_bytes, resident.current_bytes);
  EXPECT_FALSE(CpuName().empty());
}

}  // namespace
}  // namespace lode
