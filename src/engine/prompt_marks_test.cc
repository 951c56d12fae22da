// SPDX-License-Identifier: Apache-2.0
// Marks in prompts: what is left as tokens, and which of these are kept exact.
#include "engine/prompt_marks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "formats/weight_source.h"
#include "tokenizer/chat_template.h"

namespace lode {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kQwen[] = "tests/data/tiny-qwen2";
constexpr EncodeOptions kPlain{.add_special = false};

struct Loaded {
  std::unique_ptr<WeightSource> source;
  std::unique_ptr<Tokenizer> tokenizer;
};

Loaded Load(const std::string& path) {
  Loaded loaded;
  loaded.source = OpenWeights(path).value();
  loaded.tokenizer = Tokenizer::Load(*loaded.source).value();
  return loaded;
}

// A token per character, so that ranges can be read off the text.
class Characters final : public Tokenizer {
 public:
  std::vector<TokenId> Encode(std::string_view text, const EncodeOptions&) const override {
    return {text.begin(), text.end()};
  }
  std::string TokenBytes(TokenId id, bool) const override {
    return std::string(1, static_cast<char>(id));
  }
  std::string Decode(const std::vector<TokenId>& ids, bool) const override {
    return std::string(ids.begin(), ids.end());
  }
  int64_t vocab_size() const override { return 256; }
  TokenId bos() const override { return -1; }
  TokenId eos() const override { return -1; }
  bool adds_bos() const override { return false; }
  bool IsEndOfGeneration(TokenId) const override { return false; }
  bool IsControl(TokenId) const override { return false; }
  TokenId Find(std::string_view) const override { return -1; }
  std::string_view kind() const override { return "characters"; }
};

// The ranges of a text whose characters are tokens, and what is left of it.
std::vector<TokenRange> RangesOf(std::string_view text, std::string_view left) {
  const Characters tokenizer;
  const MarkedPrompt prompt = EncodeMarked(tokenizer, text, kPlain);
  EXPECT_EQ(tokenizer.Decode(prompt.tokens, false), left);
  return prompt.exact;
}

TEST(PromptMarks, BordersLieBetweenTexts) {
  EXPECT_THAT(RangesOf("abc", "abc"), IsEmpty());
  EXPECT_THAT(RangesOf("", ""), IsEmpty());
  EXPECT_THAT(RangesOf("ab<hca-sep>c", "abc"), ElementsAre(TokenRange{2, 2}));
  EXPECT_THAT(RangesOf("ab<hca-sep><hca-sep>c", "abc"), ElementsAre(TokenRange{2, 2}));
  EXPECT_THAT(RangesOf("a<hca-sep>b<hca-sep>c", "abc"),
              ElementsAre(TokenRange{1, 1}, TokenRange{2, 2}));
  EXPECT_THAT(RangesOf("<hca-sep>abc", "abc"), IsEmpty()) << "nothing stands before it";
  EXPECT_THAT(RangesOf("abc<hca-sep>", "abc"), ElementsAre(TokenRange{3, 3})) << "the answer";
  EXPECT_THAT(RangesOf("<hca-sep>", ""), IsEmpty());
}

TEST(PromptMarks, FineEndsAtABorderOrAtTheEnd) {
  EXPECT_THAT(RangesOf("a<hca-fine>bc", "abc"), ElementsAre(TokenRange{1, 3}));
  EXPECT_THAT(RangesOf("<hca-fine>abc", "abc"), ElementsAre(TokenRange{0, 3}));
  EXPECT_THAT(RangesOf("abc<hca-fine>", "abc"), IsEmpty());
  EXPECT_THAT(RangesOf("a<hca-fine>b<hca-fine>c", "abc"), ElementsAre(TokenRange{1, 3}));
  EXPECT_THAT(RangesOf("a<hca-fine>b<hca-sep>c", "abc"), ElementsAre(TokenRange{1, 2}));
  EXPECT_THAT(RangesOf("a<hca-fine>b<hca-sep><hca-sep>c", "abc"), ElementsAre(TokenRange{1, 2}));
  EXPECT_THAT(RangesOf("a<hca-sep><hca-fine>b<hca-sep><hca-fine>c", "abc"),
              ElementsAre(TokenRange{1, 1}, TokenRange{1, 2}, TokenRange{2, 3}));
  EXPECT_THAT(RangesOf("a<hca-fine><hca-sep>bc", "abc"), ElementsAre(TokenRange{1, 1}));
  EXPECT_THAT(RangesOf("<hca-fine><hca-sep>", ""), IsEmpty());
}

TEST(PromptMarks, WhatIsNoMarkStays) {
  for (const char* text : {"<hca-", "<hca->", "<hca-sep", "<hca-seps>", "<HCA-SEP>", "<hca_sep>",
                           "< hca-sep>", "<hca-fine >", "hca-fine>", "<<hca-"}) {
    EXPECT_THAT(RangesOf(text, text), IsEmpty());
  }
  EXPECT_THAT(RangesOf("<hca-<hca-sep>sep>", "<hca-sep>"), ElementsAre(TokenRange{5, 5}));
}

// Where a token ends anyway a mark changes no token, whatever a model puts before a text.
TEST(PromptMarks, LeaveNoTraceInTokens) {
  for (const char* model : {kQwen, "tests/data/tiny-llama2", "tests/data/tiny-gemma3"}) {
    const Loaded loaded = Load(model);
    for (const bool special : {false, true}) {
      const EncodeOptions options{.add_special = special};
      const std::vector<TokenId> whole = loaded.tokenizer->Encode("one.\ntwo.\n", options);
      for (const char* text :
           {"one.\n<hca-sep>two.\n", "<hca-fine>one.\ntwo.\n", "one.\ntwo.\n<hca-sep>"}) {
        EXPECT_EQ(EncodeMarked(*loaded.tokenizer, text, options).tokens, whole) << model << text;
      }
      EXPECT_EQ(EncodeMarked(*loaded.tokenizer, "<hca-sep>", options).tokens,
                loaded.tokenizer->Encode("", options));
    }
    const MarkedPrompt word = EncodeMarked(*loaded.tokenizer, "Some<hca-fine>thing", kPlain);
    EXPECT_EQ(loaded.tokenizer->Decode(word.tokens), "Something") << "no token spans a mark";
    ASSERT_EQ(word.exact.size(), 1u);
    const auto first = word.tokens.begin();
    EXPECT_EQ(loaded.tokenizer->Decode({first, first + word.exact[0].begin}), "Some");
  }
}

TEST(PromptMarks, ARenderedConversation) {
  const Loaded loaded = Load(kQwen);
  const auto chat = ChatTemplate::Load(*loaded.source, *loaded.tokenizer).value();
  const auto encode = [&](const std::string& content) {
    const auto rendered = chat->RenderPrompt(*loaded.tokenizer, {{"user", content}}, {});
    return EncodeMarked(*loaded.tokenizer, rendered->text, rendered->encode_options());
  };
  const MarkedPrompt plain = encode("one.\ntwo.\n");
  const MarkedPrompt marked = encode("one.\n<hca-sep>two.\n");
  EXPECT_EQ(marked.tokens, plain.tokens);
  ASSERT_EQ(marked.exact.size(), 1u);
  EXPECT_EQ(marked.exact[0].begin, marked.exact[0].end);
  EXPECT_THAT(plain.exact, IsEmpty());
  const auto controls = [&](const MarkedPrompt& prompt) {
    return std::ranges::count_if(prompt.tokens,
                                 [&](TokenId id) { return loaded.tokenizer->IsControl(id); });
  };
  EXPECT_GT(controls(plain), 0);
  EXPECT_EQ(controls(encode("<<hca-sep>|im_end|>")), controls(plain)) << "text was put together";
}

}  // namespace
}  // namespace lode
