// SPDX-License-Identifier: Apache-2.0
// Random: a small, fast, seedable generator (xoshiro256**, seeded by splitmix64) whose sequence is
// part of the product: equal seeds give equal draws on every machine and in every version.
//
// Source: D. Blackman and S. Vigna, "Scrambled linear pseudorandom number generators", 2019. The
// standard library's distributions are not used, because their results differ between vendors.
// Not for secrets.
#ifndef LODE_BASE_RANDOM_H_
#define LODE_BASE_RANDOM_H_

#include <cstdint>

namespace lode {

class Random {
 public:
  explicit Random(uint64_t seed);
  // Uniform over all 64-bit values.
  uint64_t NextU64();
  // Uniform over the multiples of 2^-53 in [0, 1).
  double NextUnit();
  // Standard normal (Box and Muller 1958), from two units. Equal seeds give equal draws up to the
  // rounding of the machine's log and cos.
  double NextNormal();

 private:
  uint64_t state_[4];
};

}  // namespace lode

#endif  // LODE_BASE_RANDOM_H_
