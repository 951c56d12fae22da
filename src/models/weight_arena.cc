// SPDX-License-Identifier: Apache-2.0
#include "models/weight_arena.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kernels/matmul.h"

namespace lode {

Result<WeightArena> WeightArena::Create(int64_t bytes) {
  WeightArena arena;
  if (bytes == 0) return arena;
  void* data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return ResourceExhaustedError(
        fmt::format("cannot reserve {} bytes for weights: {}", bytes, std::strerror(errno)));
  }
#ifdef MADV_HUGEPAGE
  (void)::madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // Advice: refusal is harmless.
#endif
  arena.data_ = static_cast<std::byte*>(data);
  arena.capacity_ = bytes;
  return arena;
}

WeightArena::WeightArena(WeightArena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      capacity_(std::exchange(other.capacity_, 0)),
      used_(std::exchange(other.used_, 0)) {}

WeightArena& WeightArena::operator=(WeightArena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(capacity_, other.capacity_);
  std::swap(used_, other.used_);
  return *this;
}

WeightArena::~WeightArena() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(capacity_));
}

std::byte* WeightArena::Take(int64_t bytes) {
  std::byte* const taken = data_ + used_;
  used_ += Rounded(bytes);
  LODE_CHECK(used_ <= capacity_);
  return taken;
}

int64_t WeightArena::Rounded(int64_t bytes) {
  const int64_t alignment = kernels::kPackedAlignment;
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace lode
