// SPDX-License-Identifier: Apache-2.0
// ModelConfig: the numbers that make a decoder-only transformer one family or another. Read from
// metadata once, then immutable. Families: qwen2, qwen3, llama (Llama 2/3.x, Mistral), gemma3
// (text).
#ifndef LODE_MODELS_MODEL_CONFIG_H_
#define LODE_MODELS_MODEL_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/weight_source.h"

namespace lode {

enum class RopeScaling : uint8_t { kNone, kLinear, kDynamic, kYarn, kLlama3 };
enum class MlpActivation : uint8_t { kSilu, kGeluTanh };

struct RopeConfig {
  double base = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;            // linear, dynamic, yarn, llama3
  int64_t original_context = 0;   // yarn, dynamic, llama3
  double low_freq_factor = 1.0;   // llama3
  double high_freq_factor = 4.0;  // llama3
  double beta_fast = 32.0, beta_slow = 1.0, attention_factor = 1.0;  // yarn
  std::vector<float> factors;  // per-pair divisors of a GGUF "rope_freqs.weight"; empty: none
};

struct ModelConfig {
  std::string architecture;  // "qwen2", ...
  std::string name;          // general.name, for people
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t hidden_size = 0;
  int64_t ffn_size = 0;
  int64_t vocab_size = 0;
  int64_t context_length = 0;  // the model was trained for
  float rms_epsilon = 1e-6f;
  MlpActivation activation = MlpActivation::kSilu;
  float attention_scale = 0.0f;  // multiplies q.k
  bool rope_interleaved =
      false;                // rotates (2i, 2i+1) instead of (i, i + head_dim/2): Llama GGUF files
  bool qk_norm = false;     // RMS norm of each query and key head (qwen3, gemma3)
  bool post_norms = false;  // norms after attention and MLP (gemma3)
  float embedding_scale = 1.0f;    // gemma3: sqrt(hidden_size)
  RopeConfig rope;                 // global layers
  RopeConfig rope_local;           // sliding-window layers
  int64_t sliding_window = 0;      // 0: no layer slides
  std::vector<bool> layer_slides;  // [num_layers]
};

// Errors: Unsupported (architecture, rope type), Corruption (missing or out-of-range keys).
Result<ModelConfig> ReadModelConfig(const WeightSource& source);

}  // namespace lode

#endif  // LODE_MODELS_MODEL_CONFIG_H_
