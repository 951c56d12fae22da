// SPDX-License-Identifier: Apache-2.0
#include "attention/code_steps.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/kv_codes.h"

namespace lode {
namespace {

// Asks for the lines of a tile ahead of its use: the hardware's own prefetchers stop at the end of
// a page, which a tile reaches before they are up to speed.
void Prefetch(const std::byte* tile, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += kernels::kKvTileAlignment) {
    __builtin_prefetch(tile + i, 0, 2);
  }
}

kernels::CodeMatrix KeyCodesOf(const KvTile& tile) {
  return kernels::KeyCodes(tile.key_codec->code_bits, tile.shape, tile.keys);
}
kernels::CodeMatrix ValueCodesOf(const KvTile& tile) {
  return kernels::ValueCodes(tile.value_codec->code_bits, tile.shape, tile.values);
}

int64_t PadRows(int64_t rows) {
  constexpr int64_t kStep = kernels::kKvTileAlignment / int64_t{sizeof(float)};
  return (rows + kStep - 1) / kStep * kStep;
}

}  // namespace

bool HasCodes(const KvTile& tile) {
  return tile.key_codec->code_bits != 0 && tile.value_codec->code_bits != 0;
}

bool CodeTiles::Add(const KvTile& added, int64_t first_position) {
  const int64_t total = keys() + added.shape.tokens;
  if (count == kernels::kCodeStepTiles || total > kernels::kCodeStepKeys || !HasCodes(added)) {
    return false;
  }
  tile[count] = added;
  position[count] = first_position;
  begin[++count] = total;
  return true;
}

CodeSteps::CodeSteps(const float* queries, int64_t rows, const float* scales, float factor,
                     const KvTileShape& values, FlashScratch& scratch)
    : rows_(rows),
      head_dim_(values.head_dim),
      num_groups_(values.value_groups()),
      group_cols_(values.value_group) {
  queries_ = {.normal = scratch.queries.Reserve<float>(rows * head_dim_),
              .rounded = scratch.rounded_queries.Reserve<int16_t>(rows * head_dim_)};
  codes_ = scratch.codes.Reserve<int16_t>(rows * kernels::kCodeRowStride);
  scores_ = scratch.scores.Reserve<int32_t>(rows * kernels::kCodeStepKeys);
  products_ = scratch.products.Reserve<int32_t>(rows * head_dim_);
  offsets_ = scratch.offsets.Reserve<float>(rows * kernels::kCodeStepTiles);
  channels_ = scratch.channels.Reserve<float>(2 * head_dim_);
  ratio_ = scratch.ratio.Reserve<int16_t>(head_dim_);
  value_scales_ = scratch.value_scales.Reserve<float>(num_groups_ * kernels::kCodeStepKeys);
  float* per_row = scratch.per_row.Reserve<float>(3 * PadRows(rows));
  queries_.factors = per_row;
  step_ = {
      .offsets = offsets_,
      .factors = per_row,
      .begin = scratch.begin.data(),
      .end = scratch.end.data(),
      .num_groups = num_groups_,
      .value_scales = value_scales_,
      .weights = scratch.weights.Reserve<int16_t>(num_groups_ * rows * kernels::kCodeRowStride),
      .keep = per_row + PadRows(rows),
      .gain = per_row + 2 * PadRows(rows)};
  kernels::NormalizeQueries(queries, rows, head_dim_, scales, factor, queries_);
  for (int64_t d = 0; d < head_dim_; ++d) channels_[d] = 1.0f / scales[d];
}

void CodeSteps::Multiply(const CodeTiles& tiles) {
  for (int64_t i = 0; i < tiles.count; ++i) MultiplyTile(tiles, i);
}

void CodeSteps::Attend(const CodeTiles& tiles, const CodeTiles& next,
                       const kernels::SoftmaxState& state) {
  SetStep(tiles);
  kernels::SoftmaxCodes(scores_, step_, state);
  for (int64_t g = 0; g < num_groups_; ++g) AddValues(tiles, next, g, state);
}

void CodeSteps::Scores(const CodeTiles& tiles, float* out, int64_t stride) {
  step_.num_keys = tiles.keys();
  step_.num_tiles = tiles.count;
  step_.tile_begin = tiles.begin;
  kernels::ScoreCodes(scores_, step_, rows_, out, stride);
}

void CodeSteps::AttendScored(const CodeTiles& tiles, const float* scores,
                             const kernels::SoftmaxState& state) {
  SetStep(tiles);
  kernels::SoftmaxScores(scores, step_, state);
  const CodeTiles none = {};
  for (int64_t g = 0; g < num_groups_; ++g) AddValues(tiles, none, g, state);
}

// Scores of tile i, and what its centre adds to them.
void CodeSteps::MultiplyTile(const CodeTiles& tiles, int64_t i) {
  const KvTile& tile = tiles.tile[i];
  float* shift = channels_ + head_dim_;
  kernels::KeyRatios(tile.key_codec->code_bits, tile.shape, tile.keys, channels_, ratio_, shift);
  kernels::TileQueries(queries_, rows_, head_dim_, ratio_, shift, codes_, offsets_ + i,
                       kernels::kCodeStepTiles);
  kernels::CodeProduct product = {.a = codes_,
                                  .rows = rows_,
                                  .b = KeyCodesOf(tile),
                                  .num_cols = tile.shape.tokens,
                                  .c = scores_ + tiles.begin[i],
                                  .c_stride = kernels::kCodeStepKeys};
  product.ahead = ValueCodesOf(tile).codes;
  Prefetch(tile.values, product.ahead - tile.values);
  kernels::MultiplyCodes(product);
}

void CodeSteps::SetStep(const CodeTiles& tiles) {
  step_.num_keys = tiles.keys();
  step_.num_tiles = tiles.count;
  step_.tile_begin = tiles.begin;
  for (int64_t g = 0; g < num_groups_; ++g) LoadValueScales(tiles, g);
}

// The scales of the step's values, made as large as weights may be.
void CodeSteps::LoadValueScales(const CodeTiles& tiles, int64_t group) {
  float* scales = value_scales_ + group * kernels::kCodeStepKeys;
  for (int64_t i = 0; i < tiles.count; ++i) {
    kernels::ValueScales(tiles.tile[i].shape, tiles.tile[i].values, group, scales + tiles.begin[i]);
  }
  units_[static_cast<size_t>(group)] = kernels::NormalizeValueScales(scales, tiles.keys());
}

void CodeSteps::AddValues(const CodeTiles& tiles, const CodeTiles& next, int64_t group,
                          const kernels::SoftmaxState& state) {
  const int16_t* weights = step_.weights + group * rows_ * kernels::kCodeRowStride;
  const int64_t first_col = group * group_cols_;
  const int64_t num_cols = std::min(head_dim_ - first_col, group_cols_);
  kernels::CodeProduct product = {.rows = rows_,
                                  .first_col = first_col,
                                  .num_cols = num_cols,
                                  .c = products_,
                                  .c_stride = head_dim_};
  for (int64_t i = 0; i < tiles.count; ++i) {
    product.a = weights + tiles.begin[i];
    product.b = ValueCodesOf(tiles.tile[i]);
    product.accumulate = i > 0;
    product.ahead = nullptr;
    if (i < next.count) {
      const kernels::CodeMatrix keys = KeyCodesOf(next.tile[i]);
      // Each group asks for its share.
      product.ahead = keys.codes + kernels::CodeMatrixBytes(keys.bits, keys.pairs, keys.cols) *
                                       first_col / head_dim_;
      if (group == 0) Prefetch(next.tile[i].keys, keys.codes - next.tile[i].keys);
    }
    kernels::MultiplyCodes(product);
  }
  kernels::AddProducts(products_, head_dim_, step_, units_[static_cast<size_t>(group)], first_col,
                       num_cols, state);
}

}  // namespace lode
