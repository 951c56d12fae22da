// SPDX-License-Identifier: Apache-2.0
// GGUF reader: what it reads, what it refuses and how quickly. All files are built here.
#include "formats/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "formats/formats_test_support.h"
#include "formats/gguf_writer.h"

namespace lode {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Little-endian bytes put together by hand, for files no writer would write.
class Raw {
 public:
  Raw& U8(uint8_t v) { return Add(&v, sizeof(v)); }
  Raw& U32(uint32_t v) { return Add(&v, sizeof(v)); }
  Raw& U64(uint64_t v) { return Add(&v, sizeof(v)); }
  Raw& Text(std::string_view v) { return U64(v.size()).Add(v.data(), v.size()); }
  Raw& Header(uint64_t num_tensors, uint64_t num_pairs, uint32_t version = 3) {
    return Add("GGUF", 4).U32(version).U64(num_tensors).U64(num_pairs);
  }
  Raw& Zeros(size_t n) {
    bytes_.append(n, '\0');
    return *this;
  }
  Raw& PadTo(size_t alignment) {
    return Zeros((alignment - bytes_.size() % alignment) % alignment);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  Raw& Add(const void* data, size_t size) {
    bytes_.append(static_cast<const char*>(data), size);
    return *this;
  }
  std::string bytes_;
};

Raw OneTensor(std::initializer_list<uint64_t> dims, uint32_t type = 0, uint64_t offset = 0) {
  Raw raw;
  raw.Header(1, 0).Text("token_embd.weight").U32(static_cast<uint32_t>(dims.size()));
  for (const uint64_t dim : dims) raw.U64(dim);
  return raw.U32(type).U64(offset);
}

void ExpectRefused(const std::string& bytes, const std::vector<std::string>& parts,
                   StatusCode code = StatusCode::kCorruption) {
  ExpectRefusedCheaply([&] { return ParseGguf(AsBytes(bytes), "bad.gguf").status(); }, code, parts);
}

TEST(GgufTest, ReadsEveryMetadataType) {
  GgufWriter writer;
  writer.AddRaw("u8", 0, "\xff");
  writer.AddRaw("i8", 1, "\xff");
  writer.AddRaw("u16", 2, "\xff\xff");
  writer.AddRaw("i16", 3, "\xff\xff");
  writer.AddUint32("u32", 0xffffffff);
  writer.AddInt32("i32", -1);
  writer.AddFloat32("f32", 0.5f);
  writer.AddBool("bool", true);
  writer.AddString("string", "naïve");
  writer.AddUint64("u64", 0xffffffffffffffff);
  writer.AddRaw("i64", 11, "\xff\xff\xff\xff\xff\xff\xff\xff");
  writer.AddRaw("f64", 12, std::string("\0\0\0\0\0\0\xe0\x3f", 8));
  writer.AddStrings("strings", std::vector<std::string>{"a", "", "ccc"});
  writer.AddInt32s("ints", std::vector<int32_t>{-1, 2});
  writer.AddFloat32s("floats", std::vector<float>{0.5f});
  writer.AddRaw("bools", 9, Raw().U32(7).U64(2).U8(1).U8(0).bytes());
  const std::string bytes = writer.Serialize();

  const Result<GgufHeader> header = ParseGguf(AsBytes(bytes), "good.gguf");
  ASSERT_TRUE(header.ok()) << header.status().ToString();
  const Metadata& metadata = header->metadata;
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(*metadata.GetInt("u8", kMin, kMax), 255);
  EXPECT_EQ(*metadata.GetInt("i8", kMin, kMax), -1);
  EXPECT_EQ(*metadata.GetInt("u16", kMin, kMax), 65535);
  EXPECT_EQ(*metadata.GetInt("i16", kMin, kMax), -1);
  EXPECT_EQ(*metadata.GetInt("u32", kMin, kMax), 0xffffffff);
  EXPECT_EQ(*metadata.GetInt("i32", kMin, kMax), -1);
  EXPECT_EQ(*metadata.GetInt("i64", kMin, kMax), -1);
  EXPECT_EQ(std::get<uint64_t>(*metadata.Find("u64")), 0xffffffffffffffff);
  EXPECT_EQ(*metadata.GetFloat("f32"), 0.5);
  EXPECT_EQ(*metadata.GetFloat("f64"), 0.5);
  EXPECT_EQ(*metadata.GetBool("bool"), true);
  EXPECT_EQ(*metadata.GetString("string"), "naïve");
  EXPECT_THAT(**metadata.GetStrings("strings"), ElementsAre("a", "", "ccc"));
  EXPECT_THAT(**metadata.GetInts("ints"), ElementsAre(-1, 2));
  EXPECT_THAT(**metadata.GetInts("bools"), ElementsAre(1, 0));
  EXPECT_THAT(**metadata.GetFloats("floats"), ElementsAre(0.5));
  // Strings are views into the file, not copies.
  const std::string_view text = *metadata.GetString("string");
  EXPECT_GE(text.data(), bytes.data());
  EXPECT_LT(text.data(), bytes.data() + bytes.size());
}

TEST(GgufTest, TurnsShapesRoundAndFindsData) {
  for (const uint32_t version : {2u, 3u}) {
    GgufWriter writer(version);
    const std::vector<float> values = {1, 2, 3, 4, 5, 6};
    writer.AddZeroTensor("first", DType::kQ8_0, MakeShape({1, 32}));
    writer.AddTensor("second", DType::kF32, MakeShape({2, 3}), std::as_bytes(std::span(values)));
    const std::string bytes = writer.Serialize();
    const Result<GgufHeader> header = ParseGguf(AsBytes(bytes), "good.gguf");
    ASSERT_TRUE(header.ok()) << header.status().ToString();
    ASSERT_EQ(header->tensors.size(), 2u);
    const GgufTensor& tensor = header->tensors[1];
    EXPECT_EQ(tensor.name, "second");
    EXPECT_EQ(tensor.shape, MakeShape({2, 3}));
    EXPECT_EQ(tensor.file_offset % 32, 0u);
    EXPECT_EQ(std::memcmp(bytes.data() + tensor.file_offset, values.data(), 24), 0);
  }
}

TEST(GgufTest, RespectsAlignment) {
  GgufWriter writer(3, 256);
  writer.AddUint32("general.alignment", 256);
  writer.AddZeroTensor("a", DType::kF32, MakeShape({1}));
  writer.AddZeroTensor("b", DType::kF32, MakeShape({1}));
  const std::string bytes = writer.Serialize();
  const Result<GgufHeader> header = ParseGguf(AsBytes(bytes), "good.gguf");
  ASSERT_TRUE(header.ok()) << header.status().ToString();
  EXPECT_EQ(header->alignment, 256u);
  EXPECT_EQ(header->tensors[1].file_offset, header->tensors[0].file_offset + 256);
  EXPECT_EQ(header->tensors[0].file_offset % 256, 0u);
}

// B01: sizes whose product wraps 64 bits.
TEST(GgufHostileTest, SizesThatWrap) {
  const uint64_t two_to_42_plus_1 = (uint64_t{1} << 42) + 1;
  ExpectRefused(OneTensor({896, two_to_42_plus_1, 1 << 14}).PadTo(32).Zeros(64).bytes(),
                {"bad.gguf", "tensor 'token_embd.weight'", "byte 24", "below 2^63",
                 "[16384, 4398046511105, 896]"});
  // Fits 64 bits, but not the file.
  ExpectRefused(OneTensor({896, two_to_42_plus_1}).PadTo(32).Zeros(64).bytes(),
                {"token_embd.weight", "cut short"});
  // Few bytes, but more than 2^63 elements: 2-bit blocks.
  ExpectRefused(OneTensor({uint64_t{1} << 62, 3}, 10).PadTo(32).Zeros(64).bytes(),
                {"token_embd.weight", "below 2^63"});
  ExpectRefused(OneTensor({uint64_t{1} << 63}).bytes(), {"2^63 - 1", "9223372036854775808"});
}

// B03: counts, lengths and type ids of the header.
TEST(GgufHostileTest, CountsLengthsAndTypeIds) {
  const uint64_t huge = uint64_t{1} << 63;
  ExpectRefused(Raw().Header(0, huge).Zeros(64).bytes(),
                {"bad.gguf: byte 16", "key-value count", "9223372036854775808"});
  ExpectRefused(Raw().Header(huge, 0).Zeros(64).bytes(), {"byte 8", "tensor count"});
  ExpectRefused(Raw().Header(0, 1).U64(~uint64_t{0}).Zeros(64).bytes(),
                {"byte 24", "a key of at most 64 bytes", "18446744073709551615"});
  ExpectRefused(OneTensor({1, 1, 1, 1, 1}).bytes(), {"byte 49", "1 to 4 dimensions, found 5"});
  ExpectRefused(OneTensor({1}, 9999).Zeros(64).bytes(), {"byte 61", "tensor type", "9999"});
  ExpectRefused(OneTensor({1}, 0xffffffff).Zeros(64).bytes(), {"byte 61", "4294967295"});
  ExpectRefused(OneTensor({1}, 16).Zeros(64).bytes(), {"IQ2_XXS", "not supported"},
                StatusCode::kUnsupported);
  ExpectRefused(Raw().Header(0, 1).Text("k").U32(13).Zeros(64).bytes(),
                {"key 'k'", "byte 33", "value type of 0 to 12, found 13"});
  ExpectRefused(Raw().Header(0, 1).Text("k").U32(7).U8(2).bytes(), {"key 'k'", "bool of 0 or 1"});
}

// B08: the alignment key.
TEST(GgufHostileTest, Alignments) {
  for (const uint32_t alignment : {0u, 3u, 4u, 48u, 0x80000000u, 0xffffffffu}) {
    GgufWriter writer;
    writer.AddUint32("general.alignment", alignment);
    writer.AddZeroTensor("t", DType::kF32, MakeShape({1}));
    ExpectRefused(writer.Serialize(), {"key 'general.alignment'", "power of two from 8 to 65536",
                                       "found " + std::to_string(alignment)});
  }
  GgufWriter writer;
  writer.AddInt32("general.alignment", 32);
  ExpectRefused(writer.Serialize(), {"general.alignment", "expected type UINT32, found INT32"});
}

// B10: dimensions of zero and absurd dimension counts.
TEST(GgufHostileTest, Dimensions) {
  ExpectRefused(OneTensor({1, 0}).bytes(), {"token_embd.weight", "byte 61", "found 0"});
  ExpectRefused(OneTensor({}).Zeros(64).bytes(), {"1 to 4 dimensions, found 0"});
  for (const uint32_t num_dims : {1'000'000u, 0xffffffffu}) {
    ExpectRefused(Raw().Header(1, 0).Text("t").U32(num_dims).Zeros(64).bytes(),
                  {"tensor 't'", "byte 33", "found " + std::to_string(num_dims)});
  }
  ExpectRefused(OneTensor({33}, 8).Zeros(64).bytes(), {"multiple of 32 elements", "Q8_0", "[33]"});
}

// B11: lengths that would loop or grow without end.
TEST(GgufHostileTest, EndlessArraysAndStrings) {
  const uint64_t huge = uint64_t{1} << 63;
  ExpectRefused(Raw().Header(0, 1).Text("k").U32(9).U32(0).U64(huge).Zeros(64).bytes(),
                {"key 'k'", "byte 41", "an array length of at most 64", "9223372036854775808"});
  ExpectRefused(Raw().Header(0, 1).Text("k").U32(9).U32(8).U64(huge).Zeros(64).bytes(),
                {"an array length of at most 8"});
  ExpectRefused(Raw().Header(0, 1).Text("k").U32(9).U32(9).U64(huge / 2).Zeros(64).bytes(),
                {"key 'k'", "array of arrays"}, StatusCode::kUnsupported);
  ExpectRefused(Raw().Header(0, 1).Text("k").U32(8).U64(huge).Zeros(64).bytes(),
                {"key 'k'", "byte 37", "at most 64 bytes"});
  ExpectRefused(Raw().Header(0, 1).Text("k").U32(9).U32(13).U64(1).Zeros(64).bytes(),
                {"key 'k'", "byte 37", "element type"});
}

// B16: a byte-swapped file, and other files that are not what they seem.
TEST(GgufHostileTest, ForeignFiles) {
  ExpectRefused(Raw().Header(0, 0, 0x03000000).bytes(), {"byte 4", "big-endian file"},
                StatusCode::kUnsupported);
  ExpectRefused(Raw().Header(0, 0, 1).bytes(), {"version 2 or 3, found 1"},
                StatusCode::kUnsupported);
  ExpectRefused(Raw().Header(0, 0, 4).bytes(), {"found 4"}, StatusCode::kUnsupported);
  ExpectRefused("version https://git-lfs.github.com/spec/v1\n", {"magic 'GGUF'", "found 'vers'"});
  ExpectRefused("", {"byte 0", "expected 4 bytes of the magic"});
  ExpectRefused("GGUF", {"byte 4", "the version"});
}

TEST(GgufHostileTest, EveryTruncationIsRefused) {
  GgufWriter writer;
  writer.AddString("general.architecture", "qwen2");
  writer.AddStrings("tokens", std::vector<std::string>{"a", "b"});
  writer.AddInt32s("types", std::vector<int32_t>{1, 2, 3});
  writer.AddZeroTensor("t", DType::kQ4_K, MakeShape({2, 256}));
  const std::string bytes = writer.Serialize();
  ASSERT_TRUE(ParseGguf(AsBytes(bytes), "good.gguf").ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    // A copy of exactly this size, so that a sanitizer sees any read past its end.
    const std::vector<std::byte> cut(AsBytes(bytes).begin(), AsBytes(bytes).begin() + size);
    const Status status = ParseGguf(cut, "cut.gguf").status();
    ASSERT_EQ(status.code(), StatusCode::kCorruption) << size;
    ASSERT_THAT(status.message(), HasSubstr("cut.gguf: ")) << size;
  }
}

TEST(GgufHostileTest, TensorDataInTheWrongPlace) {
  ExpectRefused(OneTensor({8}, 0, 8).PadTo(32).Zeros(64).bytes(),
                {"token_embd.weight", "multiple of 32, found 8"});
  ExpectRefused(OneTensor({8}, 0, 64).PadTo(32).Zeros(32).bytes(),
                {"expected 32 bytes at offset 64", "section of 32 bytes", "cut short"});
  ExpectRefused(OneTensor({8}, 0, ~uint64_t{31}).PadTo(32).Zeros(32).bytes(), {"cut short"});
  Raw overlapping;
  overlapping.Header(2, 0);
  overlapping.Text("a").U32(1).U64(16).U32(0).U64(0);
  overlapping.Text("b").U32(1).U64(16).U32(0).U64(32);
  ExpectRefused(overlapping.PadTo(32).Zeros(96).bytes(),
                {"tensor 'b'", "overlapping 96-160 of tensor 'a'"});
}

TEST(GgufHostileTest, NamesUsedTwice) {
  GgufWriter tensors;
  tensors.AddZeroTensor("t", DType::kF32, MakeShape({1}));
  tensors.AddZeroTensor("u", DType::kF32, MakeShape({1}));
  tensors.AddZeroTensor("t", DType::kF32, MakeShape({1}));
  ExpectRefused(tensors.Serialize(), {"tensor 't'", "byte 90", "already used at byte 24"});
  GgufWriter keys;
  keys.AddUint32("k", 1);
  keys.AddBool("k", true);
  ExpectRefused(keys.Serialize(), {"key 'k'", "byte 41", "expected once, found twice"});
}

// B17: all these checks must not make a large vocabulary slow.
TEST(GgufTest, LargeVocabularyLoadsQuickly) {
  constexpr int kTokens = 262'144;
  std::vector<std::string> tokens(kTokens);
  for (int i = 0; i < kTokens; ++i) tokens[i] = "token" + std::to_string(i);
  GgufWriter writer;
  writer.AddStrings("tokenizer.ggml.tokens", tokens);
  writer.AddFloat32s("tokenizer.ggml.scores", std::vector<float>(kTokens, -1.0f));
  writer.AddInt32s("tokenizer.ggml.token_type", std::vector<int32_t>(kTokens, 1));
  const std::string bytes = writer.Serialize();
  const double start = CpuSeconds();
  const Result<GgufHeader> header = ParseGguf(AsBytes(bytes), "good.gguf");
  const double elapsed = CpuSeconds() - start;
  ASSERT_TRUE(header.ok()) << header.status().ToString();
  EXPECT_EQ((**header->metadata.GetStrings("tokenizer.ggml.tokens"))[kTokens - 1], tokens.back());
  // About 5 ms; the budget leaves room for sanitizers and busy machines.
  EXPECT_LT(elapsed, 0.5);
}

GgufWriter MakePart(int number, int count, int total_tensors) {
  GgufWriter writer;
  if (number == 1) writer.AddString("general.architecture", "qwen2");
  writer.AddRaw("split.no", 2, std::string{static_cast<char>(number - 1), '\0'});
  writer.AddRaw("split.count", 2, std::string{static_cast<char>(count), '\0'});
  writer.AddInt32("split.tensors.count", total_tensors);
  const std::vector<float> values(4, static_cast<float>(number));
  writer.AddTensor("blk." + std::to_string(number) + ".w", DType::kF32, MakeShape({4}),
                   std::as_bytes(std::span(values)));
  return writer;
}

TEST(GgufSplitTest, AnyPartOpensTheSet) {
  const TempFolder folder;
  const auto part = [&](int n) {
    return folder.File("modèle-0000" + std::to_string(n) + "-of-00003.gguf");
  };
  for (int n = 1; n <= 3; ++n) ASSERT_TRUE(MakePart(n, 3, 3).WriteTo(part(n)).ok());
  for (int n = 1; n <= 3; ++n) {
    const auto source = OpenWeights(part(n));
    ASSERT_TRUE(source.ok()) << source.status().ToString();
    EXPECT_EQ((*source)->path(), part(n));
    EXPECT_EQ((*source)->files().size(), 3u);
    EXPECT_EQ(*(*source)->metadata().GetString("general.architecture"), "qwen2");
    EXPECT_EQ((*source)->tensor_bytes(), 48u);
    const auto view = (*source)->Get("blk.3.w", MakeShape({4}));
    ASSERT_TRUE(view.ok()) << view.status().ToString();
    EXPECT_EQ(reinterpret_cast<const float*>(view->data)[3], 3.0f);
  }
  std::filesystem::remove(part(2));
  const Status missing = OpenWeights(part(3)).status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("part 2 of 3"));
  EXPECT_THAT(missing.message(), HasSubstr(part(2)));
}

TEST(GgufSplitTest, PartsMustAgree) {
  const TempFolder folder;
  const std::string first = folder.File("m-00001-of-00002.gguf");
  const std::string second = folder.File("m-00002-of-00002.gguf");
  ASSERT_TRUE(MakePart(1, 2, 2).WriteTo(first).ok());
  ASSERT_TRUE(MakePart(1, 2, 2).WriteTo(second).ok());
  EXPECT_THAT(OpenWeights(first).status().message(),
              HasSubstr("expected part 2 of 2, found part 1 of 2"));
  ASSERT_TRUE(MakePart(2, 2, 3).WriteTo(second).ok());
  ASSERT_TRUE(MakePart(1, 2, 3).WriteTo(first).ok());
  EXPECT_THAT(OpenWeights(first).status().message(),
              HasSubstr("expected 3 tensors in all parts, found 2"));
  std::filesystem::rename(first, folder.File("renamed.gguf"));
  EXPECT_THAT(OpenWeights(folder.File("renamed.gguf")).status().message(),
              HasSubstr("ending in -00001-of-00002.gguf"));
}

TEST(WeightSourceTest, NamesShapesThatDiffer) {
  const TempFolder folder;
  GgufWriter writer;
  writer.AddZeroTensor("t", DType::kF32, MakeShape({2, 3}));
  ASSERT_TRUE(writer.WriteTo(folder.File("m.gguf")).ok());
  const auto source = OpenWeights(folder.File("m.gguf"));
  ASSERT_TRUE(source.ok()) << source.status().ToString();
  EXPECT_TRUE((*source)->Get("t", MakeShape({2, 3})).ok());
  EXPECT_THAT((*source)->Get("t", MakeShape({3, 2})).status().message(),
              HasSubstr("expected shape [3, 2], found [2, 3]"));
  EXPECT_EQ((*source)->Get("u", MakeShape({1})).status().code(), StatusCode::kNotFound);
  EXPECT_EQ((*source)->side_file("tokenizer.json"), "");
}

// A real model, when the environment names one: opens quickly and holds what it should.
TEST(GgufTest, OpensARealModelQuickly) {
  const char* path = std::getenv("LODE_TEST_GEMMA");
  if (path == nullptr) GTEST_SKIP() << "LODE_TEST_GEMMA is not set";
  const double start = CpuSeconds();
  const auto source = OpenWeights(path);
  const double elapsed = CpuSeconds() - start;
  ASSERT_TRUE(source.ok()) << source.status().ToString();
  EXPECT_LT(elapsed, 0.5);
  EXPECT_EQ((**(*source)->metadata().GetStrings("tokenizer.ggml.tokens")).size(), 262'144u);
  EXPECT_NE((*source)->Find("token_embd.weight"), nullptr);
}

}  // namespace
}  // namespace lode
