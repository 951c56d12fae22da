// SPDX-License-Identifier: Apache-2.0
// KvCacheStats: what the cache counts, and the ratios made of it (Prometheus names in comments).
//
// Every ratio lies in [0, 1], also while nothing was counted yet. Counters grow from the cache's
// creation on; what is "now" says so.
#ifndef LODE_KV_KV_STATS_H_
#define LODE_KV_KV_STATS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lode {

// Sums over the life of a pool, but for the first five.
struct LayerPoolStats {
  int64_t used_blocks = 0;    // handed out now
  int64_t total_blocks = 0;   // that the slabs have room for
  int64_t used_bytes = 0;     // of these
  int64_t touched_bytes = 0;  // that may be resident: used, or used once and not given back yet
  int64_t slab_bytes = 0;     // of address space in slabs
  int64_t refills = 0;        // batches from the common space to a thread's list
  int64_t drains = 0;         // batches back
  int64_t lock_waits = 0;     // times that a thread found a lock taken
  int64_t lock_wait_nanoseconds = 0;

  LayerPoolStats& operator+=(const LayerPoolStats& other);
};

// Why the blocks of a prompt from some index on had to be computed.
enum class PrefixMiss : uint8_t {
  kNone,       // all full blocks were found
  kTooShort,   // the prompt does not fill a block
  kUnknown,    // no earlier text went on like this
  kEvicted,    // one did, but memory was needed
  kCollision,  // another text has the same hash
};
inline constexpr size_t kNumPrefixMisses = 5;
std::string_view PrefixMissName(PrefixMiss miss);  // "none", "too_short", "unknown", ...

struct PrefixCacheStats {
  int64_t cached_pages = 0;     // published and alive
  int64_t evictable_pages = 0;  // of these, free to go now
  int64_t lookups = 0;
  int64_t wanted_blocks = 0;  // full blocks of the texts looked up
  int64_t found_blocks = 0;   // of these, found
  int64_t found_tokens = 0;
  std::array<int64_t, kNumPrefixMisses> misses{};  // lookups by reason
  int64_t collisions = 0;                          // hashes that met a different text
  int64_t evicted_pages = 0;
  int64_t lock_waits = 0;
  int64_t lock_wait_nanoseconds = 0;
};

struct KvDefragmentation {
  int64_t moved_blocks = 0;
  bool finished = true;  // false: should_stop ended the pass
};

struct KvCacheStats {
  double seconds = 0.0;        // since the cache was created
  int64_t budget_bytes = 0;    // may be used
  int64_t block_bytes = 0;     // used now by blocks
  int64_t open_bytes = 0;      // and by open tiles
  int64_t metadata_bytes = 0;  // and, roughly, by pages and tables
  int64_t sequences = 0;       // now
  int64_t neighbours = 0;      // pairs of blocks that follow each other in a text, now
  int64_t breaks = 0;          // of these, pairs that do not in memory
  int64_t preemptions = 0;
  int64_t defragmentations = 0;
  int64_t moved_blocks = 0;
  std::vector<LayerPoolStats> layers;
  PrefixCacheStats prefix;

  LayerPoolStats pools() const;  // all layers

  // hca_cache_hit_rate: blocks of prompts that were in memory / all full blocks of prompts. 1 while
  // nothing was asked for.
  double hit_rate() const;
  // hca_eviction_rate: pages given up per second.
  double eviction_rate() const;
  // hca_fragmentation_rate: share of neighbours that are apart in memory.
  double fragmentation_rate() const;

  // "hca_cache_stats hit_rate=0.93 ...": one line for the log.
  std::string LogLine() const;
};

}  // namespace lode

#endif  // LODE_KV_KV_STATS_H_
