// SPDX-License-Identifier: Apache-2.0
#include "kernels/softmax.h"

#include <algorithm>
#include <cmath>

namespace lode::kernels {

void Softmax(float* x, int64_t n) {
  constexpr int kPartials = 32;
  const float max = *std::max_element(x, x + n);
  float partial[kPartials] = {};
  for (int64_t i = 0; i < n; ++i) {
    x[i] = std::exp(x[i] - max);
    partial[i % kPartials] += x[i];
  }
  float sum = 0;
  for (float p : partial) sum += p;
  const float scale = 1.0f / sum;
  for (int64_t i = 0; i < n; ++i) x[i] *= scale;
}

}  // namespace lode::kernels
