// SPDX-License-Identifier: Apache-2.0
#include "base/random.h"

#include <bit>
#include <cmath>
#include <numbers>

namespace lode {

Random::Random(uint64_t seed) {
  // splitmix64 spreads a small seed over 256 bits and never yields the forbidden all-zero state.
  for (uint64_t& word : state_) {
    seed += 0x9e3779b97f4a7c15u;
    uint64_t z = seed;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    word = z ^ (z >> 31);
  }
}

uint64_t Random::NextU64() {
  const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const uint64_t t = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= t;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

double Random::NextUnit() {
  return static_cast<double>(NextU64() >> 11) * 0x1.0p-53;
}

double Random::NextNormal() {
  const double radius = std::sqrt(-2.0 * std::log1p(-NextUnit()));  // 1 - unit is never 0
  return radius * std::cos(2.0 * std::numbers::pi * NextUnit());
}

}  // namespace lode
