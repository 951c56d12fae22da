// SPDX-License-Identifier: Apache-2.0
// The measurements of `lode bench kv`: no model, only the cache and made-up sequences.
//
// Lengths follow the load of text 2's customer-service dialogues: log-normal, mean 2,456 tokens,
// 99th percentile 7,892.
#ifndef LODE_CLI_KV_BENCH_H_
#define LODE_CLI_KV_BENCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/kv_cache.h"

namespace lode::cli {

// Threads that extend, end and begin sequences, 32 tokens at a time. Without work in between it is
// the hardest load that an allocator can get; with it, a thread computes for so long after each
// call.
struct AllocationResult {
  int threads = 0;
  double work_us = 0.0;
  double seconds = 0.0;
  int64_t extends = 0;  // calls of Extend, each for 32 tokens
  int64_t blocks = 0;   // allocated
  int64_t refills = 0;
  double pool_wait_share = 0.0;    // of all threads' time: waiting for the pools' locks
  double prefix_wait_share = 0.0;  // and for the prefix cache's
  double p50_us = 0.0, p99_us = 0.0, p999_us = 0.0, max_us = 0.0;  // of a call of Extend
};
Result<AllocationResult> MeasureAllocation(const KvCacheOptions& geometry, int threads,
                                           double work_us, double seconds);

// One sequence that grows to four times the length the cache was made for, a token at a time.
struct GrowthResult {
  int64_t tokens = 0;
  double p50_us = 0.0, p999_us = 0.0, max_us = 0.0;  // of a call of Extend
};
Result<GrowthResult> MeasureGrowth(KvCacheOptions geometry, int64_t max_tokens);

// 64 sequences at a time for an hour, each at 10 tokens a second, in simulated time.
struct HourResult {
  bool defragments = false;
  int64_t sequences = 0;            // that were served
  double mean_fragmentation = 0.0;  // sampled every 10 s
  double largest_fragmentation = 0.0;
  double after_pass = 0.0;  // the largest right after a pass
  double longest_pass_ms = 0.0;
  int64_t moved_blocks = 0;
};
Result<HourResult> SimulateHour(double defragment_seconds);

struct BlockSizeResult {
  std::string name;
  double bytes_per_token = 0.0;  // of blocks, pages and tables
  double wasted_share = 0.0;     // of these bytes: more than codes of one long tile would take
  double found_share = 0.0;      // of prompt tokens in a simulated chat load: found in the cache
  double tlb_hit_rate = 0.0;     // simulated: 64-entry and 1,536-entry LRU, 4 KiB pages
  double line_runs = 0.0;        // mean cache lines read one after the other in memory
};
// For dtype's blocks of each fixed size and the adaptive plan.
Result<std::vector<BlockSizeResult>> CompareBlockSizes(const KvCacheOptions& geometry);

}  // namespace lode::cli

#endif  // LODE_CLI_KV_BENCH_H_
