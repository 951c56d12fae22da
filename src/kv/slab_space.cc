// SPDX-License-Identifier: Apache-2.0
#include "kv/slab_space.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>

#include "base/check.h"

namespace lode {
namespace {

// A system call per step makes more of the reservation accessible.
constexpr int64_t kAccessStep = int64_t{64} << 20;
// Memory of so many bytes, at addresses that are multiples of it, may be one page of the system.
constexpr int64_t kHugePage = int64_t{2} << 20;
// MADV_COLLAPSE of Linux 6.1, which the headers of older systems lack.
constexpr int kCollapse = 25;
// A fresh slab has room for at least this many blocks while there are addresses.
constexpr int64_t kMinSlots = 4;

int64_t RoundUp(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}
int64_t RoundDown(int64_t value, int64_t step) {
  return value / step * step;
}
bool Bit(const std::vector<uint64_t>& bits, int64_t i) {
  return (bits[static_cast<size_t>(i / 64)] >> (i % 64) & 1) != 0;
}
void SetBit(std::vector<uint64_t>& bits, int64_t i) {
  bits[static_cast<size_t>(i / 64)] |= uint64_t{1} << (i % 64);
}
void ClearBit(std::vector<uint64_t>& bits, int64_t i) {
  bits[static_cast<size_t>(i / 64)] &= ~(uint64_t{1} << (i % 64));
}
// The first set bit at or after `begin`; `size` when there is none.
int64_t NextBit(const std::vector<uint64_t>& bits, int64_t begin, int64_t size) {
  for (int64_t word = begin / 64; word * 64 < size; ++word) {
    uint64_t left = bits[static_cast<size_t>(word)];
    if (word == begin / 64) left &= ~uint64_t{0} << (begin % 64);
    if (left != 0) return word * 64 + std::countr_zero(left);
  }
  return size;
}
int64_t CountBits(const std::vector<uint64_t>& bits) {
  int64_t count = 0;
  for (const uint64_t word : bits) count += std::popcount(word);
  return count;
}

}  // namespace

Result<std::unique_ptr<SlabSpace>> SlabSpace::Create(int64_t reserve_bytes,
                                                     std::vector<int64_t> block_bytes) {
  reserve_bytes = RoundDown(reserve_bytes, kSlabUnit);
  if (reserve_bytes < kSlabUnit || reserve_bytes > kMaxReserveBytes) {
    return InvalidArgumentError("KV pool: reservation of " + std::to_string(reserve_bytes) +
                                " bytes, expected " + std::to_string(kSlabUnit) + " to " +
                                std::to_string(kMaxReserveBytes));
  }
  if (block_bytes.empty()) return InvalidArgumentError("KV pool: no size classes");
  for (const int64_t bytes : block_bytes) {
    if (bytes > 0 && bytes % kBlockIdUnit == 0 && bytes <= reserve_bytes) continue;
    return InvalidArgumentError("KV pool: blocks of " + std::to_string(bytes) +
                                " bytes, expected a positive multiple of " +
                                std::to_string(kBlockIdUnit) + " within the reservation of " +
                                std::to_string(reserve_bytes));
  }
  // Inaccessible addresses cost nothing, also where the system does not overcommit.
  void* base = mmap(nullptr, static_cast<size_t>(reserve_bytes), PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return ResourceExhaustedError("KV pool: the system refused to reserve " +
                                  std::to_string(reserve_bytes) +
                                  " bytes of address space: " + std::strerror(errno));
  }
  return std::unique_ptr<SlabSpace>(
      new SlabSpace(static_cast<std::byte*>(base), reserve_bytes, std::move(block_bytes)));
}

SlabSpace::SlabSpace(std::byte* base, int64_t reserve_bytes, std::vector<int64_t> block_bytes)
    : base_(base), reserve_bytes_(reserve_bytes), classes_(block_bytes.size()) {
  for (size_t i = 0; i < block_bytes.size(); ++i) classes_[i].block_bytes = block_bytes[i];
}

SlabSpace::~SlabSpace() {
  munmap(base_, static_cast<size_t>(reserve_bytes_));
}

BlockId SlabSpace::IdOf(const Slab& slab, int64_t slot) const {
  return static_cast<BlockId>((slab.offset + slot * block_bytes(slab.size_class)) / kBlockIdUnit);
}

int64_t SlabSpace::SlotOf(const Slab& slab, BlockId block) const {
  const int64_t offset = int64_t{block} * kBlockIdUnit - slab.offset;
  const int64_t slot = offset / block_bytes(slab.size_class);
  LODE_CHECK(offset % block_bytes(slab.size_class) == 0 && slot < slab.num_slots);
  return slot;
}

int64_t SlabSpace::Take(int32_t size_class, int64_t count, std::vector<BlockId>& out) {
  SizeClass& c = classes_[Index(size_class)];
  int64_t taken = 0;
  while (taken < count) {
    if (c.open.empty() && AddSlab(size_class, 1) == nullptr) break;
    Slab& slab = SlabAt(*c.open.begin());
    for (; taken < count && slab.num_free > 0; ++taken) {
      TakeSlot(slab, NextBit(slab.free, slab.hint, slab.num_slots), out);
    }
  }
  return taken;
}

bool SlabSpace::TakeRun(int32_t size_class, int64_t count, std::vector<BlockId>& out) {
  SizeClass& c = classes_[Index(size_class)];
  Slab* found = nullptr;
  int64_t first = 0;
  for (const int64_t offset : c.open) {
    Slab& slab = SlabAt(offset);
    if (slab.num_free < count) continue;
    for (int64_t begin = slab.hint; begin < slab.num_slots && found == nullptr;) {
      begin = NextBit(slab.free, begin, slab.num_slots);
      int64_t end = begin;
      while (end < slab.num_slots && end - begin < count && Bit(slab.free, end)) ++end;
      if (end - begin == count) found = &slab, first = begin;
      begin = end + 1;
    }
    if (found != nullptr) break;
  }
  if (found == nullptr) found = AddSlab(size_class, count);
  if (found == nullptr) return false;
  for (int64_t i = 0; i < count; ++i) TakeSlot(*found, first + i, out);
  return true;
}

void SlabSpace::TakeSlot(Slab& slab, int64_t slot, std::vector<BlockId>& out) {
  SizeClass& c = classes_[Index(slab.size_class)];
  ClearBit(slab.free, slot);
  if (slot == slab.hint) slab.hint = slot + 1;
  if (!Bit(slab.touched, slot)) {
    SetBit(slab.touched, slot);
    touched_bytes_ += c.block_bytes;
  }
  ++c.num_taken;
  if (--slab.num_free == 0) c.open.erase(slab.offset);
  out.push_back(IdOf(slab, slot));
}

void SlabSpace::Return(int32_t size_class, std::span<const BlockId> blocks,
                       std::vector<Extent>& emptied) {
  SizeClass& c = classes_[Index(size_class)];
  for (const BlockId block : blocks) {
    Slab& slab = SlabAt(int64_t{block} * kBlockIdUnit);
    LODE_CHECK(slab.size_class == size_class);
    const int64_t slot = SlotOf(slab, block);
    LODE_CHECK(!Bit(slab.free, slot));
    SetBit(slab.free, slot);
    slab.hint = std::min(slab.hint, slot);
    --c.num_taken;
    if (slab.num_free++ == 0) c.open.insert(slab.offset);
    if (slab.num_free == slab.num_slots) emptied.push_back(RemoveSlab(slab));
  }
}

SlabSpace::Slab* SlabSpace::AddSlab(int32_t size_class, int64_t min_slots) {
  SizeClass& c = classes_[Index(size_class)];
  const int64_t needed = RoundUp(min_slots * c.block_bytes, kSlabUnit);
  int64_t bytes = std::clamp(RoundUp(c.slab_bytes / 8, kSlabUnit), kSlabUnit, kLargestSlab);
  bytes = std::max({bytes, needed, RoundUp(kMinSlots * c.block_bytes, kSlabUnit)});
  int64_t offset = FindExtent(bytes);
  if (offset < 0) offset = FindExtent(bytes = needed);
  if (offset < 0) return nullptr;

  int32_t index = static_cast<int32_t>(slabs_.size());
  if (unused_slabs_.empty()) {
    slabs_.emplace_back();
  } else {
    index = unused_slabs_.back();
    unused_slabs_.pop_back();
  }
  Slab& slab = slabs_[Index(index)];
  slab.offset = offset;
  slab.bytes = bytes;
  slab.size_class = size_class;
  slab.num_slots = slab.num_free = bytes / c.block_bytes;
  slab.free.assign(Index((slab.num_slots + 63) / 64), 0);
  slab.touched.assign(slab.free.size(), 0);
  for (int64_t slot = 0; slot < slab.num_slots; ++slot) SetBit(slab.free, slot);
  for (int64_t unit = offset; unit < offset + bytes; unit += kSlabUnit) {
    unit_slab_[Index(unit / kSlabUnit)] = index;
  }
  slab_bytes_ += bytes;
  num_slots_ += slab.num_slots;
  c.slab_bytes += bytes;
  c.open.insert(offset);
  return &slab;
}

SlabSpace::Extent SlabSpace::RemoveSlab(Slab& slab) {
  SizeClass& c = classes_[Index(slab.size_class)];
  const Extent extent = {.offset = slab.offset, .bytes = slab.bytes};
  touched_bytes_ -= CountBits(slab.touched) * c.block_bytes;
  slab_bytes_ -= slab.bytes;
  num_slots_ -= slab.num_slots;
  c.slab_bytes -= slab.bytes;
  c.open.erase(slab.offset);
  unused_slabs_.push_back(unit_slab_[Index(slab.offset / kSlabUnit)]);
  for (int64_t unit = 0; unit < slab.bytes; unit += kSlabUnit) {
    unit_slab_[Index((slab.offset + unit) / kSlabUnit)] = -1;
  }
  slab = {};
  return extent;
}

void SlabSpace::ReleaseMemory(const Extent& emptied) const {
  // Advice only: if the system declines, the memory stays and is reused.
  madvise(base_ + emptied.offset, Index(emptied.bytes), MADV_DONTNEED);
}

int64_t SlabSpace::FindExtent(int64_t bytes) {
  for (auto it = extents_.begin(); it != extents_.end(); ++it) {
    if (it->second < bytes) continue;
    const auto [offset, length] = *it;
    extents_.erase(it);
    if (length > bytes) extents_.emplace(offset + bytes, length - bytes);
    return offset;
  }
  if (bytes > reserve_bytes_ - top_ || !MakeAccessible(top_ + bytes)) return -1;
  const int64_t offset = top_;
  top_ += bytes;
  unit_slab_.resize(Index(top_ / kSlabUnit), -1);
  return offset;
}

void SlabSpace::Recycle(const Extent& emptied) {
  auto [offset, bytes] = emptied;
  auto next = extents_.lower_bound(offset);
  if (next != extents_.end() && next->first == offset + bytes) {
    bytes += next->second;
    next = extents_.erase(next);
  }
  if (next != extents_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      extents_.erase(before);
    }
  }
  if (offset + bytes == top_) {
    top_ = offset;
    joined_ = std::min(joined_, top_);
    unit_slab_.resize(Index(top_ / kSlabUnit));
  } else {
    extents_.emplace(offset, bytes);
  }
}

bool SlabSpace::MakeAccessible(int64_t end) {
  if (end <= accessible_) return true;
  const int64_t new_end = std::min(RoundUp(end, kAccessStep), reserve_bytes_);
  if (mprotect(base_ + accessible_, Index(new_end - accessible_), PROT_READ | PROT_WRITE) != 0) {
    return false;
  }
  accessible_ = new_end;
  return true;
}

SlabSpace::Extent SlabSpace::TakeUnjoined() {
  const auto base = static_cast<int64_t>(reinterpret_cast<uintptr_t>(base_));
  const int64_t first = RoundUp(base + joined_, kHugePage) - base;
  const int64_t last = RoundDown(base + top_, kHugePage) - base;
  if (first >= last) return {};
  joined_ = last;
  return {.offset = first, .bytes = last - first};
}

void SlabSpace::JoinPages(const Extent& part) const {
  madvise(base_ + part.offset, Index(part.bytes), kCollapse);
}

void SlabSpace::Trim() {
  for (Slab& slab : slabs_) {
    if (slab.bytes > 0 && slab.num_free > 0) TrimSlab(slab);
  }
}

void SlabSpace::TrimSlab(Slab& slab) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t size = block_bytes(slab.size_class);
  for (int64_t begin = slab.hint; begin < slab.num_slots;) {
    begin = NextBit(slab.free, begin, slab.num_slots);
    int64_t end = begin;
    bool any_touched = false;
    for (; end < slab.num_slots && Bit(slab.free, end); ++end) {
      any_touched = any_touched || Bit(slab.touched, end);
    }
    const int64_t first = RoundUp(slab.offset + begin * size, page);
    const int64_t last = RoundDown(slab.offset + end * size, page);
    if (any_touched && first < last) {
      madvise(base_ + first, Index(last - first), MADV_DONTNEED);
      // Slots that share a page with a used one keep a part of their memory and stay touched.
      for (int64_t slot = begin; slot < end; ++slot) {
        const int64_t offset = slab.offset + slot * size;
        if (!Bit(slab.touched, slot) || offset < first || offset + size > last) continue;
        ClearBit(slab.touched, slot);
        touched_bytes_ -= size;
      }
    }
    begin = end + 1;
  }
}

bool SlabSpace::IsFree(int32_t size_class, BlockId block) const {
  const int64_t unit = int64_t{block} * kBlockIdUnit / kSlabUnit;
  if (unit >= top_ / kSlabUnit || unit_slab_[Index(unit)] < 0) return true;
  const Slab& slab = SlabAt(int64_t{block} * kBlockIdUnit);
  return slab.size_class != size_class || Bit(slab.free, SlotOf(slab, block));
}

Status SlabSpace::CheckIntegrity() const {
  const auto fail = [](const std::string& what) { return InternalError("KV pool: " + what); };
  std::vector<int64_t> taken(classes_.size());
  int64_t touched = 0, slab_bytes = 0;
  for (int64_t offset = 0; offset < top_;) {
    if (const auto extent = extents_.find(offset); extent != extents_.end()) {
      offset += extent->second;
      if (offset >= top_) return fail("an extent reaches the top");
      if (extents_.contains(offset)) return fail("two extents touch");
      continue;
    }
    if (unit_slab_[Index(offset / kSlabUnit)] < 0) return fail("a gap is no extent");
    const Slab& slab = SlabAt(offset);
    if (slab.offset != offset || slab.bytes <= 0) return fail("slabs overlap");
    const int64_t num_free = CountBits(slab.free);
    if (num_free != slab.num_free || num_free == slab.num_slots) return fail("a slab's count");
    if (NextBit(slab.free, 0, slab.num_slots) < slab.hint) return fail("a slab's hint");
    const SizeClass& c = classes_[Index(slab.size_class)];
    if (c.open.contains(offset) != (num_free > 0)) return fail("a slab's place among the open");
    for (size_t i = 0; i < slab.free.size(); ++i) {
      if ((~slab.free[i] & ~slab.touched[i]) != 0 && i + 1 < slab.free.size()) {
        return fail("a used slot counts as untouched");
      }
    }
    taken[Index(slab.size_class)] += slab.num_slots - num_free;
    touched += CountBits(slab.touched) * c.block_bytes;
    slab_bytes += slab.bytes;
    offset += slab.bytes;
  }
  for (size_t i = 0; i < classes_.size(); ++i) {
    if (taken[i] != classes_[i].num_taken) return fail("a class's count of taken blocks");
  }
  if (touched != touched_bytes_ || slab_bytes != slab_bytes_) return fail("a sum of bytes");
  return OkStatus();
}

}  // namespace lode
