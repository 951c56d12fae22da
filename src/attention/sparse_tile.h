// SPDX-License-Identifier: Apache-2.0
// SparseTile: csa_hca for one query tile, in stages that may run in parallel.
//
//   Begin      queries and buffers
//   Prepare    the queries' tables
//   Scan       the always-read keys exactly (part 0); estimates of the mass of all pages of the
//              middle, by their means and codes (further parts)
//   Select     which pages are read: those that the index keeps exact, and the chosen ones; or
//              with oversample first which are candidates
//   Rescore    the candidates' true masses
//   SelectRescored  which pages are read
//   Attend     these pages exactly, the means of all others
//   Finish     one softmax over everything
//
// Every stage is a number of parts that do not depend on each other; how many depends on the shapes
// and the selection only, so results do not depend on threads.
#ifndef LODE_ATTENTION_SPARSE_TILE_H_
#define LODE_ATTENTION_SPARSE_TILE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "attention/flash_tile.h"
#include "attention/sparse_index.h"
#include "retrieval/page_index.h"
#include "retrieval/sign_codes.h"

namespace lode {

// The pages between the sinks and the window of a query.
struct MiddlePages {
  // Empty when the budget of `options` is as large.
  static MiddlePages Of(const SparseOptions& options, int64_t position);
  int64_t count() const { return end - begin; }

  int64_t begin = 1;  // page 0 holds the sinks
  int64_t end = 1;
};

class SparseTile {
 public:
  // Pages are ranked by the codes that `index` keeps. Where these are signs, masses, for the budget
  // and for the summaries, are those of the means.
  void Begin(const AttentionInputs& inputs, const KvCache& cache, const SparseIndex& index,
             const FlashShape& shape, const QueryTile& tile, const SparseOptions& options);
  void Prepare();

  int64_t num_scans() const;
  void Scan(int64_t part, FlashScratch& scratch);

  void Select();
  int64_t num_rescores() const;
  void Rescore(int64_t part, FlashScratch& scratch);
  void SelectRescored();

  int64_t num_attends() const;
  void Attend(int64_t part, FlashScratch& scratch);

  // Writes the tile's outputs and adds to `counters`.
  void Finish(float* out, int64_t out_stride, AttentionCounters& counters);

  // After SelectRescored: the keys that are read, ascending.
  std::vector<KeyRun> ReadRuns() const;
  // The keys between the sinks and the window.
  KeyRun Middle() const { return {middle_.begin * kPageTokens, middle_.end * kPageTokens}; }
  // After Prepare: estimated scores of these keys, times log2(e), [rows][keys]; empty unless codes
  // rank them.
  AlignedVector<float> EstimateKeys(FlashScratch& scratch) const;
  const QueryTile& tile() const { return tile_; }

 private:
  int64_t rows() const { return tile_.num_tokens * shape_->group; }
  int64_t end() const { return inputs_->first_position + tile_.first_token + tile_.num_tokens; }
  int64_t num_read_parts() const;
  int64_t num_summary_parts() const;
  kernels::SoftmaxState StateOf(int64_t part);
  void AttendAlways(FlashScratch& scratch);
  void ScoreNodes(int64_t first_node, int64_t last_node, FlashScratch& scratch);
  // Returns the number of pages whose codes were looked at.
  int64_t ScoreCodesOfLargest(int64_t begin, int64_t end);
  void ScoreExactly(int64_t page, FlashScratch& scratch, float* masses);
  void RankBySigns();
  void SumShares();
  void ChoosePages(const AlignedVector<float>& ranks, bool only_ranked, int64_t oversample);
  void FinishSelection();
  float* MassesOf(int64_t row) { return masses_.data() + row * stride_; }

  const AttentionInputs* inputs_ = nullptr;
  const KvCache* cache_ = nullptr;
  const PageIndex* index_ = nullptr;
  const SignCodes* signs_ = nullptr;
  const FlashShape* shape_ = nullptr;
  const SparseOptions* options_ = nullptr;
  QueryTile tile_;
  MiddlePages middle_;
  std::span<const int64_t> exact_;  // pages of the middle that are read whatever they weigh
  int64_t nodes_ = 0;               // that hold the middle
  int64_t columns_ = 0;             // pages of these nodes
  int64_t stride_ = 0;              // of masses_, from row to row
  AlignedBuffer query_buffer_;
  const float* queries_ = nullptr;  // [rows][head_dim], times scale * log2(e)
  PreparedQueries prepared_;
  std::vector<int64_t> scanned_;  // pages whose codes were looked at, per part of Scan
  AlignedVector<float> masses_;   // log2 of a page's mass, [rows][stride_]; -inf: read or no page
  AlignedVector<float> shares_;   // of all rows' mass, [columns_]
  AlignedVector<float> squares_;  // of these shares, summed over rows, [columns_]
  AlignedVector<float> ranks_;    // by signs_, or of candidates; 0: never read, [columns_]
  std::vector<int64_t> candidates_;    // pages with true masses, ascending
  std::vector<int64_t> read_;          // pages of the middle that are read, ascending
  std::vector<AlignedBuffer> states_;  // part 0: what is always read; then those of Attend
};

}  // namespace lode

#endif  // LODE_ATTENTION_SPARSE_TILE_H_
