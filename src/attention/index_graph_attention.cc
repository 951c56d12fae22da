// SPDX-License-Identifier: Apache-2.0
#include "attention/index_graph_attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <span>
#include <vector>

#include "attention/flash.h"
#include "attention/kv_chunk.h"
#include "attention/sparse_index.h"
#include "base/aligned_vector.h"
#include "base/check.h"
#include "base/log.h"
#include "retrieval/index_graph.h"

namespace lode {
namespace {

size_t At(int64_t index) {
  return static_cast<size_t>(index);
}

// A key and a value, and how many tokens they stand for.
struct Entry {
  std::vector<float> key, value;
  int64_t tokens = 1;
};

// Cached tokens of one layer and KV head, a page decoded at a time.
class TokenReader {
 public:
  TokenReader(const AttentionInputs& inputs, const KvCache& cache, int32_t kv_head)
      : inputs_(inputs),
        cache_(cache),
        kv_head_(kv_head),
        head_dim_(cache.options().head_dim),
        keys_(At(head_dim_ * kPageTokens)),
        values_(keys_.size()) {}

  Entry Read(int64_t position) {
    const int64_t first = position / kPageTokens * kPageTokens;
    if (first != first_) {
      const int64_t stored = inputs_.first_position + inputs_.num_tokens;
      const KvChunk chunk(cache_, inputs_.sequence, inputs_.layer, kv_head_, first,
                          std::min(first + kPageTokens, stored));
      chunk.DecodeKeys(keys_.data());
      chunk.DecodeValues(values_.data(), head_dim_);
      first_ = first;
    }
    Entry entry;
    for (int64_t d = 0; d < head_dim_; ++d) {
      entry.key.push_back(keys_[At(d * kPageTokens + position - first)]);
      entry.value.push_back(values_[At((position - first) * head_dim_ + d)]);
    }
    return entry;
  }
  void ReadPage(int64_t page, float* keys) {
    Read(page * kPageTokens);
    std::copy(keys_.begin(), keys_.end(), keys);
  }

 private:
  const AttentionInputs& inputs_;
  const KvCache& cache_;
  const int32_t kv_head_;
  const int64_t head_dim_;
  int64_t first_ = -1;  // of the page that is decoded
  AlignedVector<float> keys_, values_;
};

// Text 1's rows of neighbouring tokens.
struct FeedForward {
  int64_t end() const { return begin + std::ssize(rows); }
  void Add(int64_t position, Entry row) {
    if (position != end()) rows.clear(), begin = position;
    rows.push_back(std::move(row));
  }
  void Truncate(int64_t length) { rows.resize(At(std::clamp(length, begin, end()) - begin)); }
  void DropBefore(int64_t position) {
    const int64_t count = std::clamp(position, begin, end()) - begin;
    rows.erase(rows.begin(), rows.begin() + count);
    begin += count;
  }

  int64_t begin = 0;
  std::vector<Entry> rows;
};

Entry MeanOf(std::span<const Entry> entries) {
  Entry mean = {.key = std::vector<float>(entries[0].key.size()), .value = {}, .tokens = 0};
  mean.value = mean.key;
  mean.tokens = std::ssize(entries);
  const float share = 1.0f / static_cast<float>(mean.tokens);
  for (const Entry& entry : entries) {
    for (size_t d = 0; d < mean.key.size(); ++d) {
      mean.key[d] += share * entry.key[d];
      mean.value[d] += share * entry.value[d];
    }
  }
  return mean;
}

// What is left of the tokens of one layer and KV head.
class HeadGraph {
 public:
  HeadGraph(int64_t head_dim, const SignOptions& signs) : signs_(head_dim, signs) {}

  // Tokens that summaries stand for.
  int64_t end() const { return ends_.empty() ? 0 : ends_.back(); }
  std::span<const Entry> summaries() const { return summaries_; }
  FeedForward& feed_forward() { return feed_forward_; }

  // Tokens from `length` on are gone.
  void Truncate(int64_t length) {
    EndSummariesAt(length);
    signs_.Truncate(std::min(signs_.num_pages(), length / kPageTokens));
    feed_forward_.Truncate(length);
  }
  // Forgets the summaries that end later.
  void EndSummariesAt(int64_t limit) {
    while (end() > limit) ends_.pop_back(), summaries_.pop_back();
  }

  // Makes the summaries that end at `limit` at the latest, and the codes of their keys.
  // Returns the tokens of summaries that have no rows, and are means.
  int64_t Grow(int64_t limit, TokenReader& reader) {
    int64_t without_rows = 0;
    while (end() + IndexGraph::SummaryTokens(end()) <= limit) {
      const int64_t begin = end(), next = begin + IndexGraph::SummaryTokens(begin);
      std::vector<Entry> rows;
      if (feed_forward_.begin <= begin && next <= feed_forward_.end()) {
        const auto first = feed_forward_.rows.begin() - feed_forward_.begin;
        rows.assign(first + begin, first + next);
      } else {
        without_rows += next - begin;
      }
      for (int64_t i = begin + std::ssize(rows); i < next; ++i) rows.push_back(reader.Read(i));
      summaries_.push_back(MeanOf(rows));
      ends_.push_back(next);
    }
    feed_forward_.DropBefore(end());
    signs_.Update(end() / kPageTokens,
                  [&](int64_t page, float* keys) { reader.ReadPage(page, keys); });
    return without_rows;
  }

  // The positions that each of the queries [rows][head_dim] meets, ascending.
  std::vector<std::vector<int64_t>> Meet(const float* queries, int64_t rows) const {
    std::vector<std::vector<int64_t>> met(At(rows));
    if (signs_.num_pages() == 0) return met;
    const std::vector<SignCodes::Bucket> buckets = signs_.Buckets(signs_.num_pages());
    const std::vector<int64_t> own = signs_.BucketsOf(queries, rows, std::ssize(buckets));
    for (size_t r = 0; r < met.size(); ++r) {
      const SignCodes::Bucket& bucket = buckets[At(own[r])];
      met[r].assign(bucket.positions.begin(), bucket.positions.begin() + bucket.count);
    }
    return met;
  }

 private:
  SignCodes signs_;
  std::vector<int64_t> ends_;  // of the summaries
  std::vector<Entry> summaries_;
  FeedForward feed_forward_;
};

// Softmax over entries, in double.
class Softmax {
 public:
  Softmax(const float* query, double scale) : query_(query), scale_(scale) {}

  void Add(const Entry& entry, bool is_summary) {
    double score = std::log(static_cast<double>(entry.tokens));
    for (size_t d = 0; d < entry.key.size(); ++d) score += scale_ * query_[d] * entry.key[d];
    entries_.push_back({&entry, score, is_summary});
  }
  // Writes the mean of the values; returns the share of the summaries' weight.
  double Finish(float* out) const {
    double max = -INFINITY, sum = 0.0, in_summaries = 0.0;
    for (const Scored& scored : entries_) max = std::max(max, scored.score);
    std::vector<double> mean(entries_[0].entry->value.size());
    for (const auto& [entry, score, is_summary] : entries_) {
      const double weight = std::exp(score - max);
      sum += weight;
      if (is_summary) in_summaries += weight;
      for (size_t d = 0; d < mean.size(); ++d) mean[d] += weight * entry->value[d];
    }
    for (size_t d = 0; d < mean.size(); ++d) out[d] = static_cast<float>(mean[d] / sum);
    return in_summaries / sum;
  }

 private:
  struct Scored {
    const Entry* entry;
    double score;
    bool is_summary;
  };
  const float* query_;
  const double scale_;
  std::vector<Scored> entries_;
};

class IndexGraphAttention final : public Attention {
 public:
  IndexGraphAttention(const SparseOptions& options, const ModelFingerprint& fingerprint)
      : options_(options), exact_(CreateFlashAttention()) {
    options_.scores = SparseOptions::Scores::kBuckets;
    signs_ = SignOptionsOf(options_, fingerprint);
  }

  void Forward(const AttentionInputs& inputs, const KvCache& cache, ThreadPool& pool, float* out,
               int64_t out_stride) override {
    if (inputs.sliding_window > 0) {
      exact_->Forward(inputs, cache, pool, out, out_stride);
      return;
    }
    LODE_CHECK(inputs.num_heads % cache.options().num_kv_heads == 0);
    const std::span<HeadGraph> heads = HeadsOf(
        inputs.sequence, inputs.layer, cache.options().num_kv_heads, cache.options().head_dim);
    pool.ParallelFor(std::ssize(heads), [&](int64_t head, int) {
      ForwardHead(inputs, cache, static_cast<int32_t>(head), heads[At(head)], out, out_stride);
    });
  }

  void Truncate(SequenceId sequence, int64_t length) override {
    for (auto& [place, heads] : graphs_) {
      if (place.first != sequence) continue;
      for (HeadGraph& head : heads) head.Truncate(length);
    }
  }

  bool WantsFeedForward() const override {
    return options_.summary == SparseOptions::Summary::kFeedForward;
  }
  void AddFeedForward(const FeedForwardRows& rows) override {
    if (!WantsFeedForward()) return;
    const std::span<HeadGraph> heads =
        HeadsOf(rows.sequence, rows.layer, rows.num_kv_heads, rows.head_dim);
    for (int64_t t = 0; t < rows.num_tokens; ++t) {
      for (int64_t head = 0; head < rows.num_kv_heads; ++head) {
        const int64_t at = (t * rows.num_kv_heads + head) * rows.head_dim;
        heads[At(head)].feed_forward().Add(rows.first_position + t,
                                           {.key = {rows.k + at, rows.k + at + rows.head_dim},
                                            .value = {rows.v + at, rows.v + at + rows.head_dim}});
      }
    }
  }

  AttentionCounters counters() const override { return counters_; }

 private:
  std::span<HeadGraph> HeadsOf(SequenceId sequence, int32_t layer, int64_t num_kv_heads,
                               int64_t head_dim) {
    std::vector<HeadGraph>& heads = graphs_[{sequence, layer}];
    while (std::ssize(heads) < num_kv_heads) heads.emplace_back(head_dim, signs_);
    return heads;
  }

  // The summaries of largest scores, summary_ratio of them (which may have been an f32); all of
  // them as they are.
  std::vector<const Entry*> Seen(std::span<const Entry> summaries, const float* query) const {
    std::vector<const Entry*> seen;
    for (const Entry& entry : summaries) seen.push_back(&entry);
    if (options_.summary_ratio == 1.0) return seen;
    std::vector<double> scores;
    for (const Entry& entry : summaries) {
      scores.push_back(std::inner_product(entry.key.begin(), entry.key.end(), query, 0.0));
    }
    const double share = options_.summary_ratio * static_cast<double>(summaries.size());
    const auto count = static_cast<int64_t>(std::ceil(share * (1.0 - 1e-6)));
    std::partial_sort(seen.begin(), seen.begin() + count, seen.end(),
                      [&](const Entry* a, const Entry* b) {
                        return scores[At(a - summaries.data())] > scores[At(b - summaries.data())];
                      });
    seen.resize(At(count));
    return seen;
  }

  void WarnOfMeans() {
    if (!WantsFeedForward() || has_warned_.exchange(true)) return;
    LogWarning(
        "index_graph: hca_summary=ffn: another attention processed tokens of this text, and the "
        "summaries of these are means");
  }

  void ForwardHead(const AttentionInputs& inputs, const KvCache& cache, int32_t kv_head,
                   HeadGraph& graph, float* out, int64_t out_stride) {
    const int64_t head_dim = cache.options().head_dim;
    const int64_t group = inputs.num_heads / cache.options().num_kv_heads;
    const bool summarises = options_.summary != SparseOptions::Summary::kNone;
    graph.Truncate(inputs.first_position);
    graph.EndSummariesAt(options_.SummarisedTokens(inputs.first_position + 1));
    TokenReader reader(inputs, cache, kv_head);
    AttentionCounters counters;
    for (int64_t t = 0; t < inputs.num_tokens; ++t) {
      const int64_t length = inputs.first_position + t + 1;
      // The rows of this call's tokens come after it.
      const int64_t limit = WantsFeedForward() ? inputs.first_position : length;
      if (graph.Grow(std::min(options_.SummarisedTokens(length), limit), reader) > 0) {
        WarnOfMeans();
      }
      const float* queries = inputs.q + t * inputs.q_stride + kv_head * group * head_dim;
      const std::vector<std::vector<int64_t>> met = graph.Meet(queries, group);
      std::vector<Entry> newest;
      for (int64_t i = graph.end(); i < length; ++i) newest.push_back(reader.Read(i));
      std::set<int64_t> read;
      for (int64_t r = 0; r < group; ++r) {
        std::vector<Entry> kept;
        for (const int64_t position : met[At(r)]) kept.push_back(reader.Read(position));
        read.insert(met[At(r)].begin(), met[At(r)].end());
        Softmax softmax(queries + r * head_dim, inputs.scale);
        for (const Entry& entry : newest) softmax.Add(entry, false);
        for (const Entry& entry : kept) softmax.Add(entry, false);
        if (summarises) {
          for (const Entry* entry : Seen(graph.summaries(), queries + r * head_dim)) {
            softmax.Add(*entry, true);
          }
        }
        const double share =
            softmax.Finish(out + t * out_stride + (kv_head * group + r) * head_dim);
        if (graph.end() == 0) continue;
        counters.rows += 1;
        counters.unread_share += share;
      }
      counters.keys += length;
      counters.keys_read += length - graph.end() + std::ssize(read);
    }
    const std::lock_guard lock(mutex_);
    counters_ += counters;
  }

  SparseOptions options_;
  SignOptions signs_;
  const std::unique_ptr<Attention> exact_;
  std::map<std::pair<SequenceId, int32_t>, std::vector<HeadGraph>> graphs_;  // [num_kv_heads]
  std::atomic<bool> has_warned_ = false;
  std::mutex mutex_;  // of counters_
  AttentionCounters counters_;
};

}  // namespace

std::unique_ptr<Attention> CreateIndexGraphAttention(const SparseOptions& options,
                                                     const ModelFingerprint& fingerprint) {
  return std::make_unique<IndexGraphAttention>(options, fingerprint);
}

int64_t IndexGraphStateBytes(const SparseOptions& options, int64_t head_dim, int64_t tokens) {
  return SignCodes::BytesFor(head_dim, options.hash_dim, tokens) +
         IndexGraph::NumSummaries(tokens) * 2 * head_dim * int64_t{sizeof(float)};
}

}  // namespace lode
