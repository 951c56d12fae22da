// SPDX-License-Identifier: Apache-2.0
// csa_hca with pages ranked by random sign bits (retrieval/sign_codes.h): what must hold however
// poor the ranking is, and what each of the two ways of ranking can and cannot do.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "attention/csa_hca.h"
#include "csa_hca_fixture.h"
#include "retrieval/sign_codes.h"

namespace lode {
namespace {

constexpr double kTolerance = 2e-4;      // of the largest output, as in attention_test
constexpr double kMeanTolerance = 2e-2;  // means of keys and values have 8 bits

using Scores = SparseOptions::Scores;

class SignsTest : public testing::TestWithParam<Scores> {
 protected:
  std::unique_ptr<Attention> Create(const Case& c, SparseOptions options) const {
    options.scores = GetParam();
    return CreateCsaHcaAttention(options, SomeCalibration(c));
  }
};

INSTANTIATE_TEST_SUITE_P(All, SignsTest, testing::Values(Scores::kHamming, Scores::kBuckets),
                         [](const auto& test) {
                           return test.param == Scores::kHamming ? "hamming" : "buckets";
                         });

TEST_P(SignsTest, ReadingEveryPageIsExact) {
  for (const int64_t length : {1, 33, 289, 700}) {
    const Case c = {.length = length};
    Fixture f(c);
    const int64_t n = std::min<int64_t>(length, 40);
    const auto attention = Create(c, {.top_k = 1 << 20});
    EXPECT_LT(RelativeError(f.Run(*attention, length - n, n, 17), f.Truth(length - n, n)),
              kTolerance)
        << length;
  }
}

TEST_P(SignsTest, SummariesOfEqualKeysAreExact) {
  for (const double max_unread : {0.0, 0.1}) {
    for (const int64_t length : {400, 417, 1500}) {
      const Case c = {.num_heads = 6, .length = length, .equal_pages = true};
      Fixture f(c);
      const auto attention =
          Create(c, {.top_k = 64, .max_error = 0, .max_unread = max_unread, .window = 100});
      EXPECT_LT(RelativeError(f.Run(*attention, length - 9, 9, 9), f.Truth(length - 9, 9)),
                kMeanTolerance)
          << length;
      EXPECT_GT(attention->counters().rows, 0);
    }
  }
}

TEST_P(SignsTest, GrowingStepByStepEqualsStartingAnew) {
  const Case c = {.length = 700};
  Fixture f(c);
  const SparseOptions options = {.top_k = 64, .max_error = 0, .window = 64};
  const auto grown = Create(c, options);
  for (int64_t first = 0; first < 700; ++first) f.Run(*grown, first, 1, 1);
  EXPECT_EQ(f.Run(*grown, 699, 1, 1), f.Run(*Create(c, options), 699, 1, 1));
  // Tokens written anew replace what the codes were of; once it is said, once it is not.
  for (const int64_t kept : {600, 100}) {
    EXPECT_EQ(f.cache().Truncate(0, kept), kept);
    if (kept == 100) grown->Truncate(0, kept);
    f.Grow(700 - kept);
    f.Run(*grown, kept, 700 - kept, 50);
    EXPECT_EQ(f.Run(*grown, 699, 1, 1), f.Run(*Create(c, options), 699, 1, 1)) << kept;
  }
}

TEST_P(SignsTest, ResultDoesNotDependOnThreads) {
  const Case c = {.length = 900};
  Fixture f(c);
  const SparseOptions options = {.top_k = 128};
  const std::vector<float> one = f.Run(*Create(c, options), 800, 100, 100, 1);
  EXPECT_EQ(f.Run(*Create(c, options), 800, 100, 100, 2), one);
  EXPECT_EQ(f.Run(*Create(c, options), 800, 100, 100, 4), one);
}

// 23 buckets: of fewer all kept keys may lie in the first page, which is always read.
constexpr Case kLong = {.num_heads = 2, .num_kv_heads = 1, .head_dim = 16, .length = 12'000};

TEST_P(SignsTest, SeedDecides) {
  Fixture f(kLong);
  const auto run = [&](uint64_t seed) {
    const SparseOptions options = {.top_k = 64, .max_error = 0, .window = 64, .seed = seed};
    return f.Run(*Create(kLong, options), kLong.length - 9, 9, 9);
  };
  EXPECT_EQ(run(3), run(3));
  EXPECT_NE(run(3), run(4));
  EXPECT_EQ(run(0), run(0));
}

TEST(CsaHcaByHamming, FindsTheKeyThatCounts) {
  const Case c = {.length = 2000, .needle = 777};
  Fixture f(c);
  const auto first_heads = [&](Attention& attention) {
    const std::vector<float> all = f.Run(attention, 1999, 1, 1);
    std::vector<float> heads(all.begin(), all.begin() + 64);
    heads.insert(heads.end(), all.begin() + 7 * 64, all.begin() + 8 * 64);
    return heads;
  };
  const std::vector<float> truth = first_heads(*CreateAttention("eager").value());
  for (const int64_t hash_dim : {64, 128}) {
    const auto error = [&](int64_t top_k) {
      const SparseOptions options = {.top_k = top_k,
                                     .max_error = 0,
                                     .window = 64,
                                     .scores = Scores::kHamming,
                                     .hash_dim = hash_dim};
      return RelativeError(first_heads(*CreateCsaHcaAttention(options, SomeCalibration(c))), truth);
    };
    EXPECT_LT(error(96), 0.01) << hash_dim;
    EXPECT_GT(error(0), 0.3) << "a test that cannot fail";
  }
}

// Of each bucket three keys are kept, and two queries meet two buckets: no budget makes them read
// more than six pages.
TEST(CsaHcaByBuckets, ReadsWhatBucketsNameAndNoMore) {
  constexpr int64_t kWindow = 64, kAlways = kPageTokens + kWindow;
  Fixture f(kLong);
  int64_t most = 0;
  for (int64_t position = kLong.length - 20; position < kLong.length; ++position) {
    const auto attention = CreateCsaHcaAttention({.top_k = 640,
                                                  .max_error = 0,
                                                  .max_unread = position % 2 == 0 ? 0 : 0.01,
                                                  .window = kWindow,
                                                  .scores = Scores::kBuckets},
                                                 SomeCalibration(kLong));
    f.Run(*attention, position, 1, 1);
    const int64_t keys_read = attention->counters().keys_read;
    EXPECT_GE(keys_read, kAlways);
    EXPECT_LT(keys_read, kAlways + kPageTokens + 2 * SignCodes::kKeysKept * kPageTokens);
    most = std::max(most, keys_read);
  }
  EXPECT_GE(most, kAlways + kPageTokens) << "a test that cannot fail";
}

}  // namespace
}  // namespace lode
