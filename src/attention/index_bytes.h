// SPDX-License-Identifier: Apache-2.0
// What an attention keeps of a context besides the cache, in bytes, for plans.
#ifndef LODE_ATTENTION_INDEX_BYTES_H_
#define LODE_ATTENTION_INDEX_BYTES_H_

#include <cstdint>
#include <string_view>

#include "attention/attention.h"

namespace lode {

struct IndexShape {
  int64_t tokens = 0;
  int64_t num_layers = 0;
  int64_t sliding_layers = 0;  // of these
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
};

// 0 for an attention that keeps nothing. Leaves aside calibrations (HeadProjection::BytesFor),
// buffers of a step, and slack of growth. Precondition: CheckAttentionName(name) is ok.
int64_t IndexBytes(std::string_view name, const AttentionContext& context, const IndexShape& shape);

}  // namespace lode

#endif  // LODE_ATTENTION_INDEX_BYTES_H_
