// SPDX-License-Identifier: Apache-2.0
#include "offline/output_audit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace lode {
namespace {

// Writes the same output for every head: `scale` times (1, 2, 3, ...), turned by `turn`.
class FixedAttention final : public Attention {
 public:
  FixedAttention(float scale, float turn) : scale_(scale), turn_(turn) {}
  void Forward(const AttentionInputs& inputs, const KvCache& cache, ThreadPool&, float* out,
               int64_t out_stride) override {
    const int64_t head_dim = cache.options().head_dim;
    for (int64_t t = 0; t < inputs.num_tokens; ++t) {
      for (int64_t i = 0; i < inputs.num_heads * head_dim; ++i) {
        const bool is_first = i % head_dim == 0, is_second = i % head_dim == 1;
        const float x = is_first ? std::cos(turn_) : is_second ? std::sin(turn_) : 0.0f;
        out[t * out_stride + i] = scale_ * x;
      }
    }
  }
  void Truncate(SequenceId, int64_t length) override { truncated = length; }
  int64_t truncated = -1;

 private:
  float scale_, turn_;
};

TEST(OutputAuditTest, CosineAndErrorOfKnownVectors) {
  KvCacheOptions options;
  options.num_layers = 4;
  options.num_kv_heads = 1;
  options.head_dim = 8;
  options.max_tokens = 64;
  const auto cache = KvCache::Create(options).value();
  ThreadPool pool(1);
  auto exact = std::make_unique<FixedAttention>(2.0f, 0.0f);
  auto tested = std::make_unique<FixedAttention>(2.0f, std::numbers::pi_v<float> / 3);
  FixedAttention* seen = tested.get();
  OutputAudit audit(std::move(exact), std::move(tested));
  AttentionInputs inputs;
  inputs.layer = 2;
  inputs.num_tokens = 3;
  inputs.num_heads = 2;
  std::vector<float> out(3 * 20, -1.0f);
  audit.Forward(inputs, *cache, pool, out.data(), 20);
  EXPECT_EQ(out[0], 2.0f);  // what exact attention says goes on
  EXPECT_EQ(out[1], 0.0f);
  EXPECT_EQ(out[16], -1.0f);
  ASSERT_EQ(audit.layers().size(), 3u);
  EXPECT_EQ(audit.layers()[0].outputs, 0);
  const OutputErrors& errors = audit.layers()[2];
  EXPECT_EQ(errors.outputs, 6);
  EXPECT_NEAR(errors.mean_cosine, 0.5, 1e-6);
  EXPECT_NEAR(errors.min_cosine, 0.5, 1e-6);
  EXPECT_NEAR(errors.mean_error, 1.0, 1e-6);
  audit.Truncate(0, 7);
  EXPECT_EQ(seen->truncated, 7);
}

TEST(OutputAuditTest, MeansWeighByTheNumberOfOutputs) {
  OutputErrors errors;
  errors.Add(0.5, 0.2);
  errors.Add(
      {.outputs = 3, .mean_cosine = 0.9, .min_cosine = 0.1, .mean_error = 0.4, .max_error = 2});
  EXPECT_EQ(errors.outputs, 4);
  EXPECT_NEAR(errors.mean_cosine, 0.8, 1e-12);
  EXPECT_NEAR(errors.mean_error, 0.35, 1e-12);
  EXPECT_EQ(errors.min_cosine, 0.1);
  EXPECT_EQ(errors.max_error, 2.0);
}

TEST(OutputAuditTest, ATinyModelsLayers) {
  EngineOptions options;
  options.model_path = "tests/data/tiny-qwen2";
  options.sparse = {.top_k = 32, .max_error = 0, .window = 32};
  auto engine = Engine::Load(options);
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  std::vector<TokenId> text;
  text.reserve(500);
  for (int i = 0; i < 500; ++i) text.push_back(i * i % 199);
  OutputAuditOptions audit;
  audit.attentions = {"eager", "csa_hca"};
  audit.prompt_tokens = 480;
  audit.steps = 4;
  const auto report = AuditOutputs(**engine, text, audit);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ASSERT_EQ(report->rows.size(), 2u);
  for (const OutputAuditReport::Row& row : report->rows) {
    ASSERT_EQ(row.layers.size(), 3u);
    EXPECT_EQ(row.all.outputs, 3 * 4 * 4);  // layers, steps, heads
    EXPECT_LE(row.all.min_cosine, row.all.mean_cosine);
  }
  EXPECT_GT(report->rows[0].all.min_cosine, 1 - 1e-6);
  EXPECT_LT(report->rows[0].all.max_error, 1e-3);
  EXPECT_LT(report->rows[1].all.mean_cosine, 0.999);
  EXPECT_GT(report->rows[1].all.mean_error, 1e-2);
  // The cache is as exact attention left it: the same again without a new prefill.
  audit.cached_tokens = 480;
  audit.attentions = {"csa_hca"};
  const auto again = AuditOutputs(**engine, text, audit);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->rows[0].all.mean_cosine, report->rows[1].all.mean_cosine);
  audit.prompt_tokens = 600;
  EXPECT_EQ(AuditOutputs(**engine, text, audit).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lode
