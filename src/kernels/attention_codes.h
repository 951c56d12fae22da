// SPDX-License-Identifier: Apache-2.0
// Exact attention over tiles of codes (kv_codes.h) in integers: int16 queries and weights times
// signed codes of 4, 6 or 8 bits, read straight from their packed form.
//
// A product of 16 bits is twice as fast as one in f32 where pairs of 16 bits multiply and add in
// one instruction, and it is exact. What is rounded: queries and weights, to 15 bits.
//
// Keys have a scale and a centre per component and tile: key[t][d] = centre[d] + scale[d] code. The
// scale goes to the query, which is rounded anew for every tile (a few per cent of the work):
//   score = sum_d (q[d] scale[d]) code + sum_d q[d] centre[d]
// Rounding is relative to the largest query times scale of all tiles of a call, so that one factor
// per row turns sums into scores, and no 32-bit sum can overflow.
//
// Values have a scale per token and group of components: it goes to the weights, which are rounded
// once per group. Up to kCodeStepKeys keys are one softmax step: weights are relative to the step's
// own largest score, so they do not depend on what was seen before, and weighted codes add up in 32
// bits over the whole step. Plain functions: no allocation, no threads.
#ifndef LODE_KERNELS_ATTENTION_CODES_H_
#define LODE_KERNELS_ATTENTION_CODES_H_

#include <cstdint>

#include "kernels/attention_tile.h"
#include "kernels/code_matrix.h"

namespace lode::kernels {

// Keys of one softmax step, and tiles that they may come from (of at least 8 keys each).
inline constexpr int64_t kCodeStepKeys = 128;
inline constexpr int64_t kCodeStepTiles = 16;
// From row to row of queries and of weights in 16 bits. A constant, so that a register block of
// several rows needs one address; not a power of two, whose rows would compete for cache lines.
inline constexpr int64_t kCodeRowStride = 1024 + 32;

// A product with codes: c = a b, or c += a b when `accumulate`, for columns [first_col, first_col +
// num_cols) of b, both multiples of kCodeColumns.
struct CodeProduct {
  const int16_t* a = nullptr;  // [rows, 2 * pairs], row stride kCodeRowStride
  int64_t rows = 0;
  CodeMatrix b = {};
  int64_t first_col = 0;
  int64_t num_cols = 0;
  bool accumulate = false;
  int32_t* c = nullptr;  // [rows, num_cols], row stride c_stride
  int64_t c_stride = 0;
  // Codes that will be needed soon, as many as those of b: asked for line by line between
  // multiplications, because many requests at once would hold up the loads of the codes at hand.
  const std::byte* ahead = nullptr;
};

// 32-bit sums, which must not overflow: 2 * pairs <= 512 suffices. Cost: 2 * rows * pairs *
// num_cols MACs.
void MultiplyCodes(const CodeProduct& product);

// Queries made ready for any tile of a call.
struct NormalQueries {
  float* normal = nullptr;     // [rows, head_dim], multiples of the row's unit
  int16_t* rounded = nullptr;  // [rows, head_dim], the same, rounded
  float* factors = nullptr;    // [rows], unit * scale
};

// Queries made ready for tiles whose key scales are at most `scales` [head_dim] (positive):
// normal = query * scales, as a multiple of a unit of the row, so that no magnitude exceeds what
// 16 bits hold; factors = unit * scale. A row with a NaN or an infinity gets a NaN factor, so that
// its output is NaN, as in f32.
//   queries [rows, head_dim]   contiguous; may be out.normal
void NormalizeQueries(const float* queries, int64_t rows, int64_t head_dim, const float* scales,
                      float scale, const NormalQueries& out);

// The rows for one tile of keys: codes = round(rounded * ratio / 2^15) for the products with key
// codes, within one and a half units of normal * ratio, and offsets[r] = sum_d normal * shift, what
// the tile's centre adds to all its scores; both in units of factors.
//   codes [rows, head_dim]    row stride kCodeRowStride
//   ratio, shift [head_dim]   the tile's key scales, in 1/2^15, and centre, divided by `scales`
//   offsets                   stride offset_stride
void TileQueries(const NormalQueries& queries, int64_t rows, int64_t head_dim, const int16_t* ratio,
                 const float* shift, int16_t* codes, float* offsets, int64_t offset_stride);

// What the softmax step needs and yields, besides the running state.
struct CodeStep {
  int64_t num_keys = 0;                 // a multiple of 8, at most kCodeStepKeys
  int64_t num_tiles = 0;                // tile i holds keys [tile_begin[i], tile_begin[i + 1])
  const int64_t* tile_begin = nullptr;  // [num_tiles + 1], multiples of 8
  const float* offsets = nullptr;       // [rows][kCodeStepTiles]
  const float* factors = nullptr;       // [rows]
  const int32_t* begin = nullptr;       // [rows] keys that a row attends to; begin >= end: none
  const int32_t* end = nullptr;         //
  int64_t num_groups = 0;               // of components of values
  const float* value_scales = nullptr;  // [num_groups][kCodeStepKeys], from NormalizeValueScales
  int16_t* weights = nullptr;           // out [num_groups][rows][kCodeRowStride]
  float* keep = nullptr;                // out [rows] factor of the output so far
  float* gain = nullptr;                // out [rows] factor of this step's output
};

// Divides the scales of a step's values by one unit, so that the largest magnitude is that of the
// largest weight; returns the unit.
float NormalizeValueScales(float* scales, int64_t num_keys);

// Scores to weights for one step: raises max and rescales sum in `state`, adds this step's weights
// to sum, and leaves the output to AddProducts. A weight is 2^(score - largest of the step) times
// the scale of its value, rounded.
//   scores [rows][kCodeStepKeys]  integer products of query and key codes; overwritten
void SoftmaxCodes(int32_t* scores, const CodeStep& step, const SoftmaxState& state);

// The scores alone: out[r][i] = (products[r][i] + offset of key i's tile) * factors[r] for the
// step's keys.
//   products [rows][kCodeStepKeys], out [rows] with row stride out_stride
void ScoreCodes(const int32_t* products, const CodeStep& step, int64_t rows, float* out,
                int64_t out_stride);

// SoftmaxCodes where scores are known: tiles, offsets, begin and end of `step` are not used. A key
// whose score is -infinity counts for nothing.
//   scores [rows][kCodeStepKeys]
void SoftmaxScores(const float* scores, const CodeStep& step, const SoftmaxState& state);

// output = output * keep + products * gain * unit (of the group's scales), for columns [first_col,
// first_col + num_cols) of all rows.
//   products [rows, num_cols]   row stride product_stride
void AddProducts(const int32_t* products, int64_t product_stride, const CodeStep& step, float unit,
                 int64_t first_col, int64_t num_cols, const SoftmaxState& state);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_ATTENTION_CODES_H_
