// SPDX-License-Identifier: Apache-2.0
#include "base/random.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace lode {
namespace {

// The reference C code of splitmix64.c and xoshiro256starstar.c (Blackman, Vigna) gives these for
// seed 0: the state after seeding starts e220a8397b1dcdaf, 6e789e6aa1b965f4, ...
TEST(RandomTest, EqualsTheReferenceImplementation) {
  Random random(0);
  EXPECT_EQ(random.NextU64(), 0x99ec5f36cb75f2b4u);
  EXPECT_EQ(random.NextU64(), 0xbf6e1f784956452au);
  EXPECT_EQ(random.NextU64(), 0x1a5f849d4933e6e0u);
}

TEST(RandomTest, UnitIsUniformInItsRange) {
  Random random(1);
  double sum = 0.0, low = 1.0, high = 0.0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double x = random.NextUnit();
    sum += x;
    low = std::min(low, x);
    high = std::max(high, x);
  }
  EXPECT_GE(low, 0.0);
  EXPECT_LT(high, 1.0);
  EXPECT_NEAR(sum / kDraws, 0.5, 0.005);  // five standard errors
}

TEST(RandomTest, NormalHasItsMomentsAndTails) {
  Random random(2);
  constexpr int kDraws = 200000;
  double sum = 0.0, squares = 0.0, fourth = 0.0;
  int beyond_two = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = random.NextNormal();
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
    beyond_two += x > 2.0 || x < -2.0 ? 1 : 0;
  }
  // Five standard errors each.
  EXPECT_NEAR(sum / kDraws, 0.0, 0.012);
  EXPECT_NEAR(squares / kDraws, 1.0, 0.016);
  EXPECT_NEAR(fourth / kDraws, 3.0, 0.11);
  EXPECT_NEAR(static_cast<double>(beyond_two) / kDraws, 0.0455, 0.0024);
}

}  // namespace
}  // namespace lode
