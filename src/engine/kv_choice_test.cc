// SPDX-License-Identifier: Apache-2.0
// The choice of cache types on a tiny random model.
#include "engine/kv_choice.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/engine.h"

namespace lode {
namespace {

std::unique_ptr<Engine> LoadTiny(int64_t budget_bytes) {
  EngineOptions options;
  options.model_path = "tests/data/tiny-qwen2";
  options.num_threads = 2;
  options.choose_kv_dtypes = true;
  options.kv_memory_bytes = budget_bytes;
  auto engine = Engine::Load(options);
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  return std::move(engine).value();
}

int64_t BytesIn(const Engine& engine, KvDTypes dtypes) {
  KvCacheOptions options = engine.cache().options();
  options.dtypes = dtypes;
  return KvCache::BytesFor(options, engine.options().context_len);
}

TEST(KvChoiceTest, MeanKlIsTheFormula) {
  const std::vector<float> p = {std::log(0.5f), std::log(0.5f), std::log(0.9f), std::log(0.1f)};
  const std::vector<float> q = {std::log(0.25f), std::log(0.75f), std::log(0.9f), std::log(0.1f)};
  EXPECT_EQ(MeanKl(p, p, 2), 0.0);
  EXPECT_NEAR(MeanKl(p, q, 2), (0.5 * std::log(2.0) + 0.5 * std::log(0.5 / 0.75)) / 2, 1e-6);
}

TEST(KvChoiceTest, TakesTheMostExactThatIsSmaller) {
  const auto engine = LoadTiny(0);
  EXPECT_EQ(engine->options().kv_dtypes, KvDTypes(KvDType::kInt8));
  EXPECT_EQ(engine->cache().options().dtypes, KvDTypes(KvDType::kInt8));
  const std::string& reason = engine->kv_choice_reason();
  EXPECT_NE(reason.find("KV cache in int8: int8 differs from f16 by"), std::string::npos) << reason;
}

TEST(KvChoiceTest, TakesWhatFitsTheBudget) {
  const auto any = LoadTiny(0);
  const int64_t bytes = BytesIn(*any, KvDTypes(KvDType::kInt8, KvDType::kInt4));
  ASSERT_LT(bytes, BytesIn(*any, KvDType::kInt8));
  const auto engine = LoadTiny(bytes);
  const KvDTypes chosen = engine->options().kv_dtypes;
  EXPECT_NE(chosen, KvDTypes(KvDType::kInt8));
  EXPECT_LE(BytesIn(*engine, chosen), bytes);
  const std::string& reason = engine->kv_choice_reason();
  EXPECT_NE(reason.find("int8 does not fit, "), std::string::npos) << reason;
}

TEST(KvChoiceTest, ACandidateIsMeasured) {
  const auto engine = LoadTiny(0);
  const std::vector<TokenId> tokens = KvTestTokens(engine->tokenizer());
  EXPECT_EQ(static_cast<int64_t>(tokens.size()), kKvTestTokens);
}

}  // namespace
}  // namespace lode
