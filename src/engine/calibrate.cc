// SPDX-License-Identifier: Apache-2.0
#include "engine/calibrate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "attention/attention.h"
#include "attention/kv_chunk.h"
#include "base/aligned_vector.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "engine/shipped_calibrations.h"
#include "retrieval/page_index.h"

namespace lode {
namespace {

// Of the built-in text, at most.
constexpr size_t kBuiltInTokens = 4096;

// Exact attention that looks at the queries and keys that pass through it.
class CapturingAttention final : public Attention {
 public:
  CapturingAttention(const ModelConfig& config, int64_t query_stride)
      : config_(config),
        query_stride_(query_stride),
        exact_(CreateAttention("flash").value()),
        heads_(static_cast<size_t>(config.num_layers * config.num_kv_heads),
               HeadStatistics(config.head_dim)) {}

  void Forward(const AttentionInputs& inputs, const KvCache& cache, ThreadPool& pool, float* out,
               int64_t out_stride) override {
    exact_->Forward(inputs, cache, pool, out, out_stride);
    if (inputs.sliding_window > 0) return;
    pool.ParallelFor(config_.num_kv_heads, [&](int64_t head, int) {
      AddKeys(inputs, cache, static_cast<int32_t>(head));
      AddQueries(inputs, head);
    });
  }

  const HeadStatistics& At(int64_t layer, int64_t kv_head) const {
    return heads_[static_cast<size_t>(layer * config_.num_kv_heads + kv_head)];
  }

 private:
  HeadStatistics& At(int64_t layer, int64_t kv_head) {
    return const_cast<HeadStatistics&>(std::as_const(*this).At(layer, kv_head));
  }

  // The pages that this step filled.
  void AddKeys(const AttentionInputs& inputs, const KvCache& cache, int32_t kv_head) {
    const int64_t n = config_.head_dim;
    AlignedVector<float> keys(static_cast<size_t>(n * kPageTokens));
    std::vector<float> residual(static_cast<size_t>(n)), mean(residual);
    const int64_t end = (inputs.first_position + inputs.num_tokens) / kPageTokens;
    for (int64_t page = inputs.first_position / kPageTokens; page < end; ++page) {
      KvChunk(cache, inputs.sequence, inputs.layer, kv_head, page * kPageTokens,
              (page + 1) * kPageTokens)
          .DecodeKeys(keys.data());
      for (int64_t d = 0; d < n; ++d) {
        float sum = 0.0f;
        for (int64_t t = 0; t < kPageTokens; ++t) {
          sum += keys[static_cast<size_t>(d * kPageTokens + t)];
        }
        mean[static_cast<size_t>(d)] = sum / kPageTokens;
      }
      for (int64_t t = 0; t < kPageTokens; ++t) {
        for (int64_t d = 0; d < n; ++d) {
          residual[static_cast<size_t>(d)] =
              keys[static_cast<size_t>(d * kPageTokens + t)] - mean[static_cast<size_t>(d)];
        }
        At(inputs.layer, kv_head).AddKeyResidual(residual.data());
      }
    }
  }

  void AddQueries(const AttentionInputs& inputs, int64_t kv_head) {
    const int64_t group = config_.num_heads / config_.num_kv_heads;
    for (int64_t t = 0; t < inputs.num_tokens; ++t) {
      if ((inputs.first_position + t) % query_stride_ != 0) continue;
      const float* q = inputs.q + t * inputs.q_stride + kv_head * group * config_.head_dim;
      for (int64_t h = 0; h < group; ++h) {
        At(inputs.layer, kv_head).AddQuery(q + h * config_.head_dim);
      }
    }
  }

  const ModelConfig& config_;
  const int64_t query_stride_;
  const std::unique_ptr<Attention> exact_;
  std::vector<HeadStatistics> heads_;  // [num_layers][num_kv_heads]
};

Status RunText(Model& model, std::span<const int32_t> tokens, const CalibrateOptions& options,
               Attention& attention, ThreadPool& pool) {
  const ModelConfig& config = model.config();
  KvCacheOptions cache_options;
  cache_options.num_layers = static_cast<int32_t>(config.num_layers);
  cache_options.num_kv_heads = static_cast<int32_t>(config.num_kv_heads);
  cache_options.head_dim = static_cast<int32_t>(config.head_dim);
  cache_options.max_tokens = static_cast<int64_t>(tokens.size());
  LODE_ASSIGN_OR_RETURN(const std::unique_ptr<KvCache> cache, KvCache::Create(cache_options));
  LODE_ASSIGN_OR_RETURN(const SequenceId sequence, cache->AddSequence());
  const auto total = static_cast<int64_t>(tokens.size());
  for (int64_t done = 0; done < total;) {
    const int64_t count = std::min(options.chunk, total - done);
    Batch batch;
    batch.token_ids.assign(tokens.begin() + done, tokens.begin() + done + count);
    batch.segments.push_back({sequence, 0, done, count});
    LODE_RETURN_IF_ERROR(cache->Extend(sequence, count));
    LODE_RETURN_IF_ERROR(model.Forward(batch, *cache, attention, pool, nullptr));
    done += count;
    if (options.on_progress && !options.on_progress(done, total)) {
      return CancelledError("calibration was stopped");
    }
  }
  return OkStatus();
}

}  // namespace

Result<ModelFingerprint> FingerprintOf(const WeightSource& source) {
  XXH3_state_t* state = XXH3_createState();
  XXH3_128bits_reset(state);
  int64_t layers = 0;
  for (const StoredTensor* tensor = nullptr;
       (tensor = source.Find(fmt::format("blk.{}.attn_k.weight", layers))) != nullptr; ++layers) {
    XXH3_128bits_update(state, tensor->view.data, static_cast<size_t>(tensor->view.bytes()));
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  if (layers == 0) return NotFoundError(source.path() + ": no tensor blk.0.attn_k.weight");
  ModelFingerprint fingerprint;
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  std::memcpy(fingerprint.data(), canonical.digest, fingerprint.size());
  return fingerprint;
}

Result<Calibration> Calibrate(const WeightSource& source, Model& model,
                              std::span<const std::vector<int32_t>> texts,
                              const CalibrateOptions& options, ThreadPool& pool) {
  const ModelConfig& config = model.config();
  LODE_ASSIGN_OR_RETURN(const ModelFingerprint fingerprint, FingerprintOf(source));
  CapturingAttention attention(config, options.query_stride);
  for (const std::vector<int32_t>& text : texts) {
    LODE_RETURN_IF_ERROR(RunText(model, text, options, attention, pool));
  }
  Calibration calibration(config.num_layers, config.num_kv_heads, config.head_dim, fingerprint);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (!config.layer_slides.empty() && config.layer_slides[static_cast<size_t>(layer)]) continue;
    for (int64_t head = 0; head < config.num_kv_heads; ++head) {
      LODE_ASSIGN_OR_RETURN(HeadProjection projection,
                            HeadProjection::Fit(std::as_const(attention).At(layer, head)));
      calibration.Set(layer, head, std::move(projection));
    }
  }
  return calibration;
}

namespace {

Status CheckBelongsTo(const Calibration& calibration, const std::string& path,
                      const WeightSource& source, const ModelConfig& config) {
  LODE_ASSIGN_OR_RETURN(const ModelFingerprint fingerprint, FingerprintOf(source));
  if (calibration.fingerprint() != fingerprint) {
    return InvalidArgumentError(fmt::format(
        "{}: made for a model with key weights {:02x}, but {} has {:02x}", path,
        fmt::join(calibration.fingerprint(), ""), source.path(), fmt::join(fingerprint, "")));
  }
  // The checksum is no signature: attention relies on these.
  if (calibration.num_layers() != config.num_layers ||
      calibration.num_kv_heads() != config.num_kv_heads ||
      calibration.head_dim() != config.head_dim) {
    return CorruptionError(
        fmt::format("{}: expected {} layers, {} KV heads of {}, found {}, {} of {}", path,
                    config.num_layers, config.num_kv_heads, config.head_dim,
                    calibration.num_layers(), calibration.num_kv_heads(), calibration.head_dim()));
  }
  return OkStatus();
}

// NotFound when the program has none for the model.
Result<Calibration> FindShipped(const WeightSource& source, const ModelConfig& config) {
  for (const std::span<const std::byte> file : ShippedCalibrations()) {
    LODE_ASSIGN_OR_RETURN(Calibration calibration, Calibration::Parse(file, "shipped calibration"));
    const Status status = CheckBelongsTo(calibration, "shipped calibration", source, config);
    if (status.ok()) return calibration;
  }
  return NotFoundError("no shipped calibration");
}

}  // namespace

Result<Calibration> LoadCalibration(const std::string& path, const WeightSource& source,
                                    const ModelConfig& config) {
  LODE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  LODE_ASSIGN_OR_RETURN(Calibration calibration, Calibration::Parse(file.bytes(), path));
  LODE_RETURN_IF_ERROR(CheckBelongsTo(calibration, path, source, config));
  return calibration;
}

Status SaveCalibration(const Calibration& calibration, const std::string& path) {
  const std::string bytes = calibration.Serialize();
  const std::string temporary = fmt::format("{}.{}.tmp", path, ::getpid());
  const auto failed = [&] {
    const int error = errno;
    std::remove(temporary.c_str());
    return IoError(path + ": " + std::strerror(error));
  };
  std::FILE* file = std::fopen(temporary.c_str(), "wb");
  if (file == nullptr) return failed();
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  if (std::fclose(file) != 0 || !written) return failed();
  if (std::rename(temporary.c_str(), path.c_str()) != 0) return failed();
  return OkStatus();
}

Result<std::shared_ptr<const Calibration>> FindOrMakeCalibration(const CalibrationPlace& place,
                                                                 const WeightSource& source,
                                                                 Model& model,
                                                                 const Tokenizer& tokenizer,
                                                                 ThreadPool& pool) {
  const auto shared = [](Calibration calibration) {
    return std::make_shared<const Calibration>(std::move(calibration));
  };
  if (!place.path.empty()) {
    LODE_ASSIGN_OR_RETURN(Calibration calibration,
                          LoadCalibration(place.path, source, model.config()));
    return shared(std::move(calibration));
  }
  std::string path;
  if (!place.folder.empty()) {
    LODE_ASSIGN_OR_RETURN(const ModelFingerprint fingerprint, FingerprintOf(source));
    path = fmt::format("{}/{:02x}.calibration", place.folder, fmt::join(fingerprint, ""));
    Result<Calibration> kept = LoadCalibration(path, source, model.config());
    if (kept.ok()) return shared(std::move(kept).value());
    if (kept.status().code() != StatusCode::kNotFound) LogWarning(kept.status().ToString());
  }
  Result<Calibration> shipped = FindShipped(source, model.config());
  if (shipped.ok()) return shared(std::move(shipped).value());
  LogWarning("no calibration for this model yet: making one from a built-in text");
  std::vector<TokenId> text = tokenizer.Encode(BuiltInCalibrationText());
  text.resize(std::min(text.size(), kBuiltInTokens));
  CalibrateOptions options;
  options.query_stride = 4;
  const std::vector<std::vector<TokenId>> texts = {std::move(text)};
  LODE_ASSIGN_OR_RETURN(Calibration calibration, Calibrate(source, model, texts, options, pool));
  if (!path.empty()) {
    std::error_code ignored;
    std::filesystem::create_directories(place.folder, ignored);
    const Status saved = SaveCalibration(calibration, path);
    if (!saved.ok()) LogWarning("the calibration is not kept: " + saved.ToString());
  }
  return shared(std::move(calibration));
}

}  // namespace lode
