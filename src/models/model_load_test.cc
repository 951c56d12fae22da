// SPDX-License-Identifier: Apache-2.0
// What LoadModel refuses, on GGUF files made here. Numerical equality is checked by tests/golden.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "formats/gguf_writer.h"
#include "models/model.h"

namespace lode {
namespace {

constexpr int64_t kHidden = 64, kFfn = 96, kVocab = 40;

Shape MakeShape(std::initializer_list<int64_t> dims) {
  Shape shape;
  for (const int64_t dim : dims) shape.dims[shape.num_dims++] = dim;
  return shape;
}

// A one-layer model of zeros, with `edit` free to add to it.
struct TinyFile {
  std::string arch = "qwen2";
  uint32_t num_layers = 1, num_heads = 4, num_kv_heads = 2;
  int64_t k_rows = 32;
  std::map<std::string, DType> types;  // of tensors that are not F32
  ModelLoadOptions options;
  std::function<void(GgufWriter&)> edit = [](GgufWriter&) {};

  Status Load() const {
    GgufWriter file;
    file.AddString("general.architecture", arch);
    file.AddUint32(arch + ".block_count", num_layers);
    file.AddUint32(arch + ".embedding_length", kHidden);
    file.AddUint32(arch + ".feed_forward_length", kFfn);
    file.AddUint32(arch + ".attention.head_count", num_heads);
    file.AddUint32(arch + ".attention.head_count_kv", num_kv_heads);
    file.AddUint32(arch + ".context_length", 128);
    file.AddFloat32(arch + ".attention.layer_norm_rms_epsilon", 1e-6f);
    const auto add = [&](const std::string& name, std::initializer_list<int64_t> dims) {
      const auto type = types.find(name);
      file.AddZeroTensor(name, type == types.end() ? DType::kF32 : type->second, MakeShape(dims));
    };
    add("token_embd.weight", {kVocab, kHidden});
    add("output_norm.weight", {kHidden});
    add("blk.0.attn_norm.weight", {kHidden});
    add("blk.0.ffn_norm.weight", {kHidden});
    add("blk.0.attn_q.weight", {kHidden, kHidden});
    add("blk.0.attn_k.weight", {k_rows, kHidden});
    add("blk.0.attn_v.weight", {32, kHidden});
    add("blk.0.attn_output.weight", {kHidden, kHidden});
    add("blk.0.ffn_gate.weight", {kFfn, kHidden});
    add("blk.0.ffn_up.weight", {kFfn, kHidden});
    add("blk.0.ffn_down.weight", {kHidden, kFfn});
    edit(file);
    const std::string path = testing::TempDir() + "model_load_test.gguf";
    LODE_RETURN_IF_ERROR(file.WriteTo(path));
    ThreadPool pool(2);
    const auto source = OpenWeights(path);
    std::filesystem::remove(path);
    if (!source.ok()) return source.status();
    return LoadModel(**source, options, pool).status();
  }
};

// What loading the file, which must succeed, writes to stderr.
std::string LogOf(const TinyFile& file) {
  testing::internal::CaptureStderr();
  const Status status = file.Load();
  EXPECT_TRUE(status.ok()) << status.ToString();
  return testing::internal::GetCapturedStderr();
}

void ExpectError(const TinyFile& file, StatusCode code, std::initializer_list<const char*> parts) {
  const Status status = file.Load();
  EXPECT_EQ(status.code(), code) << status.ToString();
  for (const char* part : parts) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
}

TEST(ModelLoadTest, LoadsThePlainFile) {
  const Status status = TinyFile().Load();
  EXPECT_TRUE(status.ok()) << status.ToString();
}

TEST(ModelLoadTest, RefusesUnknownArchitecturesAndListsTheKnownOnes) {
  TinyFile file;
  file.arch = "mamba";
  ExpectError(file, StatusCode::kUnsupported, {"mamba", "qwen2", "gemma3"});
}

TEST(ModelLoadTest, NamesMissingAndMisshapenTensors) {
  TinyFile file;
  file.num_layers = 2;
  ExpectError(file, StatusCode::kNotFound, {"blk.1."});
  file = TinyFile();
  file.k_rows = 48;
  ExpectError(file, StatusCode::kCorruption, {"blk.0.attn_k.weight", "32", "48"});
}

TEST(ModelLoadTest, BoundsTheNumbersOfLayersAndHeads) {
  TinyFile file;
  for (const uint32_t layers : {0u, 513u, 1u << 31}) {
    file.num_layers = layers;
    ExpectError(file, StatusCode::kCorruption, {"qwen2.block_count"});
  }
  file = TinyFile();
  file.num_kv_heads = 3;
  ExpectError(file, StatusCode::kCorruption, {"head_count_kv", "3"});
  file.num_kv_heads = 0;
  ExpectError(file, StatusCode::kCorruption, {"head_count_kv", "0"});
}

TEST(ModelLoadTest, RefusesTensorsItWouldNotUse) {
  TinyFile file;
  file.edit = [](GgufWriter& writer) {
    writer.AddZeroTensor("blk.0.attn_q_norm.weight", DType::kF32, MakeShape({16}));
  };
  ExpectError(file, StatusCode::kUnsupported, {"blk.0.attn_q_norm.weight", "qwen2"});
}

TEST(ModelLoadTest, RefusesUnknownRopeScaling) {
  TinyFile file;
  file.edit = [](GgufWriter& writer) {
    writer.AddString("qwen2.rope.scaling.type", "longrope");
    writer.AddFloat32("qwen2.rope.scaling.factor", 4.0f);
  };
  ExpectError(file, StatusCode::kUnsupported, {"longrope", "yarn"});
  file.edit = [](GgufWriter& writer) {
    writer.AddString("qwen2.rope.scaling.type", "linear");
    writer.AddFloat32("qwen2.rope.scaling.factor", 0.0f);
  };
  ExpectError(file, StatusCode::kCorruption, {"qwen2.rope.scaling.factor", "0"});
}

TEST(ModelLoadTest, RefusesSoftCappedGemma) {
  TinyFile file;
  file.arch = "gemma3";
  file.edit = [](GgufWriter& writer) {
    writer.AddFloat32("gemma3.final_logit_softcapping", 30.0f);
  };
  ExpectError(file, StatusCode::kUnsupported, {"final_logit_softcapping", "30"});
}

TEST(ModelLoadTest, NamesEveryTypeItConverts) {
  TinyFile file;
  EXPECT_EQ(LogOf(file), "");
  file.types = {{"blk.0.attn_q.weight", DType::kQ4_1},
                {"blk.0.attn_v.weight", DType::kQ4_1},
                {"blk.0.ffn_up.weight", DType::kIQ4_NL},
                {"blk.0.ffn_gate.weight", DType::kQ8_0}};
  EXPECT_EQ(LogOf(file),
            "warning: types without a kernel of their own, converted at load (tensors): "
            "2 Q4_1 to Q8_0, 1 IQ4_NL to Q8_0\n");
}

TEST(ModelLoadTest, WarnsOfAContextBeyondTheTrainedOne) {
  TinyFile file;
  file.options.context_len = 128;
  EXPECT_EQ(LogOf(file), "");
  file.options.context_len = 160;
  const std::string log = LogOf(file);
  EXPECT_NE(log.find("context of 160 tokens: qwen2 was trained for 128;"), std::string::npos)
      << log;
  EXPECT_NE(log.find("--rope-interpolation-factor 1.25 "), std::string::npos) << log;
  // Stretched far enough there is only the warning about the factor, if it is a large one.
  file.options.rope_linear_factor = 1.25;
  EXPECT_EQ(LogOf(file).find("context of"), std::string::npos);
  file.options.rope_linear_factor = 1.125;
  EXPECT_NE(LogOf(file).find("trained for 128, stretched to 144;"), std::string::npos);
}

TEST(ModelLoadTest, CountsWhatTheFilesOwnScalingReaches) {
  TinyFile file;
  file.options.context_len = 512;
  std::string type;
  file.edit = [&](GgufWriter& writer) {
    writer.AddString("qwen2.rope.scaling.type", type);
    writer.AddFloat32("qwen2.rope.scaling.factor", 4.0f);
  };
  for (const char* stretching : {"yarn", "dynamic"}) {
    type = stretching;
    EXPECT_EQ(LogOf(file), "") << type;
  }
  for (const char* stated : {"linear", "llama3"}) {  // the stated context is the stretched one
    type = stated;
    EXPECT_NE(LogOf(file).find("context of 512 tokens"), std::string::npos) << type;
  }
}

}  // namespace
}  // namespace lode
