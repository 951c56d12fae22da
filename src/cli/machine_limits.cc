// SPDX-License-Identifier: Apache-2.0
#include "cli/machine_limits.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/thread_pool.h"
#include "cli/console.h"
#include "kernels/machine.h"

namespace lode::cli {
namespace {

constexpr int64_t kBufferBytes = int64_t{1} << 28;  // far beyond any last-level cache
constexpr int64_t kRounds = 20'000'000;
constexpr int kRepeats = 5;

// Best of a few runs of work(worker) on all threads; work returns the amount it did.
double BestRate(ThreadPool& pool, FunctionRef<double(int64_t part)> work) {
  double best = 0.0;
  std::vector<double> amounts(static_cast<size_t>(pool.num_threads()));
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const Stopwatch stopwatch;
    pool.ParallelFor(pool.num_threads(), [&](int64_t part, int) { amounts[part] = work(part); });
    double total = 0.0;
    for (const double amount : amounts) total += amount;
    best = std::max(best, total / stopwatch.Seconds());
  }
  return best;
}

// Parameters that a token is multiplied with: every matrix but an embedding that is only looked up.
int64_t MatrixParameters(const WeightSource& source) {
  const bool tied = source.Find("output.weight") == nullptr;
  int64_t parameters = 0;
  for (const StoredTensor& tensor : source.tensors()) {
    if (tensor.view.shape.num_dims != 2) continue;
    if (tensor.name == "token_embd.weight" && !tied) continue;
    parameters += tensor.view.shape.elements();
  }
  return parameters;
}

// Keys that a token at this depth looks at, summed over the layers.
double KeysSeen(const ModelConfig& config, double depth) {
  double keys = 0.0;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const bool slides = config.sliding_window > 0 && config.layer_slides[layer];
    keys += slides ? std::min<double>(depth, static_cast<double>(config.sliding_window)) : depth;
  }
  return keys;
}

}  // namespace

MachineRates MeasureMachine(int num_threads) {
  ThreadPool pool(num_threads);
  MachineRates rates;
  rates.num_threads = num_threads;
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(kBufferBytes);
  const int64_t part_bytes = kBufferBytes / num_threads / 256 * 256;
  // Touched by the thread that reads it, so that the pages are its own and in memory.
  pool.ParallelFor(num_threads, [&](int64_t part, int) {
    std::memset(buffer.get() + part * part_bytes, 1, static_cast<size_t>(part_bytes));
  });
  rates.bytes_per_second = BestRate(pool, [&](int64_t part) {
    (void)kernels::ReadBytes(buffer.get() + part * part_bytes, part_bytes);
    return static_cast<double>(part_bytes);
  });
  rates.f32_per_second = BestRate(pool, [](int64_t) { return kernels::RunF32Operations(kRounds); });
  rates.int8_per_second =
      BestRate(pool, [](int64_t) { return kernels::RunInt8Operations(kRounds); });
  return rates;
}

std::string DescribeMachine(const MachineRates& machine) {
  return "this machine, " + std::to_string(machine.num_threads) + " threads: reads " +
         FormatFixed(machine.bytes_per_second / 1e9, 1) + " GB/s, " +
         FormatFixed(machine.f32_per_second / 1e9, 0) + " GFLOP/s f32, " +
         FormatFixed(machine.int8_per_second / 1e9, 0) + " GOP/s int8";
}

double LeastSeconds(const MachineRates& machine, const Engine& engine, bool is_prefill,
                    int64_t tokens, int64_t depth) {
  const ModelConfig& config = engine.model().config();
  const KvCacheOptions& kv = engine.cache().options();
  const double count = static_cast<double>(tokens);
  const double mean_depth = static_cast<double>(depth) + count / 2;
  // Bytes of one token's keys and values in one layer.
  const double kv_bytes = KvCache::BytesPerToken(kv) / static_cast<double>(config.num_layers);
  const double step_bytes =
      static_cast<double>(engine.model().weight_bytes()) + kv_bytes * KeysSeen(config, mean_depth);
  const double bytes = is_prefill ? step_bytes : step_bytes * count;

  double parameters = static_cast<double>(MatrixParameters(engine.source()));
  if (is_prefill) {  // the output layer is needed for the last token only
    parameters -= static_cast<double>(config.vocab_size * config.hidden_size) * (1 - 1 / count);
  }
  const double attention =
      4.0 * KeysSeen(config, mean_depth) * static_cast<double>(config.num_heads * config.head_dim);
  const double operations = count * (2.0 * parameters + attention);
  const bool is_int8 = engine.options().activations == kernels::ActivationType::kInt8;
  const double rate =
      is_int8 ? std::max(machine.int8_per_second, machine.f32_per_second) : machine.f32_per_second;
  return std::max(bytes / machine.bytes_per_second, operations / rate);
}

}  // namespace lode::cli
