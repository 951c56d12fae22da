// SPDX-License-Identifier: Apache-2.0
// Decoder: the decoder-only transformer of qwen2, qwen3, llama and gemma3, from token ids to
// logits.
//
// The four families differ in few places (biases, normed heads, norms after each half, the gate's
// activation, rope per layer); each is a field of ModelConfig, so one imperative forward pass reads
// like the papers and serves them all. Activations between kernels are f32.
#ifndef LODE_MODELS_DECODER_H_
#define LODE_MODELS_DECODER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "models/model.h"
#include "models/projection.h"
#include "models/rope.h"
#include "models/weight_arena.h"

namespace lode {

class Decoder final : public Model {
 public:
  static Result<std::unique_ptr<Model>> Load(const WeightSource& source, ModelConfig config,
                                             const ModelLoadOptions& options, ThreadPool& pool);

  const ModelConfig& config() const override { return config_; }
  int64_t weight_bytes() const override { return arena_.capacity(); }
  Status Forward(const Batch& batch, KvCache& cache, Attention& attention, ThreadPool& pool,
                 float* logits) override;

 private:
  struct Layer {
    std::vector<float> attention_norm, q_norm, k_norm, post_attention_norm;
    std::vector<float> mlp_norm, post_mlp_norm;
    Linear q, k, v, attention_out;
    Linear gate, up, down;
  };
  // Buffers of one step, grown to the largest step seen. [tokens, width] each.
  struct Workspace {
    std::vector<float> hidden, normed, q, k, v, attended, projected, gate, up;
    std::vector<float> rope_cos, rope_sin, rope_local_cos, rope_local_sin;  // [tokens, head_dim/2]
    void Resize(const ModelConfig& config, int64_t num_tokens);
  };

  Decoder(ModelConfig config, const ModelLoadOptions& options);
  Status CheckEveryTensorIsUsed(const WeightSource& source) const;
  Status LoadWeights(const WeightSource& source, ThreadPool& pool);
  Result<Layer> LoadLayer(const WeightSource& source, int64_t index, ThreadPool& pool);
  Result<std::vector<float>> LoadNorm(const WeightSource& source, const std::string& name,
                                      int64_t n) const;
  Status CheckTokens(const Batch& batch) const;

  void Embed(const Batch& batch);
  void FillRope(const Batch& batch);
  // hidden += attention(norm(hidden)); stores the new keys and values on the way.
  void AttentionHalf(int64_t layer_index, const Batch& batch, KvCache& cache, Attention& attention,
                     ThreadPool& pool, Projector& projector);
  // hidden += down(act(gate(norm(hidden))) * up(norm(hidden))).
  void MlpHalf(int64_t layer_index, int64_t num_tokens, ThreadPool& pool, Projector& projector);
  // Tells the attention what the layer's projections make of what MlpHalf left.
  void AddFeedForward(int64_t layer_index, const Batch& batch, Attention& attention,
                      ThreadPool& pool, Projector& projector);
  // Norms and rotates the heads of one projected tensor [num_tokens, num_heads, head_dim].
  void FinishHeads(float* heads, int64_t num_heads, const std::vector<float>& norm, bool slides,
                   int64_t begin, int64_t end) const;
  // hidden += (post-norm of) projected.
  void AddToHidden(const std::vector<float>& post_norm, int64_t num_tokens, ThreadPool& pool);
  void Norm(const std::vector<float>& weight, int64_t num_tokens, ThreadPool& pool);

  const ModelConfig config_;
  const ModelLoadOptions options_;
  const RopeTable rope_, rope_local_;
  WeightArena arena_;
  TensorView embedding_;  // rows are decoded from the file's mapping as they are needed
  std::vector<Layer> layers_;
  std::vector<float> output_norm_;
  Linear output_;
  Workspace work_;
  std::unique_ptr<Projector> projector_;
};

}  // namespace lode

#endif  // LODE_MODELS_DECODER_H_
