// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding (Su et al., 2021, arXiv 2104.09864), applied to one position.
#ifndef LODE_KERNELS_ROPE_H_
#define LODE_KERNELS_ROPE_H_

#include <cstdint>

namespace lode::kernels {

// Rotates each head of x [num_heads, head_dim] in place: the pair (a, b) of index i becomes
// (a cos[i] - b sin[i], b cos[i] + a sin[i]). cos and sin [head_dim / 2] are of this position.
// Pairs are (x[i], x[i + head_dim / 2]), or (x[2i], x[2i + 1]) when interleaved (GGUF's llama).
void ApplyRope(float* x, int64_t num_heads, int64_t head_dim, const float* cos, const float* sin,
               bool interleaved);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_ROPE_H_
