// SPDX-License-Identifier: Apache-2.0
#include "attention/sparse_index.h"

#include <algorithm>
#include <atomic>

#include "attention/kv_chunk.h"
#include "base/aligned_vector.h"
#include "base/check.h"

namespace lode {

namespace {

using Scores = SparseOptions::Scores;

bool IsBySigns(const SparseOptions& options) {
  return options.scores == Scores::kHamming || options.scores == Scores::kBuckets;
}

}  // namespace

SignOptions SignOptionsOf(const SparseOptions& options, const ModelFingerprint& fingerprint) {
  uint64_t seed = options.seed;
  for (size_t i = 0; options.seed == 0 && i < sizeof(seed); ++i) {
    seed = seed << 8 | fingerprint[i];
  }
  return {.ranking = options.scores == Scores::kBuckets ? SignOptions::Ranking::kBuckets
                                                        : SignOptions::Ranking::kHamming,
          .bits = options.hash_dim,
          .seed = seed,
          .window = options.window};
}

SparseIndex::SparseIndex(const Calibration& calibration, const SparseOptions& options)
    : num_kv_heads_(calibration.num_kv_heads()) {
  const SignOptions signs = SignOptionsOf(options, calibration.fingerprint());
  for (int64_t layer = 0; layer < calibration.num_layers(); ++layer) {
    for (int64_t head = 0; head < num_kv_heads_; ++head) {
      const HeadProjection* projection = calibration.Find(layer, head);
      heads_.push_back(projection == nullptr ? nullptr : std::make_unique<PageIndex>(projection));
      if (!IsBySigns(options)) continue;
      signs_.push_back(projection == nullptr
                           ? nullptr
                           : std::make_unique<SignCodes>(calibration.head_dim(), signs));
    }
  }
}

int64_t SparseIndex::BytesFor(const SparseOptions& options, int64_t head_dim, int64_t tokens) {
  const int64_t signs =
      IsBySigns(options) ? SignCodes::BytesFor(head_dim, options.hash_dim, tokens) : 0;
  return PageIndex::BytesFor(head_dim, tokens) + signs;
}

void SparseIndex::Truncate(int64_t length) {
  for (const auto& head : heads_) {
    if (head != nullptr) head->Truncate(std::min(head->num_pages(), length / kPageTokens));
  }
  for (const auto& head : signs_) {
    if (head != nullptr) head->Truncate(std::min(head->num_pages(), length / kPageTokens));
  }
  exact_pages_.resize(ExactPages(0, length / kPageTokens).size());
}

void SparseIndex::KeepExact(std::span<const TokenRange> ranges) {
  exact_pages_.clear();
  int64_t next = 0;
  for (const TokenRange& range : ranges) {
    next = std::max(next, range.begin / kPageTokens);
    const int64_t end = (range.end + kPageTokens - 1) / kPageTokens;  // a border rounds apart
    for (; next < end; ++next) exact_pages_.push_back(next);
  }
}

std::span<const int64_t> SparseIndex::ExactPages(int64_t begin, int64_t end) const {
  const auto first = std::lower_bound(exact_pages_.begin(), exact_pages_.end(), begin);
  return {first, std::lower_bound(first, exact_pages_.end(), end)};
}

int64_t SparseIndex::Update(const AttentionInputs& inputs, const KvCache& cache, ThreadPool& pool) {
  LODE_CHECK(Covers(inputs.layer));
  std::atomic<int64_t> appended = 0;
  pool.ParallelFor(num_kv_heads_, [&](int64_t head, int) {
    PageIndex& index = *Get(inputs.layer, static_cast<int32_t>(head));
    index.Truncate(std::min(index.num_pages(), inputs.first_position / kPageTokens));
    const int64_t known = index.num_pages();
    AppendPages(inputs, cache, static_cast<int32_t>(head), index);
    appended += index.num_pages() - known;
    if (signs_.empty()) return;
    UpdateSigns(inputs, cache, static_cast<int32_t>(head),
                *signs_[At(inputs.layer, static_cast<int32_t>(head))]);
  });
  return appended;
}

void SparseIndex::UpdateSigns(const AttentionInputs& inputs, const KvCache& cache, int32_t kv_head,
                              SignCodes& signs) {
  signs.Truncate(std::min(signs.num_pages(), inputs.first_position / kPageTokens));
  signs.Update((inputs.first_position + inputs.num_tokens) / kPageTokens,
               [&](int64_t page, float* keys) {
                 KvChunk(cache, inputs.sequence, inputs.layer, kv_head, page * kPageTokens,
                         (page + 1) * kPageTokens)
                     .DecodeKeys(keys);
               });
}

void SparseIndex::AppendPages(const AttentionInputs& inputs, const KvCache& cache, int32_t kv_head,
                              PageIndex& index) {
  const int64_t end = (inputs.first_position + inputs.num_tokens) / kPageTokens;
  if (index.num_pages() >= end) return;
  const int64_t head_dim = cache.options().head_dim;
  AlignedVector<float> keys(static_cast<size_t>(head_dim * kPageTokens));
  AlignedVector<float> values(static_cast<size_t>(head_dim * kPageTokens));
  while (index.num_pages() < end) {
    const KvChunk chunk(cache, inputs.sequence, inputs.layer, kv_head,
                        index.num_pages() * kPageTokens, (index.num_pages() + 1) * kPageTokens);
    chunk.DecodeKeys(keys.data());
    chunk.DecodeValues(values.data(), head_dim);
    index.Append(keys.data(), values.data(), head_dim, index.num_pages() + 1 < end);
  }
}

}  // namespace lode
