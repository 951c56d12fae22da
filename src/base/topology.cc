// SPDX-License-Identifier: Apache-2.0
#include "base/topology.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

namespace lode {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// The whole of a small kernel file; nullopt when it cannot be read.
std::optional<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The integer at the start of text, after blanks.
std::optional<int64_t> ParseInt(std::string_view text) {
  const size_t start = text.find_first_not_of(" \t");
  if (start == std::string_view::npos) return std::nullopt;
  text.remove_prefix(start);
  int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc()) return std::nullopt;
  return value;
}

std::optional<int64_t> ReadInt(const std::string& path) {
  const std::optional<std::string> text = ReadFile(path);
  return text ? ParseInt(*text) : std::nullopt;
}

// The integer after `key` at the start of a line: "MemTotal:   123 kB", "inactive_file 456".
std::optional<int64_t> FindLine(std::string_view text, std::string_view key) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    if (line.starts_with(key)) return ParseInt(line.substr(key.size()));
    begin = end + 1;
  }
  return std::nullopt;
}

// Folders of our control group for `controller`, innermost first, up to the root. A container often
// sees its own group as the root, under a path that only the host knows: missing folders are
// harmless.
std::vector<std::string> GroupFolders(const SystemView& system, std::string_view controller) {
  std::vector<std::string> folders;
  const std::string text = ReadFile(system.proc + "/self/cgroup").value_or("");
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {  // "0::/path" or "4:cpu,cpuacct:/path"
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_v2 = controllers.empty();
    const std::string padded = "," + controllers + ",";
    if (!is_v2 && padded.find("," + std::string(controller) + ",") == std::string::npos) continue;
    std::string path = line.substr(second + 1);
    while (true) {
      if (path == "/") path.clear();
      if (is_v2) {
        folders.push_back(system.cgroup + path);
      } else {
        folders.push_back(system.cgroup + "/" + controllers + path);
        folders.push_back(system.cgroup + "/" + std::string(controller) + path);
      }
      if (path.empty()) break;
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  }
  return folders;
}

// CPUs granted by this group's quota, if it has one.
std::optional<double> QuotaOf(const std::string& folder) {
  std::optional<int64_t> quota, period;
  if (const auto text = ReadFile(folder + "/cpu.max")) {  // "150000 100000" or "max 100000"
    const size_t blank = text->find(' ');
    quota = ParseInt(*text);
    if (blank != std::string::npos) period = ParseInt(std::string_view(*text).substr(blank));
  } else {
    quota = ReadInt(folder + "/cpu.cfs_quota_us");  // -1: none
    period = ReadInt(folder + "/cpu.cfs_period_us");
  }
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

int32_t AffinityOf(const SystemView& system) {
  if (system.affinity > 0) return system.affinity;
  for (int max_cpus = 1024; max_cpus <= 1 << 20; max_cpus *= 4) {
    cpu_set_t* set = CPU_ALLOC(max_cpus);
    if (set == nullptr) break;
    const size_t size = CPU_ALLOC_SIZE(max_cpus);
    const bool ok = sched_getaffinity(0, size, set) == 0;
    const bool too_small = !ok && errno == EINVAL;
    const int count = ok ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    if (ok) return std::max(1, count);
    if (!too_small) break;
  }
  return 1;
}

std::string Plural(int64_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

struct GroupMemory {
  int64_t limit = kNoLimit;
  int64_t available = kNoLimit;  // limit - used + file cache
};

// Limit and room of one control group.
GroupMemory MemoryOf(const std::string& folder) {
  GroupMemory memory;
  std::optional<int64_t> limit = ReadInt(folder + "/memory.max");  // "max" is not a number
  std::optional<int64_t> used = ReadInt(folder + "/memory.current");
  if (!limit) limit = ReadInt(folder + "/memory.limit_in_bytes");
  if (!used) used = ReadInt(folder + "/memory.usage_in_bytes");
  if (!limit || *limit <= 0) return memory;
  memory.limit = *limit;
  const std::string stat = ReadFile(folder + "/memory.stat").value_or("");
  const int64_t file_cache =
      FindLine(stat, "inactive_file ").value_or(0) + FindLine(stat, "active_file ").value_or(0);
  memory.available = std::clamp<int64_t>(*limit - used.value_or(0) + file_cache, 0, *limit);
  return memory;
}

}  // namespace

ThreadBudget UsableThreads(const SystemView& system) {
  const int32_t affinity = AffinityOf(system);
  double quota = std::numeric_limits<double>::infinity();
  for (const std::string& folder : GroupFolders(system, "cpu")) {
    quota = std::min(quota, QuotaOf(folder).value_or(quota));
  }
  ThreadBudget budget;
  budget.threads = std::max(1, static_cast<int32_t>(std::floor(std::min<double>(quota, affinity))));
  budget.limited_by_quota = quota < affinity;
  char quota_text[64] = "no CPU quota";
  if (std::isfinite(quota)) {
    std::snprintf(quota_text, sizeof(quota_text), "the control group's quota is %d.%02d CPUs",
                  static_cast<int>(quota), static_cast<int>(quota * 100) % 100);
  }
  budget.reason = Plural(budget.threads, "thread") + ": affinity allows " +
                  Plural(affinity, "CPU") + ", " + quota_text;
  return budget;
}

MemoryBudget UsableMemory(const SystemView& system) {
  constexpr int64_t kKiB = 1024;
  const std::string meminfo = ReadFile(system.proc + "/meminfo").value_or("");
  MemoryBudget budget;
  budget.total_bytes = FindLine(meminfo, "MemTotal:").value_or(0) * kKiB;
  budget.available_bytes = FindLine(meminfo, "MemAvailable:").value_or(0) * kKiB;
  budget.reason = "of the machine";
  for (const std::string& folder : GroupFolders(system, "memory")) {
    const GroupMemory group = MemoryOf(folder);
    // A v1 group without a limit shows 2^63 rounded down to a page.
    if (group.limit < budget.total_bytes) {
      budget.total_bytes = group.limit;
      budget.reason = "of the control group";
    }
    budget.available_bytes = std::min(budget.available_bytes, group.available);
  }
  return budget;
}

ResidentMemory ReadResidentMemory(const SystemView& system) {
  constexpr int64_t kKiB = 1024;
  const std::string status = ReadFile(system.proc + "/self/status").value_or("");
  return {.current_bytes = FindLine(status, "VmRSS:").value_or(0) * kKiB,
          .peak_bytes = FindLine(status, "VmHWM:").value_or(0) * kKiB,
          .anonymous_bytes = FindLine(status, "RssAnon:").value_or(0) * kKiB};
}

std::string CpuName(const SystemView& system) {
  const std::string text = ReadFile(system.proc + "/cpuinfo").value_or("");
  const size_t key = text.find("model name");
  if (key == std::string::npos) return "unknown CPU";
  const size_t begin = text.find(": ", key);
  if (begin == std::string::npos) return "unknown CPU";
  return text.substr(begin + 2, text.find('\n', begin) - begin - 2);
}

}  // namespace lode
