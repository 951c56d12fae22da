// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rope.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lode::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;

HWY_INLINE void RotatePair(VF& a, VF& b, VF cos, VF sin) {
  const VF rotated = hn::NegMulAdd(b, sin, hn::Mul(a, cos));
  b = hn::MulAdd(a, sin, hn::Mul(b, cos));
  a = rotated;
}

// Pairs (x[i], x[i + half]) or (x[2i], x[2i + 1]) of one head.
template <bool kInterleaved>
HWY_INLINE void RotateHead(float* head, int64_t half, const float* HWY_RESTRICT cos,
                           const float* HWY_RESTRICT sin) {
  const DF df;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  int64_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    VF a, b;
    if constexpr (kInterleaved) {
      hn::LoadInterleaved2(df, head + 2 * i, a, b);
    } else {
      a = hn::LoadU(df, head + i);
      b = hn::LoadU(df, head + half + i);
    }
    RotatePair(a, b, hn::LoadU(df, cos + i), hn::LoadU(df, sin + i));
    if constexpr (kInterleaved) {
      hn::StoreInterleaved2(a, b, df, head + 2 * i);
    } else {
      hn::StoreU(a, df, head + i);
      hn::StoreU(b, df, head + half + i);
    }
  }
  for (; i < half; ++i) {
    float* a = kInterleaved ? head + 2 * i : head + i;
    float* b = kInterleaved ? a + 1 : a + half;
    const float a0 = *a, b0 = *b;
    *a = a0 * cos[i] - b0 * sin[i];
    *b = a0 * sin[i] + b0 * cos[i];
  }
}

void Rotate(float* x, int64_t num_heads, int64_t head_dim, const float* cos, const float* sin,
            bool interleaved) {
  for (int64_t h = 0; h < num_heads; ++h, x += head_dim) {
    if (interleaved) {
      RotateHead<true>(x, head_dim / 2, cos, sin);
    } else {
      RotateHead<false>(x, head_dim / 2, cos, sin);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lode::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lode::kernels {

HWY_EXPORT(Rotate);
void ApplyRope(float* x, int64_t num_heads, int64_t head_dim, const float* cos, const float* sin,
               bool interleaved) {
  HWY_DYNAMIC_DISPATCH(Rotate)(x, num_heads, head_dim, cos, sin, interleaved);
}

}  // namespace lode::kernels
#endif  // HWY_ONCE
