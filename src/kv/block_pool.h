// SPDX-License-Identifier: Apache-2.0
// BlockPool: hands out block ids and owns the address space that they stand for.
//
// The space is reserved once and backed by the system page by page as blocks are written. It holds
// one array of num_blocks blocks per region (layer, KV head, keys or values), so that the blocks of
// a region lie side by side and stream from memory. Ids are handed out lowest first: the memory in
// use stays at the front, and the free tail goes back to the system. Threads: one caller at a time;
// data() may be called at any time.
#ifndef LODE_KV_BLOCK_POOL_H_
#define LODE_KV_BLOCK_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kv/kv_cache.h"

namespace lode {

struct BlockPoolOptions {
  int64_t num_blocks = 0;            // capacity
  std::vector<int64_t> block_bytes;  // per region
};

class BlockPool {
 public:
  // ResourceExhausted when the system refuses the reservation, InvalidArgument when its size does
  // not fit 63 bits.
  static Result<std::unique_ptr<BlockPool>> Create(const BlockPoolOptions& options);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  int64_t num_blocks() const { return num_blocks_; }
  int64_t num_free() const { return num_blocks_ - num_used_; }
  int64_t num_used() const { return num_used_; }

  // The lowest free id. Precondition: num_free() > 0.
  BlockId Allocate();
  // Precondition: `block` came from Allocate and was not freed since.
  void Free(BlockId block);

  std::byte* data(int64_t region, BlockId block) const {
    const Region& r = regions_[static_cast<size_t>(region)];
    return r.base + int64_t{block} * r.block_bytes;
  }

 private:
  struct Region {
    std::byte* base;  // a page border
    int64_t block_bytes;
  };

  BlockPool(int64_t num_blocks, std::byte* base, int64_t bytes, std::vector<Region> regions)
      : num_blocks_(num_blocks), base_(base), bytes_(bytes), regions_(std::move(regions)) {}
  void ReleaseTail();

  const int64_t num_blocks_;
  std::byte* const base_;
  const int64_t bytes_;
  const std::vector<Region> regions_;
  int64_t num_used_ = 0;
  int64_t end_ = 0;          // ids from here on are free and not in free_
  int64_t touched_end_ = 0;  // ids from here on have no memory behind them
  std::set<BlockId> free_;   // free ids below end_
};

}  // namespace lode

#endif  // LODE_KV_BLOCK_POOL_H_
