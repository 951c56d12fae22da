// SPDX-License-Identifier: Apache-2.0
// SparseTile: csa_hca for one query tile, in stages that may run in parallel.
//
//   Begin      queries and buffers
//   Scan       the always-read keys exactly (part 0), and logits of the means of all pages of the
//              middle (further parts)
//   ChooseScanned  whose codes are looked at; tables of the queries
//   Refine     codes turn these pages' logits into estimates of their mass
//   Select     which pages are read
//   Attend     these pages exactly, the means of all others
//   Finish     one softmax over everything
//
// Every stage is a number of parts that do not depend on each other; how many depends on the shapes
// and the selection only, so results do not depend on threads.
#ifndef LODE_ATTENTION_SPARSE_TILE_H_
#define LODE_ATTENTION_SPARSE_TILE_H_

#include <cstdint>
#include <vector>

#include "attention/attention.h"
#include "attention/flash_tile.h"
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
  void Begin(const AttentionInputs& inputs, const KvCache& cache, const PageIndex& index,
             const FlashShape& shape, const QueryTile& tile, const SparseOptions& options);
  // After Begin: choose the pages to read by these codes, unless they are null. Masses, for the
  // budget and for the summaries, are then those of the means.
  void RankBy(const SignCodes* signs) { signs_ = signs; }

  int64_t num_scans() const;
  void Scan(int64_t part, FlashScratch& scratch);

  void ChooseScanned();
  int64_t num_refines() const;
  void Refine(int64_t part, FlashScratch& scratch);

  void Select();

  int64_t num_attends() const;
  void Attend(int64_t part, FlashScratch& scratch);

  // Writes the tile's outputs and adds to `counters`.
  void Finish(float* out, int64_t out_stride, AttentionCounters& counters);

  // After Select: the keys that are read, ascending.
  std::vector<KeyRun> ReadRuns() const;
  const QueryTile& tile() const { return tile_; }

 private:
  int64_t rows() const { return tile_.num_tokens * shape_->group; }
  int64_t end() const { return inputs_->first_position + tile_.first_token + tile_.num_tokens; }
  int64_t num_read_parts() const;
  int64_t num_summary_parts() const;
  kernels::SoftmaxState StateOf(int64_t part);
  void AttendAlways(FlashScratch& scratch);
  void ScoreMeans(int64_t first_node, int64_t last_node, FlashScratch& scratch);
  void ScoreExactly(int64_t page, FlashScratch& scratch, float* masses);
  void RankBySigns();
  void SumShares();
  void ChoosePages();
  float* MassesOf(int64_t row) { return masses_.data() + row * columns_; }

  const AttentionInputs* inputs_ = nullptr;
  const KvCache* cache_ = nullptr;
  const PageIndex* index_ = nullptr;
  const SignCodes* signs_ = nullptr;
  const FlashShape* shape_ = nullptr;
  const SparseOptions* options_ = nullptr;
  QueryTile tile_;
  MiddlePages middle_;
  int64_t nodes_ = 0;    // that hold the middle
  int64_t columns_ = 0;  // pages of these nodes
  AlignedBuffer query_buffer_;
  const float* queries_ = nullptr;  // [rows][head_dim], times scale * log2(e)
  PreparedQueries prepared_;
  AlignedVector<float> masses_;   // log2 of a page's mass, [rows][columns_]; -inf: read or no page
  AlignedVector<float> shares_;   // of all rows' mass, [columns_]
  AlignedVector<float> ranks_;    // by signs_, [columns_]
  std::vector<int32_t> scanned_;  // pages whose codes are looked at, ascending
  std::vector<int64_t> read_;     // pages of the middle that are read, ascending
  std::vector<AlignedBuffer> states_;  // part 0: what is always read; then those of Attend
};

}  // namespace lode

#endif  // LODE_ATTENTION_SPARSE_TILE_H_
