// SPDX-License-Identifier: Apache-2.0
#include "cli/console.h"

#include <gtest/gtest.h>

#include "cli/exit_code.h"

namespace lode::cli {
namespace {

TEST(FormatTest, Numbers) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1234567), "1,234,567");
  EXPECT_EQ(FormatCount(-1000), "-1,000");
  EXPECT_EQ(FormatCount(-999), "-999");
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1536), "1.50 KiB");
  EXPECT_EQ(FormatBytes(491400064), "469 MiB");
  EXPECT_EQ(FormatBytes(int64_t{25} << 30), "25.0 GiB");
  EXPECT_EQ(FormatDuration(0.2), "0:01");
  EXPECT_EQ(FormatDuration(187), "3:07");
  EXPECT_EQ(FormatDuration(3723), "1:02:03");
  EXPECT_EQ(FormatFixed(1.25, 1), "1.2");
}

TEST(FormatTest, TablesCountCharactersNotBytes) {
  EXPECT_EQ(FormatTable({{"name", "n"}, {"é", "12"}, {"x"}}), "name   n\né     12\nx\n");
}

TEST(SecondsLeftTest, FitsLinearAndQuadraticJobs) {
  std::vector<std::pair<int64_t, double>> linear, quadratic;
  for (int64_t n = 100; n <= 1000; n += 100) {
    const double x = static_cast<double>(n);
    linear.emplace_back(n, 0.01 * x);
    quadratic.emplace_back(n, 0.01 * x + 1e-5 * x * x);
  }
  EXPECT_NEAR(SecondsLeft(linear, 4000), 30.0, 1e-6);
  EXPECT_NEAR(SecondsLeft(quadratic, 4000), 0.01 * 4000 + 1e-5 * 16e6 - 20.0, 1e-6);
  EXPECT_LT(SecondsLeft({}, 100), 0.0);
  EXPECT_EQ(SecondsLeft({{100, 1.0}}, 100), 0.0);
}

TEST(NearestNameTest, FindsTyposOnly) {
  const std::vector<std::string> names = {"inspect", "tokenize", "run", "pull"};
  EXPECT_EQ(NearestName("inpsect", names), "inspect");
  EXPECT_EQ(NearestName("tokenise", names), "tokenize");
  EXPECT_EQ(NearestName("rnu", names), "run");
  EXPECT_EQ(NearestName("zebra", names), "");
}

TEST(WithHintTest, AddsALine) {
  EXPECT_EQ(WithHint(NotFoundError("x"), "y").message(), "x\nhint: y");
  EXPECT_TRUE(WithHint(OkStatus(), "y").ok());
}

// Scripts depend on these: a change is a breaking one (docs/cli.md).
TEST(ExitCodeTest, IsWhatTheDocumentationSays) {
  EXPECT_EQ(ExitCode(StatusCode::kOk), 0);
  EXPECT_EQ(ExitCode(StatusCode::kInternal), 1);
  EXPECT_EQ(ExitCode(StatusCode::kInvalidArgument), 2);
  EXPECT_EQ(ExitCode(StatusCode::kNotFound), 3);
  EXPECT_EQ(ExitCode(StatusCode::kCorruption), 4);
  EXPECT_EQ(ExitCode(StatusCode::kUnsupported), 5);
  EXPECT_EQ(ExitCode(StatusCode::kResourceExhausted), 6);
  EXPECT_EQ(ExitCode(StatusCode::kIo), 7);
  EXPECT_EQ(ExitCode(StatusCode::kCancelled), 130);
}

}  // namespace
}  // namespace lode::cli
