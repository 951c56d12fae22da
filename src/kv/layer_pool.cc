// SPDX-License-Identifier: Apache-2.0
#include "kv/layer_pool.h"

#include <algorithm>
#include <atomic>
#include <string>

namespace lode {
namespace {

// A refill moves about this much memory, within these numbers of blocks: large enough to make the
// common lock rare, small enough that 64 idle lists hold little.
constexpr int64_t kBatchBytes = 32768;
constexpr int64_t kMinBatch = 2, kMaxBatch = 32;

// Numbers threads in the order in which they first come here.
size_t ThreadNumber() {
  static std::atomic<size_t> next{0};
  thread_local const size_t number = next.fetch_add(1, std::memory_order_relaxed);
  return number;
}

}  // namespace

Result<std::unique_ptr<LayerPool>> LayerPool::Create(int64_t reserve_bytes,
                                                     std::vector<int64_t> block_bytes) {
  LODE_ASSIGN_OR_RETURN(auto space, SlabSpace::Create(reserve_bytes, std::move(block_bytes)));
  return std::unique_ptr<LayerPool>(new LayerPool(std::move(space)));
}

LayerPool::LayerPool(std::unique_ptr<SlabSpace> space) : space_(std::move(space)) {
  const auto num_classes = static_cast<size_t>(space_->num_classes());
  for (size_t c = 0; c < num_classes; ++c) {
    const int64_t blocks = kBatchBytes / space_->block_bytes(static_cast<int32_t>(c));
    batch_.push_back(static_cast<size_t>(std::clamp(blocks, kMinBatch, kMaxBatch)));
  }
  for (Shard& shard : shards_) {
    shard.free.resize(num_classes);
    shard.used.resize(num_classes);
  }
}

LayerPool::Shard& LayerPool::MyShard() {
  return shards_[ThreadNumber() % kNumShards];
}

bool LayerPool::Allocate(int32_t size_class, std::span<BlockId> out) {
  if (TryAllocate(size_class, out)) return true;
  // The rest may lie in other threads' lists.
  Flush();
  return TryAllocate(size_class, out);
}

bool LayerPool::TryAllocate(int32_t size_class, std::span<BlockId> out) {
  Shard& shard = MyShard();
  const auto lock = shard.mutex.Lock();
  std::vector<BlockId>& free = shard.free[static_cast<size_t>(size_class)];
  if (free.size() < out.size()) {
    if (!FillFromSpace(shard, size_class, out)) return false;
  } else {
    for (BlockId& block : out) {
      block = free.back();
      free.pop_back();
    }
  }
  shard.used[static_cast<size_t>(size_class)] += static_cast<int64_t>(out.size());
  return true;
}

// More blocks than the list has: all of them, in one piece where there is one, come from the space,
// and what follows them goes to the list.
bool LayerPool::FillFromSpace(Shard& shard, int32_t size_class, std::span<BlockId> out) {
  const auto c = static_cast<size_t>(size_class);
  std::vector<BlockId>& free = shard.free[c];
  std::vector<BlockId> taken;
  ++shard.refills;
  {
    const auto lock = space_mutex_.Lock();
    space_->Take(size_class, static_cast<int64_t>(out.size() + batch_[c]), taken);
    if (taken.size() + free.size() < out.size()) {
      std::vector<SlabSpace::Extent> emptied;
      space_->Return(size_class, taken, emptied);
      for (const SlabSpace::Extent& extent : emptied) space_->Recycle(extent);
      return false;
    }
  }
  const size_t direct = std::min(out.size(), taken.size());
  std::copy_n(taken.begin(), direct, out.begin());
  for (size_t i = direct; i < out.size(); ++i) {
    out[i] = free.back();
    free.pop_back();
  }
  free.insert(free.end(), taken.rbegin(), taken.rend() - static_cast<std::ptrdiff_t>(direct));
  return true;
}

bool LayerPool::AllocateRun(int32_t size_class, std::span<BlockId> out) {
  std::vector<BlockId> taken;
  {
    const auto lock = space_mutex_.Lock();
    if (!space_->TakeRun(size_class, static_cast<int64_t>(out.size()), taken)) return false;
  }
  std::copy(taken.begin(), taken.end(), out.begin());
  Shard& shard = MyShard();
  const auto lock = shard.mutex.Lock();
  shard.used[static_cast<size_t>(size_class)] += static_cast<int64_t>(out.size());
  return true;
}

void LayerPool::Free(int32_t size_class, std::span<const BlockId> blocks) {
  const auto c = static_cast<size_t>(size_class);
  Shard& shard = MyShard();
  const auto lock = shard.mutex.Lock();
  std::vector<BlockId>& free = shard.free[c];
  free.insert(free.end(), blocks.rbegin(), blocks.rend());
  shard.used[c] -= static_cast<int64_t>(blocks.size());
  if (free.size() > 2 * batch_[c]) Drain(shard, size_class, batch_[c]);
}

// Keeps the blocks that were freed last: their memory is the most likely to be in a CPU's cache.
void LayerPool::Drain(Shard& shard, int32_t size_class, size_t keep) {
  std::vector<BlockId>& free = shard.free[static_cast<size_t>(size_class)];
  if (free.size() <= keep) return;
  const size_t count = free.size() - keep;
  ++shard.drains;
  std::vector<SlabSpace::Extent> emptied;
  {
    const auto lock = space_mutex_.Lock();
    space_->Return(size_class, std::span(free).first(count), emptied);
  }
  GiveBack(emptied);
  free.erase(free.begin(), free.begin() + static_cast<std::ptrdiff_t>(count));
}

void LayerPool::GiveBack(std::span<const SlabSpace::Extent> emptied) {
  if (emptied.empty()) return;
  for (const SlabSpace::Extent& extent : emptied) space_->ReleaseMemory(extent);
  const auto lock = space_mutex_.Lock();
  for (const SlabSpace::Extent& extent : emptied) space_->Recycle(extent);
}

void LayerPool::Flush() {
  for (Shard& shard : shards_) {
    const auto lock = shard.mutex.Lock();
    for (size_t c = 0; c < shard.free.size(); ++c) Drain(shard, static_cast<int32_t>(c), 0);
  }
}

void LayerPool::Trim() {
  Flush();
  const auto lock = space_mutex_.Lock();
  space_->Trim();
}

LayerPoolStats LayerPool::stats() const {
  LayerPoolStats stats;
  for (const Shard& shard : shards_) {
    const auto lock = shard.mutex.Lock();
    for (size_t c = 0; c < shard.used.size(); ++c) {
      stats.used_blocks += shard.used[c];
      stats.used_bytes += shard.used[c] * space_->block_bytes(static_cast<int32_t>(c));
    }
    stats.refills += shard.refills;
    stats.drains += shard.drains;
    stats.lock_waits += shard.mutex.waits();
    stats.lock_wait_nanoseconds += shard.mutex.wait_nanoseconds();
  }
  const auto lock = space_mutex_.Lock();
  stats.touched_bytes = space_->touched_bytes();
  stats.slab_bytes = space_->slab_bytes();
  stats.total_blocks = space_->num_slots();
  stats.lock_waits += space_mutex_.waits();
  stats.lock_wait_nanoseconds += space_mutex_.wait_nanoseconds();
  return stats;
}

void LayerPool::JoinPages() {
  SlabSpace::Extent part;
  {
    const auto lock = space_mutex_.Lock();
    part = space_->TakeUnjoined();
  }
  if (part.bytes > 0) space_->JoinPages(part);  // takes its time and needs no lock
}

Status LayerPool::CheckIntegrity() const {
  LODE_RETURN_IF_ERROR(space_->CheckIntegrity());
  for (int32_t c = 0; c < space_->num_classes(); ++c) {
    int64_t used = 0;
    std::vector<BlockId> listed;
    for (const Shard& shard : shards_) {
      used += shard.used[static_cast<size_t>(c)];
      const std::vector<BlockId>& free = shard.free[static_cast<size_t>(c)];
      listed.insert(listed.end(), free.begin(), free.end());
    }
    std::sort(listed.begin(), listed.end());
    if (std::adjacent_find(listed.begin(), listed.end()) != listed.end()) {
      return InternalError("KV pool: a block is in the lists of two threads");
    }
    for (const BlockId block : listed) {
      if (space_->IsFree(c, block)) {
        return InternalError("KV pool: block " + std::to_string(block) + " is free twice");
      }
    }
    if (used + static_cast<int64_t>(listed.size()) != space_->num_taken(c)) {
      return InternalError("KV pool: " + std::to_string(used) + " blocks of class " +
                           std::to_string(c) + " are used and " + std::to_string(listed.size()) +
                           " in lists, but " + std::to_string(space_->num_taken(c)) +
                           " were taken");
    }
  }
  return OkStatus();
}

}  // namespace lode
