// SPDX-License-Identifier: Apache-2.0
// Elementwise functions of the feed-forward layers. Results are within 4 ulp (elementwise_test
// compares with double) and the same on every target with fused multiply-add.
#ifndef LODE_KERNELS_ACTIVATION_H_
#define LODE_KERNELS_ACTIVATION_H_

#include <cstdint>

namespace lode::kernels {

// gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i] for i in [0, n). NaN stays NaN.
void SiluMultiply(float* gate, const float* up, int64_t n);
// gate[i] = gelu(gate[i]) * up[i], gelu(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), the
// approximation that Gemma was trained with.
void GeluTanhMultiply(float* gate, const float* up, int64_t n);
// x[i] += y[i].
void AddInto(float* x, const float* y, int64_t n);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_ACTIVATION_H_
