// SPDX-License-Identifier: Apache-2.0
// norm, rope, activation and softmax against the same formulas in double.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/activation.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/softmax.h"
#include "kernels/targets.h"

namespace lode::kernels {
namespace {

// Runs each test once per target.
class ElementwiseTest : public testing::TestWithParam<Target> {
 private:
  const ScopedTarget target_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(AllTargets, ElementwiseTest, testing::ValuesIn(SupportedTargets()),
                         [](const auto& info) { return TargetName(info.param); });

constexpr int64_t kLengths[] = {1,  2,  3,  7,  8,   15,  16,   31,  32,
                                33, 63, 64, 65, 127, 896, 1001, 4864};
constexpr double kUlp = 1.1920929e-7;

std::vector<float> Random(int64_t n, float scale, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = normal(rng);
  return x;
}

TEST_P(ElementwiseTest, RmsNormEqualsDouble) {
  for (int64_t n : kLengths) {
    const std::vector<float> x = Random(n, 3, 1), weight = Random(n, 1, 2);
    std::vector<float> out(x.size());
    RmsNorm(x.data(), weight.data(), n, 1e-6f, out.data());
    double sum = 0;
    for (float v : x) sum += static_cast<double>(v) * v;
    const double scale = 1 / std::sqrt(sum / static_cast<double>(n) + 1e-6);
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = x[i] * scale * weight[i];
      ASSERT_NEAR(out[i], want, std::fabs(want) * 8 * kUlp) << n;
    }
  }
}

TEST_P(ElementwiseTest, RmsNormWorksInPlace) {
  std::vector<float> x = Random(100, 1, 3), out(100);
  const std::vector<float> weight = Random(100, 1, 4);
  RmsNorm(x.data(), weight.data(), 100, 1e-5f, out.data());
  RmsNorm(x.data(), weight.data(), 100, 1e-5f, x.data());
  EXPECT_EQ(x, out);
}

TEST_P(ElementwiseTest, ApplyRopeEqualsDoubleInBothPairings) {
  for (bool interleaved : {false, true}) {
    for (int64_t head_dim : {2, 4, 6, 10, 16, 34, 64, 128, 256}) {
      const int64_t half = head_dim / 2, heads = 3;
      const std::vector<float> x = Random(heads * head_dim, 1, 5);
      std::vector<float> cos, sin, out = x;
      for (int64_t i = 0; i < half; ++i) {
        cos.push_back(std::cos(0.3f * static_cast<float>(i + 1)));
        sin.push_back(std::sin(0.3f * static_cast<float>(i + 1)));
      }
      ApplyRope(out.data(), heads, head_dim, cos.data(), sin.data(), interleaved);
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < half; ++i) {
          const size_t a = static_cast<size_t>(h * head_dim + (interleaved ? 2 * i : i));
          const size_t b = a + static_cast<size_t>(interleaved ? 1 : half);
          const double c = cos[static_cast<size_t>(i)], s = sin[static_cast<size_t>(i)];
          ASSERT_NEAR(out[a], x[a] * c - x[b] * s, 4 * kUlp);
          ASSERT_NEAR(out[b], x[b] * c + x[a] * s, 4 * kUlp);
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, SiluMultiplyEqualsDouble) {
  for (int64_t n : kLengths) {
    const std::vector<float> gate = Random(n, 8, 6), up = Random(n, 1, 7);
    std::vector<float> out = gate;
    SiluMultiply(out.data(), up.data(), n);
    for (size_t i = 0; i < gate.size(); ++i) {
      const double want = gate[i] / (1 + std::exp(-static_cast<double>(gate[i]))) * up[i];
      ASSERT_NEAR(out[i], want, std::fabs(want) * 4 * kUlp + 1e-37) << gate[i];
    }
  }
}

TEST_P(ElementwiseTest, SiluMultiplyExtremeValues) {
  std::vector<float> gate = {-200, -88, 0, 88, 200, 1e30f, -1e30f, std::nanf("")};
  const std::vector<float> up(gate.size(), 1.0f);
  SiluMultiply(gate.data(), up.data(), static_cast<int64_t>(gate.size()));
  EXPECT_NEAR(gate[0], 0, 1e-30);
  EXPECT_NEAR(gate[1], 0, 1e-30);
  EXPECT_EQ(gate[2], 0);
  EXPECT_EQ(gate[3], 88);
  EXPECT_EQ(gate[4], 200);
  EXPECT_EQ(gate[5], 1e30f);
  EXPECT_NEAR(gate[6], 0, 1e-5);
  EXPECT_TRUE(std::isnan(gate[7]));
}

// Softmax of {x, 0} with x <= 0 is exp(x) / (1 + exp(x)): probes exp through a public function.
TEST_P(ElementwiseTest, ExpIsWithinTwoUlp) {
  double worst = 0;
  for (float x = -87.0f; x < 0; x += 0.00931f) {
    float values[2] = {x, 0};
    Softmax(values, 2);
    const double e = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::fabs(values[0] - e / (1 + e)) / (e / (1 + e)));
  }
  EXPECT_LE(worst, (2 + 1.5) * kUlp);  // exp, then sum, reciprocal and product at half an ulp each
}

TEST_P(ElementwiseTest, GeluTanhMultiplyEqualsDouble) {
  for (int64_t n : kLengths) {
    const std::vector<float> gate = Random(n, 3, 8), up = Random(n, 1, 9);
    std::vector<float> out = gate;
    GeluTanhMultiply(out.data(), up.data(), n);
    for (size_t i = 0; i < gate.size(); ++i) {
      const double x = gate[i];
      // 1 + tanh(u) written without its cancellation. A rounding of u is 2 |u| ulp in exp(-2u).
      const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
      const double want = x / (1 + std::exp(-2 * u)) * up[i];
      ASSERT_NEAR(out[i], want, std::fabs(want) * (4 + 6 * std::fabs(u)) * kUlp + 1e-37) << x;
    }
  }
}

TEST_P(ElementwiseTest, AddIntoAdds) {
  for (int64_t n : kLengths) {
    const std::vector<float> x = Random(n, 1, 10), y = Random(n, 1, 11);
    std::vector<float> out = x;
    AddInto(out.data(), y.data(), n);
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(out[i], x[i] + y[i]);
  }
}

TEST_P(ElementwiseTest, SoftmaxEqualsDouble) {
  for (int64_t n : kLengths) {
    const std::vector<float> x = Random(n, 5, 12);
    std::vector<float> out = x;
    Softmax(out.data(), n);
    double max = x[0], sum = 0;
    for (float v : x) max = std::max<double>(max, v);
    for (float v : x) sum += std::exp(v - max);
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = std::exp(x[i] - max) / sum;
      // The rounding of x - max to f32 costs up to |x - max| half-ulps.
      ASSERT_NEAR(out[i], want, want * (8 + std::fabs(x[i] - max)) * kUlp);
    }
  }
}

TEST_P(ElementwiseTest, SoftmaxMaskedAndHugeEntries) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> x = {-kInf, 3e38f, -3e38f, 3e38f, -kInf};
  Softmax(x.data(), 5);
  EXPECT_EQ(x, (std::vector<float>{0, 0.5f, 0, 0.5f, 0}));
  std::vector<float> nan(40, 1.0f);
  nan[37] = std::nanf("");
  Softmax(nan.data(), 40);
  EXPECT_TRUE(std::isnan(nan[0]) && std::isnan(nan[39]));
}

TEST_P(ElementwiseTest, LogarithmsOfSumsAndShares) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (int64_t n : {16, 32, 208}) {
    std::vector<float> x = Random(n, 5, 13);
    x[3] = -kInf;
    double sum = 0;
    for (float v : x) sum += std::exp2(double{v});
    EXPECT_NEAR(LogSumExp2(x.data(), n), std::log2(sum), 1e-5);
    std::vector<float> shares(x.size(), 1.0f), squares(x.size(), 2.0f);
    AddShares(x.data(), n, 4.0f, shares.data(), squares.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const double share = std::exp2(double{x[i]} - 4.0);
      ASSERT_NEAR(shares[i], 1 + share, (1 + share) * 1e-5);
      ASSERT_NEAR(squares[i], 2 + share * share, (2 + share * share) * 1e-5);
    }
  }
  const std::vector<float> nothing(16, -kInf);
  EXPECT_EQ(LogSumExp2(nothing.data(), 16), -kInf);
}

}  // namespace
}  // namespace lode::kernels
