// SPDX-License-Identifier: Apache-2.0
// Properties of the rope types; equality with transformers is checked by tests/golden.
#include "models/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lode {
namespace {

constexpr int64_t kHeadDim = 64;

RopeConfig Scaled(RopeScaling scaling, double factor, int64_t original_context) {
  RopeConfig config;
  config.base = 10000.0;
  config.scaling = scaling;
  config.factor = factor;
  config.original_context = original_context;
  return config;
}

TEST(RopeTest, PlainFrequenciesFallFromOneToAlmostOneOverBase) {
  const RopeTable table(RopeConfig(), kHeadDim, 0);
  const auto& frequencies = table.inverse_frequencies();
  ASSERT_EQ(frequencies.size(), 32u);
  EXPECT_FLOAT_EQ(frequencies[0], 1.0f);
  EXPECT_FLOAT_EQ(frequencies[16], 0.01f);
  EXPECT_FLOAT_EQ(frequencies[31], static_cast<float>(std::pow(10000.0, -62.0 / 64.0)));
}

TEST(RopeTest, LinearStretchesPositions) {
  const RopeTable plain(RopeConfig(), kHeadDim, 0);
  const RopeTable linear(Scaled(RopeScaling::kLinear, 8.0, 4096), kHeadDim, 32768);
  std::vector<float> a(32), b(32), sin(32);
  plain.Fill(100, a.data(), sin.data());
  linear.Fill(800, b.data(), sin.data());
  for (int i = 0; i < 32; ++i) EXPECT_NEAR(a[i], b[i], 2e-5) << i;
}

// Case B30 at long positions, for Gemma 3's two tables: base 1e6 stretched by 8 on global layers
// and base 1e4 as it is on sliding ones. Angles are f32, as the reference's are: off by at most
// half a unit in the last place of the angle, and as much again for the frequency's own rounding.
TEST(RopeTest, LongPositionsKeepBaseAndFactorOfTheirTable) {
  RopeConfig global = Scaled(RopeScaling::kLinear, 8.0, 4096);
  global.base = 1e6;
  RopeConfig local;
  local.base = 1e4;
  for (const auto& [config, factor] : {std::pair(global, 8.0), std::pair(local, 1.0)}) {
    const RopeTable table(config, kHeadDim, 32768);
    std::vector<float> cos(32), sin(32);
    for (const int64_t position : {0, 512, 4096, 30'000}) {
      table.Fill(position, cos.data(), sin.data());
      for (size_t i = 0; i < 32; ++i) {
        const double angle = static_cast<double>(position) / factor *
                             std::pow(config.base, -static_cast<double>(i) / 32.0);
        const double tolerance = 1e-6 + 1.2e-7 * angle;
        EXPECT_NEAR(cos[i], std::cos(angle), tolerance) << position << " " << i;
        EXPECT_NEAR(sin[i], std::sin(angle), tolerance) << position << " " << i;
      }
    }
  }
}

TEST(RopeTest, DynamicChangesNothingWithinTheTrainedContext) {
  const RopeTable plain(RopeConfig(), kHeadDim, 0);
  const RopeTable within(Scaled(RopeScaling::kDynamic, 4.0, 4096), kHeadDim, 4096);
  const RopeTable beyond(Scaled(RopeScaling::kDynamic, 4.0, 4096), kHeadDim, 8192);
  EXPECT_EQ(plain.inverse_frequencies(), within.inverse_frequencies());
  EXPECT_LT(beyond.inverse_frequencies()[31], plain.inverse_frequencies()[31] / 2);
  EXPECT_EQ(beyond.inverse_frequencies()[0], plain.inverse_frequencies()[0]);
}

TEST(RopeTest, YarnAndLlama3KeepHighAndStretchLowFrequencies) {
  const RopeTable plain(RopeConfig(), kHeadDim, 0);
  for (const RopeScaling scaling : {RopeScaling::kYarn, RopeScaling::kLlama3}) {
    const RopeTable scaled(Scaled(scaling, 8.0, 8192), kHeadDim, 65536);
    EXPECT_FLOAT_EQ(scaled.inverse_frequencies()[0], plain.inverse_frequencies()[0]);
    EXPECT_FLOAT_EQ(scaled.inverse_frequencies()[31], plain.inverse_frequencies()[31] / 8);
    for (int i = 1; i < 32; ++i) {
      EXPECT_LT(scaled.inverse_frequencies()[i], scaled.inverse_frequencies()[i - 1]);
    }
  }
}

TEST(RopeTest, YarnScalesTheMagnitude) {
  RopeConfig config = Scaled(RopeScaling::kYarn, 4.0, 8192);
  config.attention_factor = 1.125;
  const RopeTable table(config, kHeadDim, 32768);
  std::vector<float> cos(32), sin(32);
  table.Fill(0, cos.data(), sin.data());
  EXPECT_EQ(cos[0], 1.125f);
  EXPECT_EQ(sin[0], 0.0f);
}

TEST(RopeTest, StoredFactorsDivideTheFrequencies) {
  RopeConfig config;
  config.factors.assign(32, 2.0f);
  const RopeTable plain(RopeConfig(), kHeadDim, 0);
  const RopeTable divided(config, kHeadDim, 0);
  for (int i = 0; i < 32; ++i) {
    EXPECT_FLOAT_EQ(divided.inverse_frequencies()[i], plain.inverse_frequencies()[i] / 2);
  }
}

}  // namespace
}  // namespace lode
