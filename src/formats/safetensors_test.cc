// SPDX-License-Identifier: Apache-2.0
// safetensors reader, most of all case B13: hostile headers, each refused with its own message.
#include "formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "formats/formats_test_support.h"

namespace lode {
namespace {

using testing::ElementsAre;

void ExpectRefused(std::string_view header, std::string_view data,
                   const std::vector<std::string>& parts,
                   StatusCode code = StatusCode::kCorruption) {
  const std::string file = MakeSafetensors(header, data);
  ExpectRefusedCheaply([&] { return ParseSafetensors(AsBytes(file), "bad.safetensors").status(); },
                       code, parts);
}

TEST(SafetensorsTest, ReadsTensors) {
  const std::string file =
      MakeSafetensors(R"({"__metadata__":{"format":"pt"},)"
                      R"("b":{"dtype":"F32","shape":[],"data_offsets":[12,16]},)"
                      R"("empty":{"dtype":"F32","shape":[0,3],"data_offsets":[12,12]},)"
                      R"("a\u00e9":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}})",
                      std::string(16, 'x'));
  const auto tensors = ParseSafetensors(AsBytes(file), "good.safetensors");
  ASSERT_TRUE(tensors.ok()) << tensors.status().ToString();
  ASSERT_EQ(tensors->size(), 3u);
  EXPECT_EQ((*tensors)[2].name, "aé");
  EXPECT_EQ((*tensors)[2].dtype, "BF16");
  EXPECT_THAT((*tensors)[2].shape, ElementsAre(2, 3));
  EXPECT_EQ((*tensors)[2].end - (*tensors)[2].begin, 12u);
  EXPECT_EQ((*tensors)[0].end, file.size());
}

TEST(SafetensorsHostileTest, Lengths) {
  std::string file = MakeSafetensors("{}", "");
  std::memset(file.data(), 0xff, 8);
  ExpectRefusedCheaply([&] { return ParseSafetensors(AsBytes(file), "bad.safetensors").status(); },
                       StatusCode::kCorruption,
                       {"bad.safetensors: byte 0", "at most 2", "found 18446744073709551615"});
  ExpectRefusedCheaply([&] { return ParseSafetensors(AsBytes("1234567"), "bad").status(); },
                       StatusCode::kCorruption, {"expected 8 bytes of header length"});
}

TEST(SafetensorsHostileTest, HeadersThatAreNotJson) {
  ExpectRefused("", "", {"byte 8", "JSON header"});
  ExpectRefused(R"({"a":)", "", {"byte 8", "JSON header"});
  ExpectRefused("[]", "", {"expected a JSON object"});
  ExpectRefused("{\"\xff\":1}", "", {"UTF-8"});
  const std::string deep = R"({"a":)" + std::string(10'000, '[') + std::string(10'000, ']') + "}";
  ExpectRefused(deep, "", {"nested at most 8 deep", "too deep"});
  ExpectRefused(deep, std::string(100, 'x'), {"nested at most 8 deep", "too deep"});
  ExpectRefused(std::string(1'000'000, '['), "", {"nested at most 8 deep"});
}

TEST(SafetensorsHostileTest, TensorsWithoutSense) {
  ExpectRefused(R"({"a":1})", "", {"tensor 'a'", "expected an object"});
  ExpectRefused(R"({"a":{"shape":[],"data_offsets":[0,0]}})", "", {"tensor 'a'", "'dtype'"});
  ExpectRefused(R"({"a":{"dtype":"F32","data_offsets":[0,0]}})", "", {"tensor 'a'", "'shape'"});
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[1]}})", "", {"tensor 'a'", "'data_offsets'"});
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", "",
                {"'data_offsets' of two numbers"});
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", "",
                {"'data_offsets' of two numbers"});
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "xxxx",
                {"tensor 'a'", "dimensions from 0", "found '-1'"});
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", "xxxx",
                {"found '1.5'"});
  ExpectRefused(R"({"a":{"dtype":"Q9","shape":[1],"data_offsets":[0,4]}})", "xxxx",
                {"tensor 'a'", "unknown dtype 'Q9'"}, StatusCode::kUnsupported);
}

TEST(SafetensorsHostileTest, OffsetsThatLie) {
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "xxxx",
                {"tensor 'a'", "in order, found [4, 0]"});
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "xxxx",
                {"inside the 4 bytes of data", "cut short"});
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "xxxx",
                {"expected 64 bits for shape [2] of F32, found 4 bytes"});
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})",
                "xxxx", {"below 2^63 bits", "[4294967296, 4294967296]"});
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                R"("b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
                "xxxxxx", {"tensor 'b'", "overlapping", "of tensor 'a'"});
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                R"("b":{"dtype":"F32","shape":[1],"data_offsets":[6,10]}})",
                "xxxxxxxxxx", {"tensor 'b'", "gap"});
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "xxxxxx",
                {"expected the end of the file", "found 2 more bytes"});
}

TEST(SafetensorsHostileTest, NamesUsedTwice) {
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                "xxxxxxxx", {"tensor 'a'", "name twice"});
}

TEST(SafetensorsHostileTest, EveryTruncationIsRefused) {
  const std::string file = MakeSafetensors(
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", std::string(8, 'x'));
  ASSERT_TRUE(ParseSafetensors(AsBytes(file), "good").ok());
  for (size_t size = 0; size < file.size(); ++size) {
    const std::vector<std::byte> cut(AsBytes(file).begin(), AsBytes(file).begin() + size);
    ASSERT_EQ(ParseSafetensors(cut, "cut").status().code(), StatusCode::kCorruption) << size;
  }
}

TEST(SafetensorsIndexTest, ReadsAndRefuses) {
  const auto files = ParseSafetensorsIndex(
      R"({"metadata":{"total_size":8},"weight_map":{"a":"x.safetensors","b":"y.safetensors"}})",
      "index.json");
  ASSERT_TRUE(files.ok()) << files.status().ToString();
  EXPECT_EQ(files->at("b"), "y.safetensors");
  for (const char* name :
       {R"("../x.safetensors")", R"("/etc/x.safetensors")", R"("a\\b.safetensors")",
        R"("a\u0000.safetensors")", R"("x.bin")", "1", "null"}) {
    const std::string text = std::string(R"({"weight_map":{"a":)") + name + "}}";
    ExpectRefusedCheaply([&] { return ParseSafetensorsIndex(text, "index.json").status(); },
                         StatusCode::kCorruption, {"index.json: tensor 'a'", "same folder"});
  }
  EXPECT_FALSE(ParseSafetensorsIndex("{}", "index.json").ok());
  EXPECT_FALSE(ParseSafetensorsIndex("", "index.json").ok());
  EXPECT_FALSE(
      ParseSafetensorsIndex(R"({"weight_map":{"a":"x.safetensors","a":"x.safetensors"}})", "i")
          .ok());
}

}  // namespace
}  // namespace lode
