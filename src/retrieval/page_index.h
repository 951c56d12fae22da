// SPDX-License-Identifier: Apache-2.0
// PageIndex: what is known of the keys and values of one layer and KV head without reading them.
//
// A page is kKvTileTokens neighbouring tokens, all stored. Of each page the index keeps the mean
// key and the mean value, which stand for the page when it is not read (summaries), and a code per
// key: its residual to the mean key in the balanced space of a HeadProjection, with one scale. From
// these the score of a query and each key is estimated:
//   q.k ~ q.mean + scale * sum of the levels of its code times q'
// Pages are appended as they fill and never change. Threads: one writer; readers between writes.
#ifndef LODE_RETRIEVAL_PAGE_INDEX_H_
#define LODE_RETRIEVAL_PAGE_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/aligned_vector.h"
#include "kernels/attention_tile.h"
#include "kernels/kv_tile.h"
#include "retrieval/projection.h"

namespace lode {

inline constexpr int64_t kPageTokens = kernels::kKvTileTokens;
inline constexpr int64_t kPageGroup = kernels::kTileColumnStep;  // pages whose means lie together

// The queries that share a selection, made ready for estimates.
struct PreparedQueries {
  int64_t rows = 0;
  std::vector<float> queries;     // [rows][head_dim], times the factor of Prepare
  AlignedVector<uint8_t> tables;  // [rows][kCodeNibbles][16]
  std::vector<float> steps;       // [rows]
};

class PageIndex {
 public:
  // Keeps a pointer to `projection`.
  explicit PageIndex(const HeadProjection* projection);

  int64_t num_pages() const { return num_pages_; }
  int64_t head_dim() const { return projection_->head_dim(); }
  // Bytes that an estimate of every key reads, per page, and those of the summaries.
  static int64_t CodeBytesPerPage() { return kCodeNibbles * kPageTokens / 2 + kPageTokens * 2; }
  int64_t SummaryBytesPerPage() const { return 2 * head_dim() * int64_t{sizeof(float)}; }

  // Appends a page.
  //   keys    [head_dim][kPageTokens] f32
  //   values  [kPageTokens][value_stride] f32
  void Append(const float* keys, const float* values, int64_t value_stride);
  // Keeps the first num_pages pages.
  void Truncate(int64_t num_pages);

  // The summaries of pages [group * kPageGroup, (group + 1) * kPageGroup), as the kernels of
  // attention read a tile of keys and values; those of pages not there yet are zero. 64-byte
  // aligned.
  //   keys    [head_dim][kPageGroup]
  //   values  [kPageGroup][value_cols()]
  const float* MeanKeys(int64_t group) const {
    return &mean_keys_[static_cast<size_t>(group * kPageGroup * head_dim())];
  }
  const float* MeanValues(int64_t group) const {
    return &mean_values_[static_cast<size_t>(group * kPageGroup * value_cols())];
  }
  int64_t num_groups() const { return (num_pages_ + kPageGroup - 1) / kPageGroup; }
  // head_dim, padded for the kernels.
  int64_t value_cols() const { return kernels::PadTileColumns(head_dim()); }

  // queries [rows][head_dim], row stride head_dim; estimates come out times `factor`.
  void Prepare(const float* queries, int64_t rows, float factor, PreparedQueries& out) const;
  // What the codes add to the score of the page's mean.
  //   out [rows][kPageTokens], 64-byte aligned
  void EstimateResiduals(const PreparedQueries& queries, int64_t page, float* out) const;

 private:
  void ResizeMeans();
  void Encode(const float* residual, int64_t token, uint8_t* codes, uint16_t& scale) const;

  const HeadProjection* projection_;
  int64_t num_pages_ = 0;
  AlignedVector<float> mean_keys_;    // [num_groups][head_dim][kPageGroup]
  AlignedVector<float> mean_values_;  // [num_groups][kPageGroup][value_cols]
  std::vector<uint8_t> codes_;        // [num_pages][kCodeNibbles][kPageTokens / 2]
  std::vector<uint16_t> scales_;      // [num_pages][kPageTokens], f16
};

}  // namespace lode

#endif  // LODE_RETRIEVAL_PAGE_INDEX_H_
