// SPDX-License-Identifier: Apache-2.0
#include "kernels/matmul.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/matmul_task.h"
#include "kernels/packed_layout.h"

namespace lode::kernels {
namespace {

bool UsesF32(DType packed_type, ActivationType type) {
  return type == ActivationType::kF32 || IsFloatType(packed_type);
}

}  // namespace

int64_t ActivationRowBytes(DType packed_type, ActivationType type, int64_t cols) {
  const int64_t bytes = UsesF32(packed_type, type) ? cols * static_cast<int64_t>(sizeof(float))
                                                   : QuantisedRowBytes(cols);
  return (bytes + kPackedAlignment - 1) / kPackedAlignment * kPackedAlignment;
}

bool SameActivationLayout(DType a, DType b) {
  return IsFloatType(a) == IsFloatType(b);
}

int64_t MatMulScratchBytes(DType packed_type, int64_t cols) {
  return kTileBytes + 2 * kSumsBytes + (IsFloatType(packed_type) ? 0 : SortedOutlierBytes(cols));
}

int64_t SortedOutlierBytes(int64_t cols) {
  return (cols + 1) * static_cast<int64_t>(sizeof(int32_t)) +
         kTokenBlock * MaxOutliers(cols) * static_cast<int64_t>(sizeof(TokenOutlier));
}

// By counting: one place per column.
std::span<const TokenOutlier> SortOutliers(const MatMulTask& task, int64_t first,
                                           int64_t num_tokens) {
  const int64_t cols = task.weights.cols;
  const std::byte* rows = task.activations + first * task.activation_bytes;
  auto* next = reinterpret_cast<int32_t*>(task.scratch + kTileBytes + 2 * kSumsBytes);
  auto* sorted = reinterpret_cast<TokenOutlier*>(next + cols + 1);
  std::fill_n(next, cols + 1, 0);
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (const Outlier& outlier : OutliersOf(rows + t * task.activation_bytes, cols)) {
      ++next[outlier.column + 1];
    }
  }
  for (int64_t c = 0; c < cols; ++c) next[c + 1] += next[c];
  const size_t total = static_cast<size_t>(next[cols]);
  for (int32_t t = 0; t < num_tokens; ++t) {
    for (const Outlier& outlier : OutliersOf(rows + t * task.activation_bytes, cols)) {
      sorted[next[outlier.column]++] = {outlier.column, t, outlier.value};
    }
  }
  return {sorted, total};
}

void MatMul(const PackedWeights& weights, ActivationType type, const std::byte* activations,
            int64_t num_tokens, int64_t group_begin, int64_t group_end, float* out,
            int64_t out_stride, std::byte* scratch) {
  MatMulTask task;
  task.weights = weights;
  task.group_bytes = PackedGroupBytes(weights.type, weights.cols);
  task.activations = activations;
  task.activation_bytes = ActivationRowBytes(weights.type, type, weights.cols);
  task.num_tokens = num_tokens;
  task.group_begin = group_begin;
  task.group_end = group_end;
  task.out = out;
  task.out_stride = out_stride;
  task.scratch = scratch;
  const bool f32 = type == ActivationType::kF32;
  switch (weights.type) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return MatMulFloat(task);
    case DType::kQ8_0:
      return MatMulQ8_0(task, f32);
    case DType::kQ4_0:
      return MatMulQ4_0(task, f32);
    case DType::kQ5_0:
      return MatMulQ5_0(task, f32);
    case DType::kQ4_K:
      return MatMulQ4_K(task, f32);
    case DType::kQ5_K:
      return MatMulQ5_K(task, f32);
    case DType::kQ6_K:
      return MatMulQ6_K(task, f32);
    default:
      LODE_CHECK(false && "not a packed type");
  }
}

}  // namespace lode::kernels
