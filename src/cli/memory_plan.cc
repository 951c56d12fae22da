// SPDX-License-Identifier: Apache-2.0
#include "cli/memory_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/index_bytes.h"
#include "engine/configured_attention.h"
#include "kernels/matmul.h"
#include "kv/kv_cache.h"
#include "models/projection.h"
#include "retrieval/projection.h"

namespace lode::cli {
namespace {

// Measured on x86-64: code, libraries and stacks of a process with an empty model.
constexpr int64_t kProgramBytes = int64_t{14} << 20;
// Metadata and tables of the tokenizer, measured: per token, per merge rule, per score.
constexpr int64_t kBytesPerToken = 56, kBytesPerMerge = 30, kBytesPerScore = 12;
// Linux maps 16 pages around one that is read.
constexpr int64_t kFaultAroundBytes = 65536;

// As Decoder::LoadWeights packs them: an embedding that is only looked up stays in the file.
int64_t PackedWeightBytes(const WeightSource& source) {
  const bool tied = source.Find("output.weight") == nullptr;
  int64_t bytes = 0;
  for (const StoredTensor& tensor : source.tensors()) {
    if (tensor.view.shape.num_dims != 2) {
      bytes += tensor.view.shape.elements() * static_cast<int64_t>(sizeof(float));
    } else if (tied || tensor.name != "token_embd.weight") {
      bytes += PackedBytes(tensor.view);
    }
  }
  return bytes;
}

// As Decoder::Workspace and Projector keep for a step of num_tokens, and one row of logits.
int64_t ActivationBytes(const ModelConfig& config, const EngineOptions& options,
                        int64_t num_tokens) {
  const int64_t q_width = config.num_heads * config.head_dim;
  const int64_t kv_width = config.num_kv_heads * config.head_dim;
  const int64_t floats = 3 * config.hidden_size + 2 * q_width + 2 * kv_width + 2 * config.ffn_size +
                         2 * config.head_dim;
  const int64_t widest = std::max(config.ffn_size, q_width);
  const int64_t prepared = kernels::ActivationRowBytes(DType::kQ8_0, options.activations, widest) +
                           kernels::ActivationRowBytes(DType::kQ6_K, options.activations, widest);
  return num_tokens * (floats * static_cast<int64_t>(sizeof(float)) + prepared) +
         config.vocab_size * static_cast<int64_t>(sizeof(float));
}

// Of the attentions of decode steps and of prefill, and their calibration.
Result<int64_t> IndexBytesOf(const WeightSource& source, const ModelConfig& config,
                             const EngineOptions& options, int64_t context) {
  LODE_ASSIGN_OR_RETURN(const SparseOptions sparse, SparseOptionsOf(source, options));
  LODE_ASSIGN_OR_RETURN(const std::string name, AttentionOf(source, options));
  int64_t bytes = PlanIndex(name, config, sparse, context);
  bool calibrated = NeedsCalibration(name);
  const std::string& prefill = options.prefill_attention;
  if (!prefill.empty() && prefill != name) {
    LODE_RETURN_IF_ERROR(CheckAttentionName(prefill));
    bytes += PlanIndex(prefill, config, sparse, context);
    calibrated = calibrated || NeedsCalibration(prefill);
  }
  const int64_t layers = std::ranges::count(config.layer_slides, false);
  return bytes + (calibrated
                      ? layers * config.num_kv_heads * HeadProjection::BytesFor(config.head_dim)
                      : 0);
}

int64_t TokenizerBytes(const Metadata& metadata) {
  int64_t bytes = 0;
  const auto tokens = metadata.GetStrings("tokenizer.ggml.tokens");
  const auto merges = metadata.GetStrings("tokenizer.ggml.merges");
  const auto scores = metadata.GetFloats("tokenizer.ggml.scores");
  if (tokens.ok()) bytes += static_cast<int64_t>((*tokens)->size()) * kBytesPerToken;
  if (merges.ok()) bytes += static_cast<int64_t>((*merges)->size()) * kBytesPerMerge;
  if (scores.ok()) bytes += static_cast<int64_t>((*scores)->size()) * kBytesPerScore;
  return bytes;
}

int64_t MappedBytes(const WeightSource& source, int64_t context) {
  int64_t bytes = 0;
  std::vector<int64_t> headers(source.files().size(), std::numeric_limits<int64_t>::max());
  for (const StoredTensor& tensor : source.tensors()) {
    const int64_t offset = static_cast<int64_t>(tensor.file_offset);
    headers[tensor.file_index] = std::min(headers[tensor.file_index], offset);
    if (tensor.view.shape.num_dims != 2) {
      bytes += std::min(kFaultAroundBytes, std::max<int64_t>(tensor.view.bytes(), 4096));
    }
  }
  for (size_t i = 0; i < headers.size(); ++i) {
    const int64_t file_bytes = static_cast<int64_t>(source.files()[i].bytes().size());
    bytes += std::min(headers[i], file_bytes);
  }
  if (const StoredTensor* embedding = source.Find("token_embd.weight")) {
    // Rows at random places: each maps a neighbourhood, and neighbourhoods overlap.
    const double all = static_cast<double>(embedding->view.bytes());
    const double touched = static_cast<double>(DistinctTokens(context) * kFaultAroundBytes);
    bytes += static_cast<int64_t>(all * (1.0 - std::exp(-touched / all)));
  }
  return bytes;
}

}  // namespace

int64_t PlanIndex(std::string_view attention, const ModelConfig& config,
                  const SparseOptions& sparse, int64_t tokens) {
  return IndexBytes(attention, {.sparse = sparse, .calibration = nullptr},
                    {.tokens = tokens,
                     .num_layers = config.num_layers,
                     .sliding_layers = std::ranges::count(config.layer_slides, true),
                     .num_kv_heads = config.num_kv_heads,
                     .head_dim = config.head_dim});
}

int64_t DistinctTokens(int64_t num_tokens) {
  const double estimate = 16.0 * std::sqrt(static_cast<double>(num_tokens));
  return std::min(num_tokens, static_cast<int64_t>(estimate));
}

Result<MemoryPlan> PlanMemory(const WeightSource& source, const EngineOptions& options) {
  LODE_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(source));
  const int64_t context = options.context_len > 0 ? options.context_len : config.context_length;
  KvCacheOptions kv;
  kv.num_layers = static_cast<int32_t>(config.num_layers);
  kv.num_kv_heads = static_cast<int32_t>(config.num_kv_heads);
  kv.head_dim = static_cast<int32_t>(config.head_dim);
  kv.dtypes = options.kv_dtypes;
  kv.max_tokens = context;
  kv.block_size = options.block_size;
  kv.value_group = options.kv_value_group;
  kv.int4_fallback_threshold = options.int4_fallback_threshold;

  MemoryPlan plan;
  plan.weight_bytes = PackedWeightBytes(source);
  plan.kv_bytes = KvCache::BytesFor(kv, context);
  LODE_ASSIGN_OR_RETURN(plan.index_bytes, IndexBytesOf(source, config, options, context));
  plan.activation_bytes =
      ActivationBytes(config, options, std::min(context, options.prefill_chunk));
  plan.tokenizer_bytes = TokenizerBytes(source.metadata());
  plan.mapped_bytes = MappedBytes(source, context);
  plan.program_bytes = kProgramBytes;
  for (const MappedFile& file : source.files()) {
    plan.file_cache_bytes += static_cast<int64_t>(file.bytes().size());
  }
  return plan;
}

Result<int64_t> LargestContext(const WeightSource& source, EngineOptions options,
                               int64_t available) {
  int64_t fits = 0, too_large = (int64_t{1} << 30) / BlockPlan::kDefaultBlockSize;  // in blocks
  while (fits + 1 < too_large) {
    const int64_t middle = fits + (too_large - fits) / 2;
    options.context_len = middle * BlockPlan::kDefaultBlockSize;
    LODE_ASSIGN_OR_RETURN(const MemoryPlan plan, PlanMemory(source, options));
    (plan.total_bytes() <= available ? fits : too_large) = middle;
  }
  return fits * BlockPlan::kDefaultBlockSize;
}

}  // namespace lode::cli
