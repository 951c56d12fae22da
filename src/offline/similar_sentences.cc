// SPDX-License-Identifier: Apache-2.0
#include "offline/similar_sentences.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <ranges>
#include <utility>

#include "attention/kv_chunk.h"
#include "attention/sparse_index.h"
#include "base/aligned_vector.h"
#include "base/random.h"
#include "kernels/code_scan.h"
#include "offline/fidelity.h"
#include "offline/needle_words.h"
#include "offline/scoped_attention.h"
#include "retrieval/page_index.h"
#include "retrieval/sign_codes.h"

namespace lode {
namespace {

constexpr int64_t kSentenceTokens = 16;  // about; of unrelated sentences exactly

// Keeps the queries of a step's last token in some layers, times their scale.
class QueryCapture final : public Attention {
 public:
  QueryCapture(std::unique_ptr<Attention> exact, std::span<const int32_t> layers)
      : exact_(std::move(exact)), layers_(layers), queries_(layers.size()) {}

  void Forward(const AttentionInputs& inputs, const KvCache& cache, ThreadPool& pool, float* out,
               int64_t out_stride) override {
    exact_->Forward(inputs, cache, pool, out, out_stride);
    const auto layer = std::ranges::find(layers_, inputs.layer);
    if (layer == layers_.end()) return;
    sequence = inputs.sequence;
    std::vector<float>& kept = queries_[static_cast<size_t>(layer - layers_.begin())];
    const float* last = inputs.q + (inputs.num_tokens - 1) * inputs.q_stride;
    kept.assign(last, last + inputs.num_heads * cache.options().head_dim);
    for (float& x : kept) x *= inputs.scale;
  }
  void Truncate(SequenceId of, int64_t length) override { exact_->Truncate(of, length); }

  // Per layer [num_heads, head_dim].
  const std::vector<std::vector<float>>& queries() const { return queries_; }
  SequenceId sequence = 0;

 private:
  const std::unique_ptr<Attention> exact_;
  const std::span<const int32_t> layers_;
  std::vector<std::vector<float>> queries_;
};

using Neighbours = std::vector<int32_t>;  // positions, ascending

// The keys of the context in one layer and KV head, as they are and as codes.
class HeadKeys {
 public:
  // signs: null, or how to put them into buckets.
  HeadKeys(const KvCache& cache, SequenceId sequence, int32_t layer, int32_t kv_head,
           int64_t num_keys, const HeadProjection* projection, const SignOptions* signs)
      : head_dim_(cache.options().head_dim),
        num_keys_(num_keys),
        index_(projection),
        keys_(Size(head_dim_ * num_keys)),
        means_(Size(head_dim_ * num_keys / kPageTokens)) {
    AlignedVector<float> keys(Size(head_dim_ * kPageTokens)), values(keys.size());
    for (int64_t page = 0; page < num_keys / kPageTokens; ++page) {
      const KvChunk chunk(cache, sequence, layer, kv_head, page * kPageTokens,
                          (page + 1) * kPageTokens);
      chunk.DecodeKeys(keys.data());
      chunk.DecodeValues(values.data(), head_dim_);
      index_.Append(keys.data(), values.data(), head_dim_, page + 1 < num_keys / kPageTokens);
      for (int64_t d = 0; d < head_dim_; ++d) {
        const float* row = &keys[Size(d * kPageTokens)];
        std::copy_n(row, kPageTokens, &keys_[Size(d * num_keys + page * kPageTokens)]);
        means_[Size(d * index_.num_pages() + page)] = 0.0f;
      }
    }
    for (int64_t d = 0; d < head_dim_; ++d) {
      for (int64_t n = 0; n < num_keys; ++n) {
        means_[Size(d * index_.num_pages() + n / kPageTokens)] +=
            keys_[Size(d * num_keys + n)] / static_cast<float>(kPageTokens);
      }
    }
    if (signs == nullptr) return;
    signs_.emplace(head_dim_, *signs);
    signs_->Update(index_.num_pages(), [&](int64_t page, float* out) {
      for (int64_t d = 0; d < head_dim_; ++d) {
        std::copy_n(&keys_[Size(d * num_keys + page * kPageTokens)], kPageTokens,
                    out + d * kPageTokens);
      }
    });
    buckets_ = signs_->Buckets(index_.num_pages());
  }

  // queries [rows][head_dim], times their scale.
  Neighbours Exact(const float* queries, int64_t rows, int64_t count) const {
    std::vector<float> scores(Size(rows * num_keys_));
    Multiply(queries, rows, keys_, num_keys_, scores.data());
    return Heaviest(scores, rows, count);
  }
  Neighbours ByCodes(const float* queries, int64_t rows, int64_t count) const {
    const int64_t pages = index_.num_pages();
    std::vector<float> means(Size(rows * pages)), scores(Size(rows * num_keys_));
    Multiply(queries, rows, means_, pages, means.data());
    PreparedQueries prepared;
    index_.Prepare(queries, rows, prepared);
    AlignedVector<float> residuals(Size(rows * kPageTokens));
    for (int64_t page = 0; page < pages; ++page) {
      kernels::ScanPage(index_.Codes(page, page + 1), prepared.Tables(), residuals.data());
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t t = 0; t < kPageTokens; ++t) {
          scores[Size(r * num_keys_ + page * kPageTokens + t)] =
              means[Size(r * pages + page)] + residuals[Size(r * kPageTokens + t)];
        }
      }
    }
    return Heaviest(scores, rows, count);
  }
  // Without signs there are none.
  int64_t num_buckets() const { return std::ssize(buckets_); }
  std::vector<int64_t> BucketsOf(const float* queries, int64_t rows) const {
    return signs_->BucketsOf(queries, rows, num_buckets());
  }
  // The keys that these buckets keep.
  Neighbours KeptBy(std::span<const int64_t> met) const {
    Neighbours kept;
    for (const int64_t at : met) {
      const SignCodes::Bucket& bucket = buckets_[Size(at)];
      kept.insert(kept.end(), bucket.positions.begin(), bucket.positions.begin() + bucket.count);
    }
    std::ranges::sort(kept);
    const auto twice = std::ranges::unique(kept);
    kept.erase(twice.begin(), twice.end());
    return kept;
  }

 private:
  static size_t Size(int64_t n) { return static_cast<size_t>(n); }

  // scores [rows][columns] = queries times matrix [head_dim][columns].
  void Multiply(const float* queries, int64_t rows, const std::vector<float>& matrix,
                int64_t columns, float* scores) const {
    for (int64_t r = 0; r < rows; ++r) {
      float* row = scores + r * columns;
      for (int64_t d = 0; d < head_dim_; ++d) {
        const float x = queries[r * head_dim_ + d];
        const float* from = &matrix[Size(d * columns)];
        for (int64_t n = 0; n < columns; ++n) row[n] += x * from[n];
      }
    }
  }

  // The keys with the largest mass, summed over rows of scores.
  Neighbours Heaviest(std::span<const float> scores, int64_t rows, int64_t count) const {
    std::vector<double> masses(Size(num_keys_));
    std::vector<double> weights(masses.size());
    for (int64_t r = 0; r < rows; ++r) {
      const auto row = scores.subspan(Size(r * num_keys_), Size(num_keys_));
      const float largest = *std::ranges::max_element(row);
      double sum = 0.0;
      for (size_t n = 0; n < row.size(); ++n) sum += weights[n] = std::exp(row[n] - largest);
      for (size_t n = 0; n < row.size(); ++n) masses[n] += weights[n] / sum;
    }
    Neighbours order(masses.size());
    std::iota(order.begin(), order.end(), 0);
    std::nth_element(order.begin(), order.begin() + (count - 1), order.end(),
                     [&](int32_t a, int32_t b) {
                       const double x = masses[Size(a)], y = masses[Size(b)];
                       return x != y ? x > y : a < b;
                     });
    order.resize(Size(count));
    std::ranges::sort(order);
    return order;
  }

  int64_t head_dim_, num_keys_;
  PageIndex index_;
  std::vector<float> keys_;   // [head_dim][num_keys]
  std::vector<float> means_;  // [head_dim][num_keys / kPageTokens]
  std::optional<SignCodes> signs_;
  std::vector<SignCodes::Bucket> buckets_;
};

// Of the elements of a, those that b has.
double SharedShare(const Neighbours& a, const Neighbours& b) {
  Neighbours both;
  std::ranges::set_intersection(a, b, std::back_inserter(both));
  return static_cast<double>(both.size()) / static_cast<double>(a.size());
}

struct Shares {
  double by_codes = 0.0, exact = 0.0;  // between successive sentences
  double recall = 0.0, bucket_recall = 0.0;
};

// queries: per sentence [rows][head_dim].
Shares Compare(const HeadKeys& keys, std::span<const float* const> queries, int64_t rows,
               int64_t count) {
  Shares shares;
  Neighbours last_by_codes, last_exact;
  for (size_t i = 0; i < queries.size(); ++i) {
    Neighbours by_codes = keys.ByCodes(queries[i], rows, count);
    Neighbours exact = keys.Exact(queries[i], rows, count);
    shares.recall += SharedShare(exact, by_codes) / static_cast<double>(queries.size());
    if (keys.num_buckets() > 0) {
      const Neighbours kept = keys.KeptBy(keys.BucketsOf(queries[i], rows));
      shares.bucket_recall += SharedShare(exact, kept) / static_cast<double>(queries.size());
    }
    if (i > 0) {
      const auto pairs = static_cast<double>(queries.size() - 1);
      shares.by_codes += SharedShare(last_by_codes, by_codes) / pairs;
      shares.exact += SharedShare(last_exact, exact) / pairs;
    }
    last_by_codes = std::move(by_codes);
    last_exact = std::move(exact);
  }
  return shares;
}

// In which buckets the queries of one head fall, a mean over the rows.
void CountBuckets(const HeadKeys& keys, std::span<const float* const> queries, int64_t rows,
                  SimilarityRow& row) {
  std::vector<std::map<int64_t, int64_t>> sentences(static_cast<size_t>(rows));  // per bucket
  for (const float* query : queries) {
    const std::vector<int64_t> met = keys.BucketsOf(query, rows);
    for (size_t r = 0; r < met.size(); ++r) ++sentences[r][met[r]];
  }
  for (const auto& of_row : sentences) {
    const int64_t most = std::ranges::max(of_row | std::views::values);
    row.variant_buckets += static_cast<double>(of_row.size()) / static_cast<double>(rows);
    row.one_bucket += static_cast<double>(most) / static_cast<double>(rows * std::ssize(queries));
  }
}

// Some of the calibrated layers, spread evenly.
std::vector<int32_t> SampleLayers(const Calibration& calibration, int64_t count) {
  std::vector<int32_t> known, some;
  for (int64_t layer = 0; layer < calibration.num_layers(); ++layer) {
    if (calibration.Find(layer, 0) != nullptr) known.push_back(static_cast<int32_t>(layer));
  }
  const int64_t total = std::ssize(known), take = std::min(count, total);
  for (int64_t i = 0; i < take; ++i) {
    some.push_back(known[static_cast<size_t>(take == 1 ? 0 : i * (total - 1) / (take - 1))]);
  }
  return some;
}

// Per sentence and layer, the queries of the last token [num_heads, head_dim].
using Queries = std::vector<std::vector<std::vector<float>>>;

Result<Queries> RunSentences(Engine& engine, std::span<const std::vector<TokenId>> sentences,
                             const QueryCapture& capture, Progress& progress) {
  Queries queries;
  const int64_t context = engine.cached_length();
  for (const std::vector<TokenId>& sentence : sentences) {
    LODE_RETURN_IF_ERROR(progress.Append(engine, sentence));
    queries.push_back(capture.queries());
    engine.Truncate(context);
  }
  return queries;
}

void AddMean(const SimilarityRow& row, double weight, SimilarityRow& mean) {
  mean.shared_by_codes += weight * row.shared_by_codes;
  mean.shared_exact += weight * row.shared_exact;
  mean.unrelated_by_codes += weight * row.unrelated_by_codes;
  mean.unrelated_exact += weight * row.unrelated_exact;
  mean.recall += weight * row.recall;
  mean.variant_buckets += weight * row.variant_buckets;
  mean.one_bucket += weight * row.one_bucket;
  mean.bucket_recall += weight * row.bucket_recall;
}

// What both kinds of sentences share in one layer.
SimilarityRow CompareLayer(const Engine& engine, const Calibration& calibration,
                           const SimilarityReport& report, const QueryCapture& capture,
                           std::span<const int32_t> layers, size_t at,
                           std::span<const Queries> kinds) {
  const KvCache& cache = engine.cache();
  const int64_t kv_heads = cache.options().num_kv_heads, head_dim = cache.options().head_dim;
  const int64_t rows = engine.model().config().num_heads / kv_heads;
  SimilarityRow row = {.layer = layers[at]};
  SignOptions signs = SignOptionsOf(engine.options().sparse, calibration.fingerprint());
  signs.window = 0;
  for (int32_t head = 0; head < kv_heads; ++head) {
    const HeadKeys keys(cache, capture.sequence, row.layer, head, report.context_tokens,
                        calibration.Find(row.layer, head), report.buckets > 0 ? &signs : nullptr);
    SimilarityRow of_head = {.layer = row.layer};
    std::vector<Shares> shares;
    for (const Queries& sentences : kinds) {
      std::vector<const float*> queries;
      for (const auto& of_layers : sentences) {
        queries.push_back(&of_layers[at][static_cast<size_t>(head * rows * head_dim)]);
      }
      shares.push_back(Compare(keys, queries, rows, report.neighbours));
      const bool are_variants = shares.size() == 1;
      if (are_variants && report.buckets > 0) CountBuckets(keys, queries, rows, of_head);
    }
    of_head.shared_by_codes = shares[0].by_codes;
    of_head.shared_exact = shares[0].exact;
    of_head.unrelated_by_codes = shares[1].by_codes;
    of_head.unrelated_exact = shares[1].exact;
    of_head.recall = shares[0].recall;
    of_head.bucket_recall = shares[0].bucket_recall;
    AddMean(of_head, 1.0 / static_cast<double>(kv_heads), row);
  }
  return row;
}

}  // namespace

std::vector<std::string> SentenceVariants(int64_t count, uint64_t seed) {
  Random random(seed);
  const auto one_of = [&](std::span<const std::string_view> words) {
    return words[static_cast<size_t>(random.NextUnit() * static_cast<double>(words.size()))];
  };
  std::vector<std::string> variants;
  for (int64_t i = 0; i < count; ++i) {
    const std::string_view adjective = one_of(NeedleAdjectives()), noun = one_of(NeedleNouns()),
                           place = one_of(NeedleNouns());
    variants.push_back(fmt::format(" In the morning the captain saw the {} {} beside the {}.",
                                   adjective, noun, place));
  }
  return variants;
}

Result<SimilarityReport> CompareSimilarSentences(Engine& engine, std::span<const TokenId> text,
                                                 const SimilarityOptions& options) {
  SimilarityReport report;
  report.context_tokens = options.context_tokens / kPageTokens * kPageTokens;
  report.variants = options.variants;
  report.neighbours = options.neighbours;
  if (engine.options().sparse.scores == SparseOptions::Scores::kBuckets) {
    report.buckets = SignCodes::NumBuckets(report.context_tokens);
  }
  if (std::ssize(text) < report.context_tokens || options.neighbours < 1 || options.variants < 2 ||
      report.context_tokens < options.neighbours) {
    return InvalidArgumentError(fmt::format(
        "similar sentences: expected at least 2 variants and {} tokens, as many as neighbours or "
        "more, found {} variants, {} tokens and {} neighbours",
        report.context_tokens, options.variants, text.size(), options.neighbours));
  }
  LODE_ASSIGN_OR_RETURN(const auto calibration, engine.FindCalibration());
  const std::vector<int32_t> layers = SampleLayers(*calibration, options.max_layers);
  if (layers.empty()) return UnsupportedError("similar sentences: no layer has a calibration");

  std::vector<std::vector<TokenId>> variants, unrelated;
  for (const std::string& sentence : SentenceVariants(options.variants, options.seed)) {
    variants.push_back(engine.tokenizer().Encode(sentence, {.add_special = false}));
  }
  auto rest = text.subspan(static_cast<size_t>(report.context_tokens));
  while (std::ssize(rest) >= kSentenceTokens && std::ssize(unrelated) < options.unrelated) {
    unrelated.emplace_back(rest.begin(), rest.begin() + kSentenceTokens);
    rest = rest.subspan(static_cast<size_t>(std::min(2 * kSentenceTokens, std::ssize(rest))));
  }
  report.unrelated = std::ssize(unrelated);

  LODE_ASSIGN_OR_RETURN(auto exact, engine.MakeAttention(kExactAttention));
  auto owned = std::make_unique<QueryCapture>(std::move(exact), layers);
  const QueryCapture& capture = *owned;
  const ScopedAttention in_use(engine, std::move(owned));
  Progress progress(options.on_progress,
                    report.context_tokens + kSentenceTokens * (report.variants + report.unrelated));
  engine.ResetCache();
  LODE_RETURN_IF_ERROR(
      progress.Append(engine, text.first(static_cast<size_t>(report.context_tokens))));
  std::vector<Queries> kinds(2);
  LODE_ASSIGN_OR_RETURN(kinds[0], RunSentences(engine, variants, capture, progress));
  LODE_ASSIGN_OR_RETURN(kinds[1], RunSentences(engine, unrelated, capture, progress));
  for (size_t at = 0; at < layers.size(); ++at) {
    report.layers.push_back(CompareLayer(engine, *calibration, report, capture, layers, at, kinds));
    AddMean(report.layers.back(), 1.0 / static_cast<double>(layers.size()), report.all);
  }
  return report;
}

}  // namespace lode
