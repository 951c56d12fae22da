// SPDX-License-Identifier: Apache-2.0
// What the types of the KV cache cost a real model: perplexity, and KL of the next token to f16.
//
//   kv_types MODEL TEXT WINDOW NUM_WINDOWS SCORED THREADS IDS_OUT TYPE...
//
// Cuts the text into windows of WINDOW tokens (a BOS first where the model adds one), runs them in
// chunks with f16 and with every TYPE side by side, and prints one JSON object: per type the
// perplexity over all tokens and its ratio to that of f16, and over the last SCORED positions of
// each window the mean KL divergence to f16 in nats and the share of equal best tokens. IDS_OUT
// receives the windows as int32 ids, for bench/kv/peer_kv_types.py.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "base/thread_pool.h"
#include "formats/weight_source.h"
#include "kv/kv_cache.h"
#include "models/model.h"
#include "tokenizer/tokenizer.h"

namespace lode {
namespace {

constexpr int64_t kChunk = 128;

struct Settings {
  std::string model, text;
  int64_t window, num_windows, scored;
  int threads;
  std::string ids_out;
  std::vector<KvDTypes> types;  // f16 first
};

// Sums over the tokens of one type.
struct Score {
  double nll = 0, kl = 0;
  int64_t tokens = 0, scored = 0, same_best = 0;
};

struct Sequence {
  std::unique_ptr<KvCache> cache;
  SequenceId id = 0;
};

class Runner {
 public:
  explicit Runner(const Settings& settings) : settings_(settings), pool_(settings.threads) {}

  Status Load() {
    LODE_ASSIGN_OR_RETURN(source_, OpenWeights(settings_.model));
    LODE_ASSIGN_OR_RETURN(model_, LoadModel(*source_, {.context_len = settings_.window}, pool_));
    LODE_ASSIGN_OR_RETURN(attention_, CreateAttention("flash"));
    LODE_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Load(*source_));
    std::ifstream file(settings_.text);
    if (!file.good()) return NotFoundError("cannot open " + settings_.text);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const std::vector<TokenId> ids = tokenizer->Encode(text, {.add_special = false});
    const std::vector<TokenId> special = tokenizer->Encode("");
    const int64_t body = settings_.window - static_cast<int64_t>(special.size());
    if (static_cast<int64_t>(ids.size()) < body * settings_.num_windows) {
      return InvalidArgumentError("the text has too few tokens: " + std::to_string(ids.size()));
    }
    for (int64_t w = 0; w < settings_.num_windows; ++w) {
      std::vector<int32_t>& window = windows_.emplace_back(special.begin(), special.end());
      window.insert(window.end(), ids.begin() + w * body, ids.begin() + (w + 1) * body);
    }
    std::ofstream out(settings_.ids_out, std::ios::binary);
    for (const auto& window : windows_) {
      out.write(reinterpret_cast<const char*>(window.data()),
                static_cast<std::streamsize>(window.size() * sizeof(int32_t)));
    }
    scores_.resize(settings_.types.size());
    return out.good() ? OkStatus() : IoError("cannot write " + settings_.ids_out);
  }

  Status Run() {
    for (const std::vector<int32_t>& window : windows_) {
      std::vector<Sequence> sequences(settings_.types.size());
      for (size_t i = 0; i < sequences.size(); ++i) {
        LODE_ASSIGN_OR_RETURN(sequences[i].cache, KvCache::Create(OptionsFor(settings_.types[i])));
        LODE_ASSIGN_OR_RETURN(sequences[i].id, sequences[i].cache->AddSequence());
      }
      for (int64_t first = 0; first < settings_.window; first += kChunk) {
        for (size_t i = 0; i < sequences.size(); ++i) {
          LODE_RETURN_IF_ERROR(Step(window, first, sequences[i], i == 0 ? reference_ : found_));
          Add(window, first, i == 0 ? reference_ : found_, scores_[i]);
        }
        std::fprintf(stderr, "\r%lld", static_cast<long long>(first));
      }
    }
    return OkStatus();
  }

  void Print() const {
    std::printf("{\"model\": \"%s\", \"text\": \"%s\", \"window\": %lld, \"windows\": %lld, ",
                Name(settings_.model).c_str(), Name(settings_.text).c_str(),
                static_cast<long long>(settings_.window),
                static_cast<long long>(settings_.num_windows));
    std::printf("\"scored_positions\": %lld, \"types\": [",
                static_cast<long long>(settings_.scored));
    const auto perplexity = [](const Score& s) {
      return std::exp(s.nll / static_cast<double>(s.tokens));
    };
    for (size_t i = 0; i < scores_.size(); ++i) {
      const Score& s = scores_[i];
      const auto scored = static_cast<double>(s.scored);
      std::printf(
          "%s\n  {\"type\": \"%s\", \"perplexity\": %.4f, \"ratio\": %.5f, \"kl\": %.3e, "
          "\"same_best\": %.4f}",
          i == 0 ? "" : ",", KvDTypesName(settings_.types[i]).c_str(), perplexity(s),
          perplexity(s) / perplexity(scores_[0]), s.kl / scored,
          static_cast<double>(s.same_best) / scored);
    }
    std::printf("\n]}\n");
  }

 private:
  static std::string Name(const std::string& path) {
    return path.substr(path.find_last_of('/') + 1);
  }

  KvCacheOptions OptionsFor(KvDTypes dtypes) const {
    const ModelConfig& config = model_->config();
    KvCacheOptions options;
    options.num_layers = static_cast<int32_t>(config.num_layers);
    options.num_kv_heads = static_cast<int32_t>(config.num_kv_heads);
    options.head_dim = static_cast<int32_t>(config.head_dim);
    options.dtypes = dtypes;
    options.max_tokens = settings_.window;
    return options;
  }

  // Log-probabilities of the next token after each of a chunk's tokens.
  Status Step(const std::vector<int32_t>& window, int64_t first, Sequence& sequence,
              std::vector<float>& out) {
    const int64_t count = std::min(kChunk, settings_.window - first);
    const int64_t vocab = model_->config().vocab_size;
    out.resize(static_cast<size_t>(count * vocab));
    LODE_RETURN_IF_ERROR(sequence.cache->Extend(sequence.id, count));
    Batch batch;
    batch.token_ids.assign(window.begin() + first, window.begin() + first + count);
    batch.segments.push_back({sequence.id, 0, first, count});
    batch.logits_tokens.resize(static_cast<size_t>(count));
    std::iota(batch.logits_tokens.begin(), batch.logits_tokens.end(), int64_t{0});
    LODE_RETURN_IF_ERROR(model_->Forward(batch, *sequence.cache, *attention_, pool_, out.data()));
    pool_.ParallelFor(count, [&](int64_t row, int) {
      const std::span<float> logits(out.data() + row * vocab, static_cast<size_t>(vocab));
      const float largest = *std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (const float x : logits) sum += std::exp(x - largest);
      const float shift = largest + static_cast<float>(std::log(sum));
      for (float& x : logits) x -= shift;
    });
    return OkStatus();
  }

  void Add(const std::vector<int32_t>& window, int64_t first, const std::vector<float>& found,
           Score& score) {
    const int64_t vocab = model_->config().vocab_size;
    const int64_t count = static_cast<int64_t>(found.size()) / vocab;
    std::vector<double> kl(static_cast<size_t>(count));
    std::vector<char> same(kl.size());
    const auto is_scored = [&](int64_t row) {
      return first + row >= settings_.window - settings_.scored;
    };
    pool_.ParallelFor(count, [&](int64_t row, int) {
      if (!is_scored(row)) return;
      const float* p = reference_.data() + row * vocab;
      const float* q = found.data() + row * vocab;
      double sum = 0;
      for (int64_t i = 0; i < vocab; ++i) sum += std::exp(p[i]) * (p[i] - q[i]);
      kl[static_cast<size_t>(row)] = sum;
      same[static_cast<size_t>(row)] =
          std::max_element(p, p + vocab) - p == std::max_element(q, q + vocab) - q;
    });
    for (int64_t row = 0; row < count; ++row) {
      if (is_scored(row)) {
        score.kl += kl[static_cast<size_t>(row)];
        score.same_best += same[static_cast<size_t>(row)];
        ++score.scored;
      }
      if (first + row + 1 < settings_.window) {
        const int32_t next = window[static_cast<size_t>(first + row + 1)];
        score.nll -= double{found[static_cast<size_t>(row * vocab + next)]};
        ++score.tokens;
      }
    }
  }

  const Settings settings_;
  ThreadPool pool_;
  std::unique_ptr<WeightSource> source_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Attention> attention_;
  std::vector<std::vector<int32_t>> windows_;
  std::vector<Score> scores_;
  std::vector<float> reference_, found_;
};

Status Main(int argc, char** argv) {
  if (argc < 9) {
    return InvalidArgumentError(
        "usage: kv_types MODEL TEXT WINDOW NUM_WINDOWS SCORED THREADS IDS_OUT TYPE...");
  }
  Settings settings = {.model = argv[1],
                       .text = argv[2],
                       .window = std::atoll(argv[3]),
                       .num_windows = std::atoll(argv[4]),
                       .scored = std::atoll(argv[5]),
                       .threads = std::max(1, std::atoi(argv[6])),
                       .ids_out = argv[7],
                       .types = {KvDType::kF16}};
  for (int i = 8; i < argc; ++i) {
    LODE_ASSIGN_OR_RETURN(const KvDTypes type, ParseKvDTypes(argv[i]));
    settings.types.push_back(type);
  }
  Runner runner(settings);
  LODE_RETURN_IF_ERROR(runner.Load());
  LODE_RETURN_IF_ERROR(runner.Run());
  runner.Print();
  return OkStatus();
}

}  // namespace
}  // namespace lode

int main(int argc, char** argv) {
  const lode::Status status = lode::Main(argc, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "kv_types: %s\n", status.ToString().c_str());
  return 1;
}
