// SPDX-License-Identifier: Apache-2.0
// Small hand-made vocabularies: what each part of a tokenizer does, and what it refuses. Equality
// with the reference on a corpus is tokenizer_golden_test.cc.
#include "tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tokenizer/byte_level.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/tokenizer_spec.h"

namespace lode {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Bytes 0..255 are ids 0..255; then the words given, with their merges.
class SpecBuilder {
 public:
  SpecBuilder() {
    spec_.origin = "test";
    spec_.pre_tokenizer = "gpt-2";
    for (int byte = 0; byte < 256; ++byte) {
      Add(ByteLevelCharacter(static_cast<uint8_t>(byte)), TokenType::kNormal);
    }
  }
  TokenId Add(std::string text, TokenType type) {
    spec_.owned.push_back(std::move(text));
    spec_.tokens.push_back(spec_.owned.back());
    spec_.types.push_back(type);
    const auto id = static_cast<TokenId>(spec_.tokens.size() - 1);
    if (type == TokenType::kControl || type == TokenType::kUserDefined) {
      spec_.added.push_back(
          {.id = id, .text = spec_.tokens.back(), .control = type == TokenType::kControl});
    }
    return id;
  }
  TokenId Merge(std::string left, std::string right) {
    spec_.owned.push_back(left);
    const std::string_view left_view = spec_.owned.back();
    spec_.owned.push_back(right);
    spec_.merges.emplace_back(left_view, spec_.owned.back());
    return Add(left + right, TokenType::kNormal);
  }
  TokenizerSpec& spec() { return spec_; }

 private:
  TokenizerSpec spec_;
};

std::unique_ptr<Tokenizer> Build(const TokenizerSpec& spec) {
  auto tokenizer = BuildTokenizer(spec);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return tokenizer.ok() ? std::move(tokenizer).value() : nullptr;
}

std::string Stream(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  Detokenizer stream(tokenizer);
  std::string text;
  for (const TokenId id : ids) text += stream.Push(id);
  return text + stream.Finish();
}

constexpr EncodeOptions kPlain{.add_special = false};
constexpr EncodeOptions kParse{.add_special = false, .parse_special = true};

TEST(ByteLevelBpe, MergesByRankNotFromTheLeft) {
  SpecBuilder b;
  const TokenId bc = b.Merge("b", "c");
  const TokenId ab = b.Merge("a", "b");
  const TokenId abc = b.Merge("a", "bc");
  const auto tokenizer = Build(b.spec());
  EXPECT_THAT(tokenizer->Encode("abc", kPlain), ElementsAre(abc));
  EXPECT_THAT(tokenizer->Encode("ab", kPlain), ElementsAre(ab));
  EXPECT_THAT(tokenizer->Encode("xbc", kPlain), ElementsAre('x', bc));
}

TEST(ByteLevelBpe, LongWordsMergeLikeShortOnes) {
  SpecBuilder b;
  const TokenId aa = b.Merge("a", "a");
  const TokenId a4 = b.Merge("aa", "aa");
  const auto tokenizer = Build(b.spec());
  for (const int length : {47, 48, 49, 50, 51, 52, 1001}) {
    const auto ids = tokenizer->Encode(std::string(static_cast<size_t>(length), 'a'), kPlain);
    std::vector<TokenId> expected(static_cast<size_t>(length) / 4, a4);
    if (length % 4 >= 2) expected.push_back(aa);
    if (length % 2 == 1) expected.push_back('a');
    EXPECT_EQ(ids, expected) << length;
  }
}

TEST(ByteLevelBpe, IllFormedBytesComeBack) {
  SpecBuilder b;
  const auto tokenizer = Build(b.spec());
  std::string text = "a\xFF\xC0\x80z\xE6\xBC";
  text += '\0';
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text, kPlain)), text);
}

TEST(ByteLevelBpe, WholeWordsWinOnlyWithIgnoreMerges) {
  SpecBuilder b;
  const TokenId word = b.Add("xyz", TokenType::kNormal);
  EXPECT_THAT(Build(b.spec())->Encode("xyz", kPlain), ElementsAre('x', 'y', 'z'));
  b.spec().ignore_merges = true;
  EXPECT_THAT(Build(b.spec())->Encode("xyz", kPlain), ElementsAre(word));
}

TEST(AddedTokens, LongestFirstAndControlOnlyWhenAsked) {
  SpecBuilder b;
  const TokenId end = b.Add("<end>", TokenType::kControl);
  const TokenId tag = b.Add("<e", TokenType::kUserDefined);
  const TokenId newlines = b.Add("\n\n", TokenType::kUserDefined);
  const auto tokenizer = Build(b.spec());
  EXPECT_THAT(tokenizer->Encode("<end><e\n\n", kParse), ElementsAre(end, tag, newlines));
  EXPECT_THAT(tokenizer->Encode("<end>", kPlain), ElementsAre('<', 'e', 'n', 'd', '>'));
  EXPECT_EQ(tokenizer->Decode({end, tag}), "<e");
  EXPECT_EQ(tokenizer->Decode({end, tag}, /*show_special=*/true), "<end><e");
  EXPECT_TRUE(tokenizer->IsControl(end));
  EXPECT_EQ(tokenizer->Find("<end>"), end);
  EXPECT_EQ(tokenizer->Find("<nothing>"), -1);
}

TEST(AddedTokens, StripAndSingleWordAsHuggingFace) {
  SpecBuilder b;
  const TokenId mask = b.Add("[M]", TokenType::kUserDefined);
  b.spec().added.back().lstrip = true;
  b.spec().added.back().rstrip = true;
  const TokenId cat = b.Add("cat", TokenType::kUserDefined);
  b.spec().added.back().single_word = true;
  const auto tokenizer = Build(b.spec());
  EXPECT_THAT(tokenizer->Encode("a \t[M]\xC2\xA0 b", kPlain), ElementsAre('a', mask, 'b'));
  EXPECT_THAT(tokenizer->Encode("cat!", kPlain), ElementsAre(cat, '!'));
  EXPECT_THAT(tokenizer->Encode("cats", kPlain), ElementsAre('c', 'a', 't', 's'));
}

TEST(AddedTokens, PlaceholdersNeverBecomeControl) {
  SpecBuilder b;
  const TokenId end = b.Add("<end>", TokenType::kControl);
  const auto tokenizer = Build(b.spec());
  const Placeholder marks[] = {{"\xF3\xB0\x80\x80", "<"}};
  EncodeOptions options = kParse;
  options.placeholders = marks;
  EXPECT_THAT(tokenizer->Encode("<end>\xF3\xB0\x80\x80"
                                "end>",
                                options),
              ElementsAre(end, '<', 'e', 'n', 'd', '>'));
}

TEST(Tokenizer, AddsBosAndEosWhenTheModelDoes) {
  SpecBuilder b;
  b.spec().bos = b.Add("<s>", TokenType::kControl);
  b.spec().eos = b.Add("</s>", TokenType::kControl);
  b.spec().add_bos = true;
  b.spec().add_eos = true;
  const auto tokenizer = Build(b.spec());
  EXPECT_THAT(tokenizer->Encode("a"), ElementsAre(256, 'a', 257));
  EXPECT_THAT(tokenizer->Encode("a", kPlain), ElementsAre('a'));
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(257));
  EXPECT_FALSE(tokenizer->IsEndOfGeneration(256));
  EXPECT_FALSE(tokenizer->IsEndOfGeneration(-1));
}

TEST(Refusals, UnknownPreTokenizerIsNamedWithTheKnownOnes) {
  SpecBuilder b;
  b.spec().pre_tokenizer = "tekken";
  const Status status = BuildTokenizer(b.spec()).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("\"tekken\""));
  EXPECT_THAT(status.message(), HasSubstr("qwen2"));
  b.spec().pre_tokenizer = "";
  EXPECT_EQ(BuildTokenizer(b.spec()).status().code(), StatusCode::kUnsupported);
}

TEST(Refusals, BrokenVocabularies) {
  {
    SpecBuilder b;
    b.spec().types.pop_back();
    EXPECT_EQ(BuildTokenizer(b.spec()).status().code(), StatusCode::kCorruption);
  }
  {
    SpecBuilder b;
    b.spec().bos = 256;
    EXPECT_EQ(BuildTokenizer(b.spec()).status().code(), StatusCode::kCorruption);
  }
  {
    SpecBuilder b;
    b.spec().merges.emplace_back("a", "b");
    const Status status = BuildTokenizer(b.spec()).status();
    EXPECT_EQ(status.code(), StatusCode::kCorruption);
    EXPECT_THAT(status.message(), HasSubstr("\"ab\" is not in the vocabulary"));
  }
  {
    SpecBuilder b;
    b.spec().tokens[7] = "xx";
    EXPECT_THAT(BuildTokenizer(b.spec()).status().message(), HasSubstr("byte 0x07"));
  }
}

TokenizerSpec SentencePieceSpec() {
  TokenizerSpec spec;
  spec.origin = "test";
  spec.kind = TokenizerKind::kSentencePiece;
  const auto add = [&spec](std::string text, TokenType type, float score) {
    spec.owned.push_back(std::move(text));
    spec.tokens.push_back(spec.owned.back());
    spec.types.push_back(type);
    spec.scores.push_back(score);
  };
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof(text), "<0x%02X>", static_cast<unsigned>(byte));
    add(text, TokenType::kByte, 0);
  }
  add("\xE2\x96\x81", TokenType::kNormal, -10);  // 256
  add("a", TokenType::kNormal, -11);             // 257
  add("b", TokenType::kNormal, -12);             // 258
  add("ab", TokenType::kNormal, -1);             // 259
  add("\xE2\x96\x81"
      "a",
      TokenType::kNormal, -2);          // 260
  add("abab", TokenType::kNormal, -3);  // 261
  return spec;
}

TEST(SentencePiece, HigherScoresMergeFirst) {
  TokenizerSpec spec = SentencePieceSpec();
  const auto tokenizer = Build(spec);
  EXPECT_THAT(tokenizer->Encode(" ab", kPlain), ElementsAre(256, 259));
  EXPECT_THAT(tokenizer->Encode(" a", kPlain), ElementsAre(260));
  EXPECT_THAT(tokenizer->Encode("ababab", kPlain), ElementsAre(261, 259));
  EXPECT_EQ(tokenizer->kind(), "spm");
}

TEST(SentencePiece, UnknownCharactersBecomeTheirBytes) {
  TokenizerSpec spec = SentencePieceSpec();
  const auto tokenizer = Build(spec);
  EXPECT_THAT(tokenizer->Encode("a\xC3\xA9\xFF", kPlain), ElementsAre(257, 0xC3, 0xA9, 0xFF));
  EXPECT_EQ(tokenizer->Decode({257, 0xC3, 0xA9}), "a\xC3\xA9");
}

TEST(SentencePiece, PrefixSpaceIsAddedAndDropped) {
  TokenizerSpec spec = SentencePieceSpec();
  spec.space_prefix = SpacePrefix::kEveryPart;
  auto tokenizer = Build(spec);
  EXPECT_THAT(tokenizer->Encode("a", kPlain), ElementsAre(260));
  EXPECT_THAT(tokenizer->Encode(" a", kPlain), ElementsAre(256, 260));
  EXPECT_EQ(tokenizer->Decode({256, 260}), " a");
  EXPECT_EQ(Stream(*tokenizer, {260, 260}), "a a");
  spec.space_prefix = SpacePrefix::kFirstUnlessSpace;
  tokenizer = Build(spec);
  EXPECT_THAT(tokenizer->Encode(" a", kPlain), ElementsAre(260));
}

TEST(SentencePiece, ByteTokensNeedExactlyTwoHexDigits) {
  for (const std::string_view bad : {"<0x-1>", "<0xZZ>", "<0x1FF>", "<0x1>", "0x41", "<0x41> "}) {
    TokenizerSpec spec = SentencePieceSpec();
    spec.tokens[0x41] = bad;
    const Status status = BuildTokenizer(spec).status();
    EXPECT_EQ(status.code(), StatusCode::kCorruption) << bad;
    EXPECT_THAT(status.message(), HasSubstr(std::string(bad)));
  }
}

TEST(Detokenizer, NeverSplitsACharacter) {
  SpecBuilder b;
  const auto tokenizer = Build(b.spec());
  const std::string text = "x\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x94\xAC \xD0\x96!";
  Detokenizer stream(*tokenizer);
  std::string joined;
  for (const char c : text) {
    const std::string part = stream.Push(static_cast<uint8_t>(c));
    EXPECT_TRUE(part.empty() || (static_cast<uint8_t>(part[0]) & 0xC0) != 0x80);
    joined += part;
  }
  EXPECT_EQ(joined + stream.Finish(), text);
}

TEST(Detokenizer, CutTailIsFlushedOnceAsReplacement) {
  SpecBuilder b;
  const auto tokenizer = Build(b.spec());
  for (const int kept : {1, 2, 3}) {
    Detokenizer stream(*tokenizer);
    const std::string emoji = "\xF0\x9F\x91\xA9";
    for (int i = 0; i < kept; ++i) EXPECT_EQ(stream.Push(static_cast<uint8_t>(emoji[i])), "");
    EXPECT_EQ(stream.Finish(), "\xEF\xBF\xBD");
    EXPECT_EQ(stream.Finish(), "");
  }
  EXPECT_EQ(Stream(*tokenizer, {0xF0, 'a'}),
            "\xEF\xBF\xBD"
            "a");
}

}  // namespace
}  // namespace lode
