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
  EXPECT_EQ(ExactPages(earlier.Take(TextOf(0, 320), 0)), -1) << "nothing was kept";
  Text fork = TextOf(0, 320);
  for (size_t i = 100; i < fork.size(); ++i) fork[i] += 1000;
  earlier.Keep(TextOf(0, 320), IndexWith(10));
  earlier.Keep(fork, IndexWith(9));
  EXPECT_EQ(ExactPages(earlier.Take(TextOf(5, 320), 0)), -1) << "another beginning";
  EXPECT_EQ(ExactPages(earlier.Take(TextOf(0, 200), 200)), -1) << "no longer than known";
  EXPECT_EQ(ExactPages(earlier.Take(TextOf(0, 200), 150)), 6) << "200 tokens are six whole pages";
  EXPECT_EQ(ExactPages(earlier.Take(TextOf(0, 200), 0)), 3) << "only the fork is left";
  EXPECT_EQ(ExactPages(earlier.Take(TextOf(0, 200), 0)), -1);
}

TEST(EarlierIndices, ForgetsTheOldestFirst) {
  EarlierIndices earlier;
  for (int32_t i = 0; i < 4; ++i) earlier.Keep(TextOf(1000 * i, 100), IndexWith(1 + i));
  earlier.ShrinkTo(250);
  EXPECT_EQ(ExactPages(earlier.Take(TextOf(0, 100), 0)), -1);
  EXPECT_EQ(ExactPages(earlier.Take(TextOf(1000, 100), 0)), -1);
  EXPECT_EQ(ExactPages(earlier.Take(TextOf(3000, 100), 0)), 3) << "100 tokens are three pages";
  earlier.ShrinkTo(-1);
  EXPECT_EQ(ExactPages(earlier.Take(TextOf(2000, 100), 0)), -1);
}

}  // namespace
}  // namespace lode
