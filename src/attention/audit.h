// SPDX-License-Identifier: Apache-2.0
// Audit: one query tile of a sparse attention measured against exact attention over all its keys.
#ifndef LODE_ATTENTION_AUDIT_H_
#define LODE_ATTENTION_AUDIT_H_

#include <cstdint>
#include <vector>

#include "attention/attention.h"
#include "attention/flash_tile.h"
#include "base/aligned_vector.h"

namespace lode {

// How a tile chose its keys.
struct TileSelection {
  std::vector<KeyRun> read;             // the keys that it read, ascending
  KeyRun ranked;                        // those whose scores were estimated by codes
  AlignedVector<float> estimates = {};  // [rows][ranked.end - ranked.begin], or empty
};

// What a tile attended to and what came out of it.
//   out [num_tokens, num_heads, head_dim], token stride out_stride: of the whole call
// Cost: a few passes over all keys, decoded to f32, on the calling thread.
AuditCounters AuditTile(const AttentionInputs& inputs, const KvCache& cache,
                        const FlashShape& shape, const QueryTile& tile,
                        const TileSelection& selection, const float* out, int64_t out_stride);

}  // namespace lode

#endif  // LODE_ATTENTION_AUDIT_H_
