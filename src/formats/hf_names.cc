// SPDX-License-Identifier: Apache-2.0
#include "formats/hf_names.h"

#include <algorithm>

namespace lode {
namespace {

struct Renaming {
  std::string_view hf;
  std::string_view canonical;
};

// Modules of a layer, without ".weight" or ".bias".
constexpr Renaming kLayerModules[] = {
    {"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"}, {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},           {"mlp.down_proj", "ffn_down"},
};
// Gemma 3 norms before and after each half of a layer; the others only before.
constexpr Renaming kGemma3Norms[] = {
    {"post_attention_layernorm", "post_attention_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
};
constexpr Renaming kPlainNorms[] = {
    {"post_attention_layernorm", "ffn_norm"},
};
constexpr Renaming kModelModules[] = {
    {"embed_tokens", "token_embd"},
    {"norm", "output_norm"},
};

template <size_t n>
std::string_view Rename(const Renaming (&table)[n], std::string_view module) {
  for (const Renaming& row : table) {
    if (row.hf == module) return row.canonical;
  }
  return {};
}

bool TakePrefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// "12." off the front, if it is a layer number as checkpoints write it.
std::string_view TakeLayerNumber(std::string_view& text) {
  constexpr size_t kMaxDigits = 6;
  const size_t digits = std::min(text.find('.'), text.size());
  const std::string_view number = text.substr(0, digits);
  if (number.empty() || number.size() > kMaxDigits || digits == text.size()) return {};
  if (number.find_first_not_of("0123456789") != std::string_view::npos) return {};
  if (number.size() > 1 && number[0] == '0') return {};
  text.remove_prefix(digits + 1);
  return number;
}

}  // namespace

std::optional<std::string> CanonicalTensorName(std::string_view architecture,
                                               std::string_view hf_name) {
  const size_t dot = hf_name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view kind = hf_name.substr(dot);
  if (kind != ".weight" && kind != ".bias") return std::nullopt;
  std::string_view module = hf_name.substr(0, dot);
  if (module == "lm_head" || module == "language_model.lm_head") {
    return "output" + std::string(kind);
  }
  // The text model inside Gemma 3's multimodal one, as new and as old transformers save it.
  if (!TakePrefix(module, "model.language_model.") &&
      !TakePrefix(module, "language_model.model.") && !TakePrefix(module, "model.")) {
    return std::nullopt;
  }
  if (!TakePrefix(module, "layers.")) {
    const std::string_view canonical = Rename(kModelModules, module);
    if (canonical.empty()) return std::nullopt;
    return std::string(canonical).append(kind);
  }
  const std::string_view layer = TakeLayerNumber(module);
  if (layer.empty()) return std::nullopt;
  std::string_view canonical = Rename(kLayerModules, module);
  if (canonical.empty()) {
    canonical =
        architecture == "gemma3" ? Rename(kGemma3Norms, module) : Rename(kPlainNorms, module);
  }
  if (canonical.empty()) return std::nullopt;
  return std::string("blk.").append(layer).append(".").append(canonical).append(kind);
}

bool IsIgnoredTensor(std::string_view hf_name) {
  return hf_name.find("vision_tower.") != std::string_view::npos ||
         hf_name.find("multi_modal_projector.") != std::string_view::npos ||
         hf_name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace lode
