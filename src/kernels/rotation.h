// SPDX-License-Identifier: Apache-2.0
// The rotation in which values are quantised: it spreads a component that stands out over many.
//
// A row is cut into blocks of the largest power of two that divides its length, and every block is
// multiplied with the Hadamard matrix of that size over its square root. That is its own inverse
// and keeps lengths, so weighted sums of rotated rows are rotated back once.
#ifndef LODE_KERNELS_ROTATION_H_
#define LODE_KERNELS_ROTATION_H_

#include <cstdint>

namespace lode::kernels {

// Rotates num_rows rows of n floats in place; row stride in floats. n is a multiple of
// kHeadDimStep. Cost: n log2(block) additions per row.
void Rotate(float* rows, int64_t num_rows, int64_t n, int64_t stride);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_ROTATION_H_
