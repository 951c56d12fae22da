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
#include <span>
#include <vector>

#include "kernels/dequantize.h"
#include "kernels/packed_layout.h"
#include "kernels/reference.h"
#include "kernels/targets.h"

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

// Random rows of which token t has (t + 3) % 4 outliers: in the first and the last column, and
// beside the first one.
std::vector<float> RandomActivations(int64_t tokens, int64_t cols, uint32_t seed) {
  std::vector<float> x = RandomFloats(static_cast<size_t>(tokens * cols), seed);
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t at[] = {0, cols - 1, (1 + t) % cols};
    for (int64_t i = 0; i < (t + 3) % 4; ++i) x[static_cast<size_t>(t * cols + at[i])] = 40.0f + t;
  }
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

// An outlier keeps its own value and does not coarsen its neighbours: without the f32 column the
// error is six times as large.
TEST_P(EveryPackedType, OutliersDoNotRaiseTheError) {
  const int64_t cols = 2048;
  const Packed m(GetParam(), 16, cols, 34);
  std::vector<float> x = RandomFloats(static_cast<size_t>(cols), 35);
  for (int64_t c = 5; c < cols; c += 300) x[static_cast<size_t>(c)] = c % 2 == 0 ? 70.0f : -55.0f;
  AlignedBytes prepared(ActivationRowBytes(GetParam(), ActivationType::kInt8, cols));
  PrepareActivations(GetParam(), ActivationType::kInt8, x.data(), cols, 1, cols, prepared.data);
  const std::vector<float> out =
      RunMatMul(m.weights, ActivationType::kInt8, prepared.data, 1, false);
  double error = 0, magnitude = 0;
  for (size_t r = 0; r < 16; ++r) {
    double sum = 0;
    for (size_t c = 0; c < x.size(); ++c) {
      const double product = static_cast<double>(m.dequantized[r][c]) * x[c];
      sum += product;
      if (std::fabs(x[c]) < 10) magnitude += product * product;
    }
    error += std::pow(out[r] - sum, 2);
  }
  EXPECT_LE(std::sqrt(error / magnitude), 0.01);  // as without outliers
}

// Products and sums are separate roundings there: close to the reference, not equal.
bool LacksFusedMultiplyAdd(Target target) {
  return TargetName(target).starts_with("S");
}

void ExpectClose(const std::vector<float>& got, const std::vector<float>& want, bool exact) {
  if (exact) {
    ASSERT_EQ(got, want);
    return;
  }
  float largest = 0;
  for (float v : want) largest = std::max(largest, std::fabs(v));
  ASSERT_THAT(got, ::testing::Pointwise(::testing::FloatNear(2e-5f * largest), want));
}

// On every target but the scalar one, which is the reference itself.
void ExpectEqualsReference(const Packed& m, ActivationType type, int64_t tokens) {
  const int64_t cols = m.weights.cols;
  const std::vector<float> x = RandomActivations(tokens, cols, 17);
  AlignedBytes prepared(tokens * ActivationRowBytes(m.weights.type, type, cols));
  PrepareActivations(m.weights.type, type, x.data(), cols, tokens, cols, prepared.data);
  const std::vector<float> want = RunMatMul(m.weights, type, prepared.data, tokens, true);
  for (Target target : SupportedTargets()) {
    if (TargetName(target) == "SCALAR") continue;
    const ScopedTarget scoped(target);
    SCOPED_TRACE(::testing::Message() << TargetName(target) << " " << m.weights.rows << " x "
                                      << cols << ", " << tokens << " tokens");
    ExpectClose(RunMatMul(m.weights, type, prepared.data, tokens, false), want,
                !LacksFusedMultiplyAdd(target));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST_P(EveryPackedType, EqualsTheReferenceAtOddSizesOnEveryTarget) {
  const std::vector<std::pair<int64_t, int64_t>> shapes = {
      {1, 256}, {16, 256}, {37, 768}, {40, 2304}, {600, 256}};
  for (auto [rows, cols] : shapes) {
    const Packed m(GetParam(), rows, cols, 16);
    for (ActivationType type : {ActivationType::kF32, ActivationType::kInt8}) {
      for (int64_t tokens : {1, 2, 3, 4, 5, 7, 9, 33}) {
        ExpectEqualsReference(m, type, tokens);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(EveryPackedType, ATokenDoesNotDependOnTheBatchNorOnTheSplit) {
  const int64_t rows = 70, cols = 1280, tokens = 150;  // more than one token block
  const Packed m(GetParam(), rows, cols, 30);
  const std::vector<float> x = RandomActivations(tokens, cols, 31);
  for (ActivationType type : {ActivationType::kF32, ActivationType::kInt8}) {
    const int64_t row_bytes = ActivationRowBytes(GetParam(), type, cols);
    AlignedBytes prepared(tokens * row_bytes);
    PrepareActivations(GetParam(), type, x.data(), cols, tokens, cols, prepared.data);
    const std::vector<float> all = RunMatMul(m.weights, type, prepared.data, tokens, false);
    AlignedBytes scratch(MatMulScratchBytes(GetParam(), cols));
    for (int64_t t : {0, 1, 127, 128, 149}) {
      std::vector<float> one(static_cast<size_t>(rows));
      for (int64_t g = 0; g < m.weights.num_groups(); ++g) {
        MatMul(m.weights, type, prepared.data + t * row_bytes, 1, g, g + 1, one.data(), rows,
               scratch.data);
      }
      const auto begin = all.begin() + t * rows;
      ASSERT_EQ(one, std::vector<float>(begin, begin + rows)) << "token " << t;
    }
  }
}

TEST(MatMulTest, FloatWeightsTakeAnyNumberOfColumns) {
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (int64_t cols : {1, 3, 31, 33, 300}) {
      const Packed m(type, 21, cols, 32);
      for (int64_t tokens : {1, 5}) {
        ExpectEqualsReference(m, ActivationType::kF32, tokens);
      }
    }
  }
}

// The largest sums that 16-bit accumulators must hold: extreme codes times extreme activations.
TEST(MatMulTest, ExtremeCodesAreExactOnEveryTarget) {
  for (DType type :
       {DType::kQ8_0, DType::kQ4_0, DType::kQ5_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    for (int fill : {0x00, 0x80, 0x7F, 0xFF}) {
      Packed m(type, 16, 256, 33);
      // Every byte of codes, scales and minima gets the extreme pattern; the halves stay finite.
      for (size_t i = 0; i < m.source.size(); ++i) {
        const size_t at = i % static_cast<size_t>(Traits(type).block_bytes);
        const bool half = type == DType::kQ6_K                           ? at >= 208
                          : type == DType::kQ4_K || type == DType::kQ5_K ? at < 4
                                                                         : at < 2;
        if (!half) m.source[i] = static_cast<std::byte>(fill);
      }
      PackRowGroups(type, m.source.data(), 16, 256, 0, 1, m.bytes.data);
      for (float sign : {1.0f, -1.0f}) {
        const std::vector<float> x(256, sign);
        AlignedBytes prepared(ActivationRowBytes(type, ActivationType::kInt8, 256));
        PrepareActivations(type, ActivationType::kInt8, x.data(), 256, 1, 256, prepared.data);
        const std::vector<float> want =
            RunMatMul(m.weights, ActivationType::kInt8, prepared.data, 1, true);
        for (Target target : SupportedTargets()) {
          const ScopedTarget scoped(target);
          const std::vector<float> got =
              RunMatMul(m.weights, ActivationType::kInt8, prepared.data, 1, false);
          for (size_t r = 0; r < 16; ++r) {
            ASSERT_NEAR(got[r], want[r], std::fabs(want[r]) * 1e-5f)
                << TargetName(target) << Traits(type).name << fill;
          }
        }
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

TEST(PackTest, OtherConversionsLoseLessThanOnePartIn200OfTheBlockMaximum) {
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

TEST(PrepareActivationsTest, EqualsTheReferenceOnEveryTarget) {
  std::vector<float> x = RandomFloats(32 * 40, 22);
  for (size_t i = 0; i < 32; ++i) {
    x[32 * 3 + i] = 0;        // an empty block
    x[32 * 4 + i] = -2.5f;    // all at the maximum
    x[32 * 5 + i] *= 1e-36f;  // too small to invert
    x[32 * 6 + i] *= 1e30f;
    x[32 * 7 + i] = static_cast<float>(i) + 0.5f;  // ties when the maximum is 127
  }
  x[32 * 7] = 127;
  const int64_t bytes = ActivationRowBytes(DType::kQ8_0, ActivationType::kInt8, 32 * 40);
  const size_t used = 40 * sizeof(ActivationBlock) + sizeof(int32_t);
  AlignedBytes want(bytes), got(bytes);
  ReferencePrepareActivations(DType::kQ8_0, ActivationType::kInt8, x.data(), 32 * 40, want.data);
  for (Target target : SupportedTargets()) {
    const ScopedTarget scoped(target);
    std::memset(got.data, 0x55, static_cast<size_t>(bytes));
    PrepareActivations(DType::kQ8_0, ActivationType::kInt8, x.data(), 32 * 40, 1, 32 * 40,
                       got.data);
    EXPECT_EQ(std::memcmp(got.data, want.data, used), 0) << TargetName(target);
  }
}

std::vector<std::byte> Prepared(const std::vector<float>& x, bool reference) {
  const int64_t cols = static_cast<int64_t>(x.size());
  std::vector<std::byte> row(static_cast<size_t>(QuantisedRowBytes(cols)));
  AlignedBytes out(ActivationRowBytes(DType::kQ8_0, ActivationType::kInt8, cols));
  if (reference) {
    ReferencePrepareActivations(DType::kQ8_0, ActivationType::kInt8, x.data(), cols, out.data);
  } else {
    PrepareActivations(DType::kQ8_0, ActivationType::kInt8, x.data(), cols, 1, cols, out.data);
  }
  // Bytes behind the last outlier mean nothing.
  const size_t used =
      static_cast<size_t>(reinterpret_cast<const std::byte*>(OutliersOf(out.data, cols).data() +
                                                             OutliersOf(out.data, cols).size()) -
                          out.data);
  std::memcpy(row.data(), out.data, used);
  return row;
}

TEST(PrepareActivationsTest, OutliersEqualTheReferenceOnEveryTarget) {
  for (int64_t cols : {32, 64, 96, 608, 4864}) {
    for (int64_t tokens = 0; tokens < 8; ++tokens) {
      const std::vector<float> all = RandomActivations(8, cols, 36);
      const auto first = all.begin() + tokens * cols;
      const std::vector<float> x(first, first + cols);
      const std::vector<std::byte> want = Prepared(x, true);
      for (Target target : SupportedTargets()) {
        const ScopedTarget scoped(target);
        EXPECT_EQ(Prepared(x, false), want) << TargetName(target) << " " << cols;
      }
    }
  }
}

TEST(PrepareActivationsTest, OutliersKeepTheirValuesAndLeaveZeros) {
  std::vector<float> x = RandomFloats(640, 37);
  x[0] = -31.5f, x[2] = 100.25f, x[639] = 40.0f;
  const std::vector<std::byte> row = Prepared(x, false);
  const std::span<const Outlier> outliers = OutliersOf(row.data(), 640);
  ASSERT_EQ(outliers.size(), 3u);
  const auto* blocks = reinterpret_cast<const ActivationBlock*>(row.data());
  for (const Outlier& outlier : outliers) {
    EXPECT_EQ(outlier.value, x[static_cast<size_t>(outlier.column)]);
    EXPECT_EQ(blocks[outlier.column / 32].q[outlier.column % 32], 0);
  }
  EXPECT_EQ(outliers[0].column, 0);
  EXPECT_EQ(outliers[1].column, 2);
  EXPECT_EQ(outliers[2].column, 639);
  EXPECT_LT(blocks[0].d, 4.0f / 127);
}

// Rows at the edge of the largest number of outliers, and rows whose squares leave the range of
// f32.
TEST(PrepareActivationsTest, OutliersNeverExceedTheirRoom) {
  for (int64_t cols : {32, 64, 1152, 4864}) {
    for (int64_t spikes : {MaxOutliers(cols), MaxOutliers(cols) + 1, cols}) {
      for (float value : {1.0f, 3e-24f, 1e25f}) {
        std::vector<float> x(static_cast<size_t>(cols), 0.0f);
        for (int64_t i = 0; i < spikes; ++i) x[static_cast<size_t>(i)] = value;
        const std::vector<std::byte> row = Prepared(x, false);
        EXPECT_LE(static_cast<int64_t>(OutliersOf(row.data(), cols).size()), MaxOutliers(cols));
        EXPECT_EQ(row, Prepared(x, true));
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
