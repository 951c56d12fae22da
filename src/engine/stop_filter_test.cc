// SPDX-License-Identifier: Apache-2.0
#include "engine/stop_filter.h"

#include <gtest/gtest.h>

#include <random>

namespace lode {
namespace {

TEST(StopFilterTest, PassesTextThroughWithoutStops) {
  StopFilter filter({""});
  EXPECT_EQ(filter.Push("abc"), "abc");
  EXPECT_EQ(filter.Finish(), "");
}

TEST(StopFilterTest, HoldsBackWhatMayBecomeAStop) {
  StopFilter filter({"\n\nQ:"});
  EXPECT_EQ(filter.Push("yes\n"), "yes");
  EXPECT_EQ(filter.Push("\nQ"), "");
  EXPECT_EQ(filter.Push("uite"), "\n\nQuite");
  EXPECT_FALSE(filter.stopped());
}

TEST(StopFilterTest, CutsAtTheEarliestStop) {
  StopFilter filter({"END", "ND"});
  EXPECT_EQ(filter.Push("the E"), "the ");
  EXPECT_EQ(filter.Push("ND and more"), "");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.Push("x"), "");
}

TEST(StopFilterTest, ReleasesTheHeldTextAtTheEnd) {
  StopFilter filter({"stop"});
  EXPECT_EQ(filter.Push("nonst"), "non");
  EXPECT_EQ(filter.Finish(), "st");
}

// However a text is cut into pieces, what is shown is the text before the first stop.
TEST(StopFilterTest, DoesNotDependOnTheCuts) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 40; ++i) text.push_back("ab"[random() % 2]);
    const std::vector<std::string> stops = {"abaab", "bbbb", "babab"};
    size_t expected = text.size();
    for (const auto& stop : stops) expected = std::min(expected, text.find(stop));
    StopFilter filter(stops);
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t n = 1 + random() % 4;
      shown += filter.Push(std::string_view(text).substr(at, n));
      at += n;
    }
    if (!filter.stopped()) shown += filter.Finish();
    EXPECT_EQ(shown, text.substr(0, expected));
  }
}

}  // namespace
}  // namespace lode
