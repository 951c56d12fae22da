// SPDX-License-Identifier: Apache-2.0
// The Model seam: a forward pass from token ids to logits over a paged cache.
#ifndef LODE_MODELS_MODEL_H_
#define LODE_MODELS_MODEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "attention/attention.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "formats/weight_source.h"
#include "kernels/matmul.h"
#include "kv/kv_cache.h"
#include "models/model_config.h"

namespace lode {

// New tokens of one sequence: token_ids[first_token, first_token + num_tokens) of the batch.
struct Segment {
  SequenceId sequence = 0;
  int64_t first_token = 0;
  int64_t first_position = 0;
  int64_t num_tokens = 0;
};

// One step's work. Slots for all tokens are already reserved in the cache (KvCache::Extend).
struct Batch {
  std::vector<int32_t> token_ids;
  std::vector<Segment> segments;
  std::vector<int64_t> logits_tokens;  // indices into token_ids whose logits are wanted
  // Asked between layers; false ends the step with Cancelled. Empty: the step runs to its end.
  std::function<bool()> keep_going;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  // Bytes of packed weights and of activations for steps of num_tokens tokens: what `lode plan`
  // shows.
  virtual int64_t weight_bytes() const = 0;
  // Writes logits [logits_tokens.size(), vocab_size] f32. Threads: one call at a time.
  // InvalidArgument: a token id outside the vocabulary (nothing was stored then). Cancelled by
  // keep_going: some layers' keys and values are stored, so the tokens must be dropped.
  virtual Status Forward(const Batch& batch, KvCache& cache, Attention& attention, ThreadPool& pool,
                         float* logits) = 0;
};

struct ModelLoadOptions {
  kernels::ActivationType activations = kernels::ActivationType::kInt8;
  int64_t context_len = 0;          // tokens a sequence may reach; 0: the model's own
  double rope_linear_factor = 0.0;  // replaces the model's rope scaling by linear; 0: as it says
};

// The model's configuration with the rope scaling that the options or the file ask for. Warns of
// positions that the model has not seen in training: a context beyond its own, a large factor.
// Errors: those of ReadModelConfig; InvalidArgument: a factor outside [1, 1024].
Result<ModelConfig> ConfigureModel(const WeightSource& source, const ModelLoadOptions& options);

// Configures the model, checks every tensor's name, type and shape, and repacks the weights. Says
// which types it converts because no kernel reads them as they are. Unsupported names the
// architecture and lists the known ones; NotFound and Corruption name the tensor.
Result<std::unique_ptr<Model>> LoadModel(const WeightSource& source,
                                         const ModelLoadOptions& options, ThreadPool& pool);

}  // namespace lode

#endif  // LODE_MODELS_MODEL_H_
