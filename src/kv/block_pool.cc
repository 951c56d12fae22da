// SPDX-License-Identifier: Apache-2.0
#include "kv/block_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>

#include "base/check.h"

namespace lode {
namespace {

// Freed memory goes back to the system in runs of at least this many blocks: a system call per
// region and block would be slow.
constexpr int64_t kReleaseBlocks = 64;

int64_t RoundUp(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

}  // namespace

Result<std::unique_ptr<BlockPool>> BlockPool::Create(const BlockPoolOptions& options) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t num_blocks = options.num_blocks;
  bool valid = num_blocks > 0 && num_blocks <= std::numeric_limits<BlockId>::max() &&
               !options.block_bytes.empty();
  int64_t total = 0;
  std::vector<int64_t> starts;
  for (const int64_t block_bytes : options.block_bytes) {
    int64_t region_bytes = 0;
    valid = valid && block_bytes > 0 &&
            !__builtin_mul_overflow(num_blocks, block_bytes, &region_bytes) &&
            !__builtin_add_overflow(region_bytes, page - 1, &region_bytes);
    starts.push_back(total);
    valid = valid && !__builtin_add_overflow(total, region_bytes / page * page, &total);
  }
  if (!valid) {
    return InvalidArgumentError(
        "KV cache of " + std::to_string(options.block_bytes.size()) + " x " +
        std::to_string(num_blocks) +
        " blocks: sizes must be positive, with a sum below 2^63 bytes and at most 2^31 - 1 blocks");
  }
  void* base = mmap(nullptr, static_cast<size_t>(total), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return ResourceExhaustedError("KV cache: the system refused to reserve " +
                                  std::to_string(total) +
                                  " bytes of address space: " + std::strerror(errno));
  }
  std::vector<Region> regions;
  for (size_t i = 0; i < starts.size(); ++i) {
    regions.push_back({static_cast<std::byte*>(base) + starts[i], options.block_bytes[i]});
  }
  return std::unique_ptr<BlockPool>(
      new BlockPool(num_blocks, static_cast<std::byte*>(base), total, std::move(regions)));
}

BlockPool::~BlockPool() {
  munmap(base_, static_cast<size_t>(bytes_));
}

BlockId BlockPool::Allocate() {
  LODE_CHECK(num_free() > 0);
  ++num_used_;
  if (!free_.empty()) return free_.extract(free_.begin()).value();
  const int64_t block = end_++;
  touched_end_ = std::max(touched_end_, end_);
  return static_cast<BlockId>(block);
}

void BlockPool::Free(BlockId block) {
  LODE_CHECK(block >= 0 && block < end_);
  const bool was_used = free_.insert(block).second;
  LODE_CHECK(was_used);
  --num_used_;
  while (!free_.empty() && *free_.rbegin() == end_ - 1) {
    free_.erase(std::prev(free_.end()));
    --end_;
  }
  if (touched_end_ - end_ >= kReleaseBlocks || num_used_ == 0) ReleaseTail();
}

void BlockPool::ReleaseTail() {
  const int64_t page = sysconf(_SC_PAGESIZE);
  for (const Region& region : regions_) {
    const int64_t begin = RoundUp(end_ * region.block_bytes, page);
    const int64_t end = RoundUp(touched_end_ * region.block_bytes, page);
    // Advice only: if the system declines, the pages stay and are reused.
    if (begin < end) {
      madvise(region.base + begin, static_cast<size_t>(end - begin), MADV_DONTNEED);
    }
  }
  touched_end_ = end_;
}

}  // namespace lode
