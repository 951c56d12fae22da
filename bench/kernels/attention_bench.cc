// SPDX-License-Identifier: Apache-2.0
// Cost of attention alone, per token of a whole model, at several depths.
//
//   attention_bench [--threads N] [--model qwen|gemma] [--type f16|int8|f32] [--max-depth N]
//                   [--attention NAME] [--depth N] [--target AVX2|...]
//
// --depth N: only decoding at that depth, to profile.
//
// One layer's cache per layer, as in the model, so that nothing stays in the CPU's caches between
// tokens. Keys and values are the same random block over and over: the cost of exact attention does
// not depend on them. Prints a Markdown table with the best and the median time; the rates are of
// the best. "GB/s" is the cache read per second, "GMAC/s" the multiplications per second.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "attention/attention.h"
#include "kernels/targets.h"
#include "kv/kv_cache.h"

namespace lode {
namespace {

struct Model {
  std::string_view name;
  int32_t num_layers;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int64_t window;        // of the sliding layers; 0: none
  int32_t global_every;  // every n-th layer is global
};

constexpr Model kModels[] = {
    {"qwen", 24, 14, 2, 64, 0, 1},     // Qwen2.5-Coder-0.5B
    {"gemma", 18, 4, 1, 256, 512, 6},  // Gemma 3 270M
};

struct Settings {
  int threads = 2;
  std::string_view model = "qwen";
  std::string_view type;  // empty: f16 and int8
  std::string_view attention = "flash";
  int64_t max_depth = 131072;
  int64_t depth = 0;        // 0: all
  std::string_view target;  // empty: the best
};

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Bench {
 public:
  Bench(const Settings& settings, const Model& model, KvDType type)
      : model_(model),
        type_(type),
        attention_(CreateAttention(settings.attention).value()),
        pool_(settings.threads) {
    cache_ = KvCache::Create({.num_layers = model.num_layers,
                              .num_kv_heads = model.num_kv_heads,
                              .head_dim = model.head_dim,
                              .dtypes = type,
                              .max_tokens = settings.max_depth + kPrefill})
                 .value();
    sequence_ = cache_->AddSequence().value();
    std::normal_distribution<float> normal;
    std::mt19937 generator(1);
    numbers_.resize(static_cast<size_t>(kPrefill * model.num_heads * model.head_dim));
    for (float& x : numbers_) x = normal(generator);
    out_.resize(numbers_.size());
  }

  void GrowTo(int64_t length) {
    while (cache_->Length(sequence_) < length) {
      const int64_t first = cache_->Length(sequence_);
      const int64_t n = std::min(kPrefill, length - first);
      const Status status = cache_->Extend(sequence_, n);
      if (!status.ok()) {
        std::fprintf(stderr, "%s\n", status.ToString().c_str());
        std::exit(1);
      }
      for (int32_t layer = 0; layer < model_.num_layers; ++layer) {
        cache_->Store(layer, sequence_, first, n, numbers_.data(), numbers_.data());
      }
    }
    cache_->JoinPages();
  }

  // Milliseconds that num_tokens tokens after `depth` take in all layers.
  double Step(int64_t depth, int64_t num_tokens) {
    GrowTo(depth + num_tokens);
    const int64_t row = int64_t{model_.num_heads} * model_.head_dim;
    const double start = Seconds();
    for (int32_t layer = 0; layer < model_.num_layers; ++layer) {
      attention_->Forward({.layer = layer,
                           .sequence = sequence_,
                           .first_position = depth,
                           .num_tokens = num_tokens,
                           .num_heads = model_.num_heads,
                           .scale = 1.0f / std::sqrt(static_cast<float>(model_.head_dim)),
                           .sliding_window = Window(layer),
                           .q = numbers_.data(),
                           .q_stride = row},
                          *cache_, pool_, out_.data(), row);
    }
    return (Seconds() - start) * 1e3;
  }

  void Report(std::string_view work, int64_t depth, int64_t num_tokens) {
    Step(depth, num_tokens);  // warm-up
    std::vector<double> times;
    double total = 0;
    while (times.size() < 3 || (total < 400 && times.size() < 51)) {
      times.push_back(Step(depth, num_tokens));
      total += times.back();
    }
    std::sort(times.begin(), times.end());
    const double ms = times.front();
    const double median = times[times.size() / 2];
    double keys = 0;   // that one token reads, summed over layers
    double pairs = 0;  // of query token and key
    for (int32_t layer = 0; layer < model_.num_layers; ++layer) {
      for (int64_t t = 0; t < num_tokens; ++t) {
        const int64_t all = depth + t + 1;
        pairs += static_cast<double>(Window(layer) > 0 ? std::min(all, Window(layer)) : all);
      }
      keys += static_cast<double>(Window(layer) > 0 ? std::min(depth, Window(layer)) : depth);
    }
    const double token_bytes = KvCache::BytesPerToken(cache_->options()) / model_.num_layers;
    const double macs = 2.0 * pairs * model_.num_heads * model_.head_dim;
    std::printf("| %s | %s | %lld | %.3f | %.3f | %.1f | %.1f |\n", std::string(work).c_str(),
                std::string(KvDTypeName(type_)).c_str(), static_cast<long long>(depth),
                ms / static_cast<double>(num_tokens), median / static_cast<double>(num_tokens),
                keys * token_bytes / ms * 1e-6, macs / ms * 1e-6);
    std::fflush(stdout);
  }

  static constexpr int64_t kPrefill = 512;

 private:
  int64_t Window(int32_t layer) const {
    return (layer + 1) % model_.global_every == 0 ? 0 : model_.window;
  }

  const Model model_;
  const KvDType type_;
  std::unique_ptr<Attention> attention_;
  ThreadPool pool_;
  std::unique_ptr<KvCache> cache_;
  SequenceId sequence_ = 0;
  std::vector<float> numbers_;
  std::vector<float> out_;
};

void Run(const Settings& settings, const Model& model, KvDType type) {
  Bench bench(settings, model, type);
  if (settings.depth > 0) return bench.Report("decode", settings.depth, 1);
  for (const int64_t depth : {512, 2048, 4064, 4096, 8192, 32768, 131072}) {
    if (depth <= settings.max_depth) bench.Report("decode", depth, 1);
  }
  for (const int64_t depth : {0, 8192}) {
    if (depth <= settings.max_depth) bench.Report("prefill 512", depth, Bench::kPrefill);
  }
}

int Main(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    const char* value = argv[i + 1];
    if (flag == "--threads") settings.threads = std::max(1, std::atoi(value));
    if (flag == "--model") settings.model = value;
    if (flag == "--type") settings.type = value;
    if (flag == "--target") settings.target = value;
    if (flag == "--attention") settings.attention = value;
    if (flag == "--max-depth") settings.max_depth = std::max(1LL, std::atoll(value));
    if (flag == "--depth") settings.depth = settings.max_depth = std::max(1LL, std::atoll(value));
  }
  std::optional<kernels::ScopedTarget> pinned;
  for (const kernels::Target target : kernels::SupportedTargets()) {
    if (kernels::TargetName(target) == settings.target) pinned.emplace(target);
  }
  if (!settings.target.empty() && !pinned) {
    std::fprintf(stderr, "--target is one that this machine has\n");
    return 2;
  }
  const auto* model = std::find_if(std::begin(kModels), std::end(kModels),
                                   [&](const Model& m) { return m.name == settings.model; });
  if (model == std::end(kModels)) {
    std::fprintf(stderr, "--model is qwen or gemma\n");
    return 2;
  }
  std::printf("%s, %s, %d threads\n\n", std::string(model->name).c_str(),
              std::string(settings.attention).c_str(), settings.threads);
  std::printf(
      "| work | KV | depth | ms per token | median | GB/s | GMAC/s "
      "|\n|---|---|---|---|---|---|---|\n");
  for (const std::string_view type : {"f16", "int8", "f32", "bf16", "int6", "int4"}) {
    if (settings.type.empty() ? type == "f16" || type == "int8" : type == settings.type) {
      Run(settings, *model, ParseKvDType(type).value());
    }
  }
  return 0;
}

}  // namespace
}  // namespace lode

int main(int argc, char** argv) {
  return lode::Main(argc, argv);
}
