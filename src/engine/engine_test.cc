// SPDX-License-Identifier: Apache-2.0
// The engine on a tiny random model: what must hold whatever the weights are.
#include "engine/engine.h"

#include <gtest/gtest.h>

namespace lode {
namespace {

constexpr char kModel[] = "tests/data/tiny-qwen2";

std::unique_ptr<Engine> LoadTiny(EngineOptions options = {}) {
  options.model_path = kModel;
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

TEST(EngineTest, RefusesWhatDoesNotFitAndGoesOn) {
  EngineOptions options;
  options.context_len = 64;
  auto engine = LoadTiny(options);
  const auto before = engine->Generate(Request(Tokens(10, 200), 5));
  ASSERT_TRUE(before.ok());
  for (const auto& [prompt, max_tokens] : {std::pair<int, int>{64, 0}, {65, 1}, {60, 5}}) {
    const auto refused = engine->Generate(Request(Tokens(prompt, 200), max_tokens));
    EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted) << prompt;
    EXPECT_NE(refused.status().message().find("64"), std::string::npos);
  }
  const auto to_the_end = engine->Generate(Request(Tokens(60, 200), 0));
  ASSERT_TRUE(to_the_end.ok());
  EXPECT_EQ(to_the_end->token_ids.size(), 4u);
  const auto after = engine->Generate(Request(Tokens(10, 200), 5));
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->token_ids, before->token_ids);
}

TEST(EngineTest, InvalidTokensLeaveNoTrace) {
  auto engine = LoadTiny();
  const int32_t vocab = static_cast<int32_t>(engine->model().config().vocab_size);
  const auto before = engine->Generate(Request(Tokens(10, 200), 5));
  ASSERT_TRUE(before.ok());
  for (const TokenId bad : {-1, vocab, INT32_MAX, INT32_MIN}) {
    const auto refused = engine->Generate(Request({1, 2, bad}, 5));
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(engine->Generate(Request({}, 5)).status().code(), StatusCode::kInvalidArgument);
  const auto after = engine->Generate(Request(Tokens(10, 200), 5));
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->token_ids, before->token_ids);
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
  options.model_path = "tests/data/no-such-model";
  EXPECT_EQ(Engine::Load(options).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace lode
