// SPDX-License-Identifier: Apache-2.0
#include "engine/tiled_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "attention/kv_chunk.h"
#include "base/aligned_vector.h"
#include "kernels/rope.h"
#include "models/rope.h"

namespace lode {
namespace {

constexpr int64_t kTile = kernels::kKvTileTokens;
// Tokens whose turns are computed once and used by all layers.
constexpr int64_t kStep = 16 * kTile;

// Tokens [first, first + count) are copies of tokens from `first % source_tokens` on, wrapping
// around. first and source_tokens are multiples of kTile.
struct Step {
  int64_t first = 0;
  int64_t count = 0;
  int64_t source_tokens = 0;

  int64_t num_tiles() const { return (count + kTile - 1) / kTile; }
  int64_t SourceOf(int64_t offset) const { return (first + offset) % source_tokens; }
};

// The turns that one rope makes between the tokens of a step and those they are copies of.
class Turns {
 public:
  Turns(const RopeConfig& config, int64_t head_dim, int64_t context_len)
      : rope_(config, head_dim, context_len),
        half_(head_dim / 2),
        cos_(static_cast<size_t>(kStep * half_)),
        sin_(cos_.size()) {}

  // The angle is the difference of the two that the model uses, with their rounding: far out an
  // f32 angle is off by hundredths, and so are the keys of a real prefill. An attention factor is
  // in both and leaves the quotient.
  void Fill(const Step& step, int64_t tile) {
    std::array<float, kernels::kMaxHeadDim / 2> from_cos, from_sin;
    const int64_t end = std::min((tile + 1) * kTile, step.count);
    for (int64_t i = tile * kTile; i < end; ++i) {
      float* cos = &cos_[static_cast<size_t>(i * half_)];
      float* sin = &sin_[static_cast<size_t>(i * half_)];
      rope_.Fill(step.first + i, cos, sin);
      rope_.Fill(step.SourceOf(i), from_cos.data(), from_sin.data());
      for (int64_t d = 0; d < half_; ++d) {
        const float c = from_cos[static_cast<size_t>(d)], s = from_sin[static_cast<size_t>(d)];
        const float inverse = 1.0f / (c * c + s * s);
        const float to_cos = cos[d], to_sin = sin[d];
        cos[d] = (to_cos * c + to_sin * s) * inverse;
        sin[d] = (to_sin * c - to_cos * s) * inverse;
      }
    }
  }
  const float* cos(int64_t offset) const { return &cos_[static_cast<size_t>(offset * half_)]; }
  const float* sin(int64_t offset) const { return &sin_[static_cast<size_t>(offset * half_)]; }

 private:
  const RopeTable rope_;
  const int64_t half_;
  std::vector<float> cos_, sin_;  // [kStep][half_]
};

// Keys and values of a step in one layer, [kStep, num_kv_heads, head_dim]. One per thread.
struct Rows {
  AlignedVector<float> tile;  // [head_dim][kTile]
  AlignedVector<float> k, v;

  explicit Rows(const KvCacheOptions& cache)
      : tile(static_cast<size_t>(cache.head_dim * kTile)),
        k(static_cast<size_t>(kStep * cache.num_kv_heads * cache.head_dim)),
        v(k.size()) {}
};

void CopyLayer(const Step& step, const Turns& turns, bool interleaved, int32_t layer,
               KvCache& cache, SequenceId sequence, Rows& rows) {
  const int64_t num_heads = cache.options().num_kv_heads, head_dim = cache.options().head_dim;
  const int64_t row = num_heads * head_dim;
  for (int64_t at = 0; at < step.count; at += kTile) {
    const int64_t source = step.SourceOf(at);
    for (int64_t head = 0; head < num_heads; ++head) {
      const KvChunk chunk(cache, sequence, layer, static_cast<int32_t>(head), source,
                          source + kTile);
      chunk.DecodeKeys(rows.tile.data());
      chunk.DecodeValues(&rows.v[static_cast<size_t>(at * row + head * head_dim)], row);
      for (int64_t t = 0; t < kTile; ++t) {
        float* key = &rows.k[static_cast<size_t>((at + t) * row + head * head_dim)];
        const float* column = &rows.tile[static_cast<size_t>(t)];
        for (int64_t d = 0; d < head_dim; ++d) key[d] = column[d * kTile];
      }
    }
  }
  for (int64_t t = 0; t < step.count; ++t) {
    kernels::ApplyRope(&rows.k[static_cast<size_t>(t * row)], num_heads, head_dim, turns.cos(t),
                       turns.sin(t), interleaved);
  }
  cache.Store(layer, sequence, step.first, step.count, rows.k.data(), rows.v.data());
}

Status CheckTiling(const Tiling& tiling, int64_t stored) {
  const int64_t source = tiling.source_tokens;
  if (source <= 0 || source % kTile != 0 || stored % kTile != 0) {
    return InvalidArgumentError(
        fmt::format("a tiled context: expected a prefill and a length of positive multiples of {} "
                    "tokens, found {} and {}",
                    kTile, source, stored));
  }
  if (source <= stored && stored <= tiling.length) return OkStatus();
  return InvalidArgumentError(fmt::format(
      "a tiled context: expected a prefill of at most the {} stored tokens and at least as many "
      "tokens in all, found {} and {}",
      stored, source, tiling.length));
}

}  // namespace

Status TileContext(const ModelConfig& config, int64_t context_len, const Tiling& tiling,
                   KvCache& cache, ThreadPool& pool) {
  const int64_t begin = cache.Length(tiling.sequence);
  LODE_RETURN_IF_ERROR(CheckTiling(tiling, begin));
  LODE_RETURN_IF_ERROR(cache.Extend(tiling.sequence, tiling.length - begin));
  Turns turns(config.rope, config.head_dim, context_len);
  Turns local_turns(config.rope_local, config.head_dim, context_len);
  std::vector<Rows> rows(static_cast<size_t>(pool.num_threads()), Rows(cache.options()));
  Step step = {.first = begin, .count = 0, .source_tokens = tiling.source_tokens};
  for (; step.first < tiling.length; step.first += step.count) {
    step.count = std::min(kStep, tiling.length - step.first);
    pool.ParallelFor(step.num_tiles(), [&](int64_t tile, int) {
      turns.Fill(step, tile);
      if (config.sliding_window > 0) local_turns.Fill(step, tile);
    });
    pool.ParallelFor(config.num_layers, [&](int64_t layer, int worker) {
      const bool slides = config.layer_slides[static_cast<size_t>(layer)];
      CopyLayer(step, slides ? local_turns : turns, config.rope_interleaved,
                static_cast<int32_t>(layer), cache, tiling.sequence,
                rows[static_cast<size_t>(worker)]);
    });
  }
  return OkStatus();
}

}  // namespace lode
