// SPDX-License-Identifier: Apache-2.0
// Engine: a loaded model ready to answer. Owns weights, tokenizer, cache and threads; one request
// at a time.
#ifndef LODE_ENGINE_ENGINE_H_
#define LODE_ENGINE_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/attention.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "engine/sampler.h"
#include "formats/weight_source.h"
#include "kv/kv_cache.h"
#include "models/model.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace lode {

struct EngineOptions {
  std::string model_path;
  int32_t num_threads = 0;  // 0: floor(min(cgroup quota, affinity)), at least 1
  int64_t context_len = 0;  // 0: the model's own
  KvDTypes kv_dtypes = KvDType::kF16;
  bool choose_kv_dtypes = false;  // measure which kv_dtypes suit the model (kv_choice.h)
  // Empty: as the model's configuration says (attention_implementation), else flash.
  std::string attention;
  std::string prefill_attention;  // of steps of several tokens; empty: the same
  // For csa_hca: what it reads, and the calibration of its key codes. Without a path the one of the
  // folder is used, or one is made from a built-in text (seconds) and kept there. What the model's
  // configuration says of a parameter of csa_hca wins over `sparse`, unless its name is in
  // sparse_given (configured_attention.h).
  SparseOptions sparse;
  std::set<std::string, std::less<>> sparse_given;
  std::string calibration_path;
  std::string calibration_folder;
  kernels::ActivationType activations = kernels::ActivationType::kInt8;
  int64_t prefill_chunk = 512;                        // tokens per prefill step
  int64_t block_size = BlockPlan::kDefaultBlockSize;  // of the cache
  // What the cache may take: bytes, or a share of the memory that is available before the model is
  // loaded, less what the model takes. Both 0: what a full context takes.
  int64_t kv_memory_bytes = 0;
  double memory_utilization = 0.0;
  int64_t kv_value_group = kernels::kDefaultValueGroup;  // KvCacheOptions
  int64_t int4_fallback_threshold = 24'576;              // KvCacheOptions
  int64_t defragment_seconds = 300;  // at least so long between two passes; 0: never
  double rope_linear_factor = 0.0;   // 0: as the model says (rope_interpolation_factor)
};

enum class FinishReason : uint8_t { kStop, kLength, kCancelled };

struct GenerateRequest {
  std::vector<TokenId> prompt;  // must be non-empty and fit the context with max_tokens
  // Of the prompt, what is always read and never summed up (prompt_marks.h): in it, ascending. Keys
  // that the cache already holds stay as they were computed.
  std::vector<TokenRange> exact;
  int64_t max_tokens = 0;  // 0: to the end of the context
  SamplingParams sampling;
  std::vector<std::string>
      stop;  // stop strings, matched across token borders, not part of the text
  bool ignore_eos = false;
  // Called after each prefill chunk with tokens done and total. Return false to cancel.
  std::function<bool(int64_t done, int64_t total)> on_prefill;
  // Asked several times a second within a prefill chunk, which can take many seconds behind a long
  // context. Return false to cancel: the chunk is dropped, those before it stay cached.
  std::function<bool()> keep_going;
  // Called with each piece of finished text (whole UTF-8 characters; a possible stop-string prefix
  // is held back). Return false to cancel.
  std::function<bool(std::string_view text)> on_text;
};

struct GenerateResult {
  std::string text;
  std::vector<TokenId> token_ids;       // generated, end token excluded
  std::vector<TokenLogprobs> logprobs;  // per generated token, when asked for
  FinishReason finish_reason = FinishReason::kStop;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;     // of the prompt, found in the cache
  int64_t prefilled_tokens = 0;  // of the prompt, run: all others, unless the prefill was cancelled
  double prefill_seconds = 0.0;
  double decode_seconds = 0.0;  // of all but the first generated token
  AttentionCounters attention;  // of this request
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> Load(const EngineOptions& options);
  ~Engine();

  // Runs one request. The cache keeps this sequence and, while there is room, the full blocks of
  // earlier ones: a prompt that begins like any of them only prefills what is new.
  // ResourceExhausted: the prompt does not
  // fit, with needed and available; nothing is ever cut silently. Temperature 0 gives the same
  // tokens whatever the number of threads.
  Result<GenerateResult> Generate(const GenerateRequest& request);

  // Logits of every position of tokens [tokens.size(), vocab_size] from a fresh sequence, chunk by
  // chunk, for eval and tests: visit(position, logits row).
  Status Evaluate(
      const std::vector<TokenId>& tokens,
      const std::function<void(int64_t position, std::span<const float> logits)>& visit);
  // Raw steps for benchmarks: drops the cached sequence; extends it by these tokens without
  // sampling.
  void ResetCache();
  Status Append(const std::vector<TokenId>& tokens);
  // Logits [vocab_size] of the last token that Append or Generate has run, until the next step.
  std::span<const float> last_logits() const;
  // Replaces what is cached by `depth` tokens with made-up keys and values. They tell nothing of an
  // attention that selects what it reads.
  Status FillSynthetic(int64_t depth);
  // Repeats the first source_tokens cached tokens behind the cached ones, up to `depth`
  // (tiled_context.h, with its errors).
  Status TileTo(int64_t depth, int64_t source_tokens);
  // Forgets cached tokens from `length` on, a number of cached ones, and returns the new length
  // (KvCache::Truncate says when that is less).
  int64_t Truncate(int64_t length);

  // Several attentions over one cache, for comparisons. Another one with the options of this
  // engine; errors: those of CheckAttentionName and FindOrMakeCalibration.
  Result<std::unique_ptr<Attention>> MakeAttention(std::string_view name);
  // The calibration of the model's key codes, found or made at first need.
  Result<std::shared_ptr<const Calibration>> FindCalibration();
  // Steps go through `attention` from now on, which must outlive them; null: the engine's own
  // again. Truncate tells only the one in use: shorten what it has seen before another one takes
  // over.
  void UseAttention(Attention* attention);

  const WeightSource& source() const;
  const Tokenizer& tokenizer() const;
  // NotFound with a hint when the model has no template.
  Result<const ChatTemplate*> chat_template() const;
  const Model& model() const;
  const KvCache& cache() const;
  const Attention& attention() const;    // the one in use
  const EngineOptions& options() const;  // with defaults resolved
  int64_t cached_length() const;
  // What choose_kv_dtypes led to and why, one line; empty without it.
  const std::string& kv_choice_reason() const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lode

#endif  // LODE_ENGINE_ENGINE_H_
