// SPDX-License-Identifier: Apache-2.0
// Translation of Hugging Face configurations and tensor names. The configurations are those of
// published models and of transformers 5, shortened to what matters.
#include "formats/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "formats/formats_test_support.h"
#include "formats/hf_names.h"

namespace lode {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kQwen2[] = R"({"architectures":["Qwen2ForCausalLM"],"hidden_act":"silu",
  "hidden_size":896,"intermediate_size":4864,"max_position_embeddings":32768,"max_window_layers":24,
  "num_attention_heads":14,"num_hidden_layers":24,"num_key_value_heads":2,"rms_norm_eps":1e-06,
  "rope_theta":1000000.0,"sliding_window":32768,"tie_word_embeddings":true,
  "use_sliding_window":false,"vocab_size":151936,"eos_token_id":151645,
  "bos_token_id":151643 EXTRA})";
constexpr char kLlama[] = R"({"architectures":["LlamaForCausalLM"],"hidden_size":2048,
  "intermediate_size":8192,"max_position_embeddings":131072,"num_attention_heads":32,
  "num_hidden_layers":16,"num_key_value_heads":8,"rms_norm_eps":1e-05,"vocab_size":128256,
  "head_dim":64,"rope_theta":500000.0 EXTRA})";
constexpr char kMistral[] = R"({"architectures":["MistralForCausalLM"],"hidden_size":4096,
  "intermediate_size":14336,"num_attention_heads":32,"num_hidden_layers":2,
  "vocab_size":32000 EXTRA})";
constexpr char kGemma3[] = R"({"architectures":["Gemma3ForCausalLM"],"hidden_size":640,
  "intermediate_size":2048,"num_attention_heads":4,"num_key_value_heads":1,"num_hidden_layers":7,
  "head_dim":256,"max_position_embeddings":32768,"vocab_size":262144,"sliding_window":512 EXTRA})";
// As published for the 4B size: what equals the class's default is not written.
constexpr char kGemma3Multimodal[] = R"({"architectures":["Gemma3ForConditionalGeneration"],
  "eos_token_id":[1,106],"model_type":"gemma3","vision_config":{"hidden_size":1152},
  "text_config":{"hidden_size":2560,"intermediate_size":10240,"model_type":"gemma3_text",
  "num_hidden_layers":34,"rope_scaling":{"factor":8.0,"rope_type":"linear"},
  "sliding_window":1024}})";

std::string With(std::string config, const std::string& extra) {
  const size_t at = config.find(" EXTRA");
  return config.replace(at, 6, extra.empty() ? "" : "," + extra);
}

HfConfig Translate(const std::string& config, const std::string& generation = "") {
  Result<HfConfig> result = TranslateHfConfig(config, generation, "folder");
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  return result.ok() ? std::move(*result) : HfConfig();
}

int64_t Int(const HfConfig& config, std::string_view key) {
  const Result<int64_t> value = config.metadata.GetInt(key, 0, 1 << 30);
  EXPECT_TRUE(value.ok()) << value.status().ToString();
  return value.ok() ? *value : -1;
}

double Float(const HfConfig& config, std::string_view key) {
  const Result<double> value = config.metadata.GetFloat(key);
  EXPECT_TRUE(value.ok()) << value.status().ToString();
  return value.ok() ? *value : NAN;
}

std::string Text(const HfConfig& config, std::string_view key) {
  return *config.metadata.GetStringOr(key, "absent");
}

void ExpectRefused(const std::string& config, StatusCode code,
                   const std::vector<std::string>& parts) {
  ExpectRefusedCheaply([&] { return TranslateHfConfig(config, "", "folder").status(); }, code,
                       parts);
}

TEST(HfConfigTest, Qwen2) {
  const HfConfig config = Translate(With(kQwen2, ""));
  EXPECT_EQ(config.architecture, "qwen2");
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_EQ(Text(config, "general.architecture"), "qwen2");
  EXPECT_EQ(Int(config, "qwen2.block_count"), 24);
  EXPECT_EQ(Int(config, "qwen2.embedding_length"), 896);
  EXPECT_EQ(Int(config, "qwen2.feed_forward_length"), 4864);
  EXPECT_EQ(Int(config, "qwen2.attention.head_count"), 14);
  EXPECT_EQ(Int(config, "qwen2.attention.head_count_kv"), 2);
  EXPECT_EQ(Int(config, "qwen2.context_length"), 32768);
  EXPECT_EQ(Int(config, "qwen2.vocab_size"), 151936);
  EXPECT_EQ(Float(config, "qwen2.attention.layer_norm_rms_epsilon"), 1e-6);
  EXPECT_EQ(Float(config, "qwen2.rope.freq_base"), 1e6);
  EXPECT_EQ(Text(config, "qwen2.rope.scaling.type"), "none");
  EXPECT_FALSE(config.metadata.Has("qwen2.attention.sliding_window"));
  EXPECT_FALSE(config.metadata.Has("qwen2.attention.key_length"));
  EXPECT_THAT(**config.metadata.GetInts("tokenizer.ggml.eos_token_ids"), ElementsAre(151645));
  EXPECT_EQ(Int(config, "tokenizer.ggml.bos_token_id"), 151643);
}

TEST(HfConfigTest, Qwen2WindowOnUpperLayers) {
  std::string text = With(kQwen2, "");
  text.replace(text.find("\"use_sliding_window\":false"), 26, "\"use_sliding_window\":true");
  const HfConfig config = Translate(text);
  EXPECT_EQ(Int(config, "qwen2.attention.sliding_window"), 32768);
  EXPECT_THAT(**config.metadata.GetInts("qwen2.attention.layer_slides"), testing::Each(0));
  text.replace(text.find("\"max_window_layers\":24"), 22, "\"max_window_layers\":23");
  EXPECT_EQ((**Translate(text).metadata.GetInts("qwen2.attention.layer_slides"))[23], 1);
}

TEST(HfConfigTest, Qwen3HasItsOwnHeadSize) {
  const std::string text = R"({"architectures":["Qwen3ForCausalLM"],"hidden_size":1024,
    "intermediate_size":3072,"num_attention_heads":16,"num_key_value_heads":8,
    "num_hidden_layers":28,"vocab_size":151936,
    "rope_parameters":{"rope_theta":1000000,"rope_type":"default"}})";
  const HfConfig config = Translate(text);
  EXPECT_EQ(Int(config, "qwen3.attention.key_length"), 128);
  EXPECT_EQ(Float(config, "qwen3.rope.freq_base"), 1e6);
  EXPECT_FALSE(config.tied_embeddings);
}

TEST(HfConfigTest, LlamaRopeOfBothTransformers) {
  const std::string inner = R"("factor":32.0,"high_freq_factor":4.0,"low_freq_factor":1.0,
    "original_max_position_embeddings":8192,"rope_type":"llama3")";
  for (const std::string& extra : {"\"rope_scaling\":{" + inner + "}",
                                   "\"rope_parameters\":{\"rope_theta\":500000.0," + inner + "}"}) {
    const HfConfig config = Translate(With(kLlama, extra));
    EXPECT_EQ(Float(config, "llama.rope.freq_base"), 5e5);
    EXPECT_EQ(Text(config, "llama.rope.scaling.type"), "llama3");
    EXPECT_EQ(Float(config, "llama.rope.scaling.factor"), 32.0);
    EXPECT_EQ(Float(config, "llama.rope.scaling.low_freq_factor"), 1.0);
    EXPECT_EQ(Float(config, "llama.rope.scaling.high_freq_factor"), 4.0);
    EXPECT_EQ(Int(config, "llama.rope.scaling.original_context_length"), 8192);
    EXPECT_EQ(Int(config, "llama.attention.key_length"), 64);
  }
}

TEST(HfConfigTest, OldSpellingsAndDefaultsOfRopeScaling) {
  const HfConfig linear = Translate(With(kLlama, R"("rope_scaling":{"type":"linear","factor":4})"));
  EXPECT_EQ(Text(linear, "llama.rope.scaling.type"), "linear");
  EXPECT_EQ(Int(linear, "llama.rope.scaling.original_context_length"), 131072);
  const HfConfig dynamic = Translate(With(
      kLlama,
      R"("rope_scaling":{"type":"dynamic","factor":2.0,"original_max_position_embeddings":4096})"));
  EXPECT_EQ(Int(dynamic, "llama.rope.scaling.original_context_length"), 131072);
  const HfConfig unknown = Translate(With(kLlama, R"("rope_scaling":{"rope_type":"longrope"})"));
  EXPECT_EQ(Text(unknown, "llama.rope.scaling.type"), "longrope");
  const HfConfig none = Translate(With(kLlama, R"("rope_scaling":null)"));
  EXPECT_EQ(Text(none, "llama.rope.scaling.type"), "none");
  EXPECT_EQ(Float(none, "llama.rope.freq_base"), 5e5);
}

TEST(HfConfigTest, Yarn) {
  const HfConfig plain = Translate(With(
      kQwen2,
      R"("rope_scaling":{"factor":4.0,"original_max_position_embeddings":32768,"type":"yarn"})"));
  EXPECT_EQ(Text(plain, "qwen2.rope.scaling.type"), "yarn");
  EXPECT_FALSE(plain.metadata.Has("qwen2.rope.scaling.attention_factor"));
  const HfConfig full = Translate(
      With(kQwen2, R"("rope_scaling":{"factor":40,"type":"yarn","beta_fast":16,"beta_slow":2,
                 "mscale":0.707,"mscale_all_dim":1.0})"));
  EXPECT_EQ(Float(full, "qwen2.rope.scaling.beta_fast"), 16.0);
  EXPECT_EQ(Float(full, "qwen2.rope.scaling.beta_slow"), 2.0);
  // transformers' get_mscale(40, 0.707) / get_mscale(40, 1.0)
  EXPECT_NEAR(Float(full, "qwen2.rope.scaling.attention_factor"), 1.2608038 / 1.3688879, 1e-6);
  const HfConfig given = Translate(
      With(kQwen2, R"("rope_scaling":{"factor":4,"type":"yarn","attention_factor":0.5})"));
  EXPECT_EQ(Float(given, "qwen2.rope.scaling.attention_factor"), 0.5);
}

TEST(HfConfigTest, MistralWindow) {
  const HfConfig given = Translate(With(kMistral, R"("sliding_window":1024)"));
  EXPECT_EQ(given.architecture, "llama");
  EXPECT_EQ(Int(given, "llama.attention.sliding_window"), 1024);
  EXPECT_THAT(**given.metadata.GetInts("llama.attention.layer_slides"), ElementsAre(1, 1));
  EXPECT_EQ(Int(given, "llama.attention.head_count_kv"), 8);
  // Null means none, absent means the class's default.
  EXPECT_FALSE(Translate(With(kMistral, R"("sliding_window":null)"))
                   .metadata.Has("llama.attention.sliding_window"));
  EXPECT_EQ(Int(Translate(With(kMistral, "")), "llama.attention.sliding_window"), 4096);
}

TEST(HfConfigTest, Gemma3OfBothTransformers) {
  const std::string old = R"("rope_theta":1000000.0,"rope_local_base_freq":20000.0,
    "sliding_window_pattern":6,"query_pre_attn_scalar":168)";
  const std::string recent = R"("query_pre_attn_scalar":168,"rope_parameters":{
    "full_attention":{"rope_theta":1000000.0,"rope_type":"default"},
    "sliding_attention":{"rope_theta":20000.0,"rope_type":"default"}},
    "layer_types":["sliding_attention","sliding_attention","sliding_attention","sliding_attention",
    "sliding_attention","full_attention","sliding_attention"])";
  for (const std::string& extra : {old, recent}) {
    const HfConfig config = Translate(With(kGemma3, extra));
    EXPECT_EQ(config.architecture, "gemma3");
    EXPECT_TRUE(config.tied_embeddings);
    EXPECT_EQ(Float(config, "gemma3.rope.freq_base"), 1e6);
    EXPECT_EQ(Float(config, "gemma3.rope.freq_base_local"), 2e4);
    EXPECT_EQ(Float(config, "gemma3.attention.query_pre_attn_scalar"), 168.0);
    EXPECT_EQ(Int(config, "gemma3.attention.sliding_window"), 512);
    EXPECT_THAT(**config.metadata.GetInts("gemma3.attention.layer_slides"),
                ElementsAre(1, 1, 1, 1, 1, 0, 1));
  }
}

TEST(HfConfigTest, Gemma3MultimodalTakesClassDefaults) {
  const HfConfig config = Translate(kGemma3Multimodal);
  EXPECT_EQ(Int(config, "gemma3.block_count"), 34);
  EXPECT_EQ(Int(config, "gemma3.embedding_length"), 2560);
  EXPECT_EQ(Int(config, "gemma3.attention.head_count"), 8);
  EXPECT_EQ(Int(config, "gemma3.attention.head_count_kv"), 4);
  EXPECT_EQ(Int(config, "gemma3.attention.key_length"), 256);
  EXPECT_EQ(Int(config, "gemma3.vocab_size"), 262208);
  EXPECT_EQ(Text(config, "gemma3.rope.scaling.type"), "linear");
  EXPECT_EQ(Float(config, "gemma3.rope.scaling.factor"), 8.0);
  EXPECT_EQ(Float(config, "gemma3.rope.freq_base_local"), 1e4);
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_THAT(**config.metadata.GetInts("tokenizer.ggml.eos_token_ids"), ElementsAre(1, 106));
}

TEST(HfConfigTest, GenerationDefaults) {
  const HfConfig config =
      Translate(With(kQwen2, ""), R"({"eos_token_id":[151645,151643],"do_sample":true,
    "temperature":0.7,"top_p":0.8,"top_k":20,"repetition_penalty":1.1})");
  EXPECT_THAT(**config.metadata.GetInts("tokenizer.ggml.eos_token_ids"),
              ElementsAre(151645, 151643));
  EXPECT_EQ(Float(config, "general.sampling.temp"), 0.7);
  EXPECT_EQ(Float(config, "general.sampling.top_p"), 0.8);
  EXPECT_EQ(Int(config, "general.sampling.top_k"), 20);
  EXPECT_EQ(Float(config, "general.sampling.penalty_repeat"), 1.1);
  const HfConfig greedy = Translate(With(kQwen2, ""), R"({"do_sample":false,"temperature":0.7})");
  EXPECT_EQ(Float(greedy, "general.sampling.temp"), 0.0);
}

TEST(HfConfigTest, ModelTypeServesWithoutArchitectures) {
  std::string text = With(kQwen2, "");
  const std::string classes = R"("architectures":["Qwen2ForCausalLM"])";
  text.replace(text.find(classes), classes.size(), R"("model_type":"qwen2")");
  EXPECT_EQ(Translate(text).architecture, "qwen2");
}

TEST(HfConfigTest, RefusesWhatItWouldComputeWrongly) {
  ExpectRefused(R"({"architectures":["PhiForCausalLM"]})", StatusCode::kUnsupported,
                {"folder/config.json", "Qwen2ForCausalLM, Qwen3ForCausalLM", "'PhiForCausalLM'"});
  ExpectRefused(With(kQwen2, R"("quantization_config":{"quant_method":"awq","bits":4})"),
                StatusCode::kUnsupported, {"quantization_config", "'awq'"});
  ExpectRefused(With(kLlama, R"("hidden_act":"gelu")"), StatusCode::kUnsupported,
                {"'hidden_act'", "silu", "'gelu'"});
  ExpectRefused(With(kLlama, R"("partial_rotary_factor":0.5)"), StatusCode::kUnsupported,
                {"partial_rotary_factor", "0.5"});
  ExpectRefused(With(kGemma3, R"("use_bidirectional_attention":true)"), StatusCode::kUnsupported,
                {"use_bidirectional_attention"});
  ExpectRefused(With(kLlama, R"("rope_parameters":{"full_attention":{"rope_theta":1}})"),
                StatusCode::kUnsupported, {"one rope for all layers"});
  ExpectRefused(With(kGemma3, R"("layer_types":["sliding_attention"])"), StatusCode::kCorruption,
                {"'layer_types'", "expected 7 entries, found 1"});
  ExpectRefused(With(kGemma3, R"("layer_types":["a","a","a","a","a","a","a"])"),
                StatusCode::kUnsupported, {"'layer_types'", "'a'"});
}

// B07: typed and bounded reads.
TEST(HfConfigTest, RefusesIllTypedValues) {
  const std::string head = R"({"architectures":["LlamaForCausalLM"],"hidden_size":64,
    "intermediate_size":128,"num_attention_heads":4,"vocab_size":100,"num_hidden_layers":)";
  for (const char* value : {"\"513\"", "24.5", "0", "-1", "4294967296", "[24]", "true", "1e99"}) {
    ExpectRefused(head + value + "}", StatusCode::kCorruption,
                  {"folder/config.json: key 'num_hidden_layers'", "expected an integer from 1"});
  }
  ExpectRefused(head + "null}", StatusCode::kNotFound, {"key 'num_hidden_layers'"});
  ExpectRefused(head + "2147483647}", StatusCode::kUnsupported, {"'num_hidden_layers'", "at most"});
  ExpectRefused(head + "2,\"hidden_size\":65}", StatusCode::kCorruption,
                {"key 'hidden_size'", "found twice"});
  ExpectRefused("", StatusCode::kCorruption, {"folder/config.json", "JSON"});
  ExpectRefused("[1]", StatusCode::kCorruption, {"expected a JSON object"});
  ExpectRefused(std::string(10'000, '['), StatusCode::kCorruption, {"nested at most 32 deep"});
  ExpectRefused(std::string(2'000'000, ' '), StatusCode::kCorruption, {"at most 1048576 bytes"});
}

TEST(HfConfigTest, NamesTheAttention) {
  constexpr std::string_view kKey = "lode.attention_implementation";
  EXPECT_FALSE(Translate(With(kQwen2, "")).metadata.Has(kKey));
  for (const std::string key : {"attention_implementation", "attn_implementation"}) {
    // Short strings lie elsewhere than long ones.
    for (const std::string name : {"csa_hca", "an implementation with a name of some length"}) {
      const HfConfig config = Translate(With(kQwen2, "\"" + key + "\":\"" + name + "\""));
      EXPECT_EQ(config.metadata.GetString(kKey).value(), name) << key;
    }
  }
}

TEST(HfConfigTest, PassesOnTheParametersOfSparseAttention) {
  const HfConfig config = Translate(With(kQwen2, R"("csa_top_k":128,"csa_max_unread":0.25,
      "csa_index":"buckets","hca_window":null,"hca_new":[1,2],"use_hca":false,"top_k":3)"));
  EXPECT_EQ(config.metadata.GetInt("lode.csa_top_k", 0, 999).value(), 128);
  EXPECT_EQ(config.metadata.GetFloat("lode.csa_max_unread").value(), 0.25);
  EXPECT_EQ(config.metadata.GetString("lode.csa_index").value(), "buckets");
  EXPECT_FALSE(config.metadata.Has("lode.hca_window"));
  EXPECT_EQ(config.metadata.GetInts("lode.hca_new").value()->size(), 2u);
  EXPECT_FALSE(config.metadata.GetBool("lode.use_hca").value());
  EXPECT_FALSE(config.metadata.Has("lode.top_k"));
}

TEST(HfNamesTest, TranslatesEveryKind) {
  const auto plain = [](std::string_view name) { return CanonicalTensorName("qwen3", name); };
  const auto gemma = [](std::string_view name) { return CanonicalTensorName("gemma3", name); };
  EXPECT_EQ(plain("model.embed_tokens.weight"), "token_embd.weight");
  EXPECT_EQ(plain("model.norm.weight"), "output_norm.weight");
  EXPECT_EQ(plain("lm_head.weight"), "output.weight");
  EXPECT_EQ(plain("model.layers.0.input_layernorm.weight"), "blk.0.attn_norm.weight");
  EXPECT_EQ(plain("model.layers.12.self_attn.q_proj.bias"), "blk.12.attn_q.bias");
  EXPECT_EQ(plain("model.layers.12.self_attn.k_proj.weight"), "blk.12.attn_k.weight");
  EXPECT_EQ(plain("model.layers.12.self_attn.v_proj.weight"), "blk.12.attn_v.weight");
  EXPECT_EQ(plain("model.layers.12.self_attn.o_proj.weight"), "blk.12.attn_output.weight");
  EXPECT_EQ(plain("model.layers.12.self_attn.q_norm.weight"), "blk.12.attn_q_norm.weight");
  EXPECT_EQ(plain("model.layers.12.self_attn.k_norm.weight"), "blk.12.attn_k_norm.weight");
  EXPECT_EQ(plain("model.layers.12.mlp.gate_proj.weight"), "blk.12.ffn_gate.weight");
  EXPECT_EQ(plain("model.layers.12.mlp.up_proj.weight"), "blk.12.ffn_up.weight");
  EXPECT_EQ(plain("model.layers.12.mlp.down_proj.weight"), "blk.12.ffn_down.weight");
  EXPECT_EQ(plain("model.layers.1.post_attention_layernorm.weight"), "blk.1.ffn_norm.weight");
  EXPECT_EQ(gemma("model.layers.1.post_attention_layernorm.weight"),
            "blk.1.post_attention_norm.weight");
  EXPECT_EQ(gemma("model.layers.1.pre_feedforward_layernorm.weight"), "blk.1.ffn_norm.weight");
  EXPECT_EQ(gemma("model.layers.1.post_feedforward_layernorm.weight"),
            "blk.1.post_ffw_norm.weight");
  EXPECT_EQ(gemma("language_model.model.layers.1.mlp.up_proj.weight"), "blk.1.ffn_up.weight");
  EXPECT_EQ(gemma("model.language_model.embed_tokens.weight"), "token_embd.weight");
  for (const char* name :
       {"", "model", "model.layers.weight", "model.layers.x.mlp.up_proj.weight",
        "model.layers.01.mlp.up_proj.weight", "model.layers.1234567.mlp.up_proj.weight",
        "model.layers.1.weight", "model.layers.1.mlp.up_proj", "embed_tokens.weight",
        "model.layers.1.pre_feedforward_layernorm.weight"}) {
    EXPECT_EQ(plain(name), std::nullopt) << name;
  }
  EXPECT_TRUE(IsIgnoredTensor("model.vision_tower.vision_model.head.weight"));
  EXPECT_FALSE(IsIgnoredTensor("model.norm.weight"));
}

}  // namespace
}  // namespace lode
