// SPDX-License-Identifier: Apache-2.0
// SlabSpace: address space for the blocks of one layer, cut into slabs of equal blocks.
//
// The space is reserved once, much larger than needed, and made accessible from the front as it is
// used: it grows without moving a byte. A slab is a multiple of 64 KiB that holds blocks of one
// size class; classes with more slabs get larger ones (up to 2 MiB), so that long sequences lie in
// few pieces. Lowest addresses are handed out first. A slab whose blocks are all free gives its
// memory back to the system and its addresses to any class.
//
// Nouns. size class: blocks of one size and purpose. slot: the place of a block in its slab.
// extent: free addresses between slabs. touched: a slot that may have memory behind it. Threads:
// one caller at a time (LayerPool holds a lock); data() at any time.
#ifndef LODE_KV_SLAB_SPACE_H_
#define LODE_KV_SLAB_SPACE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kv/block_id.h"

namespace lode {

class SlabSpace {
 public:
  static constexpr int64_t kSlabUnit = 65536;
  static constexpr int64_t kLargestSlab = int64_t{1} << 21;
  // As far as a BlockId reaches: 256 GiB.
  static constexpr int64_t kMaxReserveBytes = (int64_t{1} << 32) * kBlockIdUnit - kSlabUnit;

  // block_bytes: per size class, multiples of kBlockIdUnit. reserve_bytes is rounded down to slab
  // units. InvalidArgument on other sizes; ResourceExhausted when the system refuses the addresses.
  static Result<std::unique_ptr<SlabSpace>> Create(int64_t reserve_bytes,
                                                   std::vector<int64_t> block_bytes);
  ~SlabSpace();
  SlabSpace(const SlabSpace&) = delete;
  SlabSpace& operator=(const SlabSpace&) = delete;

  std::byte* data(BlockId block) const { return base_ + int64_t{block} * kBlockIdUnit; }
  int64_t block_bytes(int32_t size_class) const { return classes_[Index(size_class)].block_bytes; }
  int32_t num_classes() const { return static_cast<int32_t>(classes_.size()); }

  // Appends up to `count` free blocks, lowest first, and returns how many: fewer only when the
  // reservation is used up.
  int64_t Take(int32_t size_class, int64_t count, std::vector<BlockId>& out);
  // Appends `count` blocks that follow each other in memory; false when there is no room for them.
  bool TakeRun(int32_t size_class, int64_t count, std::vector<BlockId>& out);
  // Addresses without a slab.
  struct Extent {
    int64_t offset = 0;
    int64_t bytes = 0;
  };
  // Appends the slabs that became empty to `emptied`, whose memory the caller gives back and which
  // it then recycles: the system call takes its time and needs no lock. Precondition: the blocks
  // came from Take or TakeRun of this class and were not returned since.
  void Return(int32_t size_class, std::span<const BlockId> blocks, std::vector<Extent>& emptied);
  // From any thread, at any time.
  void ReleaseMemory(const Extent& emptied) const;
  // Makes the addresses available again.
  void Recycle(const Extent& emptied);
  // Gives whole memory pages between used blocks back to the system.
  void Trim();
  // The part below the last slab that the system could put into huge pages and that was not named
  // before; empty when there is none.
  Extent TakeUnjoined();
  // Has the system do so: advice, which an older or a full one ignores. From any thread.
  void JoinPages(const Extent& part) const;

  // Bytes of slots that may have memory behind them; of all slabs; of all addresses.
  int64_t touched_bytes() const { return touched_bytes_; }
  int64_t slab_bytes() const { return slab_bytes_; }
  int64_t num_slots() const { return num_slots_; }  // of all slabs
  int64_t reserve_bytes() const { return reserve_bytes_; }
  bool IsFree(int32_t size_class, BlockId block) const;
  // Blocks of the class that were taken and not returned.
  int64_t num_taken(int32_t size_class) const { return classes_[Index(size_class)].num_taken; }
  // Internal when slabs overlap, leave gaps or disagree with their counts.
  Status CheckIntegrity() const;

 private:
  struct Slab {
    int64_t offset = 0;
    int64_t bytes = 0;  // 0: this entry is not in use
    int32_t size_class = 0;
    int64_t num_slots = 0;
    int64_t num_free = 0;
    int64_t hint = 0;               // no slot below it is free
    std::vector<uint64_t> free;     // a bit per slot
    std::vector<uint64_t> touched;  // a bit per slot
  };
  struct SizeClass {
    int64_t block_bytes = 0;
    int64_t slab_bytes = 0;
    int64_t num_taken = 0;
    std::set<int64_t> open;  // offsets of slabs with a free slot
  };

  SlabSpace(std::byte* base, int64_t reserve_bytes, std::vector<int64_t> block_bytes);
  static size_t Index(int64_t value) { return static_cast<size_t>(value); }
  Slab& SlabAt(int64_t offset) { return slabs_[Index(unit_slab_[Index(offset / kSlabUnit)])]; }
  const Slab& SlabAt(int64_t offset) const {
    return slabs_[Index(unit_slab_[Index(offset / kSlabUnit)])];
  }
  BlockId IdOf(const Slab& slab, int64_t slot) const;
  int64_t SlotOf(const Slab& slab, BlockId block) const;

  void TakeSlot(Slab& slab, int64_t slot, std::vector<BlockId>& out);
  // A new slab with room for min_slots blocks; null when there are no addresses left.
  Slab* AddSlab(int32_t size_class, int64_t min_slots);
  Extent RemoveSlab(Slab& slab);
  int64_t FindExtent(int64_t bytes);  // -1: none
  bool MakeAccessible(int64_t end);
  void TrimSlab(Slab& slab);

  std::byte* const base_;
  const int64_t reserve_bytes_;
  std::vector<SizeClass> classes_;
  std::vector<Slab> slabs_;
  std::vector<int32_t> unused_slabs_;   // entries of slabs_
  std::vector<int32_t> unit_slab_;      // per 64 KiB below top_: its slab, -1: none
  std::map<int64_t, int64_t> extents_;  // offset -> bytes; they never touch each other or top_
  int64_t top_ = 0;                     // no slab at or above
  int64_t accessible_ = 0;              // bytes from the front that may be read and written
  int64_t joined_ = 0;  // bytes from the front that that TakeUnjoined has been through
  int64_t slab_bytes_ = 0;
  int64_t num_slots_ = 0;
  int64_t touched_bytes_ = 0;
};

}  // namespace lode

#endif  // LODE_KV_SLAB_SPACE_H_
