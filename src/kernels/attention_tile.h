// SPDX-License-Identifier: Apache-2.0
// The two kernels of exact attention over tiles: a small f32 matrix product and one step of online
// softmax (Milakov and Gimelshein 2018; Rabe and Staats 2021; Dao et al. 2022).
//
// Rows are queries that share a KV head, columns of a score tile are keys. Scores are in units of
// log2 (queries are multiplied with scale * log2(e) once), so that weights are 2^(score - max).
// Everything accumulates in f32. Plain functions: no allocation, no threads.
#ifndef LODE_KERNELS_ATTENTION_TILE_H_
#define LODE_KERNELS_ATTENTION_TILE_H_

#include <cstdint>

namespace lode::kernels {

// The columns of b and c in MultiplyTile are padded to multiples of this.
inline constexpr int64_t kTileColumnStep = 32;
constexpr int64_t PadTileColumns(int64_t columns) {
  return (columns + kTileColumnStep - 1) / kTileColumnStep * kTileColumnStep;
}

// c = a b, or c += a b when `accumulate`.
//   a [rows, inner]   row stride a_stride
//   b [inner, cols]   row stride cols, cols a multiple of kTileColumnStep, 64-byte aligned
//   c [rows, cols]    row stride c_stride, 64-byte aligned rows
// The result of a row does not depend on the other rows. Cost: rows * inner * cols MACs.
void MultiplyTile(const float* a, int64_t a_stride, const float* b, int64_t rows, int64_t inner,
                  int64_t cols, bool accumulate, float* c, int64_t c_stride);

// The running state of softmax over the keys seen so far, per row.
struct SoftmaxState {
  float* max;     // [rows], -infinity before the first key
  float* sum;     // [rows] of 2^(score - max)
  float* output;  // [rows, output_cols] weighted sums of values, scaled like `sum`
  int64_t rows = 0;
  int64_t output_cols = 0;    // a multiple of kTileColumnStep
  int64_t output_stride = 0;  // 64-byte aligned rows
};

// Takes a score tile into the state: raises max, rescales sum and output where it rose, turns
// scores into weights and adds them to sum. The caller then adds weights times values to output.
//   scores [rows, cols]  row stride score_stride, cols a multiple of kTileColumnStep
//   begin, end [rows]    the keys that a row attends to, 0 <= begin, end <= cols; weights outside
//                        become 0; an empty range (begin >= end) leaves the row's state as it is
void SoftmaxTile(float* scores, int64_t score_stride, int64_t cols, const int32_t* begin,
                 const int32_t* end, const SoftmaxState& state);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_ATTENTION_TILE_H_
