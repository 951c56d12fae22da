// SPDX-License-Identifier: Apache-2.0
// Root mean square normalisation (Zhang and Sennrich, 2019, arXiv 1910.07467).
#ifndef LODE_KERNELS_NORM_H_
#define LODE_KERNELS_NORM_H_

#include <cstdint>

namespace lode::kernels {

// out[i] = x[i] / sqrt(mean(x^2) + epsilon) * weight[i] for i in [0, n). out may be x. The squares
// are summed in f32 in 32 interleaved partial sums added pairwise, so the relative error of the sum
// is below (n / 32 + 5) * 2^-24. Cost: 2 passes over x.
void RmsNorm(const float* x, const float* weight, int64_t n, float epsilon, float* out);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_NORM_H_
