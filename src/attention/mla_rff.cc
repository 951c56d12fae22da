// SPDX-License-Identifier: Apache-2.0
#include "attention/mla_rff.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <optional>

#include "attention/kv_chunk.h"
#include "base/check.h"
#include "base/random.h"

namespace lode {
namespace {

constexpr int64_t kChunkTokens = kernels::kKvTileTokens;

// The features and values of cached tokens, by position. Decodes a chunk at a time.
class TokenReader {
 public:
  TokenReader(const AttentionInputs& inputs, const KvCache& cache, int32_t kv_head,
              const RandomFourierFeatures& features)
      : inputs_(inputs),
        cache_(cache),
        kv_head_(kv_head),
        features_(features),
        root_scale_(std::sqrt(inputs.scale)),
        keys_(static_cast<size_t>(features.head_dim() * kChunkTokens)),
        values_(keys_.size()),
        phi_(static_cast<size_t>(features.d_proj())) {}

  void Read(int64_t position) {
    const int64_t first = position / kChunkTokens * kChunkTokens;
    if (first != first_) {
      const int64_t stored = inputs_.first_position + inputs_.num_tokens;
      const KvChunk chunk(cache_, inputs_.sequence, inputs_.layer, kv_head_, first,
                          std::min(first + kChunkTokens, stored));
      chunk.DecodeKeys(keys_.data());
      chunk.DecodeValues(values_.data(), features_.head_dim());
      first_ = first;
    }
    features_.Map(keys_.data() + (position - first), kChunkTokens, root_scale_, phi_.data());
    value_ = values_.data() + (position - first) * features_.head_dim();
  }
  // Of the position that was read last: [d_proj] and [head_dim].
  const float* phi() const { return phi_.data(); }
  const float* value() const { return value_; }

 private:
  const AttentionInputs& inputs_;
  const KvCache& cache_;
  const int32_t kv_head_;
  const RandomFourierFeatures& features_;
  const float root_scale_;
  int64_t first_ = -1;  // of the chunk that is decoded
  AlignedVector<float> keys_, values_;
  std::vector<float> phi_;
  const float* value_ = nullptr;
};

// Phi(K)^T V and Phi(K)^T 1 over the tokens [begin, end). In double: what leaves a window is
// subtracted after any number of others came and went.
struct FeatureSums {
  int64_t begin = 0;
  int64_t end = 0;
  std::vector<double> values;   // [d_proj][head_dim]
  std::vector<double> weights;  // [d_proj]

  void Clear(int64_t d_proj, int64_t head_dim, int64_t position) {
    begin = end = position;
    values.assign(static_cast<size_t>(d_proj * head_dim), 0.0);
    weights.assign(static_cast<size_t>(d_proj), 0.0);
  }
  // Adds sign times what was read.
  void Add(const TokenReader& token, double sign) {
    const size_t head_dim = values.size() / weights.size();
    for (size_t j = 0; j < weights.size(); ++j) {
      const double phi = sign * token.phi()[j];
      weights[j] += phi;
      double* row = values.data() + j * head_dim;
      for (size_t d = 0; d < head_dim; ++d) row[d] += phi * token.value()[d];
    }
  }
};

// Of one layer and KV head. The cache encodes a tile when it fills, which changes what is read of
// its tokens: so sums at tile borders are kept, and those of a tile that was open begin there anew.
struct HeadState {
  FeatureSums now;
  FeatureSums sealed;     // of full tiles only: as `now` was at its last tile border
  FeatureSums caught_up;  // as `sealed` was after tokens were added that came by other attentions

  // Forgets the tokens from `length` on; where no sums reach back so far, all.
  void Rewind(int64_t length) {
    if (now.end <= length) return;
    if (caught_up.end > length) caught_up = {};
    if (sealed.end > length) sealed = caught_up;
    now = sealed;
  }
};

class MlaRffAttention final : public Attention {
 public:
  explicit MlaRffAttention(const RffOptions& options) : options_(options) {}

  void Forward(const AttentionInputs& inputs, const KvCache& cache, ThreadPool& pool, float* out,
               int64_t out_stride) override {
    const KvCacheOptions& shape = cache.options();
    LODE_CHECK(inputs.num_heads % shape.num_kv_heads == 0);
    LODE_CHECK(inputs.first_position + inputs.num_tokens <= cache.Length(inputs.sequence));
    if (!features_) features_.emplace(shape.head_dim, options_);
    std::vector<HeadState>& heads = sequences_[inputs.sequence];
    heads.resize(static_cast<size_t>(shape.num_layers) * static_cast<size_t>(shape.num_kv_heads));
    pool.ParallelFor(shape.num_kv_heads, [&](int64_t kv_head, int) {
      HeadState& state = heads[static_cast<size_t>(inputs.layer * shape.num_kv_heads + kv_head)];
      ForwardHead(inputs, cache, static_cast<int32_t>(kv_head), state, out, out_stride);
    });
  }

  void Truncate(SequenceId sequence, int64_t length) override {
    const auto found = sequences_.find(sequence);
    if (found == sequences_.end()) return;
    for (HeadState& head : found->second) head.Rewind(length);
  }

 private:
  // The first token that the one at `position` attends to.
  static int64_t WindowBegin(const AttentionInputs& inputs, int64_t position) {
    return inputs.sliding_window > 0 ? std::max<int64_t>(0, position + 1 - inputs.sliding_window)
                                     : 0;
  }

  // The query heads of one KV head, token by token.
  void ForwardHead(const AttentionInputs& inputs, const KvCache& cache, int32_t kv_head,
                   HeadState& state, float* out, int64_t out_stride) const {
    TokenReader newest(inputs, cache, kv_head, *features_);
    TokenReader oldest(inputs, cache, kv_head, *features_);
    CatchUp(inputs, cache.plan(), newest, state);
    FeatureSums& sums = state.now;
    const int64_t group = inputs.num_heads / cache.options().num_kv_heads;
    for (int64_t token = 0; token < inputs.num_tokens; ++token) {
      newest.Read(sums.end++);
      sums.Add(newest, 1.0);
      for (const int64_t begin = WindowBegin(inputs, inputs.first_position + token);
           sums.begin < begin; ++sums.begin) {
        oldest.Read(sums.begin);
        sums.Add(oldest, -1.0);
      }
      KeepAtBorder(cache.plan(), state);
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const int64_t offset = head * features_->head_dim();
        Attend(inputs.q + token * inputs.q_stride + offset, std::sqrt(inputs.scale), sums,
               out + token * out_stride + offset);
      }
    }
  }

  // Makes the sums those of the tokens before the call that its first token attends to, or of a few
  // older ones too.
  void CatchUp(const AttentionInputs& inputs, const BlockPlan& plan, TokenReader& reader,
               HeadState& state) const {
    const int64_t first = inputs.first_position, begin = WindowBegin(inputs, first);
    state.Rewind(first);  // tokens from `first` on are new
    FeatureSums& sums = state.now;
    const bool is_behind = sums.end < first;
    const int64_t full = plan.FirstPositionOfTile(plan.TileOf(first + inputs.num_tokens));
    if (sums.end > state.sealed.end && state.sealed.end < full) sums = state.sealed;
    if (sums.weights.empty() || sums.end < begin || sums.begin > begin) {
      sums.Clear(features_->d_proj(), features_->head_dim(), begin);
      state.sealed = sums;
    }
    while (sums.end < first) {
      reader.Read(sums.end++);
      sums.Add(reader, 1.0);
      KeepAtBorder(plan, state);
    }
    if (is_behind) state.caught_up = state.sealed;
  }

  static void KeepAtBorder(const BlockPlan& plan, HeadState& state) {
    const int64_t end = state.now.end;
    if (plan.FirstPositionOfTile(plan.TileOf(end)) == end) state.sealed = state.now;
  }

  // query and out [head_dim].
  void Attend(const float* query, float root_scale, const FeatureSums& sums, float* out) const {
    const int64_t d_proj = features_->d_proj(), head_dim = features_->head_dim();
    std::vector<float> phi(static_cast<size_t>(d_proj));
    features_->Map(query, 1, root_scale, phi.data());
    std::vector<double> output(static_cast<size_t>(head_dim), 0.0);
    double mass = 0.0;
    for (int64_t j = 0; j < d_proj; ++j) {
      const double weight = phi[static_cast<size_t>(j)];
      mass += weight * sums.weights[static_cast<size_t>(j)];
      const double* row = sums.values.data() + j * head_dim;
      for (int64_t d = 0; d < head_dim; ++d) output[static_cast<size_t>(d)] += weight * row[d];
    }
    const double least =
        static_cast<double>(sums.end - sums.begin) / std::sqrt(static_cast<double>(d_proj));
    mass = mass < least ? least : mass;  // NaN stays
    for (int64_t d = 0; d < head_dim; ++d) {
      out[d] = static_cast<float>(output[static_cast<size_t>(d)] / mass);
    }
  }

  const RffOptions options_;
  std::optional<RandomFourierFeatures> features_;           // of the first call's head_dim
  std::map<SequenceId, std::vector<HeadState>> sequences_;  // [num_layers][num_kv_heads]
};

}  // namespace

RandomFourierFeatures::RandomFourierFeatures(int64_t head_dim, const RffOptions& options)
    : head_dim_(head_dim),
      frequencies_(static_cast<size_t>(head_dim * options.d_proj)),
      phases_(static_cast<size_t>(options.d_proj)) {
  Random random(options.seed);
  for (float& frequency : frequencies_) frequency = static_cast<float>(random.NextNormal());
  for (float& phase : phases_) {
    phase = static_cast<float>(2.0 * std::numbers::pi * random.NextUnit());
  }
}

void RandomFourierFeatures::Map(const float* x, int64_t stride, float root_scale,
                                float* out) const {
  std::copy(phases_.begin(), phases_.end(), out);
  const int64_t n = d_proj();
  for (int64_t d = 0; d < head_dim_; ++d) {
    const float component = x[d * stride] * root_scale;
    const float* row = frequencies_.data() + d * n;
    for (int64_t j = 0; j < n; ++j) out[j] += component * row[j];
  }
  const float size = std::sqrt(2.0f / static_cast<float>(n));
  for (int64_t j = 0; j < n; ++j) out[j] = size * std::cos(out[j]);
}

int64_t MlaRffStateBytes(const RffOptions& options, int64_t head_dim) {
  constexpr int64_t kSums = sizeof(HeadState) / sizeof(FeatureSums);
  return kSums * options.d_proj * (head_dim + 1) * int64_t{sizeof(double)};
}

std::unique_ptr<Attention> CreateMlaRffAttention(const RffOptions& options) {
  LODE_CHECK(options.d_proj >= 1);
  return std::make_unique<MlaRffAttention>(options);
}

}  // namespace lode
