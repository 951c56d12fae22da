// SPDX-License-Identifier: Apache-2.0
#include "attention/page_means.h"

#include <algorithm>

#include "base/check.h"

namespace lode {
namespace {

const float* LargestScales(const PageIndex& index, FlashScratch& scratch) {
  float* scales = scratch.key_scales.Reserve<float>(index.head_dim());
  std::fill_n(scales, index.head_dim(), 0.0f);
  index.RaiseToMeanScales(scales);
  return scales;
}

}  // namespace

PageMeans::PageMeans(const PageIndex& index, const float* queries, int64_t rows,
                     FlashScratch& scratch)
    : index_(index),
      rows_(rows),
      scratch_(scratch),
      steps_(queries, rows, LargestScales(index, scratch), 1.0f, index.mean_shape(), scratch) {}

void PageMeans::Score(int64_t begin, int64_t end, float* out, int64_t stride) {
  for (int64_t node = begin; node < end; node += kStepNodes) {
    FindTiles(node, end);
    steps_.Multiply(tiles_);
    steps_.Scores(tiles_, out + (node - begin) * kNodePages, stride);
  }
}

void PageMeans::Attend(int64_t begin, int64_t end, const float* masses, int64_t stride,
                       const kernels::SoftmaxState& state) {
  float* scores = scratch_.float_scores.Reserve<float>(rows_ * kernels::kCodeStepKeys);
  for (int64_t node = begin; node < end; node += kStepNodes) {
    FindTiles(node, end);
    for (int64_t r = 0; r < rows_; ++r) {
      std::copy_n(masses + r * stride + (node - begin) * kNodePages, tiles_.keys(),
                  scores + r * kernels::kCodeStepKeys);
    }
    steps_.AttendScored(tiles_, scores, state);
  }
}

void PageMeans::FindTiles(int64_t node, int64_t end) {
  const KvCodec& codec = CodecFor(KvDType::kInt8);
  LODE_DCHECK(codec.code_bits == kMeanBits);
  tiles_.Clear();
  for (; node < end && tiles_.count < kStepNodes; ++node) {
    tiles_.Add({.keys = index_.MeanKeys(node),
                .values = index_.MeanValues(node),
                .key_codec = &codec,
                .value_codec = &codec,
                .shape = index_.mean_shape()},
               node * kNodePages);
  }
}

}  // namespace lode
