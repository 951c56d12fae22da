// SPDX-License-Identifier: Apache-2.0
#ifndef LODE_KERNELS_SOFTMAX_H_
#define LODE_KERNELS_SOFTMAX_H_

#include <cstdint>

namespace lode::kernels {

// x[i] = exp(x[i] - max) / sum over [0, n), n >= 1, in place. Entries of -infinity become 0 unless
// all are. The sum is f32 in 32 interleaved partial sums. Any NaN makes the whole result NaN.
void Softmax(float* x, int64_t n);

// log2 of the sum of 2^x over [0, n), n a multiple of 16; -infinity when all entries are.
float LogSumExp2(const float* x, int64_t n);

// With share = 2^(x[i] - log_sum): shares[i] += share, squares[i] += share^2 over [0, n), n a
// multiple of 16.
void AddShares(const float* x, int64_t n, float log_sum, float* shares, float* squares);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_SOFTMAX_H_
