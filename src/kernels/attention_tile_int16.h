// SPDX-License-Identifier: Apache-2.0
// Exact attention over int8 blocks in integers: int16 queries and weights times int8 codes.
//
// A product of 16 bits is twice as fast as one in f32 where pairs of 16 bits multiply and add in
// one instruction, and it is exact: the only roundings are those of the queries (15 bits of a row's
// largest component) and of the weights (15 bits of a block's largest). Pairs are neighbours in
// memory, of components for keys and of tokens for values:
//   key codes    [head_dim / 2][kKvTileTokens][2], magnitudes up to kMaxKeyCode; a key is centre +
//                scale * codes, with one scale per key and one centre per block
//   value codes  [kKvTileTokens / 2][cols][2], cols = head_dim padded to kTileColumnStep
// One block is one step: its weights are relative to the block's own largest score, so they do not
// depend on what was seen before. Plain functions: no allocation, no threads.
#ifndef LODE_KERNELS_ATTENTION_TILE_INT16_H_
#define LODE_KERNELS_ATTENTION_TILE_INT16_H_

#include <cstdint>

#include "kernels/attention_tile.h"
#include "kernels/kv_tile.h"

namespace lode::kernels {

inline constexpr int32_t kMaxKeyCode = 127 * 32;
// Components whose products with key codes are summed in one 32-bit integer.
inline constexpr int64_t kKeySumDim = 64;
constexpr int64_t KeySums(int64_t head_dim) {
  return (head_dim + kKeySumDim - 1) / kKeySumDim;
}

// Quantises rows of head_dim floats (contiguous): codes = round(query / step), factors = step *
// scale. step is the smallest with which no code exceeds 32767 and no sum of kKeySumDim products
// with key codes exceeds 32 bits. A row with a NaN or an infinity gets a NaN factor, so that its
// output is NaN, as in f32.
void QuantizeQueries(const float* queries, int64_t rows, int64_t head_dim, float scale,
                     int16_t* codes, float* factors);

// out[r] = scale * query r . centre: what a block's centre adds to all scores of a row. In f32.
void CentreScores(const float* queries, int64_t rows, int64_t head_dim, const float* centre,
                  float scale, float* out);

// c = a b in 32-bit integers, which must hold the sums.
//   a [rows, 2 * inner]   row stride a_stride
//   b [inner, cols, 2]    64-byte aligned, cols a multiple of kTileColumnStep
//   c [rows, cols]        row stride c_stride, 64-byte aligned rows
// Cost: 2 * rows * inner * cols MACs.
void MultiplyTileInt16(const int16_t* a, int64_t a_stride, const int16_t* b, int64_t rows,
                       int64_t inner, int64_t cols, int32_t* c, int64_t c_stride);

// What the softmax step of one block needs and yields, besides the running state.
struct Int16Block {
  int64_t sums = 0;                // KeySums(head_dim)
  const float* key_scales;         // [kKvTileTokens]
  const float* value_log2_scales;  // [kKvTileTokens], at least -64
  const float* query_factors;      // [rows]
  const float* centre_scores;      // [rows]
  const int32_t* begin;            // [rows] the keys that a row attends to; begin >= end: none
  const int32_t* end;
  int16_t* weights;  // out [rows][kKvTileTokens]
  float* keep;       // out [rows] factor of the output so far
  float* gain;       // out [rows] factor of this block's output
};

// Scores to weights for one block: raises max and rescales sum in `state`, adds this block's
// weights to sum, and leaves the output to AddInt16Block.
//
// A weight is 2^score times the scale of its value, so the products with value codes need no
// scales; both enter the exponent. The largest weight of a block is 32767; max is that of
// score + log2(scale) less the logarithm of 32767, so that sum and output times 2^max are true sums
// and steps of SoftmaxTile and of this function may take turns on one state.
//   scores [rows][sums][kKvTileTokens]  integer products of query and key codes
// The per-row arrays (max, sum, keep, gain) must have room for `rows` rounded up to 16.
void SoftmaxInt16Block(const int32_t* scores, const Int16Block& block, const SoftmaxState& state);

// output = output * keep + products * gain, row by row.
//   products [rows, output_cols] of weights and value codes
void AddInt16Block(const int32_t* products, const Int16Block& block, const SoftmaxState& state);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_ATTENTION_TILE_INT16_H_
