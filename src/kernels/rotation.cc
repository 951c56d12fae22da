// SPDX-License-Identifier: Apache-2.0
#include "kernels/rotation.h"

#include <cmath>

namespace lode::kernels {
namespace {

// x -> x + y, y -> x - y for n numbers.
void Butterfly(float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float sum = x[i] + y[i];
    y[i] = x[i] - y[i];
    x[i] = sum;
  }
}

}  // namespace

void Rotate(float* rows, int64_t num_rows, int64_t n, int64_t stride) {
  const int64_t block = n & -n;
  const float scale = 1.0f / std::sqrt(static_cast<float>(block));
  for (int64_t r = 0; r < num_rows; ++r) {
    float* row = rows + r * stride;
    for (int64_t half = 1; half < block; half *= 2) {
      for (int64_t i = 0; i < n; i += 2 * half) Butterfly(row + i, row + i + half, half);
    }
    for (int64_t i = 0; i < n; ++i) row[i] *= scale;
  }
}

}  // namespace lode::kernels
