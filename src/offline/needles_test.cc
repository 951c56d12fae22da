// SPDX-License-Identifier: Apache-2.0
#include "offline/needles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "offline/needle_words.h"

namespace lode {
namespace {

using testing::HasSubstr;

constexpr char kText[] =
    "Call me Ishmael. Some years ago I thought I would sail about a little! \"Is it so?\" Yes.\n\n"
    "There now is your insular city of the Manhattoes, belted round by wharves.";

int64_t Words(const NeedlePrompt& prompt) {
  std::istringstream words(prompt.context + prompt.question + prompt.answer_prefix);
  int64_t count = 0;
  for (std::string word; words >> word;) ++count;
  return count;
}

NeedleSpec Spec(std::string_view task, int64_t max_tokens = 3000, uint64_t seed = 1) {
  return {.task = std::string(task),
          .seed = seed,
          .max_tokens = max_tokens,
          .haystack = kText,
          .count_tokens = Words};
}

NeedlePrompt Make(const NeedleSpec& spec) {
  auto prompt = MakeNeedlePrompt(spec);
  EXPECT_TRUE(prompt.ok()) << prompt.status().ToString();
  return std::move(prompt).value();
}

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(NeedlesTest, NoWordIsPartOfAnother) {
  std::vector<std::string_view> words(NeedleAdjectives().begin(), NeedleAdjectives().end());
  words.insert(words.end(), NeedleNouns().begin(), NeedleNouns().end());
  for (size_t i = 0; i < words.size(); ++i) {
    for (size_t j = 0; j < words.size(); ++j) {
      EXPECT_TRUE(i == j || words[i].find(words[j]) == std::string_view::npos) << words[i];
    }
  }
}

TEST(NeedlesTest, PromptsFillWhatTheyMayTakeAndDependOnTheSeedAlone) {
  for (const std::string_view task : NeedleTasks()) {
    for (const int64_t max_tokens : {1500, 3000, 9000}) {
      const NeedlePrompt prompt = Make(Spec(task, max_tokens));
      const int64_t tokens = Words(prompt) + prompt.answer_tokens;
      EXPECT_LE(tokens, max_tokens) << task;
      EXPECT_GT(tokens, max_tokens - 30) << task;
      const NeedlePrompt again = Make(Spec(task, max_tokens));
      EXPECT_EQ(prompt.context + prompt.question, again.context + again.question);
      EXPECT_NE(prompt.references, Make(Spec(task, max_tokens, 2)).references);
    }
  }
}

TEST(NeedlesTest, EveryReferenceStandsInTheContextOnce) {
  const std::map<std::string_view, size_t> references = {{"niah_single_1", 1},
                                                         {"niah_single_2", 1},
                                                         {"niah_multikey_1", 1},
                                                         {"niah_multivalue", 4},
                                                         {"niah_multiquery", 4}};
  for (const auto& [task, expected] : references) {
    const NeedlePrompt prompt = Make(Spec(task));
    ASSERT_EQ(prompt.references.size(), expected) << task;
    EXPECT_EQ(std::set(prompt.references.begin(), prompt.references.end()).size(), expected);
    for (const std::string& reference : prompt.references) {
      EXPECT_EQ(reference.size(), 7u);
      EXPECT_EQ(Count(prompt.context, reference), 1u) << task;
      EXPECT_EQ(Count(prompt.question + prompt.answer_prefix, reference), 0u) << task;
      // The key that it belongs to is asked for.
      const std::string_view before = "numbers for ";
      const size_t end = prompt.context.find(" is: " + reference + ".");
      ASSERT_NE(end, std::string::npos) << task;
      const size_t begin = prompt.context.rfind(before, end) + before.size();
      const std::string key = prompt.context.substr(begin, end - begin);
      EXPECT_EQ(key.find_first_not_of("abcdefghijklmnopqrstuvwxyz-"), std::string::npos) << key;
      EXPECT_THAT(prompt.question, HasSubstr(key));
    }
    const size_t needles = task == "niah_single_1" || task == "niah_single_2" ? 1 : 4;
    EXPECT_EQ(Count(prompt.context, "One of the special magic numbers"), needles);
    EXPECT_EQ(Count(prompt.context, "The grass is green.") > 10, task == "niah_single_1");
    EXPECT_EQ(Count(prompt.context, "Call me Ishmael.") > 2, task != "niah_single_1");
  }
}

TEST(NeedlesTest, NeedlesLieAtAllDepthsAndBetweenSentences) {
  double lowest = 1.0, highest = 0.0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const NeedlePrompt prompt = Make(Spec("niah_single_2", 1500, seed));
    const size_t at = prompt.context.find("One of the special");
    const double depth = static_cast<double>(at) / static_cast<double>(prompt.context.size());
    lowest = std::min(lowest, depth);
    highest = std::max(highest, depth);
    EXPECT_THAT(std::string(".!?\"\n"), HasSubstr(prompt.context.substr(at - 1, 1) == "\n"
                                                      ? "\n"
                                                      : prompt.context.substr(at - 2, 1)));
  }
  EXPECT_LT(lowest, 0.1);
  EXPECT_GT(highest, 0.9);
}

TEST(NeedlesTest, VariablesFormAChain) {
  const NeedlePrompt prompt = Make(Spec("vt"));
  ASSERT_EQ(prompt.references.size(), 5u);
  size_t last = 0;
  for (size_t i = 0; i < 5; ++i) {
    const std::string value = i == 0 ? "" : "VAR " + prompt.references[i - 1];
    const size_t at = prompt.context.find("VAR " + prompt.references[i] + " = " + value);
    ASSERT_NE(at, std::string::npos);
    EXPECT_GT(at, last);  // in order
    last = at;
  }
  EXPECT_THAT(prompt.answer_prefix, HasSubstr("5 variables are assigned the value"));
  // The example before it has its own chain and its answer.
  EXPECT_EQ(Count(prompt.context, "they are: "), 1u);
}

TEST(NeedlesTest, TheListRepeatsTheCommonWords) {
  for (const auto& [max_tokens, common, rare] :
       {std::tuple<int64_t, size_t, size_t>{2000, 6, 1}, {4096, 30, 3}, {12000, 30, 3}}) {
    const NeedlePrompt prompt = Make(Spec("cwe", max_tokens));
    const std::string list = prompt.context.substr(prompt.context.rfind("Memorize"));
    std::map<std::string, size_t> counts;
    std::istringstream words(list.substr(list.find('\n')));
    for (std::string number, word; words >> number >> word;) ++counts[word];
    ASSERT_EQ(prompt.references.size(), 10u);
    for (const auto& [word, count] : counts) {
      const bool is_common = std::count(prompt.references.begin(), prompt.references.end(), word);
      EXPECT_EQ(count, is_common ? common : rare) << word;
    }
  }
}

TEST(NeedlesTest, WithoutATextTheHaystackIsNoise) {
  NeedleSpec spec = Spec("niah_multivalue");
  spec.haystack = " \n";
  EXPECT_GT(Count(Make(spec).context, "The grass is green."), 100u);
}

TEST(NeedlesTest, Scores) {
  const std::vector<std::string> references = {"ABCDE", "1234567", "red"};
  EXPECT_EQ(ScoreAnswer("abcde and 1234567, Red", references), 1.0);
  EXPECT_NEAR(ScoreAnswer("1234567", references), 1.0 / 3, 1e-12);
  EXPECT_EQ(ScoreAnswer("", references), 0.0);
}

TEST(NeedlesTest, Refuses) {
  const auto message = [](const NeedleSpec& spec) {
    return MakeNeedlePrompt(spec).status().message();
  };
  EXPECT_THAT(message(Spec("niah")), HasSubstr("expected one of niah_single_1, "));
  EXPECT_THAT(message(Spec("vt", 100)), HasSubstr("expected at most 100"));
}

}  // namespace
}  // namespace lode
