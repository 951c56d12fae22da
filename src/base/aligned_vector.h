// SPDX-License-Identifier: Apache-2.0
// AlignedVector: a std::vector whose data starts at a multiple of 64 bytes, as kernels want it.
#ifndef LODE_BASE_ALIGNED_VECTOR_H_
#define LODE_BASE_ALIGNED_VECTOR_H_

#include <cstddef>
#include <new>
#include <vector>

namespace lode {

template <class T>
struct AlignedAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};

  AlignedAllocator() = default;
  template <class U>
  AlignedAllocator(const AlignedAllocator<U>&) {}  // NOLINT(google-explicit-constructor)

  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kAlignment)); }
  void deallocate(T* p, size_t) { ::operator delete(p, kAlignment); }
  friend bool operator==(const AlignedAllocator&, const AlignedAllocator&) { return true; }
};

template <class T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

}  // namespace lode

#endif  // LODE_BASE_ALIGNED_VECTOR_H_
