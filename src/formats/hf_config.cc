// SPDX-License-Identifier: Apache-2.0
#include "formats/hf_config.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "formats/flat_json.h"
#include "formats/quoted.h"

namespace lode {
namespace {

constexpr int64_t kMax = std::numeric_limits<int32_t>::max();

// A class of model with the defaults of its configuration class in transformers. 0: no default.
struct Family {
  std::string_view class_name;
  std::string_view model_type;
  std::string_view architecture;
  std::string_view activation_key;
  std::string_view activation;
  int64_t num_heads;
  int64_t num_kv_heads;  // 0: num_heads
  int64_t head_dim;      // 0: hidden_size / num_heads
  int64_t vocab_size;
  int64_t context_length;
  double rope_base;
  bool tied_embeddings;
};
constexpr std::string_view kGelu = "gelu_pytorch_tanh";
constexpr Family kFamilies[] = {
    {"Qwen2ForCausalLM", "qwen2", "qwen2", "hidden_act", "silu", 0, 32, 0, 0, 32768, 1e4, false},
    {"Qwen3ForCausalLM", "qwen3", "qwen3", "hidden_act", "silu", 0, 32, 128, 0, 32768, 1e4, false},
    {"LlamaForCausalLM", "llama", "llama", "hidden_act", "silu", 0, 0, 0, 0, 2048, 1e4, false},
    {"MistralForCausalLM", "mistral", "llama", "hidden_act", "silu", 0, 8, 0, 0, 131072, 1e4,
     false},
    {"Gemma3ForCausalLM", "gemma3_text", "gemma3", "hidden_activation", kGelu, 8, 4, 256, 262208,
     131072, 1e6, true},
    {"Gemma3ForConditionalGeneration", "gemma3", "gemma3", "hidden_activation", kGelu, 8, 4, 256,
     262208, 131072, 1e6, true},
};
constexpr int64_t kMistralWindow = 4096;
constexpr int64_t kGemma3Window = 4096;
constexpr double kGemma3LocalBase = 1e4;
constexpr int64_t kGemma3WindowPattern = 6;
constexpr int64_t kGemma3QueryScalar = 256;
constexpr int64_t kQwenFullLayers = 28;  // max_window_layers

class Translator {
 public:
  Translator(FlatJson config, FlatJson generation, const std::string& folder)
      : config_(std::move(config)), generation_(std::move(generation)) {
    out_.metadata = Metadata(folder);
  }

  Result<HfConfig> Translate() {
    LODE_RETURN_IF_ERROR(FindFamily());
    LODE_RETURN_IF_ERROR(RefuseUnsupported());
    LODE_RETURN_IF_ERROR(TranslateSizes());
    LODE_RETURN_IF_ERROR(TranslateRope());
    LODE_RETURN_IF_ERROR(TranslateWindow());
    if (family_->architecture == "gemma3") LODE_RETURN_IF_ERROR(TranslateGemma3());
    LODE_RETURN_IF_ERROR(TranslateTokens());
    LODE_RETURN_IF_ERROR(TranslateAttention());
    LODE_RETURN_IF_ERROR(TranslateSampling());
    return std::move(out_);
  }

 private:
  const Metadata& in() const { return config_.values; }
  // A key of the text model, which multimodal configurations nest.
  std::string Key(std::string_view name) const { return section_ + std::string(name); }
  std::string OutKey(std::string_view name) const {
    return fmt::format("{}.{}", family_->architecture, name);
  }
  // The text, for as long as what is put out lives.
  std::string_view Keep(std::string_view text) {
    out_.strings.push_back(std::make_unique<std::string>(text));
    return *out_.strings.back();
  }
  Status Put(std::string_view name, MetadataValue value) {
    return out_.metadata.Add(OutKey(name), std::move(value));
  }
  Status Unsupported(std::string_view key, std::string_view expected,
                     std::string_view found) const {
    return UnsupportedError(fmt::format("{}: key {}: expected {}, found {}", in().origin(),
                                        Quoted(key), expected, found));
  }
  // Copies a number under another key when it is there.
  Status CopyFloat(const std::string& from, std::string_view to);

  Status FindFamily();
  Status RefuseUnsupported() const;
  Status TranslateSizes();
  Status TranslateRope();
  Status TranslateRopeScaling(const std::string& rope);
  Status TranslateYarn(const std::string& rope);
  Status TranslateWindow();
  Result<int64_t> SlidingWindow() const;
  Result<std::vector<int64_t>> LayerSlides() const;
  Status TranslateGemma3();
  Status TranslateTokens();
  Status TranslateAttention();
  Status TranslateSampling();

  FlatJson config_;
  FlatJson generation_;
  HfConfig out_;
  const Family* family_ = nullptr;
  std::string section_;  // "text_config." or empty
  int64_t num_layers_ = 0;
  int64_t context_length_ = 0;
};

Status Translator::CopyFloat(const std::string& from, std::string_view to) {
  if (!in().Has(from)) return OkStatus();
  LODE_ASSIGN_OR_RETURN(const double value, in().GetFloat(from));
  return Put(to, value);
}

Status Translator::FindFamily() {
  std::string found;
  std::string known;
  if (in().Has("architectures")) {
    LODE_ASSIGN_OR_RETURN(const auto* classes, in().GetStrings("architectures"));
    for (const std::string_view name : *classes) {
      for (const Family& family : kFamilies) {
        if (family.class_name == name) family_ = &family;
      }
      found += (found.empty() ? "" : ", ") + Quoted(name);
    }
  } else {
    LODE_ASSIGN_OR_RETURN(const std::string_view type, in().GetString("model_type"));
    for (const Family& family : kFamilies) {
      if (family.model_type == type) family_ = &family;
    }
    found = "model_type " + Quoted(type);
  }
  for (const Family& family : kFamilies) {
    known.append(known.empty() ? "" : ", ").append(family.class_name);
  }
  if (family_ == nullptr) return Unsupported("architectures", "one of " + known, found);
  if (config_.HasObject("text_config")) section_ = "text_config.";
  out_.architecture = family_->architecture;
  return out_.metadata.Add("general.architecture", family_->architecture);
}

// What would load but compute something else than the reference.
Status Translator::RefuseUnsupported() const {
  if (config_.HasObject("quantization_config")) {
    LODE_ASSIGN_OR_RETURN(const std::string method,
                          in().GetStringOr("quantization_config.quant_method", "unnamed"));
    return Unsupported("quantization_config", "a checkpoint in F32, F16 or BF16",
                       "quantisation method " + Quoted(method));
  }
  const std::string activation_key = Key(family_->activation_key);
  LODE_ASSIGN_OR_RETURN(const std::string activation,
                        in().GetStringOr(activation_key, family_->activation));
  if (activation != family_->activation) {
    return Unsupported(activation_key, family_->activation, Quoted(activation));
  }
  LODE_ASSIGN_OR_RETURN(const bool bidirectional,
                        in().GetBoolOr(Key("use_bidirectional_attention"), false));
  if (bidirectional) return Unsupported(Key("use_bidirectional_attention"), "false", "true");
  return OkStatus();
}

Status Translator::TranslateSizes() {
  const auto read = [this](std::string_view key, int64_t fallback) {
    if (fallback > 0) return in().GetIntOr(Key(key), 1, kMax, fallback);
    return in().GetInt(Key(key), 1, kMax);
  };
  LODE_ASSIGN_OR_RETURN(num_layers_, read("num_hidden_layers", 0));
  LODE_ASSIGN_OR_RETURN(const int64_t hidden_size, read("hidden_size", 0));
  LODE_ASSIGN_OR_RETURN(const int64_t ffn_size, read("intermediate_size", 0));
  LODE_ASSIGN_OR_RETURN(const int64_t num_heads, read("num_attention_heads", family_->num_heads));
  // A null means "as many as heads"; an absent key means the class's default.
  const bool kv_heads_null = config_.nulls.contains(Key("num_key_value_heads"));
  const int64_t default_kv_heads =
      kv_heads_null || family_->num_kv_heads == 0 ? num_heads : family_->num_kv_heads;
  LODE_ASSIGN_OR_RETURN(const int64_t kv_heads, read("num_key_value_heads", default_kv_heads));
  LODE_ASSIGN_OR_RETURN(context_length_, read("max_position_embeddings", family_->context_length));
  LODE_ASSIGN_OR_RETURN(const int64_t vocab_size, read("vocab_size", family_->vocab_size));
  LODE_ASSIGN_OR_RETURN(const double epsilon, in().GetFloatOr(Key("rms_norm_eps"), 1e-6));
  LODE_ASSIGN_OR_RETURN(const int64_t head_dim,
                        in().GetIntOr(Key("head_dim"), 1, kMax, family_->head_dim));
  LODE_RETURN_IF_ERROR(Put("block_count", num_layers_));
  LODE_RETURN_IF_ERROR(Put("embedding_length", hidden_size));
  LODE_RETURN_IF_ERROR(Put("feed_forward_length", ffn_size));
  LODE_RETURN_IF_ERROR(Put("attention.head_count", num_heads));
  LODE_RETURN_IF_ERROR(Put("attention.head_count_kv", kv_heads));
  LODE_RETURN_IF_ERROR(Put("attention.layer_norm_rms_epsilon", epsilon));
  LODE_RETURN_IF_ERROR(Put("context_length", context_length_));
  LODE_RETURN_IF_ERROR(Put("vocab_size", vocab_size));
  if (head_dim > 0) LODE_RETURN_IF_ERROR(Put("attention.key_length", head_dim));
  // Multimodal configurations say it outside the text model.
  LODE_ASSIGN_OR_RETURN(const bool tied,
                        in().GetBoolOr(Key("tie_word_embeddings"), family_->tied_embeddings));
  LODE_ASSIGN_OR_RETURN(out_.tied_embeddings, in().GetBoolOr("tie_word_embeddings", tied));
  return OkStatus();
}

// transformers 4 keeps rope_theta and rope_scaling, transformers 5 rope_parameters; for gemma3 the
// latter is an object per kind of layer.
Status Translator::TranslateRope() {
  const bool has_parameters = config_.HasObject(Key("rope_parameters"));
  std::string rope = Key(has_parameters ? "rope_parameters." : "rope_scaling.");
  const bool per_layer =
      config_.HasObject(rope + "full_attention") || config_.HasObject(rope + "sliding_attention");
  const std::string local = rope + "sliding_attention.";
  if (per_layer) {
    if (family_->architecture != "gemma3") {
      return Unsupported(Key("rope_parameters"), "one rope for all layers",
                         "one per kind of layer");
    }
    rope += "full_attention.";
  }
  LODE_ASSIGN_OR_RETURN(const double legacy_base,
                        in().GetFloatOr(Key("rope_theta"), family_->rope_base));
  LODE_ASSIGN_OR_RETURN(const double base, in().GetFloatOr(rope + "rope_theta", legacy_base));
  LODE_RETURN_IF_ERROR(Put("rope.freq_base", base));
  if (family_->architecture == "gemma3") {
    LODE_ASSIGN_OR_RETURN(const double legacy_local,
                          in().GetFloatOr(Key("rope_local_base_freq"), kGemma3LocalBase));
    LODE_ASSIGN_OR_RETURN(const double local_base,
                          in().GetFloatOr(local + "rope_theta", legacy_local));
    LODE_RETURN_IF_ERROR(Put("rope.freq_base_local", local_base));
    LODE_ASSIGN_OR_RETURN(const std::string local_type,
                          in().GetStringOr(local + "rope_type", "default"));
    if (local_type != "default") {
      return Unsupported(local + "rope_type", "'default'", Quoted(local_type));
    }
  }
  for (const std::string& key : {Key("partial_rotary_factor"), rope + "partial_rotary_factor"}) {
    LODE_ASSIGN_OR_RETURN(const double part, in().GetFloatOr(key, 1.0));
    if (part != 1.0) return Unsupported(key, "1", fmt::format("{}", part));
  }
  return TranslateRopeScaling(rope);
}

Status Translator::TranslateRopeScaling(const std::string& rope) {
  LODE_ASSIGN_OR_RETURN(const std::string old_type, in().GetStringOr(rope + "type", "default"));
  LODE_ASSIGN_OR_RETURN(std::string type, in().GetStringOr(rope + "rope_type", old_type));
  if (type == "default") type = "none";
  // An unknown type is passed on, so that the model refuses it by name.
  LODE_RETURN_IF_ERROR(Put("rope.scaling.type", Keep(type)));
  if (type == "none") return OkStatus();
  LODE_RETURN_IF_ERROR(CopyFloat(rope + "factor", "rope.scaling.factor"));
  LODE_RETURN_IF_ERROR(CopyFloat(rope + "low_freq_factor", "rope.scaling.low_freq_factor"));
  LODE_RETURN_IF_ERROR(CopyFloat(rope + "high_freq_factor", "rope.scaling.high_freq_factor"));
  // The reference's dynamic scaling looks at max_position_embeddings alone.
  const std::string original_key = rope + "original_max_position_embeddings";
  LODE_ASSIGN_OR_RETURN(const int64_t original,
                        in().GetIntOr(original_key, 1, kMax, context_length_));
  LODE_RETURN_IF_ERROR(
      Put("rope.scaling.original_context_length", type == "dynamic" ? context_length_ : original));
  return type == "yarn" ? TranslateYarn(rope) : OkStatus();
}

Status Translator::TranslateYarn(const std::string& rope) {
  LODE_RETURN_IF_ERROR(CopyFloat(rope + "beta_fast", "rope.scaling.beta_fast"));
  LODE_RETURN_IF_ERROR(CopyFloat(rope + "beta_slow", "rope.scaling.beta_slow"));
  LODE_ASSIGN_OR_RETURN(const bool truncate, in().GetBoolOr(rope + "truncate", true));
  if (!truncate) return Unsupported(rope + "truncate", "true", "false");
  if (in().Has(rope + "attention_factor")) {
    return CopyFloat(rope + "attention_factor", "rope.scaling.attention_factor");
  }
  LODE_ASSIGN_OR_RETURN(const double mscale, in().GetFloatOr(rope + "mscale", 0.0));
  LODE_ASSIGN_OR_RETURN(const double all_dim, in().GetFloatOr(rope + "mscale_all_dim", 0.0));
  if (mscale == 0.0 || all_dim == 0.0) return OkStatus();  // the model derives it from the factor
  LODE_ASSIGN_OR_RETURN(const double factor, in().GetFloat(rope + "factor"));
  const double log_factor = factor > 1.0 ? 0.1 * std::log(factor) : 0.0;
  return Put("rope.scaling.attention_factor",
             (mscale * log_factor + 1.0) / (all_dim * log_factor + 1.0));
}

// The window in tokens; 0 when no layer slides.
Result<int64_t> Translator::SlidingWindow() const {
  const std::string key = Key("sliding_window");
  if (config_.nulls.contains(key)) return int64_t{0};
  if (family_->architecture == "gemma3") return in().GetIntOr(key, 0, kMax, kGemma3Window);
  if (family_->model_type == "mistral") return in().GetIntOr(key, 0, kMax, kMistralWindow);
  LODE_ASSIGN_OR_RETURN(const bool used, in().GetBoolOr(Key("use_sliding_window"), false));
  if (!used) return int64_t{0};  // Llama's class has no window either.
  return in().GetInt(key, 1, kMax);
}

// For each layer 1 if it slides, given that there is a window.
Result<std::vector<int64_t>> Translator::LayerSlides() const {
  std::vector<int64_t> slides(static_cast<size_t>(num_layers_), 1);
  if (family_->model_type == "mistral") return slides;
  const std::string types_key = Key("layer_types");
  if (in().Has(types_key)) {
    LODE_ASSIGN_OR_RETURN(const auto* types, in().GetStrings(types_key));
    if (types->size() != slides.size()) {
      return CorruptionError(fmt::format("{}: key {}: expected {} entries, found {}", in().origin(),
                                         Quoted(types_key), slides.size(), types->size()));
    }
    for (size_t i = 0; i < slides.size(); ++i) {
      slides[i] = (*types)[i] == "sliding_attention" ? 1 : 0;
      if (slides[i] == 0 && (*types)[i] != "full_attention") {
        return Unsupported(types_key, "'sliding_attention' or 'full_attention'",
                           Quoted((*types)[i]));
      }
    }
    return slides;
  }
  if (family_->architecture == "gemma3") {
    LODE_ASSIGN_OR_RETURN(const int64_t newer, in().GetIntOr(Key("_sliding_window_pattern"), 1,
                                                             kMax, kGemma3WindowPattern));
    LODE_ASSIGN_OR_RETURN(const int64_t pattern,
                          in().GetIntOr(Key("sliding_window_pattern"), 1, kMax, newer));
    for (int64_t i = 0; i < num_layers_; ++i) slides[i] = (i + 1) % pattern != 0 ? 1 : 0;
    return slides;
  }
  LODE_ASSIGN_OR_RETURN(const int64_t full_layers,
                        in().GetIntOr(Key("max_window_layers"), 0, kMax, kQwenFullLayers));
  for (int64_t i = 0; i < num_layers_; ++i) slides[i] = i >= full_layers ? 1 : 0;
  return slides;
}

Status Translator::TranslateWindow() {
  constexpr int64_t kMaxLayers = 65'536;  // so that a hostile number cannot drive an allocation
  if (num_layers_ > kMaxLayers) {
    return Unsupported(Key("num_hidden_layers"), fmt::format("at most {}", kMaxLayers),
                       fmt::format("{}", num_layers_));
  }
  LODE_ASSIGN_OR_RETURN(const int64_t window, SlidingWindow());
  if (window == 0) return OkStatus();
  LODE_ASSIGN_OR_RETURN(std::vector<int64_t> slides, LayerSlides());
  LODE_RETURN_IF_ERROR(Put("attention.sliding_window", window));
  return Put("attention.layer_slides", std::move(slides));
}

Status Translator::TranslateGemma3() {
  LODE_ASSIGN_OR_RETURN(
      const double scalar,
      in().GetFloatOr(Key("query_pre_attn_scalar"), static_cast<double>(kGemma3QueryScalar)));
  LODE_RETURN_IF_ERROR(Put("attention.query_pre_attn_scalar", scalar));
  LODE_RETURN_IF_ERROR(CopyFloat(Key("attn_logit_softcapping"), "attn_logit_softcapping"));
  return CopyFloat(Key("final_logit_softcapping"), "final_logit_softcapping");
}

// How attention is computed: the implementation, as configurations of other engines name it too,
// and the parameters of sparse attention, as they stand. Whoever builds the attention checks them.
Status Translator::TranslateAttention() {
  for (const auto& [key, value] : in().values()) {
    if (!key.starts_with("csa_") && !key.starts_with("hca_") && key != "use_hca") continue;
    const auto* text = std::get_if<std::string_view>(&value);
    LODE_RETURN_IF_ERROR(
        out_.metadata.Add("lode." + key, text != nullptr ? MetadataValue(Keep(*text)) : value));
  }
  for (const std::string_view key :
       {"attention_implementation", "attn_implementation", "_attn_implementation"}) {
    if (!in().Has(key)) continue;
    LODE_ASSIGN_OR_RETURN(const std::string_view name, in().GetString(key));
    return out_.metadata.Add("lode.attention_implementation", Keep(name));
  }
  return OkStatus();
}

// generation_config.json wins over config.json, as in the reference's generate().
Status Translator::TranslateTokens() {
  const std::pair<const Metadata*, std::string> places[] = {
      {&generation_.values, ""}, {&in(), ""}, {&in(), section_}};
  for (const auto& [values, section] : places) {
    const std::string key = section + "eos_token_id";
    if (!values->Has(key)) continue;
    std::vector<int64_t> ids;
    if (std::holds_alternative<int64_t>(*values->Find(key))) {
      LODE_ASSIGN_OR_RETURN(const int64_t id, values->GetInt(key, 0, kMax));
      ids.push_back(id);
    } else {
      LODE_ASSIGN_OR_RETURN(const auto* list, values->GetInts(key));
      ids = *list;
    }
    LODE_RETURN_IF_ERROR(out_.metadata.Add("tokenizer.ggml.eos_token_ids", std::move(ids)));
    break;
  }
  for (const auto& [values, section] : places) {
    const std::string key = section + "bos_token_id";
    if (!values->Has(key)) continue;
    LODE_ASSIGN_OR_RETURN(const int64_t id, values->GetInt(key, 0, kMax));
    return out_.metadata.Add("tokenizer.ggml.bos_token_id", id);
  }
  return OkStatus();
}

// The model's own sampling defaults, under the keys the GGUF converter uses.
Status Translator::TranslateSampling() {
  constexpr std::pair<std::string_view, std::string_view> kKeys[] = {
      {"temperature", "general.sampling.temp"},
      {"top_p", "general.sampling.top_p"},
      {"min_p", "general.sampling.min_p"},
      {"repetition_penalty", "general.sampling.penalty_repeat"}};
  const Metadata& values = generation_.values;
  LODE_ASSIGN_OR_RETURN(const bool samples, values.GetBoolOr("do_sample", true));
  if (!samples) return out_.metadata.Add("general.sampling.temp", 0.0);
  for (const auto& [from, to] : kKeys) {
    if (!values.Has(from)) continue;
    LODE_ASSIGN_OR_RETURN(const double value, values.GetFloat(from));
    LODE_RETURN_IF_ERROR(out_.metadata.Add(std::string(to), value));
  }
  if (!values.Has("top_k")) return OkStatus();
  LODE_ASSIGN_OR_RETURN(const int64_t top_k, values.GetInt("top_k", 0, kMax));
  return out_.metadata.Add("general.sampling.top_k", top_k);
}

}  // namespace

Result<HfConfig> TranslateHfConfig(std::string_view config, std::string_view generation,
                                   const std::string& folder) {
  LODE_ASSIGN_OR_RETURN(FlatJson flat, ParseFlatJson(config, folder + "/config.json"));
  FlatJson flat_generation;
  if (!generation.empty()) {
    LODE_ASSIGN_OR_RETURN(flat_generation,
                          ParseFlatJson(generation, folder + "/generation_config.json"));
  }
  return Translator(std::move(flat), std::move(flat_generation), folder).Translate();
}

}  // namespace lode
