// SPDX-License-Identifier: Apache-2.0
// Matrix times matrix with quantised weights: out[t][r] = sum_c activations[t][c] * weights[r][c].
//
// Weights are repacked once at load: rows are interleaved in groups of kRowGroup = 16, four
// consecutive columns of a row side by side, so that one 64-byte load holds 4 columns of 16 rows:
// one register of AVX-512, two of AVX2, four of NEON or SSE, and a lane of 32 bits always belongs
// to one row (no horizontal sums). See docs/kernels.md. Activations are f32 (truth) or int8 with
// one scale per 32 columns (fast; float weights take f32). Nothing here allocates or starts
// threads: callers split the row groups among threads.
#ifndef LODE_KERNELS_MATMUL_H_
#define LODE_KERNELS_MATMUL_H_

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace lode::kernels {

inline constexpr int64_t kRowGroup = 16;
inline constexpr int64_t kPackedAlignment =
    64;  // of packed weights and prepared activations, in bytes

enum class ActivationType : uint8_t { kF32, kInt8 };

// A packed matrix does not own its bytes. rows may be any number: the last group is padded with
// zero rows.
struct PackedWeights {
  DType type = DType::kF32;  // of the source; the packed layout follows from it
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* data = nullptr;

  int64_t num_groups() const { return (rows + kRowGroup - 1) / kRowGroup; }
};

// The type in which weights of `type` are packed: itself when a fast kernel exists (F32 F16 BF16
// Q8_0 Q4_0 Q5_0 Q4_K Q5_K Q6_K), else the cheapest of those that loses least (Q8_0, or BF16/F32);
// the caller notes the conversion.
DType PackedTypeFor(DType type);
// Bytes of one packed row group.
int64_t PackedGroupBytes(DType packed_type, int64_t cols);
// Packs row groups [group_begin, group_end) of a row-major matrix of `source_type` into dst (start
// of the whole packed matrix), converting when PackedTypeFor(source_type) != source_type. Threads:
// disjoint groups may run in parallel.
void PackRowGroups(DType source_type, const std::byte* source, int64_t rows, int64_t cols,
                   int64_t group_begin, int64_t group_end, std::byte* dst);

// Bytes of one prepared activation row for weights of this packed type.
int64_t ActivationRowBytes(DType packed_type, ActivationType type, int64_t cols);
// Whether two packed types share prepared activations (then x is quantised once for both).
bool SameActivationLayout(DType a, DType b);
// Prepares num_tokens rows x [num_tokens, cols] f32 (row stride x_stride floats) into out,
// ActivationRowBytes each. A token's prepared form never depends on the other tokens of the batch.
void PrepareActivations(DType packed_type, ActivationType type, const float* x, int64_t x_stride,
                        int64_t num_tokens, int64_t cols, std::byte* out);

// Scratch bytes each calling thread must hand to MatMul (an unpacked weight tile; stays in L1/L2).
int64_t MatMulScratchBytes(DType packed_type, int64_t cols);
// out[t * out_stride + r] for every token t and every row r of the groups [group_begin, group_end).
// One token streams the weights at memory speed; many tokens unpack each group once. The result of
// a token is bit for bit the same whatever num_tokens is. Cost: num_tokens * rows * cols MACs,
// group bytes read once.
void MatMul(const PackedWeights& weights, ActivationType type, const std::byte* activations,
            int64_t num_tokens, int64_t group_begin, int64_t group_end, float* out,
            int64_t out_stride, std::byte* scratch);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_MATMUL_H_
