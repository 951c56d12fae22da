// SPDX-License-Identifier: Apache-2.0
#include "cli/kv_bench.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <list>
#include <numbers>
#include <thread>
#include <unordered_map>

#include "base/clock.h"
#include "base/random.h"

namespace lode::cli {
namespace {

constexpr int kSequences = 64;
constexpr int64_t kExtendTokens = 32;

// Log-normal with mean 2,456 and 99th percentile 7,892: sigma solves exp(2.326 s - s^2 / 2) =
// 7892 / 2456, and mu = log(2456) - s^2 / 2.
constexpr double kSigma = 0.571;
int64_t SampleLength(Random& random) {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - random.NextUnit()));
  const double normal = radius * std::cos(2.0 * std::numbers::pi * random.NextUnit());
  const double mu = std::log(2456.0) - kSigma * kSigma / 2;
  return std::clamp<int64_t>(static_cast<int64_t>(std::exp(mu + kSigma * normal)), 16, 32'768);
}

double Percentile(std::vector<double>& values, double share) {
  if (values.empty()) return 0.0;
  const auto at = static_cast<size_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

// Rows of zeros for one layer; the cache's work does not depend on what is stored.
class Zeros {
 public:
  explicit Zeros(const KvCacheOptions& options)
      : rows_(static_cast<size_t>(kMaxRows * options.num_kv_heads * options.head_dim)) {}
  // Reserves and stores num_tokens tokens in all layers.
  Status Grow(KvCache& cache, SequenceId sequence, int64_t num_tokens) const {
    const int64_t first = cache.Length(sequence);
    LODE_RETURN_IF_ERROR(cache.Extend(sequence, num_tokens));
    for (int64_t done = 0; done < num_tokens; done += kMaxRows) {
      const int64_t n = std::min(kMaxRows, num_tokens - done);
      for (int32_t layer = 0; layer < cache.options().num_layers; ++layer) {
        cache.Store(layer, sequence, first + done, n, rows_.data(), rows_.data());
      }
    }
    return OkStatus();
  }

 private:
  static constexpr int64_t kMaxRows = 512;
  std::vector<float> rows_;
};

// Keeps a CPU busy for this much of the thread's own time.
void Work(double microseconds) {
  const auto now = [] {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
  };
  if (microseconds <= 0.0) return;
  for (const double end = now() + microseconds; now() < end;) {
  }
}

// What one thread of MeasureAllocation did.
struct Extends {
  std::vector<double> microseconds;  // of each call
  int64_t pages = 0;
};
Result<Extends> ExtendUntil(KvCache& cache, uint64_t seed, double work_us,
                            const std::atomic<bool>& stop) {
  Random random(seed);
  Extends extends;
  while (!stop.load(std::memory_order_relaxed)) {
    LODE_ASSIGN_OR_RETURN(const SequenceId sequence, cache.AddSequence());
    const int64_t length = SampleLength(random);
    for (int64_t at = 0; at < length && !stop.load(std::memory_order_relaxed);
         at += kExtendTokens) {
      const Stopwatch stopwatch;
      LODE_RETURN_IF_ERROR(cache.Extend(sequence, kExtendTokens));
      extends.microseconds.push_back(stopwatch.Seconds() * 1e6);
      Work(work_us);
    }
    extends.pages += cache.plan().NumFullBlocks(cache.Length(sequence));
    cache.RemoveSequence(sequence);
  }
  return extends;
}

}  // namespace

Result<AllocationResult> MeasureAllocation(const KvCacheOptions& geometry, int threads,
                                           double work_us, double seconds) {
  KvCacheOptions options = geometry;
  options.max_tokens = int64_t{threads} * 40'000;
  LODE_ASSIGN_OR_RETURN(const auto cache, KvCache::Create(options));
  std::atomic<bool> stop = false;
  std::vector<Result<Extends>> done(static_cast<size_t>(threads), Extends());
  std::vector<std::thread> workers;
  workers.reserve(static_cast<size_t>(threads));
  const Stopwatch stopwatch;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      done[static_cast<size_t>(t)] = ExtendUntil(*cache, static_cast<uint64_t>(t), work_us, stop);
    });
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  stop = true;
  for (std::thread& worker : workers) worker.join();

  AllocationResult result;
  result.threads = threads;
  result.work_us = work_us;
  result.seconds = stopwatch.Seconds();
  std::vector<double> all;
  int64_t pages = 0;
  for (const Result<Extends>& thread : done) {
    LODE_RETURN_IF_ERROR(thread.status());
    all.insert(all.end(), thread->microseconds.begin(), thread->microseconds.end());
    pages += thread->pages;
  }
  const KvCacheStats stats = cache->stats();
  const double thread_nanoseconds = result.seconds * 1e9 * threads;
  result.extends = static_cast<int64_t>(all.size());
  result.blocks = pages * options.num_layers * std::min(options.num_kv_heads, 4);
  result.refills = stats.pools().refills;
  result.pool_wait_share =
      static_cast<double>(stats.pools().lock_wait_nanoseconds) / thread_nanoseconds;
  result.prefix_wait_share =
      static_cast<double>(stats.prefix.lock_wait_nanoseconds) / thread_nanoseconds;
  result.p50_us = Percentile(all, 0.5);
  result.p99_us = Percentile(all, 0.99);
  result.p999_us = Percentile(all, 0.999);
  result.max_us = Percentile(all, 1.0);
  return result;
}

Result<GrowthResult> MeasureGrowth(KvCacheOptions geometry, int64_t max_tokens) {
  geometry.max_tokens = max_tokens;
  geometry.memory_bytes = KvCache::BytesFor(geometry, 5 * max_tokens);
  LODE_ASSIGN_OR_RETURN(const auto cache, KvCache::Create(geometry));
  LODE_ASSIGN_OR_RETURN(const SequenceId sequence, cache->AddSequence());
  GrowthResult result;
  result.tokens = 4 * max_tokens;
  std::vector<double> microseconds;
  for (int64_t i = 0; i < result.tokens; ++i) {
    const Stopwatch stopwatch;
    LODE_RETURN_IF_ERROR(cache->Extend(sequence, 1));
    microseconds.push_back(stopwatch.Seconds() * 1e6);
  }
  result.p50_us = Percentile(microseconds, 0.5);
  result.p999_us = Percentile(microseconds, 0.999);
  result.max_us = Percentile(microseconds, 1.0);
  return result;
}

Result<HourResult> SimulateHour(double defragment_seconds) {
  // Fragmentation depends on how many blocks there are and when they come, not on their size.
  KvCacheOptions options = {.num_layers = 2, .num_kv_heads = 2, .head_dim = 8};
  options.max_tokens = kSequences * 40'000;
  LODE_ASSIGN_OR_RETURN(const auto cache, KvCache::Create(options));
  struct Running {
    SequenceId id = -1;
    int64_t left = 0;  // tokens still to be generated
  };
  std::vector<Running> running(kSequences);
  Random random(7);
  HourResult result;
  result.defragments = defragment_seconds > 0;
  constexpr int kSeconds = 3600, kTokensPerSecond = 10, kSampleSeconds = 10;
  double next_pass = defragment_seconds;
  for (int second = 0; second < kSeconds; ++second) {
    for (Running& r : running) {
      if (r.left == 0) {
        if (r.id >= 0) cache->RemoveSequence(r.id);
        LODE_ASSIGN_OR_RETURN(r.id, cache->AddSequence());
        // Nine tenths are prompt, which comes at once.
        const int64_t length = SampleLength(random);
        r.left = std::max<int64_t>(1, length / 10);
        LODE_RETURN_IF_ERROR(cache->Extend(r.id, length - r.left));
        ++result.sequences;
      }
      const int64_t n = std::min<int64_t>(kTokensPerSecond, r.left);
      LODE_RETURN_IF_ERROR(cache->Extend(r.id, n));
      r.left -= n;
    }
    if (result.defragments && second >= next_pass) {
      const Stopwatch stopwatch;
      result.moved_blocks += cache->Defragment([] { return false; }).moved_blocks;
      result.longest_pass_ms = std::max(result.longest_pass_ms, stopwatch.Seconds() * 1e3);
      result.after_pass = std::max(result.after_pass, cache->stats().fragmentation_rate());
      next_pass += defragment_seconds;
    }
    if (second % kSampleSeconds != 0) continue;
    const double now = cache->stats().fragmentation_rate();
    result.mean_fragmentation += now * kSampleSeconds / kSeconds;
    result.largest_fragmentation = std::max(result.largest_fragmentation, now);
  }
  return result;
}

namespace {

// A translation buffer with least-recently-used replacement.
class Tlb {
 public:
  explicit Tlb(size_t entries) : entries_(entries) {}
  bool Access(uintptr_t page) {
    const auto it = places_.find(page);
    if (it != places_.end()) {
      order_.splice(order_.begin(), order_, it->second);
      return true;
    }
    if (places_.size() == entries_) {
      places_.erase(order_.back());
      order_.pop_back();
    }
    order_.push_front(page);
    places_[page] = order_.begin();
    return false;
  }

 private:
  const size_t entries_;
  std::list<uintptr_t> order_;
  std::unordered_map<uintptr_t, std::list<uintptr_t>::iterator> places_;
};

// The addresses that one decode step of all sequences reads, a cache line at a time.
class ReadTrace {
 public:
  void Read(const std::byte* data, int64_t bytes) {
    const auto begin = reinterpret_cast<uintptr_t>(data);
    for (uintptr_t line = begin / 64; line < (begin + static_cast<uintptr_t>(bytes) + 63) / 64;
         ++line) {
      ++lines_;
      if (line != last_line_ + 1) ++runs_;
      last_line_ = line;
      const uintptr_t page = line / 64;
      // Lines of one page that follow each other need one look-up of the first level.
      if (page == last_page_) {
        ++hits_;
        continue;
      }
      last_page_ = page;
      const bool first = first_.Access(page), second = second_.Access(page);
      hits_ += first || second ? 1 : 0;
    }
  }
  double hit_rate() const { return static_cast<double>(hits_) / static_cast<double>(lines_); }
  double mean_run() const { return static_cast<double>(lines_) / static_cast<double>(runs_); }

 private:
  Tlb first_{64}, second_{1536};
  int64_t lines_ = 0, hits_ = 0, runs_ = 0;
  uintptr_t last_line_ = 0, last_page_ = 0;
};

// 64 sequences that grew side by side, and what a step reads of one layer.
Status MeasureReads(KvCacheOptions options, BlockSizeResult& result) {
  options.num_layers = 1;
  options.max_tokens = kSequences * 40'000;
  LODE_ASSIGN_OR_RETURN(const auto cache, KvCache::Create(options));
  const Zeros zeros(options);
  Random random(3);
  std::vector<std::pair<SequenceId, int64_t>> sequences;
  int64_t tokens = 0, longest = 0;
  for (int i = 0; i < kSequences; ++i) {
    LODE_ASSIGN_OR_RETURN(const SequenceId id, cache->AddSequence());
    sequences.emplace_back(id, SampleLength(random));
    // Whole blocks, so that what is counted is not the open tile's.
    sequences.back().second += 128 - sequences.back().second % 128;
    tokens += sequences.back().second;
    longest = std::max(longest, sequences.back().second);
  }
  for (int64_t at = 0; at < longest; at += 8) {
    for (const auto& [id, length] : sequences) {
      if (at < length) LODE_RETURN_IF_ERROR(zeros.Grow(*cache, id, 8));
    }
  }
  const KvCacheStats stats = cache->stats();
  const double bytes = static_cast<double>(stats.block_bytes + stats.metadata_bytes);
  result.bytes_per_token = bytes / static_cast<double>(tokens);
  KvCacheOptions ideal = options;
  ideal.block_size = BlockPlan::kDefaultBlockSize;
  ideal.adaptive_blocks = true;
  result.wasted_share = 1.0 - KvCache::BytesPerToken(ideal) * static_cast<double>(tokens) / bytes;

  ReadTrace trace;
  for (const auto& [id, length] : sequences) {
    for (int32_t head = 0; head < options.num_kv_heads; ++head) {
      for (int64_t tile = 0; tile < cache->plan().NumFullTiles(length); ++tile) {
        const KvTile t = cache->Tile(id, 0, head, tile);
        trace.Read(t.keys, t.key_codec->key_tile_bytes(t.shape));
        trace.Read(t.values, t.value_codec->value_tile_bytes(t.shape));
      }
    }
  }
  result.tlb_hit_rate = trace.hit_rate();
  result.line_runs = trace.mean_run();
  return OkStatus();
}

// 64 conversations of 12 turns in random order; eight system prompts; a budget that holds about two
// thirds of it all. Every turn sends the whole conversation again.
Status MeasureReuse(KvCacheOptions options, BlockSizeResult& result) {
  options.num_layers = 1;
  options.num_kv_heads = 1;
  options.head_dim = 8;
  options.max_tokens = 40'000;
  LODE_ASSIGN_OR_RETURN(const auto cache, KvCache::Create(options));
  const Zeros zeros(options);
  Random random(5);
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(random.NextU64() % n); };
  std::vector<std::vector<int32_t>> texts(kSequences);
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto system = static_cast<int32_t>(i % 8);
    for (int32_t t = 0; t < 37 + 61 * system; ++t) texts[i].push_back(system * 1000 + t);
  }
  int64_t asked = 0, found = 0;
  int32_t next_token = 100'000;
  for (int turn = 0; turn < 12 * kSequences; ++turn) {
    std::vector<int32_t>& text = texts[static_cast<size_t>(below(kSequences))];
    const auto add = [&](int64_t n) {
      for (; n > 0; --n) text.push_back(next_token++);
    };
    add(10 + below(70));  // the question
    LODE_ASSIGN_OR_RETURN(const SequenceId id, cache->AddSequence());
    const int64_t known = cache->AttachPrefix(id, text);
    found += known;
    asked += static_cast<int64_t>(text.size());
    add(20 + below(150));  // the answer
    LODE_RETURN_IF_ERROR(zeros.Grow(*cache, id, static_cast<int64_t>(text.size()) - known));
    cache->Publish(id, known, std::span(text).subspan(static_cast<size_t>(known)));
    cache->RemoveSequence(id);
  }
  result.found_share = static_cast<double>(found) / static_cast<double>(asked);
  return OkStatus();
}

}  // namespace

Result<std::vector<BlockSizeResult>> CompareBlockSizes(const KvCacheOptions& geometry) {
  std::vector<BlockSizeResult> results;
  for (const bool adaptive : {false, true}) {
    for (const int64_t size : {8, 16, 32, 64, 128}) {
      if (adaptive && size == 8) continue;  // the same as fixed
      KvCacheOptions options = geometry;
      options.block_size = size;
      options.adaptive_blocks = adaptive;
      BlockSizeResult result;
      result.name = (adaptive ? "adaptive " : "fixed ") + std::to_string(size);
      LODE_RETURN_IF_ERROR(MeasureReads(options, result));
      LODE_RETURN_IF_ERROR(MeasureReuse(options, result));
      results.push_back(std::move(result));
    }
  }
  return results;
}

}  // namespace lode::cli
