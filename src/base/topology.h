// SPDX-License-Identifier: Apache-2.0
// Topology: how many threads and how much memory this process may really use.
//
// In a container the host's figures mislead: sixteen threads under a quota of one core are many
// times slower than one. So threads = max(1, floor(min(quota, affinity))), and memory is bounded by
// the control group's limit. Every answer carries one line that says where it came from.
//
// A control group's limits bind all groups below it, so every ancestor up to the root is read
// (cgroup v2: cpu.max, memory.max; v1: cpu.cfs_quota_us, memory.limit_in_bytes).
#ifndef LODE_BASE_TOPOLOGY_H_
#define LODE_BASE_TOPOLOGY_H_

#include <cstdint>
#include <string>

namespace lode {

// Where to look; tests point it at a made-up tree.
struct SystemView {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
  int32_t affinity = 0;  // CPUs this process may run on; 0: ask the kernel
};

struct ThreadBudget {
  int32_t threads = 1;
  bool limited_by_quota = false;  // to less than the affinity allows
  std::string reason;             // "2 threads: affinity allows 2 CPUs, no CPU quota"
};
// Never fails: what cannot be read does not limit.
ThreadBudget UsableThreads(const SystemView& system = {});

struct MemoryBudget {
  int64_t total_bytes = 0;      // of the machine or the control group, whichever is less
  int64_t available_bytes = 0;  // can be allocated now without swapping; file cache counts as free
  std::string reason;
};
// available_bytes is 0 when the system says nothing about memory.
MemoryBudget UsableMemory(const SystemView& system = {});

// Resident memory of this process in bytes, now and at its peak; 0 when unknown.
struct ResidentMemory {
  int64_t current_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t anonymous_bytes = 0;  // without mapped files
};
ResidentMemory ReadResidentMemory(const SystemView& system = {});

// "AMD EPYC 7763 64-Core Processor", or "unknown CPU".
std::string CpuName(const SystemView& system = {});

}  // namespace lode

#endif  // LODE_BASE_TOPOLOGY_H_
