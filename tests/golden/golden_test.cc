// SPDX-License-Identifier: Apache-2.0
// Compares every model family with transformers on tiny seeded checkpoints
// (scripts/make_golden.py).
//
// In f32 throughout (activations, cache, attention) the logits must lie within 1e-4 of the
// reference's logit range, with every exact attention and every way of cutting the sequence into
// steps; the fast number formats have looser, stated bounds. Sequences are longer than the sliding
// windows and the original contexts of the scaled ropes, so these paths are taken.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "golden/golden_file.h"
#include "golden/model_under_test.h"

namespace lode {
namespace {

using kernels::ActivationType;

constexpr float kExactTolerance = 1e-4f;  // of the logit range; the bound for f32
// Two ways of cutting a sequence may only differ by the order of f32 sums inside attention
// (measured: 0 over 96 tokens, 2.7e-7 over 2048).
constexpr float kChunkTolerance = 2e-6f;
// f16 keys and values carry 11 bits, through at most seven layers (measured: up to 9e-4).
constexpr float kF16CacheTolerance = 3e-3f;
// int8 keys, values and (for quantised weights) activations: a relative error of about 1/250 per
// element (measured: up to 3.5e-3). A wrong scale or a swapped block gives errors of the order of
// the range itself.
constexpr float kInt8MeanTolerance = 1e-2f;

const std::vector<GoldenFile>& Goldens() {
  static const std::vector<GoldenFile>& goldens = *new std::vector<GoldenFile>(AllGoldens());
  return goldens;
}

// Largest and mean absolute difference at the golden's positions, as shares of its logit range.
struct Deviation {
  float max = 0.0f;
  float mean = 0.0f;
};

Deviation DeviationFrom(const GoldenFile& golden, const std::vector<float>& logits) {
  Deviation result;
  double sum = 0.0;
  for (size_t p = 0; p < golden.positions.size(); ++p) {
    const float* ours = &logits[golden.positions[p] * golden.vocab_size];
    const float* reference = &golden.logits[p * golden.vocab_size];
    for (int64_t i = 0; i < golden.vocab_size; ++i) {
      // A NaN must fail the comparison, so it counts as an infinite difference.
      const float difference = std::abs(ours[i] - reference[i]);
      result.max = std::max(result.max, std::isnan(difference) ? INFINITY : difference);
      sum += difference;
    }
  }
  result.max /= golden.logit_range;
  result.mean =
      static_cast<float>(sum / static_cast<double>(golden.logits.size())) / golden.logit_range;
  return result;
}

float LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  float largest = 0.0f;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

std::vector<float> LogitsOf(const GoldenFile& golden, const ModelUnderTestOptions& options) {
  const GoldenModel files(golden);
  auto model = ModelUnderTest::Load(files.path(), options);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  if (!model.ok()) return {};
  EXPECT_EQ((*model)->config().vocab_size, golden.vocab_size);
  auto logits = (*model)->Logits(golden.token_ids, 32);
  EXPECT_TRUE(logits.ok()) << logits.status().ToString();
  return logits.ok() ? *logits : std::vector<float>();
}

class GoldenTest : public testing::TestWithParam<size_t> {
 protected:
  const GoldenFile& golden() const { return Goldens()[GetParam()]; }

  ModelUnderTestOptions Options() const {
    ModelUnderTestOptions options;
    // Tiny models gain nothing from threads; DoesNotDependOnTheNumberOfThreads uses them.
    options.threads = 1;
    // Dynamic rope scaling depends on the length a sequence may reach; the reference saw it all.
    options.context_len = static_cast<int64_t>(golden().token_ids.size());
    return options;
  }

  std::vector<float> Logits(const ModelUnderTestOptions& options) {
    return LogitsOf(golden(), options);
  }
};

TEST_P(GoldenTest, EqualsReferenceHoweverTheSequenceIsCut) {
  const int64_t length = static_cast<int64_t>(golden().token_ids.size());
  const bool is_long = length > 512;  // eager and one-token steps take too long there
  for (const char* attention : {"eager", "flash"}) {
    if (is_long && std::string(attention) == "eager") continue;
    ModelUnderTestOptions options = Options();
    options.attention = attention;
    const GoldenModel files(golden());
    auto model = ModelUnderTest::Load(files.path(), options);
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    auto whole = (*model)->Logits(golden().token_ids, length);
    ASSERT_TRUE(whole.ok()) << whole.status().ToString();
    ASSERT_EQ(whole->size(), golden().token_ids.size() * golden().vocab_size);
    const Deviation deviation = DeviationFrom(golden(), *whole);
    EXPECT_LE(deviation.max, kExactTolerance) << attention;
    RecordProperty(std::string(attention) + "_max", fmt::format("{:.1e}", deviation.max));
    float largest_cut = 0.0f;
    for (const int64_t chunk : {1, 7, 32, 33, 512}) {
      if (chunk >= length || (is_long && chunk < 32)) continue;
      auto cut = (*model)->Logits(golden().token_ids, chunk);
      ASSERT_TRUE(cut.ok()) << cut.status().ToString();
      const float difference = LargestDifference(*whole, *cut) / golden().logit_range;
      EXPECT_LE(difference, kChunkTolerance) << attention << ", steps of " << chunk;
      largest_cut = std::max(largest_cut, difference);
    }
    RecordProperty(std::string(attention) + "_cut", fmt::format("{:.1e}", largest_cut));
  }
}

TEST_P(GoldenTest, FastFormatsStayClose) {
  ModelUnderTestOptions options = Options();
  options.attention = "flash";
  options.kv_dtypes = KvDType::kF16;
  const std::vector<float> f16 = Logits(options);
  ASSERT_FALSE(f16.empty());
  EXPECT_LE(DeviationFrom(golden(), f16).max, kF16CacheTolerance);
  RecordProperty("f16_max", fmt::format("{:.1e}", DeviationFrom(golden(), f16).max));
  options.activations = ActivationType::kInt8;
  options.kv_dtypes = KvDType::kInt8;
  const std::vector<float> int8 = Logits(options);
  ASSERT_FALSE(int8.empty());
  EXPECT_LE(DeviationFrom(golden(), int8).mean, kInt8MeanTolerance);
  RecordProperty("int8_mean", fmt::format("{:.1e}", DeviationFrom(golden(), int8).mean));
}

std::string NameOf(const testing::TestParamInfo<size_t>& info) {
  std::string name = Goldens()[info.param].name;
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTest, testing::Range(size_t{0}, Goldens().size()), NameOf);

TEST(GoldenThreadsTest, DoesNotDependOnTheNumberOfThreads) {
  for (const char* path :
       {"tests/data/tiny-gemma3/golden.json", "tests/data/tiny-gguf/llama2-q8_0.json"}) {
    const GoldenFile golden = ReadGolden(path);
    ModelUnderTestOptions options;
    options.attention = "flash";
    options.activations = ActivationType::kInt8;
    options.kv_dtypes = KvDType::kInt8;
    options.threads = 1;
    const std::vector<float> one = LogitsOf(golden, options);
    ASSERT_FALSE(one.empty());
    for (const int threads : {2, 3}) {
      options.threads = threads;
      EXPECT_EQ(LargestDifference(one, LogitsOf(golden, options)), 0.0f) << threads << " threads";
    }
  }
}

// The data itself: a variant whose logits equal its base's would test nothing.
TEST(GoldenDataTest, VariantsDifferFromTheirBase) {
  std::map<std::filesystem::path, const GoldenFile*> bases;
  for (const GoldenFile& golden : Goldens()) {
    if (golden.config.empty()) bases[golden.base] = &golden;
  }
  ASSERT_GE(Goldens().size(), 21u);
  for (const GoldenFile& golden : Goldens()) {
    if (golden.config.empty()) continue;
    const GoldenFile& base = *bases.at(golden.base);
    if (golden.token_ids != base.token_ids) continue;  // the long variant
    const float difference = LargestDifference(golden.logits, base.logits) / base.logit_range;
    if (golden.name == "gemma3-defaults") {
      EXPECT_EQ(difference, 0.0f);  // left-out keys mean exactly the base's values
    } else {
      EXPECT_GT(difference, 100.0f * kExactTolerance) << golden.name;
    }
  }
}

// A rope scaling nobody implemented must be a load error, never a silently unscaled model.
TEST(GoldenDataTest, UnknownRopeScalingIsRefused) {
  GoldenFile golden = ReadGolden("tests/data/rope-variants/llama2-linear.json");
  const size_t at = golden.config.find("\"linear\"");
  ASSERT_NE(at, std::string::npos);
  golden.config.replace(at, 8, "\"longrope\"");
  golden.name = "llama2-longrope";
  const GoldenModel files(golden);
  const auto model = ModelUnderTest::Load(files.path(), {});
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(model.status().message(), testing::HasSubstr("longrope"));
}

}  // namespace
}  // namespace lode
