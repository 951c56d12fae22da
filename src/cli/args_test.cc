// SPDX-License-Identifier: Apache-2.0
#include "cli/args.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lode::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Values {
  std::string model = "default.gguf", file, word;
  std::vector<std::string> stops;
  std::vector<int64_t> depths = {0};
  int64_t count = 5;
  float temperature = 0.7f;
  bool verbose = false;
};

class ArgsTest : public testing::Test {
 protected:
  ArgsTest() {
    args_.Positional("FILE", &values_.file, true, "A file.");
    args_.Positional("WORD", &values_.word, false, "A word.");
    args_.Text("-m, --model", "PATH", &values_.model, "The model.");
    args_.Texts("--stop", "TEXT", &values_.stops, "Stop.");
    args_.Int("-n, --max-tokens", "N", &values_.count, {.min = 0, .max = 1 << 20}, "Tokens.");
    args_.Group("Numbers");
    args_.Ints("-d, --depth", "LIST", &values_.depths, {.min = 0}, "Depths.");
    args_.Real("--temperature", "T", &values_.temperature, "Temperature.");
    args_.Flag("-v, --verbose", &values_.verbose, "Say more.");
  }

  Status Parse(const ArgList& list) { return args_.Parse(list, console_).status(); }

  Console console_;
  Values values_;
  Args args_{"try", "FILE [OPTIONS]", "Tries.", "  lode try x\n"};
};

TEST_F(ArgsTest, ReadsEveryKind) {
  ASSERT_TRUE(Parse({"in.txt", "-m", "a b.gguf", "--stop=x", "--stop", "=y", "-n", "8K", "-d",
                     "0,2k,3", "--temperature", "1.5", "-v", "more"})
                  .ok());
  EXPECT_EQ(values_.file, "in.txt");
  EXPECT_EQ(values_.word, "more");
  EXPECT_EQ(values_.model, "a b.gguf");
  EXPECT_THAT(values_.stops, ElementsAre("x", "=y"));
  EXPECT_EQ(values_.count, 8192);
  EXPECT_THAT(values_.depths, ElementsAre(0, 2000, 3));
  EXPECT_EQ(values_.temperature, 1.5f);
  EXPECT_TRUE(values_.verbose);
  EXPECT_TRUE(args_.Given("--model"));
}

TEST_F(ArgsTest, DefaultsStayAndUnderscoresAreDashes) {
  ASSERT_TRUE(Parse({"--max_tokens=7", "f"}).ok());
  EXPECT_EQ(values_.count, 7);
  EXPECT_EQ(values_.model, "default.gguf");
  EXPECT_FALSE(args_.Given("-m"));
}

TEST_F(ArgsTest, LastOneWins) {
  ASSERT_TRUE(Parse({"f", "-n", "1", "-n", "2"}).ok());
  EXPECT_EQ(values_.count, 2);
}

TEST_F(ArgsTest, ValuesMayLookOdd) {
  ASSERT_TRUE(Parse({"-", "--stop", "-5", "--stop", "", "--stop", "--- x", "--", "--model"}).ok());
  EXPECT_EQ(values_.file, "-");
  EXPECT_EQ(values_.word, "--model");
  EXPECT_THAT(values_.stops, ElementsAre("-5", "", "--- x"));
}

TEST_F(ArgsTest, MistakesAreNamed) {
  const auto message = [&](const ArgList& list) { return Parse(list).message(); };
  EXPECT_THAT(message({"f", "--modle", "x"}),
              HasSubstr("unknown option --modle\nhint: did you mean --model?"));
  EXPECT_THAT(message({"f", "--zzzzzzzz"}), HasSubstr("`lode try --help`"));
  EXPECT_THAT(message({}), HasSubstr("missing FILE"));
  EXPECT_THAT(message({"a", "b", "c"}), HasSubstr("unexpected argument 'c'"));
  EXPECT_THAT(message({"f", "-n"}), HasSubstr("-n: expected N, found nothing"));
  EXPECT_THAT(message({"f", "-m", "-v"}), HasSubstr("found the option -v"));
  EXPECT_THAT(message({"f", "--verbose=1"}), HasSubstr("expected no value"));
  EXPECT_THAT(message({"f", "-n", "x"}),
              HasSubstr("-n: expected an integer from 0 to 1048576, found 'x'"));
  EXPECT_THAT(message({"f", "-n", "-1"}), HasSubstr("found '-1'"));
  EXPECT_THAT(message({"f", "-n", "99999999999999999999"}), HasSubstr("expected an integer"));
  EXPECT_THAT(message({"f", "-n", "9223372036854775807K"}), HasSubstr("expected an integer"));
  EXPECT_THAT(message({"f", "-n", "5x"}), HasSubstr("expected an integer"));
  EXPECT_THAT(message({"f", "--temperature", "1,5"}), HasSubstr("expected a number, found '1,5'"));
  EXPECT_THAT(message({"f", "-d", "1,,2"}), HasSubstr("expected an integer"));
}

TEST_F(ArgsTest, HelpShowsEverythingWithDefaults) {
  const std::string help = args_.Help(console_);
  for (const char* part :
       {"Usage: lode try FILE [OPTIONS]", "Tries.", "lode try x", "-m, --model PATH",
        "(default: default.gguf)", "(default: 5)", "(default: 0.7)", "Numbers", "-h, --help"}) {
    EXPECT_THAT(help, HasSubstr(part));
  }
}

}  // namespace
}  // namespace lode::cli
