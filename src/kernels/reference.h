// SPDX-License-Identifier: Apache-2.0
// Scalar truth for the kernels: plain loops that state the arithmetic. Tests compare with them, and
// CPUs without a vector unit that we know run them.
//
// The matrix kernels must equal these bit for bit on every target with fused multiply-add: integer
// dot products are exact whatever their order, and the f32 operations are those written here, in
// this order. Targets without it (SSE) round products separately and agree to about 1e-6.
#ifndef LODE_KERNELS_REFERENCE_H_
#define LODE_KERNELS_REFERENCE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/matmul.h"

namespace lode::kernels {

// Values of one row of packed weights, decoded to f32 from the packed bytes: out[cols]. Equal bit
// for bit to Dequantize of the source row.
void ReferenceUnpackRow(const PackedWeights& weights, int64_t row, float* out);

// PrepareActivations, one row: x[cols] into out (ActivationRowBytes).
void ReferencePrepareActivations(DType packed_type, ActivationType type, const float* x,
                                 int64_t cols, std::byte* out);

// As MatMul, from packed weights and prepared activations, one output at a time.
void ReferenceMatMul(const PackedWeights& weights, ActivationType type,
                     const std::byte* activations, int64_t num_tokens, int64_t group_begin,
                     int64_t group_end, float* out, int64_t out_stride);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_REFERENCE_H_
