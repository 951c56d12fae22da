// SPDX-License-Identifier: Apache-2.0
#include "golden/model_under_test.h"

#include <algorithm>
#include <numeric>

namespace lode {

Result<std::unique_ptr<ModelUnderTest>> ModelUnderTest::Load(const std::string& path,
                                                             const ModelUnderTestOptions& options) {
  std::unique_ptr<ModelUnderTest> result(new ModelUnderTest(options));
  LODE_ASSIGN_OR_RETURN(result->source_, OpenWeights(path));
  ModelLoadOptions load;
  load.activations = options.activations;
  load.context_len = options.context_len;
  LODE_ASSIGN_OR_RETURN(result->model_, LoadModel(*result->source_, load, result->pool_));
  LODE_ASSIGN_OR_RETURN(result->attention_, CreateAttention(options.attention));
  return result;
}

Status ModelUnderTest::Run(
    std::span<const int32_t> token_ids, int64_t chunk,
    FunctionRef<void(int64_t first_position, std::span<const float> logits)> visit) {
  const int64_t num_tokens = static_cast<int64_t>(token_ids.size());
  const ModelConfig& config = model_->config();
  KvCacheOptions cache_options;
  cache_options.num_layers = static_cast<int32_t>(config.num_layers);
  cache_options.num_kv_heads = static_cast<int32_t>(config.num_kv_heads);
  cache_options.head_dim = static_cast<int32_t>(config.head_dim);
  cache_options.dtypes = options_.kv_dtypes;
  cache_options.max_tokens = num_tokens;
  LODE_ASSIGN_OR_RETURN(std::unique_ptr<KvCache> cache, KvCache::Create(cache_options));
  LODE_ASSIGN_OR_RETURN(const SequenceId sequence, cache->AddSequence());

  std::vector<float> logits;
  for (int64_t first = 0; first < num_tokens; first += chunk) {
    const int64_t count = std::min(chunk, num_tokens - first);
    Batch batch;
    batch.token_ids.assign(token_ids.begin() + first, token_ids.begin() + first + count);
    batch.segments.push_back({sequence, 0, first, count});
    batch.logits_tokens.resize(count);
    std::iota(batch.logits_tokens.begin(), batch.logits_tokens.end(), int64_t{0});
    logits.resize(count * config.vocab_size);
    LODE_RETURN_IF_ERROR(cache->Extend(sequence, count));
    LODE_RETURN_IF_ERROR(model_->Forward(batch, *cache, *attention_, pool_, logits.data()));
    visit(first, logits);
  }
  return OkStatus();
}

Result<std::vector<float>> ModelUnderTest::Logits(std::span<const int32_t> token_ids,
                                                  int64_t chunk) {
  std::vector<float> all;
  all.reserve(token_ids.size() * config().vocab_size);
  const auto append = [&](int64_t, std::span<const float> logits) {
    all.insert(all.end(), logits.begin(), logits.end());
  };
  LODE_RETURN_IF_ERROR(Run(token_ids, chunk, append));
  return all;
}

}  // namespace lode
