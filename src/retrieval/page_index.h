// SPDX-License-Identifier: Apache-2.0
// PageIndex: what is known of the keys and values of one layer and KV head without reading them.
//
// A page is kKvTileTokens neighbouring tokens, all stored. Of each page the index keeps the mean
// key and the mean value, which stand for the page when it is not read (summaries), and a code per
// key: its residual to the mean key in the balanced space of a HeadProjection, with one scale for
// the page. From these the score of a query and each key is estimated:
//   q.k ~ q.mean + scale * sum of the levels of its code times q'
// The means of kNodePages neighbouring pages are a node: a tile of keys and values in 8 bits, laid
// out as in the cache (kernels/kv_codes.h).
//
// Pages are appended as they fill and never change. Threads: one writer; readers between writes.
#ifndef LODE_RETRIEVAL_PAGE_INDEX_H_
#define LODE_RETRIEVAL_PAGE_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/aligned_vector.h"
#include "kernels/code_scan.h"
#include "kernels/kv_tile.h"
#include "retrieval/projection.h"

namespace lode {

inline constexpr int64_t kPageTokens = kernels::kKvTileTokens;
inline constexpr int64_t kNodePages = kernels::kKvTileTokens;
inline constexpr int kMeanBits = 8;

// The queries that share a selection, made ready for estimates.
struct PreparedQueries {
  kernels::CodeTables Tables() const {
    return {.tables = tables.data(), .steps = steps.data(), .rows = rows};
  }

  int64_t rows = 0;
  AlignedVector<float> exact;    // tables before they are rounded
  AlignedVector<int8_t> tables;  // [rows][kCodeEntries]
  std::vector<float> steps;      // [rows]
};

class PageIndex {
 public:
  // Keeps a pointer to `projection`.
  explicit PageIndex(const HeadProjection* projection);

  int64_t num_pages() const { return num_pages_; }
  int64_t num_nodes() const { return (num_pages_ + kNodePages - 1) / kNodePages; }
  int64_t head_dim() const { return projection_->head_dim(); }
  // What the index of `tokens` tokens takes, slack of its growth left aside.
  static int64_t BytesFor(int64_t head_dim, int64_t tokens);
  // Bytes that the codes of a page and the means of a node take.
  static constexpr int64_t kCodeBytes = kernels::kCodePageBytes + int64_t{sizeof(float)};
  int64_t node_bytes() const { return key_tile_bytes_ + value_tile_bytes_; }

  // Appends a page. `more`: another follows before anything is asked; until then the means of the
  // last node are not up to date, whose encoding costs more than all else.
  //   keys    [head_dim][kPageTokens] f32, 64-byte aligned
  //   values  [kPageTokens][value_stride] f32
  void Append(const float* keys, const float* values, int64_t value_stride, bool more);
  // Forgets the pages from num_pages on, and with them those before that share their node.
  void Truncate(int64_t num_pages);

  // The means of a node as tiles of 8-bit codes; pages that are not there yet are zero.
  kernels::KvTileShape mean_shape() const { return {.head_dim = head_dim()}; }
  const std::byte* MeanKeys(int64_t node) const { return &mean_keys_[At(node * key_tile_bytes_)]; }
  const std::byte* MeanValues(int64_t node) const {
    return &mean_values_[At(node * value_tile_bytes_)];
  }
  // scales[d] = max(scales[d], the largest scale of component d of the mean keys), [head_dim].
  void RaiseToMeanScales(float* scales) const;

  // The codes of pages [begin, end).
  kernels::CodePages Codes(int64_t begin, int64_t end) const {
    return {.codes = &codes_[At(begin * kernels::kCodePageBytes)],
            .scales = &scales_[At(begin)],
            .count = end - begin};
  }
  // queries [rows][head_dim]; estimates are in their units.
  void Prepare(const float* queries, int64_t rows, PreparedQueries& out) const;

 private:
  static size_t At(int64_t index) { return static_cast<size_t>(index); }
  void AppendMeans(const float* key, const float* value, bool more);
  // Returns the page's scale.
  float Encode(const float* residuals, uint8_t* page) const;

  const HeadProjection* projection_;
  int64_t key_tile_bytes_, value_tile_bytes_;
  int64_t num_pages_ = 0;
  AlignedVector<std::byte> mean_keys_, mean_values_;  // tiles [num_nodes]
  std::vector<uint8_t> codes_;                        // [num_pages][kCodePageBytes]
  std::vector<float> scales_;                         // [num_pages]
  std::vector<float> full_scales_;                    // of the nodes that are full
  // The node that is not full, in f32: [head_dim][kNodePages] and [kNodePages][head_dim].
  AlignedVector<float> open_keys_, open_values_;
};

}  // namespace lode

#endif  // LODE_RETRIEVAL_PAGE_INDEX_H_
