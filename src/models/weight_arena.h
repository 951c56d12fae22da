// SPDX-License-Identifier: Apache-2.0
// WeightArena: one anonymous mapping for all packed weights, on huge pages where the system has
// them: decode streams the whole of it once per token, and 4 KiB pages would cost a TLB miss every
// 4 KiB.
#ifndef LODE_MODELS_WEIGHT_ARENA_H_
#define LODE_MODELS_WEIGHT_ARENA_H_

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace lode {

class WeightArena {
 public:
  // Reserves `bytes` of zeroed memory; pages are taken as they are written. ResourceExhausted when
  // refused.
  static Result<WeightArena> Create(int64_t bytes);
  WeightArena() = default;
  WeightArena(WeightArena&& other) noexcept;
  WeightArena& operator=(WeightArena&& other) noexcept;
  ~WeightArena();

  // The next `bytes`, aligned for the kernels. The sum of all takes must fit.
  std::byte* Take(int64_t bytes);
  // What Take(bytes) uses up, alignment included.
  static int64_t Rounded(int64_t bytes);
  int64_t capacity() const { return capacity_; }

 private:
  std::byte* data_ = nullptr;
  int64_t capacity_ = 0;
  int64_t used_ = 0;
};

}  // namespace lode

#endif  // LODE_MODELS_WEIGHT_ARENA_H_
