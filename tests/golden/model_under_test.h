// SPDX-License-Identifier: Apache-2.0
// ModelUnderTest: a model loaded with explicit numeric choices and run over a token sequence in
// chunks of any size, without the engine around it. Shared by the golden tests and
// lode_dump_logits.
#ifndef LODE_TESTS_GOLDEN_MODEL_UNDER_TEST_H_
#define LODE_TESTS_GOLDEN_MODEL_UNDER_TEST_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "base/function_ref.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "formats/weight_source.h"
#include "kernels/matmul.h"
#include "kv/kv_cache.h"
#include "models/model.h"

namespace lode {

struct ModelUnderTestOptions {
  kernels::ActivationType activations = kernels::ActivationType::kF32;
  KvDTypes kv_dtypes = KvDType::kF32;
  std::string attention = "eager";
  int threads = 2;
  int64_t context_len = 0;  // tokens a sequence may reach; 0: the model's own
};

class ModelUnderTest {
 public:
  static Result<std::unique_ptr<ModelUnderTest>> Load(const std::string& path,
                                                      const ModelUnderTestOptions& options);

  const ModelConfig& config() const { return model_->config(); }

  // Runs token_ids as a fresh sequence, `chunk` tokens a step (the last step may be shorter), and
  // hands over the logits of each step: visit(first position, [tokens of the step, vocab_size]).
  Status Run(std::span<const int32_t> token_ids, int64_t chunk,
             FunctionRef<void(int64_t first_position, std::span<const float> logits)> visit);
  // All logits [token_ids.size(), vocab_size].
  Result<std::vector<float>> Logits(std::span<const int32_t> token_ids, int64_t chunk);

 private:
  explicit ModelUnderTest(const ModelUnderTestOptions& options)
      : options_(options), pool_(options.threads) {}

  const ModelUnderTestOptions options_;
  ThreadPool pool_;
  std::unique_ptr<WeightSource> source_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Attention> attention_;
};

}  // namespace lode

#endif  // LODE_TESTS_GOLDEN_MODEL_UNDER_TEST_H_
