// SPDX-License-Identifier: Apache-2.0
#include "attention/earlier_indices.h"

#include <gtest/gtest.h>

namespace lode {
namespace {

using Text = std::vector<int32_t>;

Text TextOf(int32_t first, int64_t length) {
  Text text;
  for (int64_t i = 0; i < length; ++i) text.push_back(first + static_cast<int32_t>(i));
  return text;
}

// An index that can be told from others: it keeps some pages exact.
SparseIndex IndexWith(int64_t exact_pages) {
  static const Calibration kNone(1, 1, 8, {});
  SparseIndex index(kNone);
  const TokenRange range = {0, exact_pages * kPageTokens};
  index.KeepExact({&range, 1});
  return index;
}

int64_t ExactPages(const std::optional<SparseIndex>& index) {
  return index ? std::ssize(index->ExactPages(0, 1000)) : -1;
}

TEST(EarlierIndices, GivesTheLongestBeginningCutToIt) {
  EarlierIndices earlier;
  EXPECT_EQ(ExactPages(earlier.Take(TextOf(0, 3200), 0)), -1) << "nothing was kept";
  Text fork = TextOf(0, 3200);
  for (size_t i = 1700; i < fork.size(); ++i) fork[i] += 100'000;
  earlier.Keep(TextOf(0, 3200), IndexWith(100));
  earlier.Keep(fork, IndexWith(99));
  EXPECT_EQ(ExactPages(earlier.Take(TextOf(5, 3200), 0)), -1) << "another beginning";
  EXPECT_EQ(ExactPages(earlier.Take(TextOf(0, 2000), 2000)), -1) << "no longer than known";
  EXPECT_EQ(ExactPages(earlier.Take(TextOf(0, 1500), 0)), -1) << "less than half of both";
  EXPECT_EQ(ExactPages(earlier.Take(TextOf(0, 2010), 1750)), 62) << "2,010 tokens, in whole pages";
  EXPECT_EQ(ExactPages(earlier.Take(TextOf(0, 2010), 0)), 53) << "only the fork is left";
  EXPECT_EQ(ExactPages(earlier.Take(TextOf(0, 2010), 0)), -1);
}

TEST(EarlierIndices, ForgetsTheOldestFirst) {
  EarlierIndices earlier;
  for (int32_t i = 0; i < 4; ++i) earlier.Keep(TextOf(10'000 * i, 1600), IndexWith(40 + i));
  earlier.ShrinkTo(2 * 1600 + 5);
  EXPECT_EQ(ExactPages(earlier.Take(TextOf(0, 1600), 0)), -1);
  EXPECT_EQ(ExactPages(earlier.Take(TextOf(10'000, 1600), 0)), -1);
  EXPECT_EQ(ExactPages(earlier.Take(TextOf(30'000, 1600), 0)), 43);
  earlier.ShrinkTo(-1);
  EXPECT_EQ(ExactPages(earlier.Take(TextOf(20'000, 1600), 0)), -1);
}

TEST(EarlierIndices, KeepsNeitherShortTextsNorBeginnings) {
  EarlierIndices earlier;
  earlier.Keep({}, IndexWith(1));
  earlier.Keep(TextOf(0, EarlierIndices::kLeastTokens - 1), IndexWith(2));
  EXPECT_EQ(ExactPages(earlier.Take(TextOf(0, 1600), 0)), -1);
  earlier.Keep(TextOf(0, 1600), IndexWith(40));
  earlier.Keep(TextOf(0, 1920), IndexWith(41));
  EXPECT_EQ(ExactPages(earlier.Take(TextOf(0, 1920), 0)), 41);
  EXPECT_EQ(ExactPages(earlier.Take(TextOf(0, 1920), 0)), -1) << "its beginning gave way to it";
}

}  // namespace
}  // namespace lode
