// SPDX-License-Identifier: Apache-2.0
// Case B38 on tiny models: every pair of types of keys and values keeps the distributions of the
// next token close to those of an f16 cache, with the plain attention and the fast one, on the
// machine's best instructions and without any (scalar), in chunks and token by token. Attention
// alone is compared on every instruction set by attention_test; real_kv_test has real models.
//
// Activations are f32, so that the cache alone differs. Tiny models with peaked attention feel
// coarse keys more than trained ones do.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "golden/model_under_test.h"
#include "kernels/targets.h"

namespace lode {
namespace {

constexpr int64_t kTokens = 192;
constexpr int64_t kScored = 64;  // the last ones, behind tiles of 8 and of 16 tokens

std::vector<int32_t> Tokens() {
  std::vector<int32_t> tokens(kTokens);
  uint32_t seed = 1;
  for (int32_t& token : tokens) {
    seed = seed * 1664525u + 1013904223u;
    token = static_cast<int32_t>((seed >> 8) % 200);
  }
  return tokens;
}

// Logits become log-probabilities.
void LogSoftmax(std::span<float> row) {
  const double largest = *std::max_element(row.begin(), row.end());
  double sum = 0.0;
  for (const float x : row) sum += std::exp(double{x} - largest);
  for (float& x : row) x -= static_cast<float>(largest + std::log(sum));
}

// KL(reference || found) per token; NaN counts as infinity.
double MeanKl(const std::vector<float>& reference, const std::vector<float>& found) {
  double sum = 0.0;
  for (size_t i = 0; i < reference.size(); ++i) {
    sum += std::exp(double{reference[i]}) * (double{reference[i]} - double{found[i]});
  }
  return std::isnan(sum) ? INFINITY : sum / static_cast<double>(kScored);
}

struct Pair {
  KvDTypes dtypes;
  double bound;  // nats per token; about twice the largest that was measured
};
const Pair kPairs[] = {
    {KvDType::kF16, 2e-7},
    {{KvDType::kF16, KvDType::kInt8}, 3e-4},
    {{KvDType::kF16, KvDType::kInt4}, 7e-2},
    {{KvDType::kInt8, KvDType::kF16}, 5e-4},
    {KvDType::kInt8, 7e-4},
    {{KvDType::kInt8, KvDType::kInt4}, 7e-2},
    {{KvDType::kInt4, KvDType::kF16}, 8e-2},
    {{KvDType::kInt4, KvDType::kInt8}, 8e-2},
    {KvDType::kInt4, 1.5e-1},
};

class KvTypesTest : public testing::TestWithParam<const char*> {
 protected:
  // Log-probabilities [kScored, vocab_size].
  std::vector<float> LogProbs(KvDTypes dtypes, const char* attention, int64_t chunk) {
    auto model = ModelUnderTest::Load(std::string("tests/data/") + GetParam(),
                                      {.kv_dtypes = dtypes, .attention = attention, .threads = 1});
    EXPECT_TRUE(model.ok()) << model.status().ToString();
    auto logits = (*model)->Logits(Tokens(), chunk);
    EXPECT_TRUE(logits.ok()) << logits.status().ToString();
    const auto vocab_size = static_cast<size_t>((*model)->config().vocab_size);
    logits->erase(logits->begin(),
                  logits->begin() + static_cast<int64_t>((kTokens - kScored) * vocab_size));
    for (size_t at = 0; at < logits->size(); at += vocab_size) {
      LogSoftmax(std::span(*logits).subspan(at, vocab_size));
    }
    return std::move(*logits);
  }
};

TEST_P(KvTypesTest, EveryPairStaysCloseToF16) {
  const std::vector<float> reference = LogProbs(KvDType::kF16, "eager", 64);
  for (const Pair& pair : kPairs) {
    double largest = 0.0;
    const auto check = [&](const char* attention, int64_t chunk) {
      const double kl = MeanKl(reference, LogProbs(pair.dtypes, attention, chunk));
      EXPECT_LE(kl, pair.bound) << KvDTypesName(pair.dtypes) << ", " << attention << ", steps of "
                                << chunk;
      largest = std::max(largest, kl);
    };
    check("eager", 64);
    check("flash", 64);
    check("flash", 1);
    const kernels::Target plainest = kernels::SupportedTargets().back();
    SCOPED_TRACE(kernels::TargetName(plainest));
    const kernels::ScopedTarget pinned(plainest);
    check("flash", 64);
    RecordProperty(KvDTypesName(pair.dtypes), fmt::format("{:.1e}", largest));
  }
}

INSTANTIATE_TEST_SUITE_P(All, KvTypesTest, testing::Values("tiny-qwen2", "tiny-gemma3"),
                         [](const auto& info) { return std::string(info.param).substr(5); });

}  // namespace
}  // namespace lode
