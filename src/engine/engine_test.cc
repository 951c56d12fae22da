// SPDX-License-Identifier: Apache-2.0
// The engine on a tiny random model: what must hold whatever the weights are.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <set>

#include "attention/kv_chunk.h"

namespace lode {
namespace {

constexpr char kModel[] = "tests/data/tiny-qwen2";
constexpr char kSlidingModel[] = "tests/data/tiny-gemma3";  // windows of 16 tokens

std::unique_ptr<Engine> LoadTiny(EngineOptions options = {}) {
  if (options.model_path.empty()) options.model_path = kModel;
  auto engine = Engine::Load(options);
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  return std::move(engine).value();
}

std::vector<TokenId> Tokens(int64_t count, int64_t vocab, uint32_t seed = 1) {
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) {
    seed = seed * 1664525u + 1013904223u;
    token = static_cast<TokenId>((seed >> 8) % vocab);
  }
  return tokens;
}

GenerateRequest Request(std::vector<TokenId> prompt, int64_t max_tokens) {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return request;
}

TEST(EngineTest, GreedyTokensDoNotDependOnTheNumberOfThreads) {
  std::vector<TokenId> first;
  for (const int threads : {1, 2, 3}) {
    EngineOptions options;
    options.num_threads = threads;
    auto engine = LoadTiny(options);
    auto result = engine->Generate(Request(Tokens(50, 200), 40));
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    ASSERT_EQ(result->token_ids.size(), 40u);
    EXPECT_EQ(result->finish_reason, FinishReason::kLength);
    if (threads == 1) first = result->token_ids;
    EXPECT_EQ(result->token_ids, first) << threads << " threads";
  }
}

TEST(EngineTest, AContinuedChatOnlyPrefillsWhatIsNew) {
  auto engine = LoadTiny();
  std::vector<TokenId> prompt = Tokens(40, 200);
  auto first = engine->Generate(Request(prompt, 8));
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->cached_tokens, 0);
  prompt.insert(prompt.end(), first->token_ids.begin(), first->token_ids.end());
  for (const TokenId token : Tokens(5, 200, 9)) prompt.push_back(token);
  auto second = engine->Generate(Request(prompt, 12));
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->cached_tokens, 40 + 7);  // The last generated token was never run.
  auto fresh = LoadTiny()->Generate(Request(prompt, 12));
  ASSERT_TRUE(fresh.ok());
  EXPECT_EQ(second->token_ids, fresh->token_ids);
}

TEST(EngineTest, AnEditedPromptReusesTheCommonPart) {
  auto engine = LoadTiny();
  std::vector<TokenId> prompt = Tokens(60, 200);
  ASSERT_TRUE(engine->Generate(Request(prompt, 4)).ok());
  prompt[30] = (prompt[30] + 1) % 200;
  auto edited = engine->Generate(Request(prompt, 10));
  ASSERT_TRUE(edited.ok());
  EXPECT_EQ(edited->cached_tokens, 30);
  auto fresh = LoadTiny()->Generate(Request(prompt, 10));
  ASSERT_TRUE(fresh.ok());
  EXPECT_EQ(edited->token_ids, fresh->token_ids);
  auto again = engine->Generate(Request(prompt, 10));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->cached_tokens, 59);
  EXPECT_EQ(again->token_ids, fresh->token_ids);
}

// Case B32: not only the last prompt is remembered, also by models whose layers slide.
class OlderPromptTest : public testing::TestWithParam<std::pair<const char*, KvDType>> {};
INSTANTIATE_TEST_SUITE_P(All, OlderPromptTest,
                         testing::Values(std::pair(kModel, KvDType::kF16),
                                         std::pair(kModel, KvDType::kInt8),
                                         std::pair(kSlidingModel, KvDType::kF16),
                                         std::pair(kSlidingModel, KvDType::kInt8)));

TEST_P(OlderPromptTest, IsReused) {
  EngineOptions options;
  options.model_path = GetParam().first;
  options.kv_dtypes = GetParam().second;
  auto engine = LoadTiny(options);
  const std::vector<TokenId> older = Tokens(200, 200), other = Tokens(90, 200, 5);
  ASSERT_TRUE(engine->Generate(Request(older, 4)).ok());
  ASSERT_TRUE(engine->Generate(Request(other, 4)).ok());
  // The same again, then edited near its end and in its middle.
  for (const size_t edit : {older.size(), older.size() - 20, older.size() / 2}) {
    std::vector<TokenId> prompt = older;
    for (size_t i = edit; i < prompt.size(); ++i) prompt[i] = (prompt[i] + 1) % 200;
    auto result = engine->Generate(Request(prompt, 10));
    ASSERT_TRUE(result.ok());
    EXPECT_GE(result->cached_tokens + 16, static_cast<int64_t>(edit)) << edit;
    EXPECT_LT(result->cached_tokens, 200);
    auto fresh = LoadTiny(options)->Generate(Request(prompt, 10));
    ASSERT_TRUE(fresh.ok());
    EXPECT_EQ(result->token_ids, fresh->token_ids) << edit;
    ASSERT_TRUE(engine->Generate(Request(other, 4)).ok());
  }
  const KvCacheStats stats = engine->cache().stats();
  EXPECT_EQ(stats.prefix.lookups, 8);
  EXPECT_GT(stats.hit_rate(), 0.4);
  // Every lookup has its reason: the two first prompts and the two edited ones were unknown from
  // some block on, the others were found whole.
  EXPECT_EQ(stats.prefix.misses[static_cast<size_t>(PrefixMiss::kUnknown)], 4);
  EXPECT_EQ(stats.prefix.misses[static_cast<size_t>(PrefixMiss::kNone)], 4);
  EXPECT_TRUE(engine->cache().CheckIntegrity().ok());
}

// Case B28: nothing is ever shifted. An answer ends with the context, and a text without its
// beginning is another text.
TEST(EngineTest, AFullContextEndsTheAnswerAndACutTextIsComputedAnew) {
  EngineOptions options;
  options.model_path = kSlidingModel;
  std::vector<TokenId> longer_answer;
  for (const int64_t context_len : {512, 128}) {
    options.context_len = context_len;
    auto engine = LoadTiny(options);
    std::vector<TokenId> text = Tokens(40, 200);
    const auto full = engine->Generate(Request(text, 0));
    ASSERT_TRUE(full.ok()) << full.status().ToString();
    EXPECT_EQ(full->finish_reason, FinishReason::kLength);
    ASSERT_EQ(full->token_ids.size(), static_cast<size_t>(context_len - 40));
    if (longer_answer.empty()) longer_answer = full->token_ids;
    longer_answer.resize(full->token_ids.size());
    EXPECT_EQ(full->token_ids, longer_answer) << "what the context may hold changes nothing";

    text.insert(text.end(), full->token_ids.begin(), full->token_ids.end());
    text.erase(text.begin(), text.begin() + 32);
    const auto cut = engine->Generate(Request(text, 16));
    const auto fresh = LoadTiny(options)->Generate(Request(text, 16));
    ASSERT_TRUE(cut.ok() && fresh.ok());
    EXPECT_EQ(cut->cached_tokens, 0);
    EXPECT_EQ(cut->token_ids, fresh->token_ids);
  }
}

// Case B52: unrelated prompts, one after the other, in a small budget.
TEST(EngineTest, UnrelatedPromptsStayWithinTheBudget) {
  EngineOptions options;
  options.kv_memory_bytes = 400'000;
  options.defragment_seconds = 1;
  auto engine = LoadTiny(options);
  const auto before = engine->Generate(Request(Tokens(100, 200), 5));
  ASSERT_TRUE(before.ok());
  for (uint32_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(engine->Generate(Request(Tokens(300, 200, 100 + i), 2)).ok()) << i;
    EXPECT_LE(engine->cache().bytes_in_use(), options.kv_memory_bytes);
  }
  EXPECT_GT(engine->cache().stats().prefix.evicted_pages, 0);
  const auto after = engine->Generate(Request(Tokens(100, 200), 5));
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->token_ids, before->token_ids);
  // What can never fit is refused before anything is computed.
  const auto refused = engine->Generate(Request(Tokens(3000, 200), 5));
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(refused.status().message().find("400000"), std::string::npos);
}

TEST(EngineTest, FiveHundredCancelsLeaveTheAccountsAsTheyWere) {
  EngineOptions options;
  options.prefill_chunk = 16;
  auto engine = LoadTiny(options);
  engine->ResetCache();
  const int64_t baseline = engine->cache().bytes_in_use();
  for (uint32_t i = 0; i < 500; ++i) {
    GenerateRequest request = Request(Tokens(64, 200, i % 7), 8);
    const int64_t stop_at = 16 * (i % 6);
    request.on_prefill = [&](int64_t done, int64_t) { return done < stop_at || stop_at == 80; };
    request.on_text = [](std::string_view) { return false; };
    ASSERT_TRUE(engine->Generate(request).ok());
  }
  EXPECT_TRUE(engine->cache().CheckIntegrity().ok());
  engine->ResetCache();
  EXPECT_EQ(engine->cache().bytes_in_use(), baseline);
  EXPECT_TRUE(engine->cache().CheckIntegrity().ok());
}

// Case B26: one token less than the context, as many, one more; and lengths of answers that are
// out of range. Refused with need and capacity, and the next request is answered as before.
TEST(EngineTest, RefusesWhatDoesNotFitAndGoesOn) {
  for (const KvDType dtype : {KvDType::kF16, KvDType::kInt8}) {
    EngineOptions options;
    options.context_len = 64;
    options.kv_dtypes = dtype;
    auto engine = LoadTiny(options);
    const auto before = engine->Generate(Request(Tokens(10, 200), 5));
    ASSERT_TRUE(before.ok());
    const auto refused = [&](int64_t prompt, int64_t max_tokens, const char* needed) {
      const auto result = engine->Generate(Request(Tokens(prompt, 200), max_tokens));
      EXPECT_EQ(result.status().code(), StatusCode::kResourceExhausted) << prompt;
      EXPECT_NE(result.status().message().find(needed), std::string::npos)
          << result.status().message();
    };
    refused(63, 2, "65 needed, the context holds 64");
    refused(64, 0, "65 needed, the context holds 64");
    refused(65, 1, "66 needed, the context holds 64");
    refused(10, int64_t{1} << 40, "1099511627786 needed, the context holds 64");
    refused(10, INT64_MAX, "the context holds 64");
    for (const int64_t negative : {int64_t{-1}, -(int64_t{1} << 31), INT64_MIN}) {
      const auto result = engine->Generate(Request(Tokens(10, 200), negative));
      EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument) << negative;
    }
    for (const auto& [prompt, tokens] : {std::pair<int, size_t>{60, 4}, {63, 1}}) {
      const auto to_the_end = engine->Generate(Request(Tokens(prompt, 200), 0));
      ASSERT_TRUE(to_the_end.ok()) << to_the_end.status().ToString();
      EXPECT_EQ(to_the_end->token_ids.size(), tokens);
      EXPECT_EQ(to_the_end->finish_reason, FinishReason::kLength);
    }
    const auto after = engine->Generate(Request(Tokens(10, 200), 5));
    ASSERT_TRUE(after.ok());
    EXPECT_EQ(after->token_ids, before->token_ids);
  }
}

// Case B36: refused before anything is computed or forgotten.
TEST(EngineTest, InvalidTokensLeaveNoTrace) {
  EngineOptions options;
  options.prefill_chunk = 16;
  auto engine = LoadTiny(options);
  const int32_t vocab = static_cast<int32_t>(engine->model().config().vocab_size);
  const auto before = engine->Generate(Request(Tokens(10, 200), 5));
  ASSERT_TRUE(before.ok());
  const int64_t cached = engine->cached_length();
  for (const TokenId bad : {-1, vocab, INT32_MAX, INT32_MIN}) {
    for (const size_t at : {0, 2, 30}) {  // in the first chunk, and in the second
      std::vector<TokenId> prompt = Tokens(40, 200);
      prompt[at] = bad;
      const auto refused = engine->Generate(Request(prompt, 5));
      EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument) << bad;
      EXPECT_NE(refused.status().message().find(std::to_string(bad)), std::string::npos);
      EXPECT_EQ(engine->cached_length(), cached);
    }
  }
  EXPECT_EQ(engine->Generate(Request({}, 5)).status().code(), StatusCode::kInvalidArgument);
  const auto after = engine->Generate(Request(Tokens(10, 200), 5));
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->cached_tokens, 9);
  EXPECT_EQ(after->token_ids, before->token_ids);
  // Made-up keys have the id of no token: a prompt cannot name them.
  ASSERT_TRUE(engine->FillSynthetic(64).ok());
  const auto refused = engine->Generate(Request({-1, -1, -1, 5}, 5));
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
}

TEST(EngineTest, CancelsInPrefillAndInDecode) {
  EngineOptions options;
  options.prefill_chunk = 16;
  auto engine = LoadTiny(options);
  GenerateRequest request = Request(Tokens(80, 200), 20);
  request.on_prefill = [](int64_t done, int64_t total) {
    EXPECT_EQ(total, 80);
    return done < 32;
  };
  auto cancelled = engine->Generate(request);
  ASSERT_TRUE(cancelled.ok());
  EXPECT_EQ(cancelled->finish_reason, FinishReason::kCancelled);
  EXPECT_TRUE(cancelled->token_ids.empty());
  EXPECT_EQ(engine->cached_length(), 32);

  request.on_prefill = nullptr;
  int pieces = 0;
  request.on_text = [&](std::string_view) { return ++pieces < 3; };
  cancelled = engine->Generate(request);
  ASSERT_TRUE(cancelled.ok());
  EXPECT_EQ(cancelled->finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(cancelled->cached_tokens, 32);

  request.on_text = nullptr;
  auto resumed = engine->Generate(request);
  auto fresh = LoadTiny()->Generate(request);
  ASSERT_TRUE(resumed.ok());
  ASSERT_TRUE(fresh.ok());
  EXPECT_EQ(resumed->token_ids, fresh->token_ids);
}

TEST(EngineTest, AChunkStoppedBetweenLayersIsDropped) {
  EngineOptions options;
  options.prefill_chunk = 16;
  auto engine = LoadTiny(options);
  GenerateRequest request = Request(Tokens(80, 200), 20);
  const int64_t num_layers = engine->model().config().num_layers;
  ASSERT_GT(num_layers, 1);
  int64_t layers = 0;
  request.keep_going = [&] { return ++layers < 2 * num_layers + 2; };  // in the third chunk
  const auto stopped = engine->Generate(request);
  ASSERT_TRUE(stopped.ok()) << stopped.status().ToString();
  EXPECT_EQ(stopped->finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(stopped->prompt_tokens, 80);
  EXPECT_EQ(stopped->prefilled_tokens, 32);
  EXPECT_EQ(engine->cached_length(), 32);

  request.keep_going = nullptr;
  const auto resumed = engine->Generate(request);
  const auto fresh = LoadTiny()->Generate(request);
  ASSERT_TRUE(resumed.ok());
  ASSERT_TRUE(fresh.ok());
  EXPECT_EQ(resumed->cached_tokens, 32);
  EXPECT_EQ(resumed->prefilled_tokens, 48);
  EXPECT_EQ(resumed->token_ids, fresh->token_ids);
}

TEST(EngineTest, StopStringsEndTheTextBeforeThem) {
  auto engine = LoadTiny();
  const auto whole = engine->Generate(Request(Tokens(20, 200), 30));
  ASSERT_TRUE(whole.ok());
  ASSERT_GT(whole->text.size(), 12u);
  GenerateRequest request = Request(Tokens(20, 200), 30);
  request.stop = {whole->text.substr(5, 4)};
  std::string streamed;
  request.on_text = [&](std::string_view text) {
    streamed += text;
    return true;
  };
  const auto stopped = engine->Generate(request);
  ASSERT_TRUE(stopped.ok());
  EXPECT_EQ(stopped->finish_reason, FinishReason::kStop);
  EXPECT_EQ(stopped->text, whole->text.substr(0, whole->text.find(request.stop[0])));
  EXPECT_EQ(streamed, stopped->text);
}

TEST(EngineTest, BadOptionsAreNamed) {
  EngineOptions options;
  options.model_path = kModel;
  options.attention = "magic";
  auto status = Engine::Load(options).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("flash"), std::string::npos) << status.message();
  options.attention = "flash";
  options.prefill_chunk = 0;
  EXPECT_EQ(Engine::Load(options).status().code(), StatusCode::kInvalidArgument);
  options.prefill_chunk = 512;
  const auto refused = [&](const char* what) {
    const Status refusal = Engine::Load(options).status();
    EXPECT_FALSE(refusal.ok());
    EXPECT_NE(refusal.message().find(what), std::string::npos) << refusal.message();
  };
  for (const int64_t size : {0, 12, 256}) {
    options.block_size = size;
    refused("8, 16, 32, 64 or 128");
  }
  options.block_size = 32;
  options.kv_memory_bytes = 1000;
  refused("a budget of 1000 bytes is too small");
  options.kv_memory_bytes = -1;
  refused("kv_memory_bytes");
  options.kv_memory_bytes = 0;
  options.memory_utilization = 1.5;
  refused("memory_utilization");
  options.memory_utilization = 1e-9;
  refused("the model alone takes");
  options.memory_utilization = 0.0;
  options.model_path = "tests/data/no-such-model";
  EXPECT_EQ(Engine::Load(options).status().code(), StatusCode::kNotFound);
}

// The last layer's key of the last cached token: depends on the attentions of all layers below.
std::vector<float> LastKey(const Engine& engine) {
  const KvCache& cache = engine.cache();
  const int64_t last = engine.cached_length() - 1, tile = kernels::kKvTileTokens;
  std::vector<float> keys(static_cast<size_t>(cache.options().head_dim * tile)), key;
  KvChunk(cache, 0, cache.options().num_layers - 1, 0, last / tile * tile, last + 1)
      .DecodeKeys(keys.data());
  for (int64_t d = 0; d < cache.options().head_dim; ++d) {
    key.push_back(keys[static_cast<size_t>(d * tile + last % tile)]);
  }
  return key;
}

TEST(EngineTest, StepsLeaveTheLastTokensLogits) {
  auto engine = LoadTiny();
  const std::vector<TokenId> tokens = Tokens(600, 200);  // more than a chunk
  std::vector<float> expected;
  ASSERT_TRUE(engine
                  ->Evaluate(tokens,
                             [&](int64_t position, std::span<const float> logits) {
                               if (position == 599) expected.assign(logits.begin(), logits.end());
                             })
                  .ok());
  engine->ResetCache();
  ASSERT_TRUE(engine->Append(tokens).ok());
  ASSERT_EQ(engine->last_logits().size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(engine->last_logits()[i], expected[i], 1e-4) << i;
  }
}

TEST(EngineTest, SeveralAttentionsTakeTurnsOverOneCache) {
  EngineOptions options;
  options.sparse = {.top_k = 32, .window = 32};
  auto engine = LoadTiny(options);
  constexpr int64_t kDepth = 640;
  const std::vector<TokenId> next = Tokens(40, 200, 3);
  ASSERT_TRUE(engine->Append(Tokens(kDepth, 200)).ok());
  // What the attention makes of the tokens behind the first kDepth ones.
  const auto run = [&](Attention* attention) {
    engine->UseAttention(attention);
    for (const TokenId id : next) EXPECT_TRUE(engine->Append({id}).ok());
    std::vector<float> key = LastKey(*engine);
    EXPECT_EQ(engine->Truncate(kDepth), kDepth);
    return key;
  };
  auto eager = engine->MakeAttention("eager"), sparse = engine->MakeAttention("csa_hca"),
       late = engine->MakeAttention("csa_hca");
  ASSERT_TRUE(eager.ok() && sparse.ok() && late.ok()) << sparse.status().ToString();
  const std::vector<float> by_flash = run(nullptr), by_eager = run(eager->get()),
                           by_sparse = run(sparse->get());
  EXPECT_LT((*sparse)->counters().keys_read, (*sparse)->counters().keys);
  EXPECT_NE(by_sparse, by_flash);
  for (size_t d = 0; d < by_flash.size(); ++d) EXPECT_NEAR(by_eager[d], by_flash[d], 2e-2) << d;
  EXPECT_EQ(run(nullptr), by_flash);
  EXPECT_EQ(run(sparse->get()), by_sparse);
  EXPECT_EQ(run(late->get()), by_sparse);
  EXPECT_EQ(engine->MakeAttention("fast").status().code(), StatusCode::kInvalidArgument);
}

TEST(EngineTest, RangesKeptExactBelongToOneRequest) {
  EngineOptions options;
  options.sparse = {.top_k = 32, .window = 32};
  options.attention = "csa_hca";
  auto engine = LoadTiny(options);
  GenerateRequest request = Request(Tokens(640, 200), 4);
  for (const bool exact : {false, true, false}) {
    request.exact.clear();
    if (exact) request.exact = {{0, 300}, {300, 640}};
    const auto result = engine->Generate(request);
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_EQ(result->attention.rows > 0, !exact);
  }
  for (const std::vector<TokenRange>& wrong :
       {std::vector<TokenRange>{{-1, 2}}, {{2, 1}}, {{0, 641}}, {{0, 9}, {8, 10}}}) {
    request.exact = wrong;
    EXPECT_EQ(engine->Generate(request).status().code(), StatusCode::kInvalidArgument);
  }
}

// A book that was put aside for another text is still known when it comes back.
TEST(EngineTest, AnIndexIsThereWhenItsTextComesBack) {
  EngineOptions options;
  options.sparse = {.top_k = 32, .window = 32};
  options.attention = "csa_hca";
  auto engine = LoadTiny(options);
  const auto ask = [&](const std::vector<TokenId>& text) {
    std::vector<TokenId> prompt = text;
    const std::vector<TokenId> question = Tokens(9, 200, 7);
    prompt.insert(prompt.end(), question.begin(), question.end());
    // No limit but the context's: what is remembered must not give way to what might be said.
    GenerateRequest request = Request(prompt, 0);
    request.on_text = [left = 4](std::string_view) mutable { return --left > 0; };
    return engine->Generate(request).value();
  };
  const std::vector<TokenId> book = Tokens(1280, 200), other = Tokens(1120, 200, 3);
  const GenerateResult first = ask(book);
  const int64_t heads = first.attention.pages_indexed / 40;  // over all layers
  EXPECT_EQ(first.attention.pages_indexed, 40 * heads);
  EXPECT_EQ(ask(other).attention.pages_indexed, 35 * heads);
  const GenerateResult again = ask(book);
  EXPECT_GE(again.cached_tokens, 1248);
  // Of a node that is cut into, all pages are made again.
  EXPECT_LE(again.attention.pages_indexed, 8 * heads);
  EXPECT_EQ(again.token_ids, first.token_ids);
  EXPECT_LE(ask(other).attention.pages_indexed, 3 * heads) << "neither is the other";
}

// Exact attention that asks for the rows of the feed-forward halves.
class RowCapture final : public Attention {
 public:
  void Forward(const AttentionInputs& inputs, const KvCache& cache, ThreadPool& pool, float* out,
               int64_t out_stride) override {
    exact_->Forward(inputs, cache, pool, out, out_stride);
  }
  bool WantsFeedForward() const override { return true; }
  void AddFeedForward(const FeedForwardRows& rows) override {
    layers.insert(rows.layer);
    if (rows.layer != 1) return;
    EXPECT_EQ(rows.first_position * rows.num_kv_heads * rows.head_dim, std::ssize(keys));
    const int64_t count = rows.num_tokens * rows.num_kv_heads * rows.head_dim;
    keys.insert(keys.end(), rows.k, rows.k + count);
    values.insert(values.end(), rows.v, rows.v + count);
  }
  std::vector<float> keys, values;  // of layer 1
  std::set<int32_t> layers;

 private:
  const std::unique_ptr<Attention> exact_ = CreateAttention("flash").value();
};

TEST(EngineTest, FeedForwardRowsDoNotDependOnSteps) {
  auto engine = LoadTiny();
  const std::vector<TokenId> tokens = Tokens(40, 200);
  RowCapture whole, stepwise;
  engine->UseAttention(&whole);
  ASSERT_TRUE(engine->Append(tokens).ok());
  engine->ResetCache();
  engine->UseAttention(&stepwise);
  for (const TokenId id : tokens) ASSERT_TRUE(engine->Append({id}).ok());
  engine->UseAttention(nullptr);
  ASSERT_EQ(whole.keys.size(), stepwise.keys.size());
  double size = 0.0;
  for (size_t i = 0; i < whole.keys.size(); ++i) {
    EXPECT_NEAR(whole.keys[i], stepwise.keys[i], 1e-3) << i;
    EXPECT_NEAR(whole.values[i], stepwise.values[i], 1e-3) << i;
    size += std::abs(whole.values[i]) + std::abs(whole.keys[i] - whole.values[i]);
  }
  EXPECT_GT(size, 1.0);
}

TEST(EngineTest, LayersThatSlideGiveNoFeedForwardRows) {
  EngineOptions options;
  options.model_path = kSlidingModel;
  auto engine = LoadTiny(options);
  RowCapture capture;
  engine->UseAttention(&capture);
  ASSERT_TRUE(engine->Append(Tokens(20, 200)).ok());
  engine->UseAttention(nullptr);
  const ModelConfig& config = engine->model().config();
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    EXPECT_EQ(capture.layers.contains(layer), !config.layer_slides[static_cast<size_t>(layer)]);
  }
  EXPECT_FALSE(capture.layers.empty());
}

// No prompt may take made-up keys for its own.
TEST(EngineTest, ATiledContextIsNoPromptsBeginning) {
  auto engine = LoadTiny();
  const std::vector<TokenId> text = Tokens(64, 200);
  ASSERT_TRUE(engine->Append(text).ok());
  ASSERT_TRUE(engine->TileTo(192, 64).ok());
  std::vector<TokenId> prompt;
  for (int i = 0; i < 3; ++i) prompt.insert(prompt.end(), text.begin(), text.end());
  const auto result = engine->Generate(Request(prompt, 4));
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->cached_tokens, 64);
}

}  // namespace
}  // namespace lode
