// SPDX-License-Identifier: Apache-2.0
#include "cli/perplexity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lode::cli {
namespace {

using testing::ElementsAre;
using Window = PerplexityWindow;

TEST(PerplexityWindowsTest, FirstScoresAllLaterOnesTheNewPart) {
  EXPECT_THAT(PerplexityWindows(10, 6, 3, false),
              ElementsAre(Window{0, 1, 6}, Window{3, 6, 9}, Window{6, 9, 10}));
}

TEST(PerplexityWindowsTest, BosTakesAPlaceAndLetsTheFirstTokenBeScored) {
  EXPECT_THAT(PerplexityWindows(10, 6, 3, true),
              ElementsAre(Window{0, 0, 5}, Window{3, 5, 8}, Window{6, 8, 10}));
}

TEST(PerplexityWindowsTest, ShortTexts) {
  EXPECT_THAT(PerplexityWindows(4, 6, 3, false), ElementsAre(Window{0, 1, 4}));
  EXPECT_THAT(PerplexityWindows(6, 6, 6, false), ElementsAre(Window{0, 1, 6}));
  EXPECT_TRUE(PerplexityWindows(0, 6, 3, true).empty());
}

TEST(PerplexityWindowsTest, EveryTokenIsScoredOnce) {
  for (int64_t tokens = 2; tokens < 40; ++tokens) {
    for (int64_t window = 3; window < 12; ++window) {
      for (int64_t stride = 1; stride < window; ++stride) {
        for (const bool has_bos : {false, true}) {
          if (has_bos && stride > window - 1) continue;
          int64_t next = has_bos ? 0 : 1;
          for (const Window& w : PerplexityWindows(tokens, window, stride, has_bos)) {
            EXPECT_EQ(w.first_scored, next);
            EXPECT_LE(w.end - w.begin + (has_bos ? 1 : 0), window);
            EXPECT_GE(w.first_scored, w.begin);
            next = w.end;
          }
          EXPECT_EQ(next, tokens);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lode::cli
