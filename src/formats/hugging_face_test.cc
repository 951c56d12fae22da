// SPDX-License-Identifier: Apache-2.0
// Hugging Face folders as a whole: single and sharded weights, side files, what is left out.
#include "formats/hugging_face.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "formats/formats_test_support.h"
#include "formats/weight_source.h"

namespace lode {
namespace {

using testing::HasSubstr;

constexpr char kConfig[] = R"({"architectures":["LlamaForCausalLM"],"hidden_size":2,
  "intermediate_size":2,"num_attention_heads":1,"num_hidden_layers":1,"vocab_size":3,
  "tie_word_embeddings":false})";

struct Stored {
  std::string name;
  std::string dtype;
  std::string shape;
  std::string data;
};

std::string MakeFile(const std::vector<Stored>& tensors) {
  std::string header = "{";
  std::string data;
  for (const Stored& t : tensors) {
    if (header.size() > 1) header += ",";
    header += "\"" + t.name + "\":{\"dtype\":\"" + t.dtype + "\",\"shape\":" + t.shape +
              ",\"data_offsets\":[" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + t.data.size()) + "]}";
    data += t.data;
  }
  return MakeSafetensors(header + "}", data);
}

const Stored kEmbeddings = {"model.embed_tokens.weight", "BF16", "[3,2]", "abcdefghijkl"};
const Stored kOutput = {"lm_head.weight", "F16", "[3,2]", "mnopqrstuvwx"};

TEST(HuggingFaceTest, OpensASingleFile) {
  const TempFolder folder;
  folder.Write("config.json", kConfig);
  folder.Write("tokenizer.json", R"({"a":1})");
  folder.Write("model.safetensors",
               MakeFile({kEmbeddings,
                         kOutput,
                         {"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", "[1]", "1234"},
                         {"vision_tower.patch", "F32", "[1,1,1,1,1]", "1234"},
                         {"model.extra.weight", "I64", "[]", "12345678"}}));
  for (const std::string& path : {folder.path(), folder.path() + "/"}) {
    const auto source = OpenWeights(path);
    ASSERT_TRUE(source.ok()) << source.status().ToString();
    EXPECT_EQ((*source)->kind(), FileKind::kHuggingFace);
    EXPECT_EQ((*source)->tensors().size(), 2u);
    EXPECT_EQ((*source)->side_file("tokenizer.json"), R"({"a":1})");
    EXPECT_EQ((*source)->side_file("merges.txt"), "");
    EXPECT_EQ((*source)->metadata().GetStringOr("general.name", "").value(),
              std::filesystem::path(folder.path()).filename().string());
    const auto view = (*source)->Get("output.weight", MakeShape({3, 2}));
    ASSERT_TRUE(view.ok()) << view.status().ToString();
    EXPECT_EQ(view->type, DType::kF16);
    EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(view->data), 12), "mnopqrstuvwx");
  }
}

TEST(HuggingFaceTest, OpensShards) {
  const TempFolder folder;
  folder.Write("config.json", kConfig);
  folder.Write("model-00001-of-00002.safetensors", MakeFile({kEmbeddings}));
  folder.Write("model-00002-of-00002.safetensors",
               MakeFile({kOutput, {"unlisted", "U8", "[1]", "x"}}));
  folder.Write("model.safetensors.index.json", R"({"weight_map":{
    "model.embed_tokens.weight":"model-00001-of-00002.safetensors",
    "lm_head.weight":"model-00002-of-00002.safetensors"}})");
  const auto source = OpenWeights(folder.path());
  ASSERT_TRUE(source.ok()) << source.status().ToString();
  EXPECT_EQ((*source)->files().size(), 2u);
  EXPECT_EQ((*source)->Find("output.weight")->file_index, 1u);
  EXPECT_EQ((*source)->tensor_bytes(), 24u);

  folder.Write("model-00002-of-00002.safetensors", MakeFile({{"other", "U8", "[1]", "x"}}));
  EXPECT_THAT(OpenWeights(folder.path()).status().message(),
              HasSubstr("tensor 'lm_head.weight': expected in this file"));
  std::filesystem::remove(folder.File("model-00002-of-00002.safetensors"));
  const Status missing = OpenWeights(folder.path()).status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("model-00002-of-00002.safetensors"));
}

TEST(HuggingFaceTest, TiedEmbeddingsNeedNoOutput) {
  const TempFolder folder;
  folder.Write("config.json", kConfig);
  folder.Write("weights.safetensors", MakeFile({kEmbeddings}));
  const Status untied = OpenWeights(folder.path()).status();
  EXPECT_EQ(untied.code(), StatusCode::kNotFound);
  EXPECT_THAT(untied.message(), HasSubstr("'lm_head.weight'"));
  std::string tied = kConfig;
  tied.replace(tied.find("false"), 5, "true");
  folder.Write("config.json", tied);
  EXPECT_TRUE(OpenWeights(folder.path()).ok());
  // A copy of the embeddings, as some tools write it, is left out.
  folder.Write("weights.safetensors", MakeFile({kEmbeddings, kOutput}));
  const auto source = OpenWeights(folder.path());
  ASSERT_TRUE(source.ok()) << source.status().ToString();
  EXPECT_EQ((*source)->Find("output.weight"), nullptr);
}

TEST(HuggingFaceTest, RefusesFoldersItCannotRead) {
  const TempFolder folder;
  EXPECT_THAT(OpenWeights(folder.path()).status().message(), HasSubstr("expected config.json"));
  folder.Write("config.json", kConfig);
  EXPECT_THAT(OpenWeights(folder.path()).status().message(),
              HasSubstr("expected model.safetensors or model.safetensors.index.json"));
  folder.Write("model.safetensors",
               MakeFile({{"model.embed_tokens.weight", "F8_E4M3", "[3,2]", "abcdef"}}));
  const Status dtype = OpenWeights(folder.path()).status();
  EXPECT_EQ(dtype.code(), StatusCode::kUnsupported);
  EXPECT_THAT(dtype.message(), HasSubstr("tensor 'model.embed_tokens.weight'"));
  EXPECT_THAT(dtype.message(), HasSubstr("found F8_E4M3"));
  folder.Write("model.safetensors", MakeFile({{"model.norm.weight", "F32", "[0]", ""}}));
  EXPECT_THAT(OpenWeights(folder.path()).status().message(),
              HasSubstr("at least 1, found shape [0]"));
  EXPECT_THAT(OpenWeights(folder.File("model.safetensors")).status().message(),
              HasSubstr("give the folder itself"));
  EXPECT_EQ(OpenWeights(folder.File("absent.gguf")).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace lode
