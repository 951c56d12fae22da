// SPDX-License-Identifier: Apache-2.0
#include "attention/csa_hca.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <numbers>
#include <numeric>
#include <vector>

#include "attention/flash.h"
#include "attention/flash_tile.h"
#include "attention/kv_chunk.h"
#include "attention/sparse_index.h"
#include "base/check.h"
#include "kernels/attention_tile.h"
#include "kernels/code_scan.h"
#include "kernels/rotation.h"
#include "kernels/softmax.h"

namespace lode {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2PageTokens = 5.0f;
static_assert(kPageTokens == 32 && kPageGroup == kernels::kTileColumnStep);

// One query tile on its way through the keys.
struct Task {
  const AttentionInputs& inputs;
  const KvCache& cache;
  const PageIndex& index;
  const FlashShape& shape;
  const QueryTile& tile;
  FlashScratch& scratch;
  kernels::SoftmaxState& state;
  const float* queries;  // [rows, head_dim], times scale * log2(e)

  int64_t rows() const { return state.rows; }
  int64_t first_query() const { return inputs.first_position + tile.first_token; }
  int64_t end() const { return first_query() + tile.num_tokens; }
};

// Which pages a query tile reads: sinks [0, middle_begin), the selected ones of the middle, and all
// from middle_end on.
struct Selection {
  int64_t middle_begin = 0;
  int64_t middle_end = 0;
  std::vector<uint8_t> is_read;  // [middle_end - middle_begin]

  int64_t middle() const { return middle_end - middle_begin; }
  bool Reads(int64_t page) const {
    return page < middle_begin || page >= middle_end ||
           is_read[static_cast<size_t>(page - middle_begin)] != 0;
  }
};

// Logits of all rows and the means of a group of pages: [rows][kPageGroup].
void ScoreMeans(const Task& task, int64_t group, float* scores) {
  kernels::MultiplyTile(task.queries, task.shape.head_dim, task.index.MeanKeys(group), task.rows(),
                        task.shape.head_dim, kPageGroup, false, scores, kPageGroup);
}

// Log2 of the estimated mass of each middle page for each row: [rows][middle pages].
std::vector<float> EstimateMasses(const Task& task, const SparseOptions& options,
                                  const Selection& selection) {
  const int64_t rows = task.rows(), middle = selection.middle();
  std::vector<float> masses(static_cast<size_t>(rows * middle));
  PreparedQueries prepared;
  task.index.Prepare(task.queries, rows, 1.0f, prepared);
  AlignedVector<float> means(static_cast<size_t>(rows * kPageGroup)),
      residuals(static_cast<size_t>(rows * kPageTokens)),
      keys(static_cast<size_t>(task.shape.head_dim * kPageTokens)), sums(static_cast<size_t>(rows));
  for (int64_t page = selection.middle_begin; page < selection.middle_end; ++page) {
    if (page == selection.middle_begin || page % kPageGroup == 0) {
      ScoreMeans(task, page / kPageGroup, means.data());
    }
    const bool exact = options.scores == SparseOptions::Scores::kExact;
    if (exact) {
      KvChunk(task.cache, task.inputs.sequence, task.inputs.layer, task.tile.kv_head,
              page * kPageTokens, (page + 1) * kPageTokens)
          .DecodeKeys(keys.data());
      kernels::MultiplyTile(task.queries, task.shape.head_dim, keys.data(), rows,
                            task.shape.head_dim, kPageTokens, false, residuals.data(), kPageTokens);
    } else if (options.scores == SparseOptions::Scores::kCodes) {
      task.index.EstimateResiduals(prepared, page, residuals.data());
    }
    const bool by_means = options.scores == SparseOptions::Scores::kMeans;
    if (!by_means) kernels::LogSumsOfPage(residuals.data(), rows, sums.data());
    for (int64_t r = 0; r < rows; ++r) {
      const float mean =
          exact ? 0.0f : means[static_cast<size_t>(r * kPageGroup + page % kPageGroup)];
      masses[static_cast<size_t>(r * middle + page - selection.middle_begin)] =
          mean + (by_means ? kLog2PageTokens : sums[static_cast<size_t>(r)]);
    }
  }
  return masses;
}

// The `count` middle pages with the largest share of estimated mass, summed over rows.
void SelectPages(const Task& task, const SparseOptions& options, int64_t count,
                 Selection& selection) {
  const int64_t rows = task.rows(), middle = selection.middle();
  std::vector<float> masses = EstimateMasses(task, options, selection);
  std::vector<float> shares(static_cast<size_t>(middle), 0.0f);
  for (int64_t r = 0; r < rows; ++r) {
    float* row = &masses[static_cast<size_t>(r * middle)];
    for (int64_t p = 0; p < middle; ++p) row[p] *= std::numbers::ln2_v<float>;
    kernels::Softmax(row, middle);
    for (int64_t p = 0; p < middle; ++p) shares[static_cast<size_t>(p)] += row[p];
  }
  std::vector<int64_t> order(static_cast<size_t>(middle));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::nth_element(order.begin(), order.begin() + count, order.end(), [&](int64_t a, int64_t b) {
    const float x = shares[static_cast<size_t>(a)], y = shares[static_cast<size_t>(b)];
    return x != y ? x > y : a > b;
  });
  for (int64_t i = 0; i < count; ++i) selection.is_read[static_cast<size_t>(order[i])] = 1;
}

// The pages that are read, neighbours joined.
std::vector<KeyRun> RunsOf(const Selection& selection, int64_t num_keys) {
  std::vector<KeyRun> runs;
  for (int64_t page = 0; page * kPageTokens < num_keys; ++page) {
    if (!selection.Reads(page)) continue;
    const KeyRun run = {page * kPageTokens, std::min((page + 1) * kPageTokens, num_keys)};
    if (!runs.empty() && runs.back().end == run.begin) {
      runs.back().end = run.end;
    } else {
      runs.push_back(run);
    }
  }
  return runs;
}

// Every middle page that was not read is one entry: its mean value with the logit of its mean key
// plus the logarithm of its number of keys.
void AddSummaries(const Task& task, const Selection& selection) {
  float* scores = task.scratch.float_scores.Reserve<float>(task.rows() * kPageGroup);
  std::fill_n(task.scratch.begin.begin(), task.rows(), 0);
  std::fill_n(task.scratch.end.begin(), task.rows(), static_cast<int32_t>(kPageGroup));
  for (int64_t group = selection.middle_begin / kPageGroup;
       group * kPageGroup < selection.middle_end; ++group) {
    std::array<bool, kPageGroup> unread = {};
    for (int64_t i = 0; i < kPageGroup; ++i) {
      unread[static_cast<size_t>(i)] = !selection.Reads(group * kPageGroup + i);
    }
    if (std::none_of(unread.begin(), unread.end(), [](bool u) { return u; })) continue;
    ScoreMeans(task, group, scores);
    for (int64_t r = 0; r < task.rows(); ++r) {
      for (int64_t i = 0; i < kPageGroup; ++i) {
        float& score = scores[r * kPageGroup + i];
        score = unread[static_cast<size_t>(i)] ? score + kLog2PageTokens : -kInfinity;
      }
    }
    kernels::SoftmaxTile(scores, kPageGroup, kPageGroup, task.scratch.begin.data(),
                         task.scratch.end.data(), task.state);
    kernels::MultiplyTile(scores, kPageGroup, task.index.MeanValues(group), task.rows(), kPageGroup,
                          task.shape.output_cols, true, task.state.output,
                          task.state.output_stride);
  }
}

class CsaHcaAttention final : public Attention {
 public:
  CsaHcaAttention(const SparseOptions& options, std::shared_ptr<const Calibration> calibration)
      : options_(options), calibration_(std::move(calibration)), exact_(CreateFlashAttention()) {}

  void Forward(const AttentionInputs& inputs, const KvCache& cache, ThreadPool& pool, float* out,
               int64_t out_stride) override {
    if (inputs.num_tokens <= 0) return;
    SparseIndex& index = indices_.try_emplace(inputs.sequence, *calibration_).first->second;
    if (inputs.sliding_window > 0 || !index.Covers(inputs.layer)) {
      exact_->Forward(inputs, cache, pool, out, out_stride);
      return;
    }
    index.Update(inputs, cache, pool);
    if (MiddleOf(inputs.first_position + inputs.num_tokens - 1).middle() == 0) {  // short enough
      exact_->Forward(inputs, cache, pool, out, out_stride);
      return;
    }
    const FlashShape shape(inputs, cache.options());
    scratch_.resize(std::max(scratch_.size(), static_cast<size_t>(pool.num_threads())));
    const int64_t tiles_per_head = (inputs.num_tokens + shape.tile_tokens - 1) / shape.tile_tokens;
    pool.ParallelFor(tiles_per_head * cache.options().num_kv_heads, [&](int64_t task, int worker) {
      const int64_t first_token = task % tiles_per_head * shape.tile_tokens;
      const QueryTile tile = {
          .kv_head = static_cast<int32_t>(task / tiles_per_head),
          .first_token = first_token,
          .num_tokens = std::min(shape.tile_tokens, inputs.num_tokens - first_token)};
      Attend(inputs, cache, index.Pages(inputs.layer, tile.kv_head), shape, tile,
             scratch_[static_cast<size_t>(worker)], out, out_stride);
    });
  }

  void Truncate(SequenceId sequence, int64_t length) override {
    const auto index = indices_.find(sequence);
    if (index != indices_.end()) index->second.Truncate(length);
  }

  AttentionCounters counters() const override { return counters_; }

 private:
  void Attend(const AttentionInputs& inputs, const KvCache& cache, const PageIndex& index,
              const FlashShape& shape, const QueryTile& tile, FlashScratch& scratch, float* out,
              int64_t out_stride) {
    kernels::SoftmaxState state = shape.StateIn(scratch.state.Reserve<float>(shape.state_floats));
    state.rows = tile.num_tokens * shape.group;
    const Task task = {
        .inputs = inputs,
        .cache = cache,
        .index = index,
        .shape = shape,
        .tile = tile,
        .scratch = scratch,
        .state = state,
        .queries = ScaleQueries(inputs, shape, tile, inputs.scale * std::numbers::log2e_v<float>,
                                scratch.scaled_queries)};
    const Selection selection = Select(task);
    const std::vector<KeyRun> runs = RunsOf(selection, task.end());
    AttendRuns(inputs, cache, shape, tile, runs, scratch, state);
    if (shape.rotated) {
      kernels::Rotate(state.output, state.rows, shape.head_dim, state.output_stride);
    }
    std::vector<float> read_mass(static_cast<size_t>(state.rows));  // log2
    for (int64_t r = 0; r < state.rows; ++r) {
      read_mass[static_cast<size_t>(r)] = std::log2(state.sum[r]) + state.max[r];
    }
    if (selection.middle() > 0 && options_.summaries) AddSummaries(task, selection);
    WriteOut(shape, tile, state, out, out_stride);
    Count(task, selection, runs, read_mass);
  }

  // Where the middle of a query at `position` lies; empty when everything is to be read.
  Selection MiddleOf(int64_t position) const {
    Selection selection;
    selection.middle_begin = 1;
    selection.middle_end =
        std::max<int64_t>(selection.middle_begin, (position + 1 - options_.window) / kPageTokens);
    if (selection.middle() <= PageBudget()) selection.middle_end = selection.middle_begin;
    return selection;
  }
  int64_t PageBudget() const { return (options_.top_k + kPageTokens - 1) / kPageTokens; }

  Selection Select(const Task& task) const {
    Selection selection = MiddleOf(task.first_query());
    selection.is_read.assign(static_cast<size_t>(selection.middle()), 0);
    if (selection.middle() > 0 && PageBudget() > 0) {
      SelectPages(task, options_, PageBudget(), selection);
    }
    return selection;
  }

  void Count(const Task& task, const Selection& selection, const std::vector<KeyRun>& runs,
             const std::vector<float>& read_mass) {
    const std::lock_guard lock(mutex_);
    counters_.keys += task.end();
    for (const KeyRun& run : runs) counters_.keys_read += run.end - run.begin;
    if (selection.middle() == 0) return;
    counters_.rows += static_cast<double>(task.rows());
    for (int64_t r = 0; r < task.rows(); ++r) {
      const float mass = std::log2(task.state.sum[r]) + task.state.max[r];
      counters_.unread_share += 1.0 - std::exp2(read_mass[static_cast<size_t>(r)] - mass);
    }
  }

  static void WriteOut(const FlashShape& shape, const QueryTile& tile,
                       const kernels::SoftmaxState& state, float* out, int64_t out_stride) {
    for (int64_t row = 0; row < state.rows; ++row) {
      const int64_t token = tile.first_token + row / shape.group;
      const int64_t head = tile.kv_head * shape.group + row % shape.group;
      const float* from = state.output + row * state.output_stride;
      float* to = out + token * out_stride + head * shape.head_dim;
      for (int64_t d = 0; d < shape.head_dim; ++d) to[d] = from[d] / state.sum[row];
    }
  }

  const SparseOptions options_;
  const std::shared_ptr<const Calibration> calibration_;
  const std::unique_ptr<Attention> exact_;
  std::map<SequenceId, SparseIndex> indices_;
  std::vector<FlashScratch> scratch_;  // one per worker
  std::mutex mutex_;                   // of counters_
  AttentionCounters counters_;
};

}  // namespace

std::unique_ptr<Attention> CreateCsaHcaAttention(const SparseOptions& options,
                                                 std::shared_ptr<const Calibration> calibration) {
  return std::make_unique<CsaHcaAttention>(options, std::move(calibration));
}

}  // namespace lode
