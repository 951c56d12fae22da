// SPDX-License-Identifier: Apache-2.0
// Reading vocabularies: what GGUF metadata and tokenizer.json may say, and what is refused by name.
#include "tokenizer/tokenizer_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tokenizer/byte_level.h"

namespace lode {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A byte-level vocabulary with one merge and one control token, as GGUF metadata.
class GgufSpec : public ::testing::Test {
 protected:
  GgufSpec() {
    for (int byte = 0; byte < 256; ++byte) {
      texts_.push_back(ByteLevelCharacter(static_cast<uint8_t>(byte)));
    }
    texts_.push_back("ab");
    texts_.push_back("<|im_end|>");
    types_.assign(257, 1);
    types_.push_back(3);
  }

  Result<TokenizerSpec> Read() {
    Metadata metadata("file.gguf");
    EXPECT_TRUE(metadata.Add("tokenizer.ggml.model", std::string_view(model_)).ok());
    EXPECT_TRUE(metadata.Add("tokenizer.ggml.pre", std::string_view("qwen2")).ok());
    EXPECT_TRUE(metadata
                    .Add("tokenizer.ggml.tokens",
                         std::vector<std::string_view>(texts_.begin(), texts_.end()))
                    .ok());
    EXPECT_TRUE(metadata.Add("tokenizer.ggml.token_type", types_).ok());
    EXPECT_TRUE(metadata.Add("tokenizer.ggml.merges", std::vector<std::string_view>{merge_}).ok());
    EXPECT_TRUE(metadata.Add("tokenizer.ggml.eos_token_id", eos_).ok());
    return SpecFromGguf(metadata);
  }

  std::string model_ = "gpt2";
  std::string merge_ = "a b";
  int64_t eos_ = 65;
  std::vector<std::string> texts_;
  std::vector<int64_t> types_;
};

TEST_F(GgufSpec, ReadsAByteLevelVocabulary) {
  const auto spec = Read();
  ASSERT_TRUE(spec.ok()) << spec.status().ToString();
  EXPECT_TRUE(spec->normalize_nfc);
  EXPECT_FALSE(spec->add_bos);
  EXPECT_EQ(spec->bos, -1);
  ASSERT_EQ(spec->added.size(), 1u);
  EXPECT_TRUE(spec->added[0].control);
  const auto tokenizer = BuildTokenizer(*spec);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_THAT((*tokenizer)->Encode("abc"), ElementsAre(256, 'c'));
  EXPECT_TRUE((*tokenizer)->IsEndOfGeneration(257));
  EXPECT_TRUE((*tokenizer)->IsEndOfGeneration(65));
}

TEST_F(GgufSpec, UnknownModelsAreNamed) {
  model_ = "t5";
  const Status status = Read().status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("file.gguf"));
  EXPECT_THAT(status.message(), HasSubstr("\"t5\""));
}

TEST_F(GgufSpec, BrokenArraysAreCorruption) {
  merge_ = "ab";
  EXPECT_THAT(Read().status().message(), HasSubstr("merges[0]"));
  merge_ = "a b";
  types_[3] = 9;
  EXPECT_THAT(Read().status().message(), HasSubstr("token_type[3] is 9"));
  types_[3] = 1;
  types_.pop_back();
  EXPECT_THAT(Read().status().message(), HasSubstr("258 tokens but 257 token types"));
  types_.push_back(3);
  eos_ = -7;
  EXPECT_EQ(Read().status().code(), StatusCode::kCorruption);
  eos_ = 258;
  const auto spec = Read();
  ASSERT_TRUE(spec.ok());
  EXPECT_THAT(BuildTokenizer(*spec).status().message(), HasSubstr("EOS is token 258"));
}

// A SentencePiece-style tokenizer.json; the arguments replace its stages.
std::string Json(const std::string& normalizer, const std::string& pre_tokenizer,
                 const std::string& merges = R"([["a","b"]])") {
  std::string vocab;
  for (int byte = 0; byte < 256; ++byte) {
    char text[32];
    std::snprintf(text, sizeof(text), "\"<0x%02X>\":%d,", static_cast<unsigned>(byte), byte);
    vocab += text;
  }
  return R"({"added_tokens":[{"id":260,"content":"<s>","special":true},)"
         R"({"id":261,"content":"</s>","special":true}],"normalizer":)" +
         normalizer + R"(,"pre_tokenizer":)" + pre_tokenizer +
         R"(,"post_processor":{"type":"TemplateProcessing","single":[)"
         R"({"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}]},)"
         R"("model":{"type":"BPE","byte_fallback":true,"vocab":{)" +
         vocab + R"("\u2581":256,"a":257,"b":258,"ab":259},"merges":)" + merges + "}}";
}

constexpr const char* kReplace =
    R"({"type":"Replace","pattern":{"String":" "},"content":"\u2581"})";

TEST(HuggingFaceSpec, ReadsBosEosAndTheGenerationConfig) {
  const std::string json = Json(kReplace, "null");
  auto spec = SpecFromHuggingFace("folder", json, R"({"eos_token":{"content":"</s>"}})",
                                  R"({"eos_token_id":[261,258]})");
  ASSERT_TRUE(spec.ok()) << spec.status().ToString();
  EXPECT_TRUE(spec->add_bos);
  const auto tokenizer = BuildTokenizer(*spec);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_THAT((*tokenizer)->Encode("ab a"), ElementsAre(260, 259, 256, 257));
  EXPECT_EQ((*tokenizer)->eos(), 261);
  EXPECT_TRUE((*tokenizer)->IsEndOfGeneration(258));
  spec = SpecFromHuggingFace("folder", json, R"({"add_bos_token":false})", "");
  ASSERT_TRUE(spec.ok());
  EXPECT_FALSE(spec->add_bos);
}

TEST(HuggingFaceSpec, MergesMayBeStringsOrPairs) {
  for (const char* merges : {R"([["a","b"]])", R"(["a b"])"}) {
    const auto spec = SpecFromHuggingFace("folder", Json(kReplace, "null", merges), "", "");
    ASSERT_TRUE(spec.ok()) << spec.status().ToString();
    ASSERT_EQ(spec->merges.size(), 1u);
    EXPECT_EQ(spec->merges[0].first, "a");
    EXPECT_EQ(spec->merges[0].second, "b");
  }
  for (const char* merges : {R"(["ab"])", R"([["a"]])", R"([3])"}) {
    const auto spec = SpecFromHuggingFace("folder", Json(kReplace, "null", merges), "", "");
    EXPECT_EQ(spec.status().code(), StatusCode::kCorruption) << merges;
  }
}

TEST(HuggingFaceSpec, UnknownStagesAreNamed) {
  const auto refusal = [](const std::string& normalizer, const std::string& pre_tokenizer) {
    const Status status =
        SpecFromHuggingFace("folder", Json(normalizer, pre_tokenizer), "", "").status();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << status.ToString();
    return status.message();
  };
  EXPECT_THAT(refusal(R"({"type":"Lowercase"})", "null"), HasSubstr("Lowercase"));
  EXPECT_THAT(refusal(kReplace, R"({"type":"Digits","individual_digits":true})"),
              HasSubstr("Digits"));
  EXPECT_THAT(
      refusal("null", R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":)"
                      R"({"Regex":"\\d+"},"behavior":"Isolated","invert":false},)"
                      R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})"),
      HasSubstr("\\d+"));
  EXPECT_THAT(refusal("null", "null"), HasSubstr("neither byte-level"));
}

TEST(HuggingFaceSpec, BrokenTextsAreRefused) {
  EXPECT_EQ(SpecFromHuggingFace("folder", "", "", "").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(SpecFromHuggingFace("folder", "{", "", "").status().code(), StatusCode::kCorruption);
  EXPECT_EQ(SpecFromHuggingFace("folder", "{}", "", "").status().code(), StatusCode::kCorruption);
  const std::string deep(1 << 20, '[');
  EXPECT_EQ(SpecFromHuggingFace("folder", deep, "", "").status().code(), StatusCode::kCorruption);
  EXPECT_EQ(SpecFromHuggingFace("folder", Json(kReplace, "null"), "{", "").status().code(),
            StatusCode::kCorruption);
}

}  // namespace
}  // namespace lode
