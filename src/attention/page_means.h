// SPDX-License-Identifier: Apache-2.0
// PageMeans: one query tile against the mean keys and values of a PageIndex.
#ifndef LODE_ATTENTION_PAGE_MEANS_H_
#define LODE_ATTENTION_PAGE_MEANS_H_

#include <cstdint>

#include "attention/code_steps.h"
#include "attention/flash_tile.h"
#include "retrieval/page_index.h"

namespace lode {

// Works in `scratch`. Nodes are taken some at a time.
class PageMeans {
 public:
  static constexpr int64_t kStepNodes = kernels::kCodeStepKeys / kNodePages;

  // queries [rows, head_dim], times scale * log2(e).
  PageMeans(const PageIndex& index, const float* queries, int64_t rows, FlashScratch& scratch);

  // Logits of the pages of nodes [begin, end): column of page p is p - begin * kNodePages.
  //   out [rows], row stride `stride`
  void Score(int64_t begin, int64_t end, float* out, int64_t stride);
  // Takes the mean values of nodes [begin, end) into the state, weighted with 2^mass.
  //   masses [rows], row stride `stride`, columns as in Score; -infinity: not at all
  // The output of the state is rotated (kernels/rotation.h).
  void Attend(int64_t begin, int64_t end, const float* masses, int64_t stride,
              const kernels::SoftmaxState& state);

 private:
  // Up to kStepNodes nodes from `node` on.
  void FindTiles(int64_t node, int64_t end);

  const PageIndex& index_;
  const int64_t rows_;
  FlashScratch& scratch_;
  CodeSteps steps_;
  CodeTiles tiles_;
};

}  // namespace lode

#endif  // LODE_ATTENTION_PAGE_MEANS_H_
