// SPDX-License-Identifier: Apache-2.0
#include "attention/sparse_index.h"

#include <algorithm>

#include "attention/kv_chunk.h"
#include "base/aligned_vector.h"
#include "base/check.h"

namespace lode {

SparseIndex::SparseIndex(const Calibration& calibration)
    : num_kv_heads_(calibration.num_kv_heads()) {
  for (int64_t layer = 0; layer < calibration.num_layers(); ++layer) {
    for (int64_t head = 0; head < num_kv_heads_; ++head) {
      const HeadProjection* projection = calibration.Find(layer, head);
      heads_.push_back(projection == nullptr ? nullptr : std::make_unique<PageIndex>(projection));
    }
  }
}

void SparseIndex::Truncate(int64_t length) {
  for (const auto& head : heads_) {
    if (head != nullptr) head->Truncate(std::min(head->num_pages(), length / kPageTokens));
  }
}

void SparseIndex::Update(const AttentionInputs& inputs, const KvCache& cache, ThreadPool& pool) {
  LODE_CHECK(Covers(inputs.layer));
  pool.ParallelFor(num_kv_heads_, [&](int64_t head, int) {
    PageIndex& index = *Get(inputs.layer, static_cast<int32_t>(head));
    index.Truncate(std::min(index.num_pages(), inputs.first_position / kPageTokens));
    AppendPages(inputs, cache, static_cast<int32_t>(head), index);
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
    index.Append(keys.data(), values.data(), head_dim);
  }
}

}  // namespace lode
