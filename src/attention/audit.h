// SPDX-License-Identifier: Apache-2.0
// Audit: one query tile of a sparse attention measured against exact attention over all its keys.
#ifndef LODE_ATTENTION_AUDIT_H_
#define LODE_ATTENTION_AUDIT_H_

#include <cstdint>
#include <span>

#include "attention/attention.h"
#include "attention/flash_tile.h"

namespace lode {

// What a tile attended to and what came out of it. `read` are the keys that it read, ascending.
//   out [num_tokens, num_heads, head_dim], token stride out_stride: of the whole call
// Cost: a few passes over all keys, decoded to f32, on the calling thread.
AuditCounters AuditTile(const AttentionInputs& inputs, const KvCache& cache,
                        const FlashShape& shape, const QueryTile& tile,
                        std::span<const KeyRun> read, const float* out, int64_t out_stride);

}  // namespace lode

#endif  // LODE_ATTENTION_AUDIT_H_
