// SPDX-License-Identifier: Apache-2.0
#include "kv/block_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
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
  int64_t region_bytes = 0;
  int64_t total = 0;
  if (options.num_regions <= 0 || options.num_blocks <= 0 || options.block_bytes <= 0 ||
      options.num_blocks > std::numeric_limits<BlockId>::max() ||
      __builtin_mul_overflow(options.num_blocks, options.block_bytes, &region_bytes) ||
      __builtin_add_overflow(region_bytes, int64_t{1} << 16, &total) ||
      __builtin_mul_overflow(total, options.num_regions, &total)) {
    return InvalidArgumentError("KV cache of " + std::to_string(options.num_regions) + " x " +
                                std::to_string(options.num_blocks) + " blocks of " +
                                std::to_string(options.block_bytes) +
                                " bytes: sizes must be positive, with a sum below 2^63 bytes and "
                                "at most 2^31 - 1 blocks");
  }
  region_bytes = RoundUp(region_bytes, sysconf(_SC_PAGESIZE));
  const auto bytes = static_cast<size_t>(region_bytes * options.num_regions);
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return ResourceExhaustedError("KV cache: the system refused to reserve " +
                                  std::to_string(bytes) +
                                  " bytes of address space: " + std::strerror(errno));
  }
  return std::unique_ptr<BlockPool>(
      new BlockPool(options, static_cast<std::byte*>(base), region_bytes));
}

BlockPool::BlockPool(const BlockPoolOptions& options, std::byte* base, int64_t region_bytes)
    : options_(options), base_(base), region_bytes_(region_bytes) {}

BlockPool::~BlockPool() {
  munmap(base_, static_cast<size_t>(region_bytes_ * options_.num_regions));
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
  for (int64_t region = 0; region < options_.num_regions; ++region) {
    const int64_t begin = RoundUp(end_ * options_.block_bytes, page);
    const int64_t end = RoundUp(touched_end_ * options_.block_bytes, page);
    // Advice only: if the system declines, the pages stay and are reused.
    if (begin < end) {
      madvise(base_ + region * region_bytes_ + begin, static_cast<size_t>(end - begin),
              MADV_DONTNEED);
    }
  }
  touched_end_ = end_;
}

}  // namespace lode
