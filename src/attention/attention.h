// SPDX-License-Identifier: Apache-2.0
// The Attention seam: causal softmax attention of new tokens over a sequence's cached keys and
// values.
//
// `eager` is the truth (whole score row in memory, plain loops); every other implementation is
// tested against it by tests/conformance/attention_test. Implementations are listed in registry.cc.
#ifndef LODE_ATTENTION_ATTENTION_H_
#define LODE_ATTENTION_ATTENTION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "kv/kv_cache.h"

namespace lode {

// The new tokens of one sequence in a step. Their keys and values are already stored in the cache.
struct AttentionInputs {
  int32_t layer = 0;
  SequenceId sequence = 0;
  int64_t first_position =
      0;  // of the first query; token i attends to positions <= first_position + i
  int64_t num_tokens = 0;
  int32_t num_heads = 0;       // query heads, a multiple of the cache's num_kv_heads
  float scale = 1.0f;          // multiplies q.k, usually 1/sqrt(head_dim)
  int64_t sliding_window = 0;  // 0: all; n: token at position p attends to positions > p - n
  const float* q = nullptr;    // [num_tokens, num_heads, head_dim] after RoPE, row stride q_stride
                               // floats per token
  int64_t q_stride = 0;
};

class Attention {
 public:
  virtual ~Attention() = default;
  // Writes out [num_tokens, num_heads, head_dim] f32, token stride out_stride floats. Uses the
  // pool's threads; the result does not depend on their number. Softmax and sums are f32.
  virtual void Forward(const AttentionInputs& inputs, const KvCache& cache, ThreadPool& pool,
                       float* out, int64_t out_stride) = 0;
};

// Known names, in registry order: "eager", "flash" (aliases of flash: "sdpa", "flash_attention_2").
std::vector<std::string> AttentionNames();
// InvalidArgument lists the known names.
Result<std::unique_ptr<Attention>> CreateAttention(std::string_view name);

}  // namespace lode

#endif  // LODE_ATTENTION_ATTENTION_H_
