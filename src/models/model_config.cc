// SPDX-License-Identifier: Apache-2.0
#include "models/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace lode {
namespace {

// Bounds that no published model comes near, so that a hostile file cannot drive an allocation or a
// division.
constexpr int64_t kMaxLayers = 512;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxContext = int64_t{1} << 30;

constexpr std::array<std::string_view, 4> kArchitectures = {"qwen2", "qwen3", "llama", "gemma3"};
constexpr int64_t kGemma3WindowPattern =
    6;  // every sixth layer is global, when the file does not say
constexpr double kGemma3LocalBase = 10000.0;  // of its sliding layers, when the file does not say
constexpr int64_t kGemma3Layers27B = 62;      // the one size whose scale is not 1/sqrt(head_dim)

Result<RopeScaling> ParseRopeScaling(const Metadata& metadata, const std::string& key) {
  LODE_ASSIGN_OR_RETURN(const std::string name, metadata.GetStringOr(key, "none"));
  if (name == "none" || name == "default") return RopeScaling::kNone;
  if (name == "linear") return RopeScaling::kLinear;
  if (name == "dynamic") return RopeScaling::kDynamic;
  if (name == "yarn") return RopeScaling::kYarn;
  if (name == "llama3") return RopeScaling::kLlama3;
  return UnsupportedError(fmt::format(
      "{}: {}: unknown rope scaling type '{}'; known: none, linear, dynamic, yarn, llama3",
      metadata.origin(), key, name));
}

Status RequirePositive(const Metadata& metadata, const std::string& key, double value) {
  if (value > 0.0) return OkStatus();
  return CorruptionError(
      fmt::format("{}: {}: expected a number above 0, found {}", metadata.origin(), key, value));
}

// Hugging Face folders and GGUF files spell these keys differently, and GGUF's attention factor
// multiplies the one YaRN derives from the factor instead of replacing it.
Status ReadYarn(const Metadata& metadata, const std::string& scaling, RopeConfig& rope) {
  LODE_ASSIGN_OR_RETURN(rope.beta_fast,
                        metadata.GetFloatOr(scaling + "yarn_beta_fast", rope.beta_fast));
  LODE_ASSIGN_OR_RETURN(rope.beta_fast, metadata.GetFloatOr(scaling + "beta_fast", rope.beta_fast));
  LODE_ASSIGN_OR_RETURN(rope.beta_slow,
                        metadata.GetFloatOr(scaling + "yarn_beta_slow", rope.beta_slow));
  LODE_ASSIGN_OR_RETURN(rope.beta_slow, metadata.GetFloatOr(scaling + "beta_slow", rope.beta_slow));
  LODE_ASSIGN_OR_RETURN(double multiplier, metadata.GetFloatOr(scaling + "attn_factor", 1.0));
  LODE_ASSIGN_OR_RETURN(multiplier, metadata.GetFloatOr(scaling + "yarn_attn_factor", multiplier));
  LODE_RETURN_IF_ERROR(RequirePositive(metadata, scaling + "attn_factor", multiplier));
  const double derived = multiplier * (0.1 * std::log(std::max(rope.factor, 1.0)) + 1.0);
  LODE_ASSIGN_OR_RETURN(rope.attention_factor,
                        metadata.GetFloatOr(scaling + "attention_factor", derived));
  return RequirePositive(metadata, scaling + "attention_factor", rope.attention_factor);
}

Result<RopeConfig> ReadRope(const Metadata& metadata, const std::string& arch, int64_t context) {
  const std::string prefix = arch + ".rope.";
  RopeConfig rope;
  const double default_base = arch == "gemma3" ? 1e6 : 10000.0;
  LODE_ASSIGN_OR_RETURN(rope.base, metadata.GetFloatOr(prefix + "freq_base", default_base));
  LODE_RETURN_IF_ERROR(RequirePositive(metadata, prefix + "freq_base", rope.base));
  LODE_ASSIGN_OR_RETURN(rope.scaling, ParseRopeScaling(metadata, prefix + "scaling.type"));
  if (rope.scaling == RopeScaling::kNone) return rope;
  const std::string scaling = prefix + "scaling.";
  LODE_ASSIGN_OR_RETURN(rope.factor, metadata.GetFloat(scaling + "factor"));
  LODE_RETURN_IF_ERROR(RequirePositive(metadata, scaling + "factor", rope.factor));
  LODE_ASSIGN_OR_RETURN(
      rope.original_context,
      metadata.GetIntOr(scaling + "original_context_length", 1, kMaxContext, context));
  LODE_ASSIGN_OR_RETURN(rope.low_freq_factor,
                        metadata.GetFloatOr(scaling + "low_freq_factor", rope.low_freq_factor));
  LODE_ASSIGN_OR_RETURN(rope.high_freq_factor,
                        metadata.GetFloatOr(scaling + "high_freq_factor", rope.high_freq_factor));
  if (rope.scaling == RopeScaling::kYarn) {
    LODE_RETURN_IF_ERROR(ReadYarn(metadata, scaling, rope));
  }
  return rope;
}

// Divisors of each rotated pair's frequency, which GGUF files of Llama 3 carry as a tensor instead
// of metadata.
Status ReadRopeFactors(const WeightSource& source, ModelConfig& config) {
  if (source.Find("rope_freqs.weight") == nullptr) return OkStatus();
  Shape shape;
  shape.num_dims = 1;
  shape.dims[0] = config.head_dim / 2;
  LODE_ASSIGN_OR_RETURN(const TensorView view, source.Get("rope_freqs.weight", shape));
  if (view.type != DType::kF32) {
    return CorruptionError(fmt::format("{}: rope_freqs.weight: expected type F32, found {}",
                                       source.path(), Traits(view.type).name));
  }
  const float* factors = reinterpret_cast<const float*>(view.data);
  for (int64_t i = 0; i < shape.dims[0]; ++i) {
    if (!(factors[i] > 0.0f) || !std::isfinite(factors[i])) {
      return CorruptionError(
          fmt::format("{}: rope_freqs.weight: element {}: expected a number above 0, found {}",
                      source.path(), i, factors[i]));
    }
  }
  config.rope.factors.assign(factors, factors + shape.dims[0]);
  return OkStatus();
}

Status ReadSlidingLayers(const Metadata& metadata, ModelConfig& config) {
  const std::string prefix = config.architecture + ".attention.";
  LODE_ASSIGN_OR_RETURN(config.sliding_window,
                        metadata.GetIntOr(prefix + "sliding_window", 0, kMaxContext, 0));
  config.layer_slides.assign(config.num_layers, config.sliding_window > 0);
  if (config.sliding_window == 0) return OkStatus();
  // Some files say "every n-th layer is global", some give one entry a layer.
  for (const char* name : {"layer_slides", "sliding_window_pattern"}) {
    const MetadataValue* value = metadata.Find(prefix + name);
    if (value == nullptr || !std::holds_alternative<std::vector<int64_t>>(*value)) continue;
    const auto& slides = std::get<std::vector<int64_t>>(*value);
    if (static_cast<int64_t>(slides.size()) != config.num_layers) {
      return CorruptionError(fmt::format("{}: {}{}: expected {} entries, found {}",
                                         metadata.origin(), prefix, name, config.num_layers,
                                         slides.size()));
    }
    for (int64_t i = 0; i < config.num_layers; ++i) config.layer_slides[i] = slides[i] != 0;
    return OkStatus();
  }
  if (config.architecture != "gemma3") return OkStatus();
  LODE_ASSIGN_OR_RETURN(
      const int64_t pattern,
      metadata.GetIntOr(prefix + "sliding_window_pattern", 1, kMaxLayers, kGemma3WindowPattern));
  for (int64_t i = 0; i < config.num_layers; ++i) {
    config.layer_slides[i] = (i + 1) % pattern != 0;
  }
  return OkStatus();
}

// What sets gemma3 apart: soft GELU gate, four norms a layer, normed heads, scaled embeddings, two
// rope bases.
Status ReadGemma3(const Metadata& metadata, ModelConfig& config) {
  config.activation = MlpActivation::kGeluTanh;
  config.qk_norm = true;
  config.post_norms = true;
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  const double default_scalar = config.num_layers == kGemma3Layers27B
                                    ? static_cast<double>(config.hidden_size) / config.num_heads
                                    : static_cast<double>(config.head_dim);
  const std::string scalar_key = "gemma3.attention.query_pre_attn_scalar";
  LODE_ASSIGN_OR_RETURN(const double scalar, metadata.GetFloatOr(scalar_key, default_scalar));
  LODE_RETURN_IF_ERROR(RequirePositive(metadata, scalar_key, scalar));
  config.attention_scale = static_cast<float>(1.0 / std::sqrt(scalar));
  for (const char* key : {"gemma3.attn_logit_softcapping", "gemma3.final_logit_softcapping"}) {
    LODE_ASSIGN_OR_RETURN(const double cap, metadata.GetFloatOr(key, 0.0));
    if (cap == 0.0) continue;
    return UnsupportedError(fmt::format("{}: {}: soft-capped logits are not supported, found {}",
                                        metadata.origin(), key, cap));
  }
  config.rope_local = RopeConfig();  // Scaling is for the global layers alone.
  LODE_ASSIGN_OR_RETURN(const double local_base,
                        metadata.GetFloatOr("gemma3.rope.freq_base_swa", kGemma3LocalBase));
  LODE_ASSIGN_OR_RETURN(config.rope_local.base,
                        metadata.GetFloatOr("gemma3.rope.freq_base_local", local_base));
  return RequirePositive(metadata, "gemma3.rope.freq_base_local", config.rope_local.base);
}

Status ReadSizes(const WeightSource& source, ModelConfig& config) {
  const Metadata& metadata = source.metadata();
  const std::string prefix = config.architecture + ".";
  const auto read = [&](const char* key, int64_t max) {
    return metadata.GetInt(prefix + key, 1, max);
  };
  LODE_ASSIGN_OR_RETURN(config.num_layers, read("block_count", kMaxLayers));
  LODE_ASSIGN_OR_RETURN(config.hidden_size, read("embedding_length", kMaxWidth));
  LODE_ASSIGN_OR_RETURN(config.ffn_size, read("feed_forward_length", kMaxWidth));
  LODE_ASSIGN_OR_RETURN(config.num_heads, read("attention.head_count", kMaxHeads));
  LODE_ASSIGN_OR_RETURN(config.num_kv_heads, metadata.GetIntOr(prefix + "attention.head_count_kv",
                                                               1, kMaxHeads, config.num_heads));
  LODE_ASSIGN_OR_RETURN(config.context_length, read("context_length", kMaxContext));
  if (config.num_heads % config.num_kv_heads != 0) {
    return CorruptionError(
        fmt::format("{}: {}attention.head_count_kv: expected a divisor of head_count {}, found {}",
                    metadata.origin(), prefix, config.num_heads, config.num_kv_heads));
  }
  LODE_ASSIGN_OR_RETURN(config.head_dim,
                        metadata.GetIntOr(prefix + "attention.key_length", 2, kMaxHeadDim,
                                          config.hidden_size / config.num_heads));
  if (config.head_dim < 2 || config.head_dim % 2 != 0) {
    return CorruptionError(fmt::format("{}: head_dim: expected an even number, found {}",
                                       metadata.origin(), config.head_dim));
  }
  LODE_ASSIGN_OR_RETURN(const double epsilon,
                        metadata.GetFloat(prefix + "attention.layer_norm_rms_epsilon"));
  config.rms_epsilon = static_cast<float>(epsilon);
  config.attention_scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  const StoredTensor* embedding = source.Find("token_embd.weight");
  if (embedding == nullptr) {
    return NotFoundError(source.path() + ": tensor token_embd.weight is missing");
  }
  config.vocab_size = embedding->view.shape.rows();
  return OkStatus();
}

}  // namespace

Result<ModelConfig> ReadModelConfig(const WeightSource& source) {
  const Metadata& metadata = source.metadata();
  ModelConfig config;
  LODE_ASSIGN_OR_RETURN(const std::string_view arch, metadata.GetString("general.architecture"));
  config.architecture = std::string(arch);
  bool known = false;
  for (const std::string_view name : kArchitectures) known = known || name == arch;
  if (!known) {
    return UnsupportedError(
        fmt::format("{}: architecture '{}' is not supported; known: qwen2, qwen3, llama, gemma3",
                    source.path(), arch));
  }
  LODE_ASSIGN_OR_RETURN(config.name, metadata.GetStringOr("general.name", ""));
  LODE_RETURN_IF_ERROR(ReadSizes(source, config));
  LODE_ASSIGN_OR_RETURN(config.rope,
                        ReadRope(metadata, config.architecture, config.context_length));
  LODE_RETURN_IF_ERROR(ReadRopeFactors(source, config));
  config.rope_local = config.rope;
  LODE_RETURN_IF_ERROR(ReadSlidingLayers(metadata, config));
  if (arch == "gemma3") LODE_RETURN_IF_ERROR(ReadGemma3(metadata, config));
  config.qk_norm = config.qk_norm || arch == "qwen3";
  // The GGUF converter permutes the query and key rows of Llama so that pairs lie side by side.
  config.rope_interleaved = arch == "llama" && source.kind() == FileKind::kGguf;
  return config;
}

}  // namespace lode
