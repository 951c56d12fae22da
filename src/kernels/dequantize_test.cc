// SPDX-License-Identifier: Apache-2.0
// Decoders against answers of the `gguf` Python package, compared as bits. The files are made by
// scripts/make_golden_dequantize.py: a text line "lode-dequantize TYPE ELEMENTS", then the stored
// bytes, then ELEMENTS f32 answers.
#include "kernels/dequantize.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace lode::kernels {
namespace {

struct Golden {
  std::vector<std::byte> stored;
  std::vector<float> answers;
};

Golden ReadGolden(const std::string& type_name) {
  Golden golden;
  std::ifstream file("tests/data/dequantize/" + type_name + ".bin", std::ios::binary);
  std::string header;
  EXPECT_TRUE(std::getline(file, header)) << "no golden file for " << type_name;
  std::istringstream words(header);
  std::string magic, name;
  int64_t elements = 0;
  words >> magic >> name >> elements;
  EXPECT_EQ(magic + name, "lode-dequantize" + type_name);
  const std::vector<char> rest(std::istreambuf_iterator<char>(file), {});
  const auto stored_bytes = static_cast<size_t>(RowBytes(*DTypeFromName(type_name), elements));
  EXPECT_EQ(rest.size(), stored_bytes + static_cast<size_t>(elements) * sizeof(float));
  if (testing::Test::HasFailure()) return golden;
  golden.stored.resize(stored_bytes);
  golden.answers.resize(static_cast<size_t>(elements));
  std::memcpy(golden.stored.data(), rest.data(), stored_bytes);
  std::memcpy(golden.answers.data(), rest.data() + stored_bytes, rest.size() - stored_bytes);
  return golden;
}

class DequantizeGoldenTest : public testing::TestWithParam<const char*> {};

TEST_P(DequantizeGoldenTest, EqualsReferenceBitForBit) {
  const Golden golden = ReadGolden(GetParam());
  ASSERT_GE(golden.answers.size(), 1024u);
  const auto elements = static_cast<int64_t>(golden.answers.size());
  for (const size_t misalignment : {0, 1}) {
    std::vector<std::byte> stored(golden.stored.size() + misalignment);
    std::memcpy(stored.data() + misalignment, golden.stored.data(), golden.stored.size());
    std::vector<float> out(golden.answers.size() + 1, 12345.0f);
    Dequantize(*DTypeFromName(GetParam()), stored.data() + misalignment, elements, out.data());
    for (size_t i = 0; i < golden.answers.size(); ++i) {
      ASSERT_TRUE(std::isfinite(golden.answers[i])) << "element " << i;
      ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(golden.answers[i]))
          << "element " << i << ": " << out[i] << " instead of " << golden.answers[i];
    }
    EXPECT_EQ(out.back(), 12345.0f) << "wrote past the end";
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, DequantizeGoldenTest,
                         testing::Values("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0",
                                         "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
                                         "IQ4_XS"),
                         [](const auto& info) { return std::string(info.param); });

TEST(HalfTest, EveryFiniteHalfSurvivesARoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<Half>(bits);
    if ((half & 0x7c00) == 0x7c00) continue;
    const int exponent = half >> 10 & 31;
    const double mantissa = half & 1023;
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25);
    const double expected = (half & 0x8000) != 0 ? -magnitude : magnitude;
    ASSERT_EQ(static_cast<double>(HalfToFloat(half)), expected) << "half " << bits;
    ASSERT_EQ(FloatToHalf(HalfToFloat(half)), half) << "half " << bits;
  }
}

TEST(HalfTest, RoundsToNearestEven) {
  EXPECT_EQ(FloatToHalf(1.0f + 0x1p-11f), 0x3c00);             // a tie, down to even
  EXPECT_EQ(FloatToHalf(1.0f + 0x3p-11f), 0x3c02);             // a tie, up to even
  EXPECT_EQ(FloatToHalf(1.0f + 0x1p-11f + 0x1p-20f), 0x3c01);  // just above a tie
  EXPECT_EQ(FloatToHalf(0x1p-25f), 0x0000);                    // half of the smallest subnormal
  EXPECT_EQ(FloatToHalf(0x1.8p-25f), 0x0001);
  EXPECT_EQ(FloatToHalf(0x1.ffcp-15f + 0x1p-25f), 0x0400);  // from subnormal into normal
  EXPECT_EQ(FloatToHalf(65519.0f), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToHalf(-1e30f), 0xfc00);
}

TEST(HalfTest, KeepsInfinitiesAndNans) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(HalfToFloat(0x7c00), infinity);
  EXPECT_EQ(HalfToFloat(0xfc00), -infinity);
  EXPECT_TRUE(std::isnan(HalfToFloat(0x7e00)));
  EXPECT_TRUE(std::isnan(HalfToFloat(0x7c01)));
  EXPECT_EQ(FloatToHalf(-infinity), 0xfc00);
  EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(std::nanf("")))));
}

}  // namespace
}  // namespace lode::kernels
