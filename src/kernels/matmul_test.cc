// SPDX-License-Identifier: Apache-2.0
// Packing against Dequantize (bit for bit), MatMul against ReferenceMatMul (bit for bit), and
// ReferenceMatMul against sums in double (tolerances stated).
#include "kernels/matmul.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "kernels/dequantize.h"
#include "kernels/packed_layout.h"
#include "kernels/reference.h"

namespace lode::kernels {
namespace {

constexpr DType kPackedTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16,
                                  DType::kQ8_0, DType::kQ4_0, DType::kQ5_0,
                                  DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

std::vector<std::byte> RandomBytes(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<std::byte> bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng());
  return bytes;
}

std::vector<float> RandomFloats(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

// Random weights of any type: random bits, with the scales (halves) replaced by small numbers.
std::vector<std::byte> RandomWeights(DType type, int64_t rows, int64_t cols, uint32_t seed) {
  std::vector<std::byte> bytes =
      RandomBytes(static_cast<size_t>(rows * RowBytes(type, cols)), seed);
  std::mt19937 rng(seed + 1);
  std::uniform_real_distribution<float> scale(-0.1f, 0.1f);
  const DTypeTraits& traits = Traits(type);
  const auto set_half = [&](size_t at) {
    const Half h = FloatToHalf(scale(rng));
    std::memcpy(bytes.data() + at, &h, 2);
  };
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(traits.block_bytes)) {
    switch (type) {
      case DType::kF32: {
        const float f = scale(rng);
        std::memcpy(bytes.data() + at, &f, 4);
        break;
      }
      case DType::kBF16: {
        const float f = scale(rng);
        std::memcpy(bytes.data() + at, reinterpret_cast<const char*>(&f) + 2, 2);
        break;
      }
      case DType::kQ2_K:
        set_half(at + 80), set_half(at + 82);
        break;
      case DType::kQ3_K:
        set_half(at + 108);
        break;
      case DType::kQ6_K:
        set_half(at + 208);
        break;
      case DType::kQ4_1:
      case DType::kQ5_1:
      case DType::kQ4_K:
      case DType::kQ5_K:
        set_half(at), set_half(at + 2);
        break;
      default:
        set_half(at);
    }
  }
  return bytes;
}

struct AlignedBytes {
  explicit AlignedBytes(int64_t n)
      : data(static_cast<std::byte*>(
            std::aligned_alloc(64, static_cast<size_t>((n + 63) / 64 * 64)))) {}
  ~AlignedBytes() { std::free(data); }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  std::byte* data;
};

struct Packed {
  Packed(DType source_type, int64_t rows, int64_t cols, uint32_t seed)
      : source(RandomWeights(source_type, rows, cols, seed)),
        bytes((rows + 15) / 16 * PackedGroupBytes(PackedTypeFor(source_type), cols)) {
    weights = {PackedTypeFor(source_type), rows, cols, bytes.data};
    PackRowGroups(source_type, source.data(), rows, cols, 0, weights.num_groups(), bytes.data);
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<float> row(static_cast<size_t>(cols));
      Dequantize(source_type, source.data() + r * RowBytes(source_type, cols), cols, row.data());
      dequantized.push_back(std::move(row));
    }
  }
  std::vector<std::byte> source;
  AlignedBytes bytes;
  PackedWeights weights;
  std::vector<std::vector<float>> dequantized;
};

std::vector<float> RunMatMul(const PackedWeights& weights, ActivationType type,
                             const std::byte* activations, int64_t num_tokens, bool reference) {
  std::vector<float> out(static_cast<size_t>(num_tokens * weights.rows), -1e30f);
  AlignedBytes scratch(MatMulScratchBytes(weights.type, weights.cols));
  if (reference) {
    ReferenceMatMul(weights, type, activations, num_tokens, 0, weights.num_groups(), out.data(),
                    weights.rows);
  } else {
    MatMul(weights, type, activations, num_tokens, 0, weights.num_groups(), out.data(),
           weights.rows, scratch.data);
  }
  return out;
}

class EveryPackedType : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, EveryPackedType, ::testing::ValuesIn(kPackedTypes),
                         [](const auto& info) { return std::string(Traits(info.param).name); });

TEST_P(EveryPackedType, PackedRowsDecodeToTheSourceBitForBit) {
  for (int64_t rows : {1, 16, 37}) {
    const Packed m(GetParam(), rows, 512, 11);
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<float> row(512);
      ReferenceUnpackRow(m.weights, r, row.data());
      ASSERT_EQ(row, m.dequantized[static_cast<size_t>(r)]) << "row " << r << " of " << rows;
    }
  }
}

TEST_P(EveryPackedType, PackedSizeExceedsTheSourceByAtMostThreePercent) {
  const int64_t source = 16 * RowBytes(GetParam(), 4864);
  EXPECT_LE(PackedGroupBytes(GetParam(), 4864), source * 103 / 100);
}

TEST_P(EveryPackedType, ReferenceF32IsCloseToSumsInDouble) {
  const int64_t cols = 4864;
  const Packed m(GetParam(), 16, cols, 12);
  const std::vector<float> x = RandomFloats(static_cast<size_t>(cols), 13);
  AlignedBytes prepared(ActivationRowBytes(GetParam(), ActivationType::kF32, cols));
  PrepareActivations(GetParam(), ActivationType::kF32, x.data(), cols, 1, cols, prepared.data);
  const std::vector<float> out = RunMatMul(m.weights, ActivationType::kF32, prepared.data, 1, true);
  for (size_t r = 0; r < 16; ++r) {
    double sum = 0, magnitude = 0;
    for (size_t c = 0; c < x.size(); ++c) {
      sum += static_cast<double>(m.dequantized[r][c]) * x[c];
      magnitude += std::pow(static_cast<double>(m.dequantized[r][c]) * x[c], 2);
    }
    EXPECT_NEAR(out[r], sum, 1e-6 * std::sqrt(magnitude) * 4);
  }
}

TEST_P(EveryPackedType, ReferenceInt8IsWithinHalfAPercentOfDouble) {
  const int64_t cols = 2048;
  const Packed m(GetParam(), 16, cols, 14);
  const std::vector<float> x = RandomFloats(static_cast<size_t>(cols), 15);
  AlignedBytes prepared(ActivationRowBytes(GetParam(), ActivationType::kInt8, cols));
  PrepareActivations(GetParam(), ActivationType::kInt8, x.data(), cols, 1, cols, prepared.data);
  const std::vector<float> out =
      RunMatMul(m.weights, ActivationType::kInt8, prepared.data, 1, true);
  double error = 0, magnitude = 0;
  for (size_t r = 0; r < 16; ++r) {
    double sum = 0;
    for (size_t c = 0; c < x.size(); ++c) {
      sum += static_cast<double>(m.dequantized[r][c]) * x[c];
      magnitude += std::pow(static_cast<double>(m.dequantized[r][c]) * x[c], 2);
    }
    error += std::pow(out[r] - sum, 2);
  }
  EXPECT_LE(std::sqrt(error / magnitude), 0.01);  // rounding of x to 8 bits: about 0.6 %
}

TEST_P(EveryPackedType, EqualsTheReferenceAtOddSizes) {
  for (ActivationType type : {ActivationType::kF32, ActivationType::kInt8}) {
    for (auto [rows, cols] :
         {std::pair<int64_t, int64_t>{1, 256}, {16, 256}, {37, 768}, {48, 2304}}) {
      const Packed m(GetParam(), rows, cols, 16);
      for (int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 33}) {
        const std::vector<float> x = RandomFloats(static_cast<size_t>(tokens * cols), 17);
        AlignedBytes prepared(tokens * ActivationRowBytes(GetParam(), type, cols));
        PrepareActivations(GetParam(), type, x.data(), cols, tokens, cols, prepared.data);
        ASSERT_EQ(RunMatMul(m.weights, type, prepared.data, tokens, false),
                  RunMatMul(m.weights, type, prepared.data, tokens, true))
            << rows << " x " << cols << ", " << tokens << " tokens";
      }
    }
  }
}

TEST(PackTest, ConversionsWithoutLossDecodeToTheSource) {
  for (DType type : {DType::kIQ4_NL, DType::kQ3_K}) {
    const Packed m(type, 19, 512, 18);
    for (int64_t r = 0; r < 19; ++r) {
      std::vector<float> row(512);
      ReferenceUnpackRow(m.weights, r, row.data());
      for (size_t c = 0; c < 512; ++c) {
        ASSERT_EQ(row[c], m.dequantized[static_cast<size_t>(r)][c]) << Traits(type).name << c;
      }
    }
  }
}

TEST(PackTest, OtherConversionsLoseLessThanOnePartIn250OfTheBlockMaximum) {
  for (DType type : {DType::kQ4_1, DType::kQ5_1, DType::kQ2_K, DType::kIQ4_XS}) {
    const Packed m(type, 19, 512, 19);
    EXPECT_EQ(m.weights.type, DType::kQ8_0);
    for (int64_t r = 0; r < 19; ++r) {
      std::vector<float> row(512);
      ReferenceUnpackRow(m.weights, r, row.data());
      const std::vector<float>& want = m.dequantized[static_cast<size_t>(r)];
      for (size_t b = 0; b < 512; b += 32) {
        float max = 0;
        for (size_t c = b; c < b + 32; ++c) max = std::max(max, std::fabs(want[c]));
        for (size_t c = b; c < b + 32; ++c)
          ASSERT_NEAR(row[c], want[c], max / 200) << Traits(type).name;
      }
    }
  }
}

TEST(PrepareActivationsTest, NonFiniteValuesMakeTheOutputNaN) {
  const Packed m(DType::kQ5_0, 16, 64, 20);
  for (float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    std::vector<float> x = RandomFloats(64, 21);
    x[40] = bad;
    AlignedBytes prepared(ActivationRowBytes(DType::kQ5_0, ActivationType::kInt8, 64));
    PrepareActivations(DType::kQ5_0, ActivationType::kInt8, x.data(), 64, 1, 64, prepared.data);
    for (float y : RunMatMul(m.weights, ActivationType::kInt8, prepared.data, 1, false)) {
      EXPECT_FALSE(std::isfinite(y));
    }
  }
}

}  // namespace
}  // namespace lode::kernels
