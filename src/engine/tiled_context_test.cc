// SPDX-License-Identifier: Apache-2.0
// Tiled contexts against keys that were computed at their positions.
#include "engine/tiled_context.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "attention/kv_chunk.h"
#include "engine/engine.h"
#include "kernels/rope.h"
#include "models/rope.h"

namespace lode {
namespace {

constexpr int64_t kTile = kernels::kKvTileTokens;

// Keys [tokens, head_dim] and values of one head.
struct HeadRows {
  std::vector<float> k, v;
};

HeadRows ReadHead(const KvCache& cache, int32_t layer, int32_t head, int64_t tokens) {
  const int64_t dim = cache.options().head_dim;
  HeadRows rows;
  rows.k.resize(static_cast<size_t>(tokens * dim));
  rows.v.resize(rows.k.size());
  std::vector<float> keys(static_cast<size_t>(dim * kTile)), values(keys.size());
  for (int64_t first = 0; first < tokens; first += kTile) {
    const int64_t end = std::min(first + kTile, tokens);
    const KvChunk chunk(cache, 0, layer, head, first, end);
    chunk.DecodeKeys(keys.data());
    chunk.DecodeValues(values.data(), dim);
    for (int64_t i = 0; i < (end - first) * dim; ++i) {
      const int64_t t = i / dim, d = i % dim;
      rows.k[static_cast<size_t>(first * dim + i)] = keys[static_cast<size_t>(d * kTile + t)];
      rows.v[static_cast<size_t>(first * dim + i)] = values[static_cast<size_t>(i)];
    }
  }
  return rows;
}

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
  }
  return largest;
}

// A cache whose keys are made up before RoPE: row p has the numbers of row p % period.
class MadeUpContext {
 public:
  MadeUpContext(const ModelConfig& config, KvDType dtype, int64_t max_tokens, int64_t period)
      : config_(config), period_(period) {
    KvCacheOptions options;
    options.num_layers = static_cast<int32_t>(config.num_layers);
    options.num_kv_heads = static_cast<int32_t>(config.num_kv_heads);
    options.head_dim = static_cast<int32_t>(config.head_dim);
    options.dtypes = dtype;
    options.max_tokens = max_tokens;
    cache_ = KvCache::Create(options).value();
    EXPECT_EQ(cache_->AddSequence().value(), 0);
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    raw_.resize(static_cast<size_t>(2 * period * row()));
    for (float& x : raw_) x = normal(random);
  }

  KvCache& cache() { return *cache_; }

  // Stores tokens up to `length` as a model would.
  void Store(int64_t length) {
    const int64_t first = cache_->Length(0);
    ASSERT_TRUE(cache_->Extend(0, length - first).ok());
    for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
      const bool slides = config_.layer_slides[static_cast<size_t>(layer)];
      const RopeTable rope(slides ? config_.rope_local : config_.rope, config_.head_dim,
                           cache_->options().max_tokens);
      std::vector<float> cos(static_cast<size_t>(config_.head_dim / 2)), sin(cos);
      for (int64_t p = first; p < length; ++p) {
        const auto from = raw_.begin() + 2 * (p % period_) * row();
        std::vector<float> k(from, from + row()), v(from + row(), from + 2 * row());
        rope.Fill(p, cos.data(), sin.data());
        kernels::ApplyRope(k.data(), config_.num_kv_heads, config_.head_dim, cos.data(), sin.data(),
                           config_.rope_interleaved);
        cache_->Store(static_cast<int32_t>(layer), 0, p, 1, k.data(), v.data());
      }
    }
  }

 private:
  int64_t row() const { return config_.num_kv_heads * config_.head_dim; }

  const ModelConfig config_;
  const int64_t period_;
  std::unique_ptr<KvCache> cache_;
  std::vector<float> raw_;  // [period][keys, values]
};

// Two layers, one with the local rope.
ModelConfig SmallConfig() {
  ModelConfig config;
  config.num_layers = 2;
  config.num_kv_heads = 3;
  config.head_dim = 40;
  config.sliding_window = 16;
  config.layer_slides = {false, true};
  config.rope_local.base = 500.0;
  return config;
}

void ExpectTiledIsStored(const ModelConfig& config, KvDType dtype, double tolerance) {
  // All three sizes of tiles are in the prefill; the copies end inside a tile.
  const int64_t prefill = 1184, length = 3 * prefill + 517;
  MadeUpContext tiled(config, dtype, length, prefill), stored(config, dtype, length, prefill);
  tiled.Store(prefill);
  stored.Store(length);
  ThreadPool pool(2);
  for (const int64_t part : {2 * prefill + 96, length}) {
    ASSERT_TRUE(TileContext(config, length, {0, prefill, part}, tiled.cache(), pool).ok());
  }
  ASSERT_EQ(tiled.cache().Length(0), length);
  for (int32_t layer = 0; layer < 2; ++layer) {
    for (int32_t head = 0; head < config.num_kv_heads; ++head) {
      const HeadRows a = ReadHead(tiled.cache(), layer, head, length);
      const HeadRows b = ReadHead(stored.cache(), layer, head, length);
      EXPECT_LE(LargestDifference(a.k, b.k), tolerance) << layer << " " << head;
      EXPECT_LE(LargestDifference(a.v, b.v), tolerance) << layer << " " << head;
    }
  }
}

// Two roundings in the place of one: of magnitudes up to 5 (7 with an attention factor).
TEST(TiledContextTest, KeysAreThoseOfTheirPositions) {
  ExpectTiledIsStored(SmallConfig(), KvDType::kF32, 5e-6);
  ExpectTiledIsStored(SmallConfig(), KvDType::kF16, 5e-3);
  ExpectTiledIsStored(SmallConfig(), KvDType::kInt8, 0.08);
}

TEST(TiledContextTest, EveryRopeIsTurnedByItsOwnFrequencies) {
  for (const RopeScaling scaling :
       {RopeScaling::kLinear, RopeScaling::kDynamic, RopeScaling::kYarn, RopeScaling::kLlama3}) {
    for (const bool interleaved : {false, true}) {
      ModelConfig config = SmallConfig();
      config.rope_interleaved = interleaved;
      config.rope.scaling = scaling;
      config.rope.factor = 4.0;
      config.rope.original_context = 512;
      config.rope.attention_factor = 1.4;
      config.rope.factors.assign(20, 1.5f);
      SCOPED_TRACE(static_cast<int>(scaling));
      ExpectTiledIsStored(config, KvDType::kF32, 1e-5);
    }
  }
}

TEST(TiledContextTest, WhatCannotBeTiledIsRefused) {
  const ModelConfig config = SmallConfig();
  MadeUpContext context(config, KvDType::kF16, 2048, 100);
  ThreadPool pool(1);
  const auto tile = [&](int64_t source, int64_t length) {
    return TileContext(config, 2048, {0, source, length}, context.cache(), pool).code();
  };
  EXPECT_EQ(tile(0, 64), StatusCode::kInvalidArgument);   // no prefill
  EXPECT_EQ(tile(32, 64), StatusCode::kInvalidArgument);  // not stored
  context.Store(33);
  EXPECT_EQ(tile(32, 64), StatusCode::kInvalidArgument);  // an open tile
  context.Store(64);
  EXPECT_EQ(tile(33, 128), StatusCode::kInvalidArgument);
  EXPECT_EQ(tile(64, 63), StatusCode::kInvalidArgument);
  EXPECT_EQ(tile(64, 4096), StatusCode::kResourceExhausted);
  EXPECT_EQ(context.cache().Length(0), 64);
  EXPECT_EQ(tile(64, 64), StatusCode::kOk);
  EXPECT_EQ(tile(64, 2048), StatusCode::kOk);
  EXPECT_TRUE(context.cache().CheckIntegrity().ok());
}

// With it, keys and values of all layers depend on their token and its position alone.
class NoAttention final : public Attention {
 public:
  void Forward(const AttentionInputs& inputs, const KvCache& cache, ThreadPool& /*pool*/,
               float* out, int64_t out_stride) override {
    const int64_t width = int64_t{inputs.num_heads} * cache.options().head_dim;
    for (int64_t t = 0; t < inputs.num_tokens; ++t) std::fill_n(out + t * out_stride, width, 0.0f);
  }
};

TEST(TiledContextTest, AModelStoresTheSameKeys) {
  for (const char* path : {"tests/data/tiny-qwen2", "tests/data/tiny-gemma3",
                           "tests/data/tiny-gguf/llama3-f16.gguf"}) {
    SCOPED_TRACE(path);
    constexpr int64_t kPrefill = 64, kLength = 5 * kPrefill + 7;
    std::vector<TokenId> text(kLength);
    for (int64_t i = 0; i < kLength; ++i) {
      text[static_cast<size_t>(i)] = static_cast<TokenId>(i % kPrefill * 3 + 5);
    }
    NoAttention no_attention;
    EngineOptions options;
    options.model_path = path;
    options.activations = kernels::ActivationType::kF32;
    options.kv_dtypes = KvDType::kF32;
    std::array<std::unique_ptr<Engine>, 2> engines;
    for (auto& engine : engines) {
      engine = Engine::Load(options).value();
      engine->UseAttention(&no_attention);
    }
    ASSERT_TRUE(engines[0]->Append(text).ok());
    ASSERT_TRUE(engines[1]->Append({text.begin(), text.begin() + kPrefill}).ok());
    ASSERT_TRUE(engines[1]->TileTo(kLength, kPrefill).ok());
    EXPECT_EQ(engines[1]->cached_length(), kLength);
    const ModelConfig& config = engines[0]->model().config();
    for (int32_t layer = 0; layer < config.num_layers; ++layer) {
      for (int32_t head = 0; head < config.num_kv_heads; ++head) {
        const HeadRows a = ReadHead(engines[0]->cache(), layer, head, kLength);
        const HeadRows b = ReadHead(engines[1]->cache(), layer, head, kLength);
        EXPECT_LE(LargestDifference(a.k, b.k), 2e-5) << layer << " " << head;
        EXPECT_LE(LargestDifference(a.v, b.v), 2e-5) << layer << " " << head;
      }
    }
  }
}

}  // namespace
}  // namespace lode
