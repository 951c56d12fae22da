// SPDX-License-Identifier: Apache-2.0
// The cache on real models (cases B32, B38, B40): what its types cost behind a long prompt, what a
// prompt that is sent again finds, and logits beyond 2^31 of them. The models come from
// LODE_TEST_QWEN and LODE_TEST_GEMMA; a test without its model is skipped.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "engine/engine.h"
#include "offline/needles.h"

namespace lode {
namespace {

std::string ReadAll(const char* path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

class RealKvTest : public testing::Test {
 protected:
  // False: no such model; the caller skips.
  bool Load(const char* variable, KvDTypes dtypes, int64_t context_len) {
    const char* path = std::getenv(variable);
    if (path == nullptr) return false;
    engine_ = nullptr;
    EngineOptions options;
    options.model_path = path;
    options.context_len = context_len;
    options.kv_dtypes = dtypes;
    auto engine = Engine::Load(options);
    EXPECT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = std::move(engine).value();
    return true;
  }

  // So many tokens of running text: prose, code, tables and a novel's first page, repeated.
  std::vector<TokenId> Text(int64_t num_tokens) const {
    std::vector<TokenId> tokens = engine_->tokenizer().Encode(haystack_);
    const std::vector<TokenId> more =
        engine_->tokenizer().Encode(haystack_, {.add_special = false});
    while (static_cast<int64_t>(tokens.size()) < num_tokens) {
      tokens.insert(tokens.end(), more.begin(), more.end());
    }
    tokens.resize(static_cast<size_t>(num_tokens));
    return tokens;
  }

  const std::string haystack_ = ReadAll("tests/data/texts/moby_dick_opening.txt") +
                                ReadAll("src/engine/calibration_text.txt");
  std::unique_ptr<Engine> engine_;
};

// --- Case B38

struct PairBound {
  KvDTypes dtypes;
  double qwen;  // KL to f16 in nats per token; about twice what was measured
  double gemma;
};
const PairBound kPairs[] = {
    {{KvDType::kF16, KvDType::kInt8}, 8e-4, 2e-3},  {{KvDType::kF16, KvDType::kInt4}, 4e-3, 6e-3},
    {{KvDType::kInt8, KvDType::kF16}, 8e-4, 2e-3},  {KvDType::kInt8, 8e-4, 2e-3},
    {{KvDType::kInt8, KvDType::kInt4}, 5e-3, 6e-3}, {{KvDType::kInt4, KvDType::kF16}, 7e-3, 8e-3},
    {{KvDType::kInt4, KvDType::kInt8}, 7e-3, 8e-3}, {KvDType::kInt4, 1.3e-2, 1e-2},
};

class RealKvTypesTest : public RealKvTest {
 protected:
  static constexpr int64_t kPromptTokens = 1536;
  static constexpr int64_t kScored = 64;  // the prompt's last tokens, one step each

  // A prompt about a number that is hidden in it.
  void MakePrompt() {
    const auto encode = [&](const NeedlePrompt& prompt) {
      const Tokenizer& tokenizer = engine_->tokenizer();
      const std::string text = prompt.context + prompt.question;
      const auto chat = engine_->chat_template();
      if (!chat.ok()) return tokenizer.Encode(text + prompt.answer_prefix);
      std::vector<TokenId> tokens =
          (*chat)->RenderTokens(tokenizer, {{.role = "user", .content = text}}, {}).value();
      const auto prefix = tokenizer.Encode(prompt.answer_prefix, {.add_special = false});
      tokens.insert(tokens.end(), prefix.begin(), prefix.end());
      return tokens;
    };
    const auto needle = MakeNeedlePrompt(
        {.task = "niah_single_2",
         .seed = 1,
         .max_tokens = kPromptTokens,
         .haystack = haystack_,
         .count_tokens = [&](const auto& p) { return static_cast<int64_t>(encode(p).size()); }});
    ASSERT_TRUE(needle.ok()) << needle.status().ToString();
    prompt_ = encode(*needle);
    references_ = needle->references;
  }

  // Log-probabilities [kScored, vocab_size] of what follows the last tokens of the prompt.
  std::vector<float> LogProbs() {
    const auto scored = prompt_.end() - kScored;
    EXPECT_TRUE(engine_->Append({prompt_.begin(), scored}).ok());
    std::vector<float> all;
    for (auto token = scored; token != prompt_.end(); ++token) {
      EXPECT_TRUE(engine_->Append({*token}).ok());
      const std::span<const float> logits = engine_->last_logits();
      const double largest = *std::max_element(logits.begin(), logits.end());
      double sum = 0.0;
      for (const float x : logits) sum += std::exp(double{x} - largest);
      const auto shift = static_cast<float>(largest + std::log(sum));
      for (const float x : logits) all.push_back(x - shift);
    }
    return all;
  }

  bool AnswersTheNeedle() {
    GenerateRequest request;
    request.prompt = prompt_;
    request.max_tokens = 16;
    const auto answer = engine_->Generate(request);
    EXPECT_TRUE(answer.ok()) << answer.status().ToString();
    return answer.ok() && ScoreAnswer(answer->text, references_) == 1.0;
  }

  void CheckPairs(const char* variable, double PairBound::* bound, bool answers) {
    if (!Load(variable, KvDType::kF16, 2048)) GTEST_SKIP() << variable << " is not set";
    MakePrompt();
    const std::vector<float> reference = LogProbs();
    EXPECT_TRUE(!answers || AnswersTheNeedle());
    for (const PairBound& pair : kPairs) {
      const std::string name = KvDTypesName(pair.dtypes);
      ASSERT_TRUE(Load(variable, pair.dtypes, 2048));
      const std::vector<float> found = LogProbs();
      double sum = 0.0;
      for (size_t i = 0; i < reference.size(); ++i) {
        sum += std::exp(double{reference[i]}) * (double{reference[i]} - double{found[i]});
      }
      EXPECT_LE(sum / kScored, pair.*bound) << name;
      EXPECT_TRUE(!answers || AnswersTheNeedle()) << name;
      RecordProperty(name, fmt::format("{:.1e}", sum / kScored));
    }
  }

  std::vector<TokenId> prompt_;
  std::vector<std::string> references_;
};

TEST_F(RealKvTypesTest, EveryPairStaysCloseToF16OnQwen) {
  CheckPairs("LODE_TEST_QWEN", &PairBound::qwen, true);
}

// A model of 270 million parameters without chat training need not answer.
TEST_F(RealKvTypesTest, EveryPairStaysCloseToF16OnGemma) {
  CheckPairs("LODE_TEST_GEMMA", &PairBound::gemma, false);
}

// --- Case B32: a model with sliding layers and a long prompt, sent again and edited.

TEST_F(RealKvTest, PromptsSentAgainAreFound) {
  constexpr int64_t kTokens = 4096;
  if (!Load("LODE_TEST_GEMMA", KvDType::kF16, 8192)) GTEST_SKIP() << "LODE_TEST_GEMMA is not set";
  const std::vector<TokenId> text = Text(kTokens);
  const auto cached = [&](int64_t edit_begin, int64_t edit_end) {
    GenerateRequest request;
    request.prompt = text;
    for (int64_t i = edit_begin; i < edit_end; ++i) ++request.prompt[static_cast<size_t>(i)];
    request.max_tokens = 1;
    const auto result = engine_->Generate(request);
    EXPECT_TRUE(result.ok()) << result.status().ToString();
    return result.ok() ? result->cached_tokens : -1;
  };
  const auto unknown = [&] {
    return engine_->cache().stats().prefix.misses[static_cast<size_t>(PrefixMiss::kUnknown)];
  };
  EXPECT_EQ(cached(0, 0), 0);
  EXPECT_EQ(unknown(), 1) << "a miss has its reason";
  EXPECT_EQ(cached(0, 0), kTokens - 1);
  // 4,064 tokens fill blocks, and the sequence's own tail reaches to the edit: no block is missed.
  EXPECT_GE(cached(kTokens - 20, kTokens), kTokens - 20);
  EXPECT_EQ(unknown(), 1);
  EXPECT_GE(cached(kTokens / 2, kTokens / 2 + 1), kTokens / 2);
  EXPECT_EQ(unknown(), 2);
  // The first one again, which is not the last one any more: all of its full blocks.
  EXPECT_EQ(cached(0, 0), 4064);
  EXPECT_EQ(unknown(), 2);
}

// --- Case B40: 8,200 rows of 262,144 logits, 2^31 after 8,192 of them.

TEST_F(RealKvTest, LogitsBeyond32Bits) {
  constexpr int64_t kTokens = 8200;
  if (!Load("LODE_TEST_GEMMA", KvDType::kF16, 16'384)) GTEST_SKIP() << "LODE_TEST_GEMMA is not set";
  ASSERT_GT(kTokens * engine_->model().config().vocab_size, int64_t{1} << 31);
  const std::vector<TokenId> text = Text(kTokens);
  int64_t visited = 0, best = 0;
  const Status status =
      engine_->Evaluate(text, [&](int64_t position, std::span<const float> logits) {
        EXPECT_EQ(position, visited++);
        if (position < kTokens - 8 || position + 1 == kTokens) return;
        const auto top = std::max_element(logits.begin(), logits.end()) - logits.begin();
        best += top == text[static_cast<size_t>(position + 1)];
      });
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(visited, kTokens);
  EXPECT_GE(best, 5) << "of 7 tokens of a text that the model has read before";
}

}  // namespace
}  // namespace lode
