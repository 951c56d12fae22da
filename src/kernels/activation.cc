// SPDX-License-Identifier: Apache-2.0
#include "kernels/activation.h"

#include <cmath>

namespace lode::kernels {

void SiluMultiply(float* gate, const float* up, int64_t n) {
  for (int64_t i = 0; i < n; ++i) gate[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
}

void GeluTanhMultiply(float* gate, const float* up, int64_t n) {
  constexpr float kSqrt2OverPi = 0.7978845608f;
  for (int64_t i = 0; i < n; ++i) {
    const float x = gate[i];
    const float inner = kSqrt2OverPi * (x + 0.044715f * x * x * x);
    gate[i] = 0.5f * x * (1.0f + std::tanh(inner)) * up[i];
  }
}

void AddInto(float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] += y[i];
}

}  // namespace lode::kernels
