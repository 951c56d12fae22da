// SPDX-License-Identifier: Apache-2.0
#include "offline/similar_sentences.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>

namespace lode {
namespace {

std::vector<TokenId> Text(int64_t count) {
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  uint32_t seed = 3;
  for (TokenId& token : tokens) {
    seed = seed * 1664525u + 1013904223u;
    token = static_cast<TokenId>((seed >> 8) % 200);
  }
  return tokens;
}

std::unique_ptr<Engine> LoadTiny(EngineOptions options = {}) {
  options.model_path = "tests/data/tiny-qwen2";
  auto engine = Engine::Load(options);
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  return std::move(engine).value();
}

TEST(SimilarSentencesTest, VariantsDifferAndDependOnTheSeed) {
  const std::vector<std::string> variants = SentenceVariants(1000, 1);
  EXPECT_EQ(variants.size(), 1000u);
  EXPECT_GT(std::set(variants.begin(), variants.end()).size(), 990u);
  EXPECT_EQ(variants, SentenceVariants(1000, 1));
  EXPECT_NE(variants, SentenceVariants(1000, 2));
}

TEST(SimilarSentencesTest, SimilarOnesShareMore) {
  const auto engine = LoadTiny();
  SimilarityOptions options;
  options.context_tokens = 330;
  options.variants = 20;
  options.unrelated = 20;
  const auto report = CompareSimilarSentences(*engine, Text(1000), options);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->context_tokens, 320);
  EXPECT_EQ(report->unrelated, 20);
  ASSERT_EQ(report->layers.size(), 3u);
  EXPECT_EQ(report->layers[2].layer, 2);
  const SimilarityRow& all = report->all;
  EXPECT_GT(all.shared_exact, all.unrelated_exact + 0.05);
  EXPECT_GT(all.shared_by_codes, all.unrelated_by_codes + 0.05);
  // Chance would find a tenth of the neighbours.
  EXPECT_GT(all.recall, 0.5);
  EXPECT_LT(all.recall, 1.0);
  EXPECT_EQ(report->buckets, 0);
}

TEST(SimilarSentencesTest, CountsTextOnesBuckets) {
  EngineOptions engine_options;
  engine_options.sparse.scores = SparseOptions::Scores::kBuckets;
  const auto engine = LoadTiny(engine_options);
  SimilarityOptions options;
  options.variants = 12;
  options.unrelated = 2;
  const auto run = [&](int64_t context_tokens) {
    options.context_tokens = context_tokens;
    auto report = CompareSimilarSentences(*engine, Text(context_tokens + 100), options);
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    return std::move(report).value();
  };
  const SimilarityReport one = run(320);
  EXPECT_EQ(one.buckets, 1);
  EXPECT_NEAR(one.all.variant_buckets, 1.0, 1e-9);
  EXPECT_NEAR(one.all.one_bucket, 1.0, 1e-9);
  EXPECT_LE(one.all.bucket_recall, 3.0 / 32.0) << "it keeps three keys";
  const SimilarityReport many = run(2048);
  EXPECT_EQ(many.buckets, 4);
  EXPECT_GT(many.all.variant_buckets, 1.0);
  EXPECT_LE(many.all.variant_buckets, 4.0);
  EXPECT_GE(many.all.one_bucket, 0.25);
  EXPECT_LT(many.all.one_bucket, 1.0);
}

TEST(SimilarSentencesTest, WhereAllKeysAreNeighboursAllAreShared) {
  const auto engine = LoadTiny();
  SimilarityOptions options;
  options.context_tokens = 64;
  options.neighbours = 64;
  options.variants = 3;
  options.unrelated = 2;
  options.max_layers = 1;
  const auto report = CompareSimilarSentences(*engine, Text(200), options);
  ASSERT_TRUE(report.ok());
  ASSERT_EQ(report->layers.size(), 1u);
  EXPECT_NEAR(report->all.shared_by_codes, 1.0, 1e-12);
  EXPECT_NEAR(report->all.unrelated_exact, 1.0, 1e-12);
  EXPECT_NEAR(report->all.recall, 1.0, 1e-12);
}

TEST(SimilarSentencesTest, Refuses) {
  const auto engine = LoadTiny();
  SimilarityOptions options;
  options.context_tokens = 320;
  const auto code = [&](int64_t tokens) {
    return CompareSimilarSentences(*engine, Text(tokens), options).status().code();
  };
  EXPECT_EQ(code(300), StatusCode::kInvalidArgument);
  options.variants = 1;
  EXPECT_EQ(code(320), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lode
