// SPDX-License-Identifier: Apache-2.0
// Fidelity on a tiny random model: exact attentions must come out exact, a sparse one must not.
#include "offline/fidelity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

namespace lode {
namespace {

std::unique_ptr<Engine> LoadTiny(SparseOptions sparse = {}, KvDType dtype = KvDType::kF16) {
  EngineOptions options;
  options.model_path = "tests/data/tiny-qwen2";
  options.sparse = sparse;
  options.kv_dtypes = dtype;
  auto engine = Engine::Load(options);
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  return std::move(engine).value();
}

std::vector<TokenId> Text(int64_t count) {
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  uint32_t seed = 3;
  for (TokenId& token : tokens) {
    seed = seed * 1664525u + 1013904223u;
    token = static_cast<TokenId>((seed >> 8) % 200);
  }
  return tokens;
}

FidelityOptions Options(std::vector<std::string> attentions) {
  FidelityOptions options;
  options.attentions = std::move(attentions);
  options.prompt_tokens = 500;
  options.steps = 6;
  options.sparse_prefill = 33;
  return options;
}

TEST(FidelityTest, KlDivergenceOfTwoCoins) {
  const std::vector<float> even = {1.0f, 1.0f}, odd = {std::log(3.0f), 0.0f};
  EXPECT_NEAR(KlDivergence(even, odd), 0.5 * std::log(0.5 / 0.75) + 0.5 * std::log(2.0), 1e-7);
  EXPECT_NEAR(KlDivergence(odd, odd), 0.0, 1e-12);
  EXPECT_NEAR(LogProbabilityOf(odd, 0), std::log(0.75), 1e-7);
}

TEST(FidelityTest, ExactAttentionsHaveNoLoss) {
  for (const KvDType dtype : {KvDType::kF16, KvDType::kInt8}) {
    const auto engine = LoadTiny({}, dtype);
    const auto report = MeasureFidelity(*engine, Text(487), Options({"flash", "eager"}));
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(report->prompt_tokens, 480);
    EXPECT_EQ(report->steps, 6);
    EXPECT_GT(report->exact_perplexity, 1.0);
    ASSERT_EQ(report->rows.size(), 4u);
    for (const FidelityRow& row : report->rows) {
      const bool is_decode = &row - report->rows.data() < 2;
      EXPECT_EQ(row.sparse_prefill, is_decode ? 0 : 64);
      EXPECT_LT(row.max_kl, 1e-4) << row.attention;
      EXPECT_EQ(row.same_top1, 1.0);
      EXPECT_NEAR(row.perplexity_ratio, 1.0, 1e-2);
    }
    // The same bits from the same cache: what was run between has left nothing behind.
    EXPECT_NEAR(report->rows[0].mean_kl, 0.0, 1e-12);
    EXPECT_NEAR(report->rows[0].perplexity_ratio, 1.0, 1e-12);
  }
}

TEST(FidelityTest, WhatIsLeftOutIsSeen) {
  FidelityOptions options = Options({"csa_hca"});
  const auto sparse = MeasureFidelity(
      *LoadTiny(
          {.top_k = 32, .max_error = 0, .window = 32, .summary = SparseOptions::Summary::kNone}),
      Text(487), options);
  ASSERT_TRUE(sparse.ok()) << sparse.status().ToString();
  ASSERT_EQ(sparse->rows.size(), 2u);
  for (const FidelityRow& row : sparse->rows) {
    EXPECT_GT(row.mean_kl, 1e-5);
    EXPECT_GE(row.max_kl, row.mean_kl);
    EXPECT_LT(row.counters.keys_read, row.counters.keys / 2);
    EXPECT_GT(row.counters.keys_read, 0);
  }
  // The prompt's end adds its queries.
  EXPECT_GT(sparse->rows[1].counters.keys, sparse->rows[0].counters.keys);
  // With everything read nothing is lost.
  const auto whole = MeasureFidelity(*LoadTiny({.top_k = 1 << 20}), Text(487), options);
  ASSERT_TRUE(whole.ok());
  for (const FidelityRow& row : whole->rows) EXPECT_LT(row.max_kl, 1e-6);
}

TEST(FidelityTest, APromptThatIsCachedIsNotRunAgain) {
  const std::vector<TokenId> text = Text(487);
  FidelityOptions options = Options({"csa_hca"});
  options.sparse_prefill = 0;
  int64_t first = 0;
  options.on_progress = [&](int64_t done, int64_t) {
    if (first == 0) first = done;
    return true;
  };
  const auto engine = LoadTiny({.top_k = 32, .window = 32});
  const auto fresh = MeasureFidelity(*engine, text, options);
  ASSERT_TRUE(fresh.ok());
  // What follows the prompt is there as well, and other text behind it.
  ASSERT_TRUE(engine->Append({1, 2, 3}).ok());
  options.cached_tokens = 480;
  first = 0;
  const auto again = MeasureFidelity(*engine, text, options);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(first, 480);
  EXPECT_EQ(again->rows[0].mean_kl, fresh->rows[0].mean_kl);
}

TEST(FidelityTest, AuditsAreReported) {
  FidelityOptions options = Options({"csa_hca", "flash"});
  options.sparse_prefill = 0;
  const auto report =
      MeasureFidelity(*LoadTiny({.top_k = 32, .max_error = 0, .window = 32, .audit_interval = 1}),
                      Text(487), options);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ASSERT_TRUE(report->rows[0].audited());
  EXPECT_GT(report->rows[0].MissedMass(), 0.0);
  EXPECT_LT(report->rows[0].MissedMass(), 1.0);
  // 256 keys were asked for, some 128 were read.
  EXPECT_GT(report->rows[0].Recall(), 0.1);
  EXPECT_LT(report->rows[0].Recall(), 0.6);
  EXPECT_FALSE(report->rows[1].audited());
}

TEST(FidelityTest, RefusesWhatCannotBeMeasured) {
  const auto engine = LoadTiny();
  const auto code = [&](const std::vector<TokenId>& text, const FidelityOptions& options) {
    return MeasureFidelity(*engine, text, options).status().code();
  };
  EXPECT_EQ(code(Text(486), Options({"flash"})), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Text(487), Options({"fast"})), StatusCode::kInvalidArgument);
  FidelityOptions options = Options({"flash"});
  options.steps = 0;
  EXPECT_EQ(code(Text(487), options), StatusCode::kInvalidArgument);
  options = Options({"flash"});
  int64_t last = 0, all = 0;
  options.on_progress = [&](int64_t done, int64_t total) {
    last = done;
    all = total;
    return true;
  };
  EXPECT_EQ(code(Text(487), options), StatusCode::kOk);
  EXPECT_EQ(last, all);
  options.on_progress = [](int64_t, int64_t) { return false; };
  EXPECT_EQ(code(Text(487), options), StatusCode::kCancelled);
}

}  // namespace
}  // namespace lode
