// SPDX-License-Identifier: Apache-2.0
// A random model finds no needle; what is compared with what can be tested all the same.
#include "offline/needle_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

namespace lode {
namespace {

constexpr char kText[] = "Call me Ishmael. Some years ago I thought I would sail about a little.";

std::unique_ptr<Engine> LoadTiny(KvDType dtype = KvDType::kF16) {
  EngineOptions options;
  options.model_path = "tests/data/tiny-qwen2";
  options.sparse = {
      .top_k = 32, .max_error = 0, .window = 32, .summary = SparseOptions::Summary::kNone};
  options.kv_dtypes = dtype;
  auto engine = Engine::Load(options);
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  return std::move(engine).value();
}

NeedleOptions Options(std::vector<std::string> attentions, std::vector<std::string> tasks) {
  NeedleOptions options;
  options.attentions = std::move(attentions);
  options.tasks = std::move(tasks);
  options.samples = 2;
  options.max_tokens = 1500;
  options.haystack = kText;
  return options;
}

TEST(NeedleRunTest, ExactAttentionAgreesWithItselfAndSparseDoesNot) {
  for (const KvDType dtype : {KvDType::kF16, KvDType::kInt8}) {
    const auto engine = LoadTiny(dtype);
    NeedleOptions options = Options({"flash", "csa_hca"}, {"niah_single_2", "vt"});
    options.chat_template = engine->chat_template().value();
    const auto report = RunNeedles(*engine, options);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    ASSERT_EQ(report->samples.size(), 4u);
    for (const NeedleSample& sample : report->samples) {
      EXPECT_EQ(sample.answers[0].token_ids, sample.exact.token_ids);
      EXPECT_EQ(sample.answers[0].score, sample.exact.score);
      EXPECT_LE(sample.prompt_tokens, 1500);
      EXPECT_GT(sample.prompt_tokens, 1200);
      // The haystack is no part of what the attention under test computes.
      EXPECT_LT(sample.question_tokens, 600);
      EXPECT_GT(sample.question_tokens, 50);
    }
    const NeedleScore total = report->Total();
    EXPECT_EQ(total.samples, 4);
    EXPECT_EQ(total.identical[0], 4);
    EXPECT_LT(total.identical[1], 4);
    const std::vector<NeedleScore> tasks = report->ByTask();
    ASSERT_EQ(tasks.size(), 2u);
    EXPECT_EQ(tasks[0].task, "niah_single_2");
    EXPECT_EQ(tasks[1].samples, 2);
  }
}

TEST(NeedleRunTest, PlainTextWithoutATemplate) {
  const auto engine = LoadTiny();
  const auto report = RunNeedles(*engine, Options({}, {"niah_single_1"}));
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_NE(report->samples[0].references, report->samples[1].references);
  EXPECT_TRUE(report->samples[0].answers.empty());
}

TEST(NeedleRunTest, Refuses) {
  const auto engine = LoadTiny();
  const auto code = [&](const NeedleOptions& options) {
    return RunNeedles(*engine, options).status().code();
  };
  EXPECT_EQ(code(Options({"fast"}, {"vt"})), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Options({}, {"haystack"})), StatusCode::kInvalidArgument);
  NeedleOptions stopped = Options({}, {"niah_single_1"});
  stopped.on_progress = [](int64_t, int64_t) { return false; };
  EXPECT_EQ(code(stopped), StatusCode::kCancelled);
}

TEST(NeedleReportTest, Means) {
  NeedleReport report;
  report.attentions = {"a"};
  const auto add = [&](const char* task, double exact, double score, TokenId token) {
    NeedleSample sample;
    sample.task = task;
    sample.exact = {{.text = "", .token_ids = {1}}, exact};
    sample.answers = {{{.text = "", .token_ids = {token}}, score}};
    report.samples.push_back(sample);
  };
  add("x", 1.0, 0.5, 1);
  add("x", 0.0, 0.5, 2);
  add("y", 1.0, 0.0, 1);
  const std::vector<NeedleScore> tasks = report.ByTask();
  ASSERT_EQ(tasks.size(), 2u);
  EXPECT_EQ(tasks[0].exact, 0.5);
  EXPECT_EQ(tasks[0].scores, std::vector<double>{0.5});
  EXPECT_EQ(tasks[0].identical, std::vector<int64_t>{1});
  EXPECT_NEAR(report.Total().exact, 2.0 / 3, 1e-12);
  EXPECT_NEAR(report.Total().scores[0], 1.0 / 3, 1e-12);
  EXPECT_EQ(report.Total().identical[0], 2);
}

}  // namespace
}  // namespace lode
