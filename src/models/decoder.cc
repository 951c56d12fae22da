// SPDX-License-Identifier: Apache-2.0
#include "models/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "kernels/activation.h"
#include "kernels/dequantize.h"
#include "kernels/norm.h"
#include "kernels/rope.h"

namespace lode {

void Decoder::Workspace::Resize(const ModelConfig& config, int64_t num_tokens) {
  const auto grow = [num_tokens](std::vector<float>& buffer, int64_t width) {
    if (buffer.size() < static_cast<size_t>(num_tokens * width)) buffer.resize(num_tokens * width);
  };
  grow(hidden, config.hidden_size);
  grow(normed, config.hidden_size);
  grow(q, config.num_heads * config.head_dim);
  grow(k, config.num_kv_heads * config.head_dim);
  grow(v, config.num_kv_heads * config.head_dim);
  grow(attended, config.num_heads * config.head_dim);
  grow(projected, config.hidden_size);
  grow(gate, config.ffn_size);
  grow(up, config.ffn_size);
  for (auto* table : {&rope_cos, &rope_sin, &rope_local_cos, &rope_local_sin}) {
    grow(*table, config.head_dim / 2);
  }
}

Decoder::Decoder(ModelConfig config, const ModelLoadOptions& options)
    : config_(std::move(config)),
      options_(options),
      rope_(config_.rope, config_.head_dim, options.context_len),
      rope_local_(config_.rope_local, config_.head_dim, options.context_len) {}

// --- Forward pass, in reading order

Status Decoder::Forward(const Batch& batch, KvCache& cache, Attention& attention, ThreadPool& pool,
                        float* logits) {
  LODE_RETURN_IF_ERROR(CheckTokens(batch));
  const int64_t num_tokens = static_cast<int64_t>(batch.token_ids.size());
  work_.Resize(config_, num_tokens);
  if (projector_ == nullptr) projector_ = std::make_unique<Projector>(options_.activations, pool);
  Embed(batch);
  FillRope(batch);
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    if (batch.keep_going && !batch.keep_going()) return CancelledError("the step was stopped");
    AttentionHalf(layer, batch, cache, attention, pool, *projector_);
    MlpHalf(layer, num_tokens, pool, *projector_);
    const bool has_summaries = attention.WantsFeedForward() && !config_.layer_slides[layer];
    if (has_summaries) AddFeedForward(layer, batch, attention, pool, *projector_);
  }
  const int64_t num_logits = static_cast<int64_t>(batch.logits_tokens.size());
  if (num_logits == 0) return OkStatus();
  const int64_t width = config_.hidden_size;
  for (int64_t i = 0; i < num_logits; ++i) {
    kernels::RmsNorm(&work_.hidden[batch.logits_tokens[i] * width], output_norm_.data(), width,
                     config_.rms_epsilon, &work_.normed[i * width]);
  }
  const Projection output = {&output_, logits, config_.vocab_size};
  projector_->Run({&output, 1}, work_.normed.data(), width, num_logits);
  return OkStatus();
}

void Decoder::Embed(const Batch& batch) {
  const int64_t width = config_.hidden_size;
  for (size_t i = 0; i < batch.token_ids.size(); ++i) {
    float* row = &work_.hidden[static_cast<int64_t>(i) * width];
    kernels::Dequantize(embedding_.type, embedding_.row(batch.token_ids[i]), width, row);
    if (config_.embedding_scale == 1.0f) continue;
    for (int64_t c = 0; c < width; ++c) row[c] *= config_.embedding_scale;
  }
}

void Decoder::FillRope(const Batch& batch) {
  const int64_t half = config_.head_dim / 2;
  for (const Segment& segment : batch.segments) {
    for (int64_t i = 0; i < segment.num_tokens; ++i) {
      const int64_t position = segment.first_position + i;
      const int64_t at = (segment.first_token + i) * half;
      rope_.Fill(position, &work_.rope_cos[at], &work_.rope_sin[at]);
      if (config_.sliding_window > 0) {
        rope_local_.Fill(position, &work_.rope_local_cos[at], &work_.rope_local_sin[at]);
      }
    }
  }
}

void Decoder::AttentionHalf(int64_t layer_index, const Batch& batch, KvCache& cache,
                            Attention& attention, ThreadPool& pool, Projector& projector) {
  const Layer& layer = layers_[layer_index];
  const int64_t num_tokens = static_cast<int64_t>(batch.token_ids.size());
  const int64_t q_width = config_.num_heads * config_.head_dim;
  const int64_t kv_width = config_.num_kv_heads * config_.head_dim;
  const bool slides = config_.layer_slides[layer_index];

  Norm(layer.attention_norm, num_tokens, pool);
  const Projection qkv[] = {{&layer.q, work_.q.data(), q_width},
                            {&layer.k, work_.k.data(), kv_width},
                            {&layer.v, work_.v.data(), kv_width}};
  projector.Run(qkv, work_.normed.data(), config_.hidden_size, num_tokens);
  ForTokenSlices(pool, num_tokens, [&](int64_t begin, int64_t end) {
    FinishHeads(work_.q.data(), config_.num_heads, layer.q_norm, slides, begin, end);
    FinishHeads(work_.k.data(), config_.num_kv_heads, layer.k_norm, slides, begin, end);
  });
  for (const Segment& segment : batch.segments) {
    const int64_t kv_offset = segment.first_token * kv_width;
    const int64_t q_offset = segment.first_token * q_width;
    cache.Store(static_cast<int32_t>(layer_index), segment.sequence, segment.first_position,
                segment.num_tokens, &work_.k[kv_offset], &work_.v[kv_offset]);
    AttentionInputs inputs;
    inputs.layer = static_cast<int32_t>(layer_index);
    inputs.sequence = segment.sequence;
    inputs.first_position = segment.first_position;
    inputs.num_tokens = segment.num_tokens;
    inputs.num_heads = static_cast<int32_t>(config_.num_heads);
    inputs.scale = config_.attention_scale;
    inputs.sliding_window = slides ? config_.sliding_window : 0;
    inputs.q = &work_.q[q_offset];
    inputs.q_stride = q_width;
    attention.Forward(inputs, cache, pool, &work_.attended[q_offset], q_width);
  }
  const Projection out = {&layer.attention_out, work_.projected.data(), config_.hidden_size};
  projector.Run({&out, 1}, work_.attended.data(), q_width, num_tokens);
  AddToHidden(layer.post_attention_norm, num_tokens, pool);
}

void Decoder::MlpHalf(int64_t layer_index, int64_t num_tokens, ThreadPool& pool,
                      Projector& projector) {
  const Layer& layer = layers_[layer_index];
  const int64_t width = config_.ffn_size;
  Norm(layer.mlp_norm, num_tokens, pool);
  const Projection gate_up[] = {{&layer.gate, work_.gate.data(), width},
                                {&layer.up, work_.up.data(), width}};
  projector.Run(gate_up, work_.normed.data(), config_.hidden_size, num_tokens);
  ForTokenSlices(pool, num_tokens, [&](int64_t begin, int64_t end) {
    float* gate = &work_.gate[begin * width];
    const float* up = &work_.up[begin * width];
    if (config_.activation == MlpActivation::kSilu) {
      kernels::SiluMultiply(gate, up, (end - begin) * width);
    } else {
      kernels::GeluTanhMultiply(gate, up, (end - begin) * width);
    }
  });
  const Projection down = {&layer.down, work_.projected.data(), config_.hidden_size};
  projector.Run({&down, 1}, work_.gate.data(), width, num_tokens);
  AddToHidden(layer.post_mlp_norm, num_tokens, pool);
}

void Decoder::AddFeedForward(int64_t layer_index, const Batch& batch, Attention& attention,
                             ThreadPool& pool, Projector& projector) {
  const Layer& layer = layers_[layer_index];
  const int64_t num_tokens = static_cast<int64_t>(batch.token_ids.size());
  const int64_t kv_width = config_.num_kv_heads * config_.head_dim;
  Norm(layer.attention_norm, num_tokens, pool);
  const Projection key = {&layer.k, work_.k.data(), kv_width};
  projector.Run({&key, 1}, work_.normed.data(), config_.hidden_size, num_tokens);
  FinishHeads(work_.k.data(), config_.num_kv_heads, layer.k_norm, false, 0, num_tokens);
  const Projection value = {&layer.v, work_.v.data(), kv_width};
  projector.Run({&value, 1}, work_.projected.data(), config_.hidden_size, num_tokens);
  for (const Segment& segment : batch.segments) {
    attention.AddFeedForward({.layer = static_cast<int32_t>(layer_index),
                              .sequence = segment.sequence,
                              .first_position = segment.first_position,
                              .num_tokens = segment.num_tokens,
                              .num_kv_heads = config_.num_kv_heads,
                              .head_dim = config_.head_dim,
                              .k = &work_.k[segment.first_token * kv_width],
                              .v = &work_.v[segment.first_token * kv_width]});
  }
}

void Decoder::FinishHeads(float* heads, int64_t num_heads, const std::vector<float>& norm,
                          bool slides, int64_t begin, int64_t end) const {
  const int64_t dim = config_.head_dim;
  const std::vector<float>& cos = slides ? work_.rope_local_cos : work_.rope_cos;
  const std::vector<float>& sin = slides ? work_.rope_local_sin : work_.rope_sin;
  for (int64_t t = begin; t < end; ++t) {
    float* token = heads + t * num_heads * dim;  // [num_heads, head_dim]
    if (!norm.empty()) {
      for (int64_t h = 0; h < num_heads; ++h) {
        kernels::RmsNorm(token + h * dim, norm.data(), dim, config_.rms_epsilon, token + h * dim);
      }
    }
    kernels::ApplyRope(token, num_heads, dim, &cos[t * dim / 2], &sin[t * dim / 2],
                       config_.rope_interleaved);
  }
}

void Decoder::AddToHidden(const std::vector<float>& post_norm, int64_t num_tokens,
                          ThreadPool& pool) {
  const int64_t width = config_.hidden_size;
  ForTokenSlices(pool, num_tokens, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* projected = &work_.projected[t * width];
      if (!post_norm.empty()) {
        kernels::RmsNorm(projected, post_norm.data(), width, config_.rms_epsilon, projected);
      }
      kernels::AddInto(&work_.hidden[t * width], projected, width);
    }
  });
}

void Decoder::Norm(const std::vector<float>& weight, int64_t num_tokens, ThreadPool& pool) {
  const int64_t width = config_.hidden_size;
  ForTokenSlices(pool, num_tokens, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      kernels::RmsNorm(&work_.hidden[t * width], weight.data(), width, config_.rms_epsilon,
                       &work_.normed[t * width]);
    }
  });
}

Status Decoder::CheckTokens(const Batch& batch) const {
  for (size_t i = 0; i < batch.token_ids.size(); ++i) {
    const int32_t id = batch.token_ids[i];
    if (id >= 0 && id < config_.vocab_size) continue;
    return InvalidArgumentError(fmt::format(
        "token {} of the batch: expected an id in [0, {}), found {}", i, config_.vocab_size, id));
  }
  return OkStatus();
}

// --- Loading

Result<std::unique_ptr<Model>> Decoder::Load(const WeightSource& source, ModelConfig config,
                                             const ModelLoadOptions& options, ThreadPool& pool) {
  ModelLoadOptions resolved = options;
  if (resolved.context_len == 0) resolved.context_len = config.context_length;
  std::unique_ptr<Decoder> decoder(new Decoder(std::move(config), resolved));
  LODE_RETURN_IF_ERROR(decoder->LoadWeights(source, pool));
  return std::unique_ptr<Model>(std::move(decoder));
}

Status Decoder::LoadWeights(const WeightSource& source, ThreadPool& pool) {
  int64_t packed_bytes = 0;
  for (const StoredTensor& tensor : source.tensors()) {
    if (tensor.view.shape.num_dims == 2) packed_bytes += PackedBytes(tensor.view);
  }
  LODE_RETURN_IF_ERROR(CheckEveryTensorIsUsed(source));
  // An untied embedding is only looked up, never multiplied; a tied one is packed as the output
  // layer.
  const bool tied = source.Find("output.weight") == nullptr;
  Shape embedding_shape;
  embedding_shape.num_dims = 2;
  embedding_shape.dims = {config_.vocab_size, config_.hidden_size};
  LODE_ASSIGN_OR_RETURN(embedding_, source.Get("token_embd.weight", embedding_shape));
  if (!tied) packed_bytes -= PackedBytes(embedding_);
  LODE_ASSIGN_OR_RETURN(arena_, WeightArena::Create(packed_bytes));

  layers_.reserve(config_.num_layers);
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    LODE_ASSIGN_OR_RETURN(Layer layer, LoadLayer(source, i, pool));
    layers_.push_back(std::move(layer));
  }
  LODE_ASSIGN_OR_RETURN(output_norm_, LoadNorm(source, "output_norm.weight", config_.hidden_size));
  LODE_ASSIGN_OR_RETURN(output_, LoadLinear(source, tied ? "token_embd.weight" : "output.weight",
                                            config_.vocab_size, config_.hidden_size, arena_, pool));
  return OkStatus();
}

// A tensor nobody reads would make the model compute something else without a word.
Status Decoder::CheckEveryTensorIsUsed(const WeightSource& source) const {
  static constexpr std::string_view kGlobal[] = {"token_embd.weight", "output_norm.weight",
                                                 "output.weight", "rope_freqs.weight"};
  static constexpr std::string_view kLinear[] = {"attn_q",   "attn_k", "attn_v",  "attn_output",
                                                 "ffn_gate", "ffn_up", "ffn_down"};
  std::vector<std::string_view> norms = {"attn_norm", "ffn_norm"};
  if (config_.qk_norm) norms.insert(norms.end(), {"attn_q_norm", "attn_k_norm"});
  if (config_.post_norms) norms.insert(norms.end(), {"post_attention_norm", "post_ffw_norm"});

  std::set<std::string, std::less<>> used(std::begin(kGlobal), std::end(kGlobal));
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    for (const std::string_view name : kLinear) {
      used.insert(fmt::format("blk.{}.{}.weight", layer, name));
      used.insert(fmt::format("blk.{}.{}.bias", layer, name));
    }
    for (const std::string_view name : norms) {
      used.insert(fmt::format("blk.{}.{}.weight", layer, name));
    }
  }
  for (const StoredTensor& tensor : source.tensors()) {
    if (used.contains(tensor.name)) continue;
    return UnsupportedError(
        fmt::format("{}: tensor {}: architecture {} with {} layers has no use for it",
                    source.path(), tensor.name, config_.architecture, config_.num_layers));
  }
  return OkStatus();
}

Result<Decoder::Layer> Decoder::LoadLayer(const WeightSource& source, int64_t index,
                                          ThreadPool& pool) {
  const std::string prefix = fmt::format("blk.{}.", index);
  const int64_t hidden = config_.hidden_size;
  const int64_t q_rows = config_.num_heads * config_.head_dim;
  const int64_t kv_rows = config_.num_kv_heads * config_.head_dim;
  const auto linear = [&](const char* name, int64_t rows, int64_t cols, Linear& out) -> Status {
    LODE_ASSIGN_OR_RETURN(out,
                          LoadLinear(source, prefix + name + ".weight", rows, cols, arena_, pool));
    if (source.Find(prefix + name + ".bias") == nullptr) return OkStatus();
    LODE_ASSIGN_OR_RETURN(out.bias, LoadVector(source, prefix + name + ".bias", rows));
    return OkStatus();
  };
  const auto norm = [&](const char* name, int64_t n, std::vector<float>& out) -> Status {
    LODE_ASSIGN_OR_RETURN(out, LoadNorm(source, prefix + name + ".weight", n));
    return OkStatus();
  };

  Layer layer;
  LODE_RETURN_IF_ERROR(norm("attn_norm", hidden, layer.attention_norm));
  LODE_RETURN_IF_ERROR(linear("attn_q", q_rows, hidden, layer.q));
  LODE_RETURN_IF_ERROR(linear("attn_k", kv_rows, hidden, layer.k));
  LODE_RETURN_IF_ERROR(linear("attn_v", kv_rows, hidden, layer.v));
  LODE_RETURN_IF_ERROR(linear("attn_output", hidden, q_rows, layer.attention_out));
  LODE_RETURN_IF_ERROR(norm("ffn_norm", hidden, layer.mlp_norm));
  LODE_RETURN_IF_ERROR(linear("ffn_gate", config_.ffn_size, hidden, layer.gate));
  LODE_RETURN_IF_ERROR(linear("ffn_up", config_.ffn_size, hidden, layer.up));
  LODE_RETURN_IF_ERROR(linear("ffn_down", hidden, config_.ffn_size, layer.down));
  if (config_.qk_norm) {
    LODE_RETURN_IF_ERROR(norm("attn_q_norm", config_.head_dim, layer.q_norm));
    LODE_RETURN_IF_ERROR(norm("attn_k_norm", config_.head_dim, layer.k_norm));
  }
  if (config_.post_norms) {
    LODE_RETURN_IF_ERROR(norm("post_attention_norm", hidden, layer.post_attention_norm));
    LODE_RETURN_IF_ERROR(norm("post_ffw_norm", hidden, layer.post_mlp_norm));
  }
  return layer;
}

Result<std::vector<float>> Decoder::LoadNorm(const WeightSource& source, const std::string& name,
                                             int64_t n) const {
  LODE_ASSIGN_OR_RETURN(std::vector<float> weight, LoadVector(source, name, n));
  // Gemma checkpoints store w of (1 + w); the GGUF converter adds the one.
  if (config_.architecture == "gemma3" && source.kind() == FileKind::kHuggingFace) {
    for (float& w : weight) w += 1.0f;
  }
  return weight;
}

}  // namespace lode
