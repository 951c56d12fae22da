// SPDX-License-Identifier: Apache-2.0
#include "attention/csa_hca.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "attention/audit.h"
#include "attention/earlier_indices.h"
#include "attention/flash.h"
#include "attention/flash_tile.h"
#include "attention/sparse_index.h"
#include "attention/sparse_tile.h"

namespace lode {
namespace {

// With at least this many query tiles there is work for every thread without cutting them up.
constexpr int64_t kManyTasks = 16;

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class CsaHcaAttention final : public Attention {
 public:
  CsaHcaAttention(const SparseOptions& options, std::shared_ptr<const Calibration> calibration)
      : options_(options), calibration_(std::move(calibration)), exact_(CreateFlashAttention()) {}

  void Forward(const AttentionInputs& inputs, const KvCache& cache, ThreadPool& pool, float* out,
               int64_t out_stride) override {
    if (inputs.num_tokens <= 0) return;
    // What is remembered gives way as the text grows, however long its answer becomes.
    earlier_.ShrinkTo(capacity_ - inputs.first_position - inputs.num_tokens);
    SparseIndex& index = IndexOf(inputs.sequence);
    if (inputs.sliding_window > 0 || !index.Covers(inputs.layer)) {
      exact_->Forward(inputs, cache, pool, out, out_stride);
      return;
    }
    counters_.pages_indexed += index.Update(inputs, cache, pool);
    const MiddlePages middle =
        MiddlePages::Of(options_, inputs.first_position + inputs.num_tokens - 1);
    if (std::ssize(index.ExactPages(middle.begin, middle.end)) == middle.count()) {
      // Short enough, or all of it is to be read.
      exact_->Forward(inputs, cache, pool, out, out_stride);
      return;
    }
    const FlashShape shape(inputs, cache.options());
    scratch_.resize(std::max(scratch_.size(), static_cast<size_t>(pool.num_threads())));
    std::vector<QueryTile> tiles;
    for (int32_t head = 0; head < cache.options().num_kv_heads; ++head) {
      for (int64_t first = 0; first < inputs.num_tokens; first += shape.tile_tokens) {
        tiles.push_back({.kv_head = head,
                         .first_token = first,
                         .num_tokens = std::min(shape.tile_tokens, inputs.num_tokens - first)});
      }
    }
    const auto begin = [&](SparseTile& work, const QueryTile& tile) {
      work.Begin(inputs, cache, index, shape, tile, options_);
    };
    const auto num_tiles = static_cast<int64_t>(tiles.size());
    if (num_tiles >= kManyTasks) {
      tiles_.resize(std::max(tiles_.size(), static_cast<size_t>(pool.num_threads())));
      pool.ParallelFor(num_tiles, [&](int64_t task, int worker) {
        SparseTile& work = tiles_[static_cast<size_t>(worker)];
        begin(work, tiles[static_cast<size_t>(task)]);
        RunAlone(work, scratch_[static_cast<size_t>(worker)], out, out_stride);
      });
    } else {
      tiles_.resize(std::max(tiles_.size(), tiles.size()));
      for (size_t i = 0; i < tiles.size(); ++i) begin(tiles_[i], tiles[i]);
      RunTogether({tiles_.data(), tiles.size()}, pool, out, out_stride);
      if (inputs.num_tokens == 1) AuditIfDue(inputs, cache, shape, out, out_stride);
    }
  }

  void Truncate(SequenceId sequence, int64_t length) override {
    const auto index = indices_.find(sequence);
    if (index != indices_.end()) index->second.Truncate(length);
  }

  // An index is kept when more of it would be forgotten than stays, or when an earlier one takes
  // its place.
  void ChangeText(const TextChange& change) override {
    const int64_t own = CommonLength(change.before, change.now);
    std::optional<SparseIndex> earlier = earlier_.Take(change.now, own);
    if (earlier || std::ssize(change.before) > 2 * own) {
      earlier_.Keep(change.before, std::move(IndexOf(change.sequence)));
      indices_.erase(change.sequence);
      if (earlier) indices_.emplace(change.sequence, *std::move(earlier));
    } else {
      Truncate(change.sequence, own);
    }
    capacity_ = change.capacity;
  }

  void KeepExact(SequenceId sequence, std::span<const TokenRange> ranges) override {
    IndexOf(sequence).KeepExact(ranges);
  }

  AttentionCounters counters() const override { return counters_; }

 private:
  SparseIndex& IndexOf(SequenceId sequence) {
    return indices_.try_emplace(sequence, *calibration_, options_).first->second;
  }

  // One thread takes a tile through all stages.
  void RunAlone(SparseTile& tile, FlashScratch& scratch, float* out, int64_t out_stride) {
    AttentionCounters counters;
    const auto start = std::chrono::steady_clock::now();
    tile.Prepare();
    for (int64_t part = 0; part < tile.num_scans(); ++part) tile.Scan(part, scratch);
    tile.Select();
    for (int64_t part = 0; part < tile.num_rescores(); ++part) tile.Rescore(part, scratch);
    tile.SelectRescored();
    counters.select_seconds = SecondsSince(start);
    for (int64_t part = 0; part < tile.num_attends(); ++part) tile.Attend(part, scratch);
    tile.Finish(out, out_stride, counters);
    counters.attend_seconds = SecondsSince(start) - counters.select_seconds;
    const std::lock_guard lock(mutex_);
    counters_ += counters;
  }

  // All threads take a few tiles from stage to stage.
  void RunTogether(std::span<SparseTile> tiles, ThreadPool& pool, float* out, int64_t out_stride) {
    AttentionCounters counters;
    const auto start = std::chrono::steady_clock::now();
    const auto for_all = [&](void (SparseTile::*stage)()) {
      pool.ParallelFor(static_cast<int64_t>(tiles.size()),
                       [&](int64_t i, int) { (tiles[static_cast<size_t>(i)].*stage)(); });
    };
    for_all(&SparseTile::Prepare);
    RunParts(tiles, pool, &SparseTile::num_scans, &SparseTile::Scan);
    for_all(&SparseTile::Select);
    if (options_.oversample > 1) {
      RunParts(tiles, pool, &SparseTile::num_rescores, &SparseTile::Rescore);
      for_all(&SparseTile::SelectRescored);
    }
    counters.select_seconds = SecondsSince(start);
    RunParts(tiles, pool, &SparseTile::num_attends, &SparseTile::Attend);
    for (SparseTile& tile : tiles) tile.Finish(out, out_stride, counters);
    counters.attend_seconds = SecondsSince(start) - counters.select_seconds;
    counters_ += counters;
  }

  void RunParts(std::span<SparseTile> tiles, ThreadPool& pool,
                int64_t (SparseTile::*num_parts)() const,
                void (SparseTile::*run)(int64_t, FlashScratch&)) {
    std::vector<std::pair<SparseTile*, int64_t>> parts;
    for (SparseTile& tile : tiles) {
      for (int64_t part = 0; part < (tile.*num_parts)(); ++part) parts.emplace_back(&tile, part);
    }
    pool.ParallelFor(static_cast<int64_t>(parts.size()), [&](int64_t i, int worker) {
      const auto& [tile, part] = parts[static_cast<size_t>(i)];
      (tile->*run)(part, scratch_[static_cast<size_t>(worker)]);
    });
  }

  // One token in audit_interval is audited, each time in another layer and KV head.
  void AuditIfDue(const AttentionInputs& inputs, const KvCache& cache, const FlashShape& shape,
                  const float* out, int64_t out_stride) {
    if (options_.audit_interval == 0) return;
    const int64_t audit = inputs.first_position / options_.audit_interval;
    const int64_t heads = cache.options().num_kv_heads;
    const int64_t place = audit % (cache.options().num_layers * heads);
    if (inputs.first_position % options_.audit_interval != 0 || inputs.layer != place / heads) {
      return;
    }
    const SparseTile& tile = tiles_[static_cast<size_t>(place % heads)];
    const TileSelection selection = {.read = tile.ReadRuns(),
                                     .ranked = tile.Middle(),
                                     .estimates = tile.EstimateKeys(scratch_[0])};
    counters_.audits += AuditTile(inputs, cache, shape, tile.tile(), selection, out, out_stride);
  }

  const SparseOptions options_;
  const std::shared_ptr<const Calibration> calibration_;
  const std::unique_ptr<Attention> exact_;
  std::map<SequenceId, SparseIndex> indices_;
  EarlierIndices earlier_;
  int64_t capacity_ = 0;               // tokens of all texts that may be remembered
  std::vector<FlashScratch> scratch_;  // one per worker
  std::vector<SparseTile> tiles_;      // memory for those at work
  std::mutex mutex_;                   // of counters_
  AttentionCounters counters_;
};

}  // namespace

std::unique_ptr<Attention> CreateCsaHcaAttention(const SparseOptions& options,
                                                 std::shared_ptr<const Calibration> calibration) {
  return std::make_unique<CsaHcaAttention>(options, std::move(calibration));
}

}  // namespace lode
