// SPDX-License-Identifier: Apache-2.0
#include "attention/audit.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "attention/kv_chunk.h"
#include "base/aligned_vector.h"
#include "kernels/attention_tile.h"

namespace lode {
namespace {

constexpr int64_t kChunk = kernels::kKvTileTokens;
constexpr int64_t kRecallKeys = 256;
constexpr int64_t kCandidates = 4 * kRecallKeys;  // for their true scores to be looked at

size_t At(int64_t index) {
  return static_cast<size_t>(index);
}

// All keys of a tile, scored and weighted in full.
class ExactTile {
 public:
  ExactTile(const AttentionInputs& inputs, const KvCache& cache, const FlashShape& shape,
            const QueryTile& tile)
      : inputs_(inputs), cache_(cache), shape_(shape), tile_(tile) {
    num_keys_ = inputs.first_position + tile.first_token + tile.num_tokens;
    stride_ = (num_keys_ + kChunk - 1) / kChunk * kChunk;
    rows_ = tile.num_tokens * shape.group;
    weights_.resize(At(rows_ * stride_));
    Score();
    for (int64_t r = 0; r < rows_; ++r) Normalize(r);
    AddValues();
  }

  int64_t rows() const { return rows_; }
  int64_t KeysOf(int64_t row) const {
    return inputs_.first_position + tile_.first_token + row / shape_.group + 1;
  }
  // Softmax weights of a row, [KeysOf(row)].
  std::span<const float> Weights(int64_t row) const {
    return {&weights_[At(row * stride_)], At(KeysOf(row))};
  }
  const float* Output(int64_t row) const { return &outputs_[At(row * shape_.output_cols)]; }

 private:
  KvChunk Chunk(int64_t key) const {
    return {cache_,        inputs_.sequence,
            inputs_.layer, tile_.kv_head,
            key,           std::min(key + kChunk, num_keys_)};
  }

  void Score() {
    AlignedBuffer buffer;
    const float* queries = ScaleQueries(inputs_, shape_, tile_, inputs_.scale, buffer);
    AlignedVector<float> keys(At(shape_.head_dim * kChunk));
    for (int64_t key = 0; key < num_keys_; key += kChunk) {
      Chunk(key).DecodeKeys(keys.data());
      kernels::MultiplyTile(queries, shape_.head_dim, keys.data(), rows_, shape_.head_dim, kChunk,
                            false, &weights_[At(key)], stride_);
    }
  }

  void Normalize(int64_t r) {
    float* row = &weights_[At(r * stride_)];
    const float max = *std::max_element(row, row + KeysOf(r));
    double sum = 0.0;
    for (int64_t i = 0; i < KeysOf(r); ++i) {
      row[i] = std::exp(row[i] - max);
      sum += row[i];
    }
    for (int64_t i = 0; i < KeysOf(r); ++i) row[i] = static_cast<float>(row[i] / sum);
    std::fill(row + KeysOf(r), row + stride_, 0.0f);
  }

  void AddValues() {
    outputs_.assign(At(rows_ * shape_.output_cols), 0.0f);
    AlignedVector<float> values(At(kChunk * shape_.output_cols), 0.0f);
    for (int64_t key = 0; key < num_keys_; key += kChunk) {
      Chunk(key).DecodeValues(values.data(), shape_.output_cols);
      kernels::MultiplyTile(&weights_[At(key)], stride_, values.data(), rows_,
                            std::min(kChunk, num_keys_ - key), shape_.output_cols, true,
                            outputs_.data(), shape_.output_cols);
    }
  }

  const AttentionInputs& inputs_;
  const KvCache& cache_;
  const FlashShape& shape_;
  const QueryTile& tile_;
  int64_t num_keys_, stride_, rows_;
  AlignedVector<float> weights_;  // [rows][stride]
  AlignedVector<float> outputs_;  // [rows][output_cols]
};

// The least of the `count` largest.
float LeastOfLargest(std::span<const float> values, int64_t count) {
  std::vector<float> sorted(values.begin(), values.end());
  std::nth_element(sorted.begin(), sorted.begin() + count - 1, sorted.end(), std::greater<>());
  return sorted[At(count - 1)];
}

// Of the kRecallKeys largest weights, the share that is among the kCandidates largest estimates.
double CodeRecall(std::span<const float> weights, std::span<const float> estimates) {
  const float least_weight = LeastOfLargest(weights, kRecallKeys);
  const float least_estimate = LeastOfLargest(estimates, kCandidates);
  int64_t found = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    found += weights[i] >= least_weight && estimates[i] >= least_estimate ? 1 : 0;
  }
  return std::min(1.0, static_cast<double>(found) / static_cast<double>(kRecallKeys));
}

// Share of the largest weights that lie in `read`.
double Recall(std::span<const float> weights, std::span<const KeyRun> read) {
  const int64_t count = std::min<int64_t>(kRecallKeys, std::ssize(weights));
  const float least = LeastOfLargest(weights, count);
  int64_t found = 0;
  for (const KeyRun& run : read) {
    const int64_t end = std::min(run.end, std::ssize(weights));
    for (int64_t i = run.begin; i < end; ++i) found += weights[At(i)] >= least ? 1 : 0;
  }
  return std::min(1.0, static_cast<double>(found) / static_cast<double>(count));
}

}  // namespace

AuditCounters AuditTile(const AttentionInputs& inputs, const KvCache& cache,
                        const FlashShape& shape, const QueryTile& tile,
                        const TileSelection& selection, const float* out, int64_t out_stride) {
  const ExactTile exact(inputs, cache, shape, tile);
  const std::span<const KeyRun> read = selection.read;
  const int64_t num_ranked = selection.ranked.end - selection.ranked.begin;
  AuditCounters counters;
  for (int64_t r = 0; r < exact.rows(); ++r) {
    const std::span<const float> weights = exact.Weights(r);
    double seen = 0.0;
    for (const KeyRun& run : read) {
      const int64_t end = std::min(run.end, std::ssize(weights));
      for (int64_t i = run.begin; i < end; ++i) seen += weights[At(i)];
    }
    const int64_t token = tile.first_token + r / shape.group;
    const int64_t head = tile.kv_head * shape.group + r % shape.group;
    const float* found = out + token * out_stride + head * shape.head_dim;
    double difference = 0.0, length = 0.0;
    for (int64_t d = 0; d < shape.head_dim; ++d) {
      const double x = exact.Output(r)[d];
      difference += (found[d] - x) * (found[d] - x);
      length += x * x;
    }
    counters.rows += 1;
    counters.missed_mass += std::max(0.0, 1.0 - seen);
    counters.output_error += std::sqrt(difference / std::max(length, 1e-30));
    counters.recall += Recall(weights, read);
    if (selection.estimates.empty() || num_ranked <= kCandidates) continue;
    counters.code_rows += 1;
    counters.code_recall += CodeRecall(weights.subspan(At(selection.ranked.begin), At(num_ranked)),
                                       {&selection.estimates[At(r * num_ranked)], At(num_ranked)});
  }
  return counters;
}

}  // namespace lode
