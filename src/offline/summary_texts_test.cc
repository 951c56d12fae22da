// SPDX-License-Identifier: Apache-2.0
#include "offline/summary_texts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include "offline/document_answer.h"
#include "offline/fidelity.h"
#include "offline/scoped_attention.h"

namespace lode {
namespace {

using testing::HasSubstr;

// A package of an embedding model: one vector of two numbers per letter, in the tokens' order.
class SentenceEmbedderTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/embeddings_" +
              testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ + "/weights");
    std::filesystem::create_directories(folder_ + "/tokenizers");
    Write("tokenizers/tiny_tokenizer_config.json",
          R"({"added_tokens": [], "normalizer": {"type": "Sequence", "normalizers": [
             {"type": "Prepend", "prepend": "\u2581"},
             {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
             "model": {"type": "BPE", "unk_token": "<unk>",
             "vocab": {"<unk>": 0, "\u2581": 1, "a": 2, "b": 3, "c": 4, "\u2581a": 5},
             "merges": [["\u2581", "a"]]}})");
    WriteMatrix("weights/tiny.safetensors", {{0, 0}, {0, 2}, {4, 0}, {0, 6}, {1, 1}, {3, 3}});
  }

  void Write(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << bytes;
  }
  void WriteMatrix(const std::string& name, const std::vector<std::array<float, 2>>& rows) {
    const std::string end = std::to_string(rows.size() * 8);
    std::string header = R"({"embedding.weight":{"dtype":"F32","shape":[)" +
                         std::to_string(rows.size()) + R"(,2],"data_offsets":[0,)" + end + "]}}";
    const uint64_t length = header.size();
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    bytes += header;
    bytes.append(reinterpret_cast<const char*>(rows.data()), rows.size() * 8);
    Write(name, bytes);
  }

  std::string folder_;
};

TEST_F(SentenceEmbedderTest, TakesTheMeanOfTheTokens) {
  const auto embedder = SentenceEmbedder::Open(folder_);
  ASSERT_TRUE(embedder.ok()) << embedder.status().ToString();
  EXPECT_EQ((*embedder)->dim(), 2);
  // " a" is one token, then "b", then "a".
  EXPECT_THAT((*embedder)->Embed("aba"), testing::Pointwise(testing::FloatEq(), {7 / 3.f, 3.f}));
  EXPECT_THAT((*embedder)->Embed("b"), testing::ElementsAre(0, 4));
  EXPECT_THAT((*embedder)->Embed(""), testing::ElementsAre(0, 0));
}

TEST_F(SentenceEmbedderTest, TokensBeyondTheMatrixHaveItsLastVector) {
  WriteMatrix("weights/tiny.safetensors", {{0, 0}, {0, 2}, {4, 8}});
  const auto embedder = SentenceEmbedder::Open(folder_);
  ASSERT_TRUE(embedder.ok()) << embedder.status().ToString();
  EXPECT_THAT((*embedder)->Embed("b"), testing::ElementsAre(2, 5));
}

TEST_F(SentenceEmbedderTest, RefusesOtherFolders) {
  const auto status = [&] { return SentenceEmbedder::Open(folder_).status(); };
  WriteMatrix("weights/other.safetensors", {{1, 2}});
  EXPECT_EQ(status().code(), StatusCode::kNotFound);
  EXPECT_THAT(status().ToString(), HasSubstr("found 2 and 1"));
  std::filesystem::remove(folder_ + "/weights/other.safetensors");
  WriteMatrix("weights/tiny.safetensors", {});
  EXPECT_FALSE(status().ok());
  Write("weights/tiny.safetensors", "no tensors");
  EXPECT_EQ(status().code(), StatusCode::kCorruption);
  EXPECT_EQ(SentenceEmbedder::Open(folder_ + "/absent").status().code(), StatusCode::kNotFound);
}

TEST(CosineTest, IsThatOfTheAngle) {
  const std::vector<float> a = {3, 4}, b = {-8, 6}, c = {6, 8}, zero = {0, 0};
  EXPECT_NEAR(Cosine(a, c), 1.0, 1e-12);
  EXPECT_NEAR(Cosine(a, b), 0.0, 1e-12);
  EXPECT_EQ(Cosine(a, zero), 0.0);
}

TEST_F(SentenceEmbedderTest, ComparesAnswersWithTheirOwnTextAndTheOthers) {
  const auto embedder = SentenceEmbedder::Open(folder_).value();
  // "b" and "bbb" lie along the second axis, "a" between both.
  const std::vector<std::string> beginnings = {"b", "bbb", "a"};
  const auto vector = [&](const std::string& text) { return embedder->Embed(text); };
  const double ba = Cosine(vector("b"), vector("a"));
  ASSERT_LT(ba, 0.9);
  SummaryTextRow row = {.attention = "", .answers = {"b", "a", "a"}};
  CompareTexts(*embedder, beginnings, row);
  EXPECT_NEAR(row.own, (1 + ba + 1) / 3, 1e-6);
  EXPECT_NEAR(row.others, ((1 + ba) + (1 + ba) + (ba + ba)) / 6, 1e-6);
  // "b" is as near to "bbb"; the second answer is the third text.
  EXPECT_EQ(row.nearest, 1);
}

TEST_F(SentenceEmbedderTest, RefusesNumbersThatAreNotFinite) {
  WriteMatrix("weights/tiny.safetensors", {{0, 0}, {0, NAN}, {4, 8}});
  const Status status = SentenceEmbedder::Open(folder_).status();
  EXPECT_EQ(status.code(), StatusCode::kCorruption);
  EXPECT_THAT(status.ToString(), HasSubstr("row 1"));
}

// A random model repeats nothing; what is compared with what can be tested all the same.
class SummaryTextsTest : public SentenceEmbedderTest {
 protected:
  void SetUp() override {
    SentenceEmbedderTest::SetUp();
    auto embedder = SentenceEmbedder::Open(folder_);
    ASSERT_TRUE(embedder.ok());
    embedder_ = std::move(*embedder);
    EngineOptions options;
    options.model_path = "tests/data/tiny-qwen2";
    options.sparse = {.top_k = 96, .oversample = 2, .update_interval = 500, .summary_ratio = 0.5};
    auto engine = Engine::Load(options);
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = std::move(*engine);
    std::string text;
    for (int i = 0; i < 400; ++i) text += i % 3 == 0 ? "a cab " : i % 5 == 0 ? "bbc " : "abaca ";
    tokens_ = engine_->tokenizer().Encode(text);
  }

  std::unique_ptr<SentenceEmbedder> embedder_;
  std::unique_ptr<Engine> engine_;
  std::vector<TokenId> tokens_;
};

TEST_F(SummaryTextsTest, EqualAnswersHaveEqualCosines) {
  SummaryTextOptions options;
  options.attentions = {kExactAttention,
                        "csa_hca:csa_top_k=0:csa_max_error=0:hca_window=32:hca_update_interval=1"};
  options.passages = 3;
  options.passage_tokens = 160;
  options.answer_tokens = 12;
  options.chat_template = engine_->chat_template().value();
  const auto report = TellSummaries(*engine_, tokens_, *embedder_, options);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ASSERT_EQ(report->rows.size(), 4u);
  EXPECT_EQ(report->beginnings.size(), 3u);
  EXPECT_GT(report->beginnings_cosine, 0.5);  // made of the same letters
  const auto& exact = report->rows[0];
  EXPECT_EQ(exact.attention, kExactAttention);
  EXPECT_EQ(report->rows[1].answers, exact.answers);
  EXPECT_EQ(report->rows[1].own, exact.own);
  EXPECT_EQ(report->rows[1].others, exact.others);
  EXPECT_NE(report->rows[2].answers, exact.answers);
  EXPECT_EQ(report->rows[3].attention, kSummariesAlone);
  EXPECT_NE(report->rows[3].answers, exact.answers);
}

TEST_F(SummaryTextsTest, Refuses) {
  const auto code = [&](const SummaryTextOptions& options) {
    return TellSummaries(*engine_, tokens_, *embedder_, options).status().code();
  };
  EXPECT_EQ(code({.passages = 1}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.passage_tokens = 1'000'000}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.passage_tokens = 64, .answer_tokens = 0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.passage_tokens = 64, .answer_tokens = 1'000'000}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.attentions = {"fast"}, .passage_tokens = 64}), StatusCode::kInvalidArgument);
  SummaryTextOptions stopped = {.passage_tokens = 64};
  stopped.on_progress = [](int64_t, int64_t) { return false; };
  EXPECT_EQ(code(stopped), StatusCode::kCancelled);
}

// Question and answer of fewer tokens than a page need no moving window to be read exactly.
TEST_F(SummaryTextsTest, SummariesAloneAreThoseOfTheDocument) {
  const auto prompt =
      EncodeDocument(*engine_, nullptr, engine_->tokenizer().Decode(tokens_), "c", "");
  ASSERT_TRUE(prompt.ok());
  ASSERT_GT(prompt->context_tokens, 256);
  const int64_t question = std::ssize(prompt->tokens) - prompt->context_tokens;
  ASSERT_LT(question, 32);
  Progress progress({}, 1);
  ASSERT_TRUE(PrefillDocument(*engine_, *prompt, progress).ok());
  EXPECT_EQ(engine_->cached_length(), prompt->context_tokens);
  const auto logits = [&](const auto& answer) {
    EXPECT_TRUE(answer.ok()) << answer.status().ToString();
    EXPECT_EQ(answer->token_ids.size(), 1u);
    const auto last = engine_->last_logits();
    return std::vector<float>(last.begin(), last.end());
  };
  const auto document = [&](const char* attention) {
    return logits(AnswerDocument(*engine_, attention, *prompt, 1, progress));
  };
  const auto alone = logits(AnswerFromSummaries(*engine_, *prompt, 1, progress));
  EXPECT_THAT(alone,
              testing::Pointwise(
                  testing::FloatNear(1e-4f),
                  document("csa_hca:csa_top_k=0:csa_max_error=0:csa_max_unread=0:csa_oversample=1:"
                           "hca_summary_ratio=1:hca_update_interval=1:hca_window=1")));
  EXPECT_THAT(alone, testing::Not(
                         testing::Pointwise(testing::FloatNear(1e-4f), document(kExactAttention))));
}

}  // namespace
}  // namespace lode
