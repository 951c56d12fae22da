// SPDX-License-Identifier: Apache-2.0
// What the per-format kernel files share with matmul.cc: the arguments of one MatMul call and the
// entry points, each of which dispatches once to the best target.
#ifndef LODE_KERNELS_MATMUL_TASK_H_
#define LODE_KERNELS_MATMUL_TASK_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/matmul.h"

namespace lode::kernels {

struct MatMulTask {
  PackedWeights weights;
  int64_t group_bytes = 0;
  const std::byte* activations = nullptr;
  int64_t activation_bytes = 0;  // of one token
  int64_t num_tokens = 0;
  int64_t group_begin = 0, group_end = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  std::byte* scratch = nullptr;
};

// Scratch: a tile of unpacked weights, then the running sums of one token block, then those of its
// outliers, then the outliers themselves, sorted.
inline constexpr int64_t kTileBytes = 24 * 1024;
inline constexpr int64_t kTokenBlock = 128;
inline constexpr int64_t kSumsBytes = kTokenBlock * kRowGroup * sizeof(float);

// An outlier (packed_layout.h) of one token of a block.
struct TokenOutlier {
  int32_t column;
  int32_t token;  // in the block
  float value;
};

// Bytes that SortOutliers may write.
int64_t SortedOutlierBytes(int64_t cols);
// All outliers of tokens [first, first + num_tokens), num_tokens <= kTokenBlock, in the order of
// their columns and then of their tokens; in the task's scratch.
std::span<const TokenOutlier> SortOutliers(const MatMulTask& task, int64_t first,
                                           int64_t num_tokens);

// matmul_<format>.cc. `f32`: activations are f32, else ActivationBlock. Float weights: always f32.
void MatMulQ8_0(const MatMulTask& task, bool f32);
void MatMulQ4_0(const MatMulTask& task, bool f32);
void MatMulQ5_0(const MatMulTask& task, bool f32);
void MatMulQ4_K(const MatMulTask& task, bool f32);
void MatMulQ5_K(const MatMulTask& task, bool f32);
void MatMulQ6_K(const MatMulTask& task, bool f32);
void MatMulFloat(const MatMulTask& task);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_MATMUL_TASK_H_
