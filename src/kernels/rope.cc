// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope.h"

namespace lode::kernels {
namespace {

// kPair: distance between the elements of a pair; kStep: distance between pairs.
inline void RotateHead(float* head, int64_t half, int64_t pair, int64_t step,
                       const float* __restrict cos, const float* __restrict sin) {
  for (int64_t i = 0; i < half; ++i) {
    float* a = head + i * step;
    float* b = a + pair;
    const float a0 = *a, b0 = *b;
    *a = a0 * cos[i] - b0 * sin[i];
    *b = b0 * cos[i] + a0 * sin[i];
  }
}

}  // namespace

void ApplyRope(float* x, int64_t num_heads, int64_t head_dim, const float* cos, const float* sin,
               bool interleaved) {
  const int64_t half = head_dim / 2;
  for (int64_t h = 0; h < num_heads; ++h) {
    float* head = x + h * head_dim;
    if (interleaved) {
      RotateHead(head, half, 1, 2, cos, sin);
    } else {
      RotateHead(head, half, half, 1, cos, sin);
    }
  }
}

}  // namespace lode::kernels
