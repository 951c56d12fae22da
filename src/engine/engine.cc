// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "attention/phased.h"
#include "base/log.h"
#include "base/topology.h"
#include "engine/calibrate.h"
#include "engine/configured_attention.h"
#include "engine/kv_choice.h"
#include "engine/stop_filter.h"
#include "engine/tiled_context.h"

namespace lode {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr int64_t kMaxPrefillChunk = 8192;
constexpr int64_t kSyntheticChunk = 512;
// A part of a defragmentation delays the next request by no more than this.
constexpr double kDefragmentSeconds = 0.05;
// What stands for the ids of cached tokens that no prompt may reuse: the id of none.
constexpr TokenId kNoToken = -1;

Status ValidateOptions(const EngineOptions& options) {
  const auto check = [](const char* name, int64_t value, int64_t min, int64_t max) -> Status {
    if (value >= min && value <= max) return OkStatus();
    return InvalidArgumentError(
        fmt::format("{}: expected a number in [{}, {}], found {}", name, min, max, value));
  };
  LODE_RETURN_IF_ERROR(check("threads", options.num_threads, 0, 1024));
  LODE_RETURN_IF_ERROR(check("context", options.context_len, 0, int64_t{1} << 30));
  LODE_RETURN_IF_ERROR(check("prefill_chunk", options.prefill_chunk, 1, kMaxPrefillChunk));
  LODE_RETURN_IF_ERROR(BlockPlan::Create(options.block_size).status());
  LODE_RETURN_IF_ERROR(check("kv_memory_bytes", options.kv_memory_bytes, 0, int64_t{1} << 60));
  LODE_RETURN_IF_ERROR(
      check("int4_fallback_threshold", options.int4_fallback_threshold, 0, int64_t{1} << 50));
  LODE_RETURN_IF_ERROR(
      check("defragment_seconds", options.defragment_seconds, 0, int64_t{1} << 31));
  if (options.memory_utilization >= 0.0 && options.memory_utilization <= 1.0) return OkStatus();
  return InvalidArgumentError(
      fmt::format("memory_utilization: expected a share in (0, 1], or 0 for none, found {}",
                  options.memory_utilization));
}

// The cache's budget in bytes; 0 when the options leave it to the context's length. `before`:
// memory before the model was loaded.
Result<int64_t> KvBudget(const EngineOptions& options, const MemoryBudget& before,
                         int64_t resident_before) {
  if (options.kv_memory_bytes > 0) return options.kv_memory_bytes;
  if (options.memory_utilization == 0.0) return 0;
  const auto share = static_cast<int64_t>(options.memory_utilization *
                                          static_cast<double>(before.available_bytes));
  const int64_t model = ReadResidentMemory().anonymous_bytes - resident_before;
  if (share > model) return share - model;
  return ResourceExhaustedError(fmt::format(
      "memory utilization {}: {} of {} available bytes ({}), but the model alone takes {}",
      options.memory_utilization, share, before.available_bytes, before.reason, model));
}

}  // namespace

struct Engine::Impl {
  EngineOptions options;
  std::unique_ptr<WeightSource> source;
  std::unique_ptr<Tokenizer> tokenizer;
  Result<std::unique_ptr<ChatTemplate>> chat_template = NotFoundError("not loaded");
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Model> model;
  std::shared_ptr<const Calibration> calibration;  // null until an attention needs it
  std::unique_ptr<Attention> own_attention;
  Attention* attention = nullptr;  // the one in use
  std::unique_ptr<KvCache> cache;
  std::string kv_choice_reason;
  SequenceId sequence = 0;
  std::vector<TokenId> cached;  // token ids whose keys and values the cache holds, in order
  std::vector<float> logits;

  int64_t cached_length() const { return static_cast<int64_t>(cached.size()); }

  // Keeps the first new_length cached tokens, or somewhat fewer (KvCache::Truncate).
  void TruncateTo(int64_t new_length) {
    cached.resize(cache->Truncate(sequence, new_length));
    attention->Truncate(sequence, cached_length());
  }

  Result<std::shared_ptr<const Calibration>> FindCalibration() {
    if (calibration == nullptr) {
      LODE_ASSIGN_OR_RETURN(
          calibration, FindOrMakeCalibration(
                           {.path = options.calibration_path, .folder = options.calibration_folder},
                           *source, *model, *tokenizer, *pool));
    }
    return calibration;
  }

  Result<std::unique_ptr<Attention>> MakeAttention(std::string_view name) {
    LODE_RETURN_IF_ERROR(CheckAttentionName(name));
    if (NeedsCalibration(name)) LODE_RETURN_IF_ERROR(FindCalibration().status());
    AttentionContext context = {.sparse = options.sparse, .calibration = calibration};
    if (NeedsFingerprint(name)) {
      LODE_ASSIGN_OR_RETURN(context.fingerprint, FingerprintOf(*source));
    }
    return CreateAttention(name, context);
  }

  Status ChooseAttention() {
    std::string& name = options.attention;
    LODE_ASSIGN_OR_RETURN(name, AttentionOf(*source, options));
    if (options.prefill_attention.empty()) options.prefill_attention = name;
    LODE_ASSIGN_OR_RETURN(own_attention, MakeAttention(name));
    if (options.prefill_attention != name) {
      LODE_ASSIGN_OR_RETURN(auto prefill, MakeAttention(options.prefill_attention));
      own_attention = CreatePhasedAttention(std::move(prefill), std::move(own_attention));
    }
    return OkStatus();
  }

  // Runs one step over `tokens` after the cached ones. want_logits: of the last token, or of every
  // token.
  Status Step(std::span<const TokenId> tokens, bool all_logits, float* logits_out,
              const std::function<bool()>& keep_going = nullptr) {
    const int64_t num_tokens = static_cast<int64_t>(tokens.size());
    const int64_t first_position = cached_length();
    LODE_RETURN_IF_ERROR(cache->Extend(sequence, num_tokens));
    Batch batch;
    batch.token_ids.assign(tokens.begin(), tokens.end());
    batch.segments.push_back({sequence, 0, first_position, num_tokens});
    batch.keep_going = keep_going;
    if (logits_out != nullptr) {
      for (int64_t i = all_logits ? 0 : num_tokens - 1; i < num_tokens; ++i) {
        batch.logits_tokens.push_back(i);
      }
    }
    Status status = model->Forward(batch, *cache, *attention, *pool, logits_out);
    if (!status.ok()) {
      TruncateTo(first_position);
      return status;
    }
    cached.insert(cached.end(), tokens.begin(), tokens.end());
    if (num_tokens > 1) cache->JoinPages();
    return OkStatus();
  }

  // What holds for a request before anything is computed or forgotten.
  Status CheckRequest(const GenerateRequest& request) const {
    const int64_t vocab_size = model->config().vocab_size;
    LODE_RETURN_IF_ERROR(request.sampling.Validate(vocab_size));
    if (request.max_tokens < 0) {
      return InvalidArgumentError(
          fmt::format("max_tokens: expected 0 or more, found {}", request.max_tokens));
    }
    for (size_t i = 0; i < request.prompt.size(); ++i) {
      const TokenId id = request.prompt[i];
      if (id >= 0 && id < vocab_size) continue;
      return InvalidArgumentError(fmt::format(
          "token {} of the prompt: expected an id in [0, {}), found {}", i, vocab_size, id));
    }
    LODE_RETURN_IF_ERROR(CheckRanges(request));
    return CheckFits(static_cast<int64_t>(request.prompt.size()),
                     std::max<int64_t>(request.max_tokens, 1));
  }

  static Status CheckRanges(const GenerateRequest& request) {
    const auto length = static_cast<int64_t>(request.prompt.size());
    int64_t least = 0;
    for (size_t i = 0; i < request.exact.size(); ++i) {
      const auto [begin, end] = request.exact[i];
      if (begin < least || end < begin || end > length) {
        return InvalidArgumentError(
            fmt::format("exact range {}: expected tokens from {} to {} at most, found [{}, {})", i,
                        least, length, begin, end));
      }
      least = end;
    }
    return OkStatus();
  }

  Status CheckFits(int64_t prompt_tokens, int64_t new_tokens) const {
    if (prompt_tokens == 0) return InvalidArgumentError("the prompt is empty");
    // As unsigned numbers, so that no sum overflows.
    const uint64_t needed =
        static_cast<uint64_t>(prompt_tokens) + static_cast<uint64_t>(new_tokens);
    if (needed > static_cast<uint64_t>(options.context_len)) {
      return ResourceExhaustedError(fmt::format(
          "the prompt has {} tokens and {} more were asked for: {} needed, the context holds {}",
          prompt_tokens, new_tokens, needed, options.context_len));
    }
    const KvCacheOptions& kv = cache->options();
    const int64_t kv_bytes = KvCache::BytesFor(kv, static_cast<int64_t>(needed));
    if (kv.memory_bytes == 0 || kv_bytes <= kv.memory_bytes) return OkStatus();
    return ResourceExhaustedError(fmt::format(
        "the prompt has {} tokens and {} more were asked for: their keys and values take {} bytes, "
        "the budget of the cache is {}",
        prompt_tokens, new_tokens, kv_bytes, kv.memory_bytes));
  }

  // Prefills what the cache does not hold yet; logits of the last prompt token are in `logits`
  // afterwards.
  Status Prefill(const GenerateRequest& request, GenerateResult& result);
  Status Decode(const GenerateRequest& request, GenerateResult& result);

  // As Step, and lets later prompts reuse the tokens.
  Status StepAndPublish(std::span<const TokenId> tokens, float* logits_out,
                        const std::function<bool()>& keep_going = nullptr) {
    const int64_t first_position = cached_length();
    LODE_RETURN_IF_ERROR(Step(tokens, false, logits_out, keep_going));
    cache->Publish(sequence, first_position, tokens);
    return OkStatus();
  }
  // What is done between requests: now and then a bounded part of a defragmentation, and the log.
  void Maintain();
  Clock::time_point defragmented = Clock::now();
};

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::Load(const EngineOptions& options) {
  LODE_RETURN_IF_ERROR(ValidateOptions(options));
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  const MemoryBudget memory = UsableMemory();
  const int64_t resident = ReadResidentMemory().anonymous_bytes;
  for (const std::string& name : {options.attention, options.prefill_attention}) {
    if (!name.empty()) LODE_RETURN_IF_ERROR(CheckAttentionName(name));
  }
  LODE_ASSIGN_OR_RETURN(impl->source, OpenWeights(options.model_path));
  LODE_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(*impl->source));
  LODE_ASSIGN_OR_RETURN(impl->options.sparse, SparseOptionsOf(*impl->source, options));
  WarnOfUnknownSparseKeys(impl->source->metadata());
  if (impl->options.num_threads == 0) {
    const ThreadBudget budget = UsableThreads();
    impl->options.num_threads = budget.threads;
    LogInfo(budget.reason);
  }
  if (impl->options.context_len == 0) impl->options.context_len = config.context_length;
  impl->pool = std::make_unique<ThreadPool>(impl->options.num_threads);
  LODE_ASSIGN_OR_RETURN(impl->tokenizer, Tokenizer::Load(*impl->source));
  impl->chat_template = ChatTemplate::Load(*impl->source, *impl->tokenizer);

  ModelLoadOptions model_options;
  model_options.activations = options.activations;
  model_options.context_len = impl->options.context_len;
  model_options.rope_linear_factor = options.rope_linear_factor;
  LODE_ASSIGN_OR_RETURN(impl->model, LoadModel(*impl->source, model_options, *impl->pool));
  LODE_RETURN_IF_ERROR(impl->ChooseAttention());
  impl->attention = impl->own_attention.get();

  KvCacheOptions kv_options;
  kv_options.num_layers = static_cast<int32_t>(config.num_layers);
  kv_options.num_kv_heads = static_cast<int32_t>(config.num_kv_heads);
  kv_options.head_dim = static_cast<int32_t>(config.head_dim);
  kv_options.max_tokens = impl->options.context_len;
  kv_options.block_size = options.block_size;
  kv_options.value_group = options.kv_value_group;
  kv_options.int4_fallback_threshold = options.int4_fallback_threshold;
  LODE_ASSIGN_OR_RETURN(kv_options.memory_bytes, KvBudget(options, memory, resident));
  if (options.choose_kv_dtypes) {
    KvTestBench bench = {*impl->model, *impl->attention, *impl->pool, kv_options};
    LODE_ASSIGN_OR_RETURN(KvChoice choice,
                          ChooseKvDTypes(bench, *impl->tokenizer, impl->options.context_len,
                                         kv_options.memory_bytes));
    impl->options.kv_dtypes = choice.dtypes;
    impl->kv_choice_reason = std::move(choice.reason);
  }
  kv_options.dtypes = impl->options.kv_dtypes;
  kv_options.fingerprint =
      fmt::format("{}|{}|{}|{}", options.model_path, config.name, options.rope_linear_factor,
                  static_cast<int>(options.activations));
  LODE_ASSIGN_OR_RETURN(impl->cache, KvCache::Create(kv_options));
  LODE_ASSIGN_OR_RETURN(impl->sequence, impl->cache->AddSequence());
  impl->logits.resize(config.vocab_size);
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Result<GenerateResult> Engine::Generate(const GenerateRequest& request) {
  LODE_RETURN_IF_ERROR(impl_->CheckRequest(request));
  GenerateResult result;
  const AttentionCounters before = impl_->attention->counters();
  Status status = impl_->Prefill(request, result);
  if (status.ok() && result.finish_reason != FinishReason::kCancelled) {
    status = impl_->Decode(request, result);
  }
  result.attention = impl_->attention->counters() - before;
  impl_->Maintain();
  LODE_RETURN_IF_ERROR(status);
  return result;
}

void Engine::Impl::Maintain() {
  const double since = SecondsSince(defragmented);
  if (options.defragment_seconds > 0 && since >= static_cast<double>(options.defragment_seconds)) {
    const auto start = Clock::now();
    const auto result = cache->Defragment([&] { return SecondsSince(start) > kDefragmentSeconds; });
    // What was not finished goes on after the next request.
    if (result.finished) defragmented = Clock::now();
  }
  LogDebug(cache->stats().LogLine());
}

Status Engine::Impl::Prefill(const GenerateRequest& request, GenerateResult& result) {
  const std::vector<TokenId>& prompt = request.prompt;
  const auto start = Clock::now();
  const auto shared = std::mismatch(cached.begin(), cached.end(), prompt.begin(), prompt.end());
  // The last prompt token is always run: its logits are needed.
  const int64_t total = static_cast<int64_t>(prompt.size());
  const int64_t own = std::min<int64_t>(shared.first - cached.begin(), total - 1);
  const auto usable = std::span(prompt).first(static_cast<size_t>(total - 1));
  const int64_t known = cache->AttachPrefix(sequence, usable, own);
  attention->ChangeText({.sequence = sequence,
                         .before = cached,
                         .now = usable.first(static_cast<size_t>(known)),
                         .capacity = options.context_len});
  attention->KeepExact(sequence, request.exact);
  cached.assign(prompt.begin(), prompt.begin() + known);
  result.prompt_tokens = total;
  result.cached_tokens = cached_length();
  while (cached_length() < total) {
    const int64_t done = cached_length();
    const int64_t chunk = std::min(options.prefill_chunk, total - done);
    const bool last = done + chunk == total;
    const Status status = StepAndPublish(std::span(prompt).subspan(done, chunk),
                                         last ? logits.data() : nullptr, request.keep_going);
    if (!status.ok() && status.code() != StatusCode::kCancelled) return status;
    if (!status.ok() || (request.on_prefill && !request.on_prefill(done + chunk, total))) {
      result.finish_reason = FinishReason::kCancelled;
      break;
    }
  }
  result.prefilled_tokens = cached_length() - result.cached_tokens;
  result.prefill_seconds = SecondsSince(start);
  return OkStatus();
}

Status Engine::Impl::Decode(const GenerateRequest& request, GenerateResult& result) {
  const int64_t room = options.context_len - result.prompt_tokens;
  const int64_t limit = request.max_tokens > 0 ? std::min(request.max_tokens, room) : room;
  Sampler sampler(request.sampling, model->config().vocab_size);
  for (const TokenId id : request.prompt) sampler.Accept(id);
  Detokenizer detokenizer(*tokenizer);
  StopFilter filter(request.stop);
  // Shows text to the caller; false when the caller wants no more.
  const auto emit = [&](const std::string& text) {
    if (text.empty()) return true;
    result.text += text;
    return !request.on_text || request.on_text(text);
  };

  result.finish_reason = FinishReason::kLength;
  const auto start = Clock::now();
  for (int64_t generated = 0; generated < limit; ++generated) {
    LODE_ASSIGN_OR_RETURN(SampledToken token, sampler.Sample(logits));
    if (tokenizer->IsEndOfGeneration(token.id) && !request.ignore_eos) {
      result.finish_reason = FinishReason::kStop;
      break;
    }
    sampler.Accept(token.id);
    result.token_ids.push_back(token.id);
    if (request.sampling.num_logprobs >= 0) result.logprobs.push_back(std::move(token.logprobs));
    if (!emit(filter.Push(detokenizer.Push(token.id)))) {
      result.finish_reason = FinishReason::kCancelled;
      break;
    }
    if (filter.stopped()) {
      result.finish_reason = FinishReason::kStop;
      break;
    }
    if (generated + 1 < limit) LODE_RETURN_IF_ERROR(StepAndPublish({&token.id, 1}, logits.data()));
  }
  if (!filter.stopped() && result.finish_reason != FinishReason::kCancelled) {
    emit(filter.Push(detokenizer.Finish()) + filter.Finish());
  }
  result.decode_seconds = SecondsSince(start);
  return OkStatus();
}

Status Engine::Evaluate(
    const std::vector<TokenId>& tokens,
    const std::function<void(int64_t position, std::span<const float> logits)>& visit) {
  LODE_RETURN_IF_ERROR(impl_->CheckFits(static_cast<int64_t>(tokens.size()), 0));
  ResetCache();
  const int64_t vocab = impl_->model->config().vocab_size;
  // A chunk's logits are the largest buffer there is (512 x 151,936 f32 = 297 MiB), so evaluate in
  // smaller ones.
  const int64_t chunk = std::min<int64_t>(impl_->options.prefill_chunk, 128);
  std::vector<float> logits(static_cast<size_t>(chunk * vocab));
  const int64_t total = static_cast<int64_t>(tokens.size());
  for (int64_t done = 0; done < total; done += chunk) {
    const int64_t count = std::min(chunk, total - done);
    LODE_RETURN_IF_ERROR(impl_->Step(std::span(tokens).subspan(done, count), true, logits.data()));
    for (int64_t i = 0; i < count; ++i) {
      visit(done + i, std::span<const float>(logits).subspan(i * vocab, vocab));
    }
  }
  return OkStatus();
}

void Engine::ResetCache() {
  impl_->TruncateTo(0);
  impl_->cache->DropCached();
}

Status Engine::Append(const std::vector<TokenId>& tokens) {
  const int64_t total = static_cast<int64_t>(tokens.size());
  for (int64_t done = 0; done < total;) {
    const int64_t chunk = std::min(impl_->options.prefill_chunk, total - done);
    const bool last = done + chunk == total;
    LODE_RETURN_IF_ERROR(impl_->Step(std::span(tokens).subspan(done, chunk), false,
                                     last ? impl_->logits.data() : nullptr));
    done += chunk;
  }
  return OkStatus();
}

std::span<const float> Engine::last_logits() const {
  return impl_->logits;
}

Status Engine::FillSynthetic(int64_t depth) {
  ResetCache();
  const ModelConfig& config = impl_->model->config();
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> k(kSyntheticChunk * config.num_kv_heads * config.head_dim), v(k.size());
  for (float& x : k) x = normal(random);
  for (float& x : v) x = normal(random);
  LODE_RETURN_IF_ERROR(impl_->cache->Extend(impl_->sequence, depth));
  for (int64_t first = 0; first < depth; first += kSyntheticChunk) {
    const int64_t count = std::min(kSyntheticChunk, depth - first);
    impl_->pool->ParallelFor(config.num_layers, [&](int64_t layer, int) {
      impl_->cache->Store(static_cast<int32_t>(layer), impl_->sequence, first, count, k.data(),
                          v.data());
    });
  }
  impl_->cache->JoinPages();
  impl_->cached.assign(depth, kNoToken);
  return OkStatus();
}

Status Engine::TileTo(int64_t depth, int64_t source_tokens) {
  const Tiling tiling = {
      .sequence = impl_->sequence, .source_tokens = source_tokens, .length = depth};
  LODE_RETURN_IF_ERROR(TileContext(impl_->model->config(), impl_->options.context_len, tiling,
                                   *impl_->cache, *impl_->pool));
  impl_->cache->JoinPages();
  impl_->cached.resize(static_cast<size_t>(depth), kNoToken);
  return OkStatus();
}

int64_t Engine::Truncate(int64_t length) {
  impl_->TruncateTo(length);
  return cached_length();
}

Result<std::unique_ptr<Attention>> Engine::MakeAttention(std::string_view name) {
  return impl_->MakeAttention(name);
}

Result<std::shared_ptr<const Calibration>> Engine::FindCalibration() {
  return impl_->FindCalibration();
}

void Engine::UseAttention(Attention* attention) {
  impl_->attention = attention != nullptr ? attention : impl_->own_attention.get();
}

const WeightSource& Engine::source() const {
  return *impl_->source;
}
const Tokenizer& Engine::tokenizer() const {
  return *impl_->tokenizer;
}
const Model& Engine::model() const {
  return *impl_->model;
}
const Attention& Engine::attention() const {
  return *impl_->attention;
}
const KvCache& Engine::cache() const {
  return *impl_->cache;
}
const EngineOptions& Engine::options() const {
  return impl_->options;
}
const std::string& Engine::kv_choice_reason() const {
  return impl_->kv_choice_reason;
}
int64_t Engine::cached_length() const {
  return impl_->cached_length();
}

Result<const ChatTemplate*> Engine::chat_template() const {
  if (!impl_->chat_template.ok()) return impl_->chat_template.status();
  return static_cast<const ChatTemplate*>(impl_->chat_template.value().get());
}

}  // namespace lode
