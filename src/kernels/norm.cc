// SPDX-License-Identifier: Apache-2.0
#include "kernels/norm.h"

#include <cmath>

namespace lode::kernels {
namespace {

constexpr int kPartials = 32;  // a whole number of vectors on every target

float SumOfSquares(const float* x, int64_t n) {
  float partial[kPartials] = {};
  int64_t i = 0;
  for (; i + kPartials <= n; i += kPartials) {
    for (int k = 0; k < kPartials; ++k) partial[k] += x[i + k] * x[i + k];
  }
  for (int k = 0; i + k < n; ++k) partial[k] += x[i + k] * x[i + k];
  for (int width = kPartials / 2; width > 0; width /= 2) {
    for (int k = 0; k < width; ++k) partial[k] += partial[k + width];
  }
  return partial[0];
}

}  // namespace

void RmsNorm(const float* x, const float* weight, int64_t n, float epsilon, float* out) {
  const float mean = SumOfSquares(x, n) / static_cast<float>(n);
  const float scale = 1.0f / std::sqrt(mean + epsilon);
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

}  // namespace lode::kernels
