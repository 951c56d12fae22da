// SPDX-License-Identifier: Apache-2.0
// Tiled contexts: a long context made of a short one, for benchmarks.
//
// The cost of an attention that selects what it reads depends on the keys, and a real prefill of a
// million tokens takes days. So a real prefill of S tokens is repeated: the token at position p has
// the value of token p % S, and its key, turned by what RoPE turns in p - p % S positions. In the
// first layer that is the key which the model itself would store; further up it is that of a token
// whose context was the prefill alone.
#ifndef LODE_ENGINE_TILED_CONTEXT_H_
#define LODE_ENGINE_TILED_CONTEXT_H_

#include <cstdint>

#include "base/status.h"
#include "base/thread_pool.h"
#include "kv/kv_cache.h"
#include "models/model_config.h"

namespace lode {

struct Tiling {
  SequenceId sequence = 0;
  int64_t source_tokens = 0;  // S, a multiple of kKvTileTokens
  int64_t length = 0;         // that the sequence shall have
};

// Extends a sequence of S or more tokens, a multiple of kKvTileTokens that all layers have stored;
// in several calls, if the caller likes. Copies come from the first S tokens only, so types that
// lose bits lose them once more and no further. config and context_len: as the model was loaded
// with (ModelLoadOptions). Needs no memory but the new pages. Cost: decoding, turning and encoding
// all that is new, on the pool's threads, layer by layer; mostly the encoding. InvalidArgument: S
// or the sequence's length is no such multiple, or lengths do not grow from S to the sequence's and
// on to tiling.length. ResourceExhausted: the cache cannot hold them, and nothing is changed.
Status TileContext(const ModelConfig& config, int64_t context_len, const Tiling& tiling,
                   KvCache& cache, ThreadPool& pool);

}  // namespace lode

#endif  // LODE_ENGINE_TILED_CONTEXT_H_
