// SPDX-License-Identifier: Apache-2.0
// `mla_rff`: linear attention with random Fourier features, the baseline that text 2 calls "MLA
// (V3)" (docs/glossary.md). It is no softmax attention: what it loses is to be measured, not tested
// against `eager`.
//
//   out(q) = Phi(q) (Phi(K)^T V) / max(Phi(q) . Phi(K)^T 1, n / sqrt(d_proj))
//   Phi(x)_j = sqrt(2 / d_proj) cos(w_j . x sqrt(scale) + b_j)
//
// with w_j standard normal and b_j uniform in [0, 2 pi): Rahimi and Recht, "Random Features for
// Large-Scale Kernel Machines", NIPS 2007, Algorithm 1. On average Phi(q) . Phi(k) is the Gaussian
// kernel exp(-scale |q - k|^2 / 2), which is softmax's exp(scale q.k) but for a factor of q alone,
// which cancels, and one of k alone, exp(scale |k|^2 / 2), which is left out: it overflows with the
// keys of real models. So where all keys are equally long the average is that of softmax attention.
//
// The text gives Phi(Q)(Phi(K)^T V) with d_proj 64 and leaves open: the features (above, those of
// the paper; not Performer's positive ones), the bandwidth (the one of softmax's kernel), the
// normalisation (by the sum of weights, as in Katharopoulos et al. 2020, or outputs would grow with
// the number of keys n), and what to do with weights that cancel, as cosines have either sign: the
// sum is kept above n times the standard deviation of one estimate. One projection serves all
// heads and layers. The text caches Phi(K) and Phi(V) of every token in 16 bits; here their sums
// are kept, which is all that the formula needs, besides the cache's own keys and values.
#ifndef LODE_ATTENTION_MLA_RFF_H_
#define LODE_ATTENTION_MLA_RFF_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/attention.h"

namespace lode {

class RandomFourierFeatures {
 public:
  RandomFourierFeatures(int64_t head_dim, const RffOptions& options);

  static int64_t BytesFor(const RffOptions& options, int64_t head_dim) {
    return options.d_proj * (head_dim + 1) * int64_t{sizeof(float)};
  }
  int64_t head_dim() const { return head_dim_; }
  int64_t d_proj() const { return static_cast<int64_t>(phases_.size()); }
  std::span<const float> frequencies() const { return frequencies_; }  // [head_dim][d_proj]
  std::span<const float> phases() const { return phases_; }            // [d_proj]

  // out [d_proj] = Phi of the vector x [head_dim], whose components lie `stride` floats apart and
  // are multiplied with root_scale. Cost: head_dim * d_proj MACs and d_proj cosines.
  void Map(const float* x, int64_t stride, float root_scale, float* out) const;

 private:
  int64_t head_dim_;
  std::vector<float> frequencies_, phases_;
};

// Causal, grouped heads, sliding windows (keys that leave the window are subtracted). The sums of a
// sequence, layer and KV head are kept up from the cache, whatever attention ran before; after
// Truncate they are those of the last catching up, or made anew from the cache. `scale` must be the
// same in all calls. Cost per token and head: 2 head_dim * d_proj MACs, however many keys there
// are. Precondition: options.d_proj >= 1.
std::unique_ptr<Attention> CreateMlaRffAttention(const RffOptions& options);

// What it keeps per layer and KV head of a sequence, however long, at most.
int64_t MlaRffStateBytes(const RffOptions& options, int64_t head_dim);

}  // namespace lode

#endif  // LODE_ATTENTION_MLA_RFF_H_
