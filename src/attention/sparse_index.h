// SPDX-License-Identifier: Apache-2.0
// SparseIndex: the page indices (retrieval/page_index.h) of all layers and KV heads of one
// sequence, kept up with the cache, and where pages are ranked by them, the sign codes
// (retrieval/sign_codes.h). It also knows which pages no summary may stand for.
#ifndef LODE_ATTENTION_SPARSE_INDEX_H_
#define LODE_ATTENTION_SPARSE_INDEX_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "retrieval/calibration.h"
#include "retrieval/page_index.h"
#include "retrieval/sign_codes.h"

namespace lode {

// Of hamming or buckets; the fingerprint of the model is the seed unless the options have one.
SignOptions SignOptionsOf(const SparseOptions& options, const ModelFingerprint& fingerprint);

class SparseIndex {
 public:
  // Keeps a reference to `calibration`.
  explicit SparseIndex(const Calibration& calibration, const SparseOptions& options = {});
  // What one layer and KV head takes, slack of growth left aside.
  static int64_t BytesFor(const SparseOptions& options, int64_t head_dim, int64_t tokens);

  // Whether the layer has projections.
  bool Covers(int32_t layer) const { return Get(layer, 0) != nullptr; }
  const PageIndex& Pages(int32_t layer, int32_t kv_head) const { return *Get(layer, kv_head); }
  // Null unless the options rank by them.
  const SignCodes* Signs(int32_t layer, int32_t kv_head) const {
    return signs_.empty() ? nullptr : signs_[At(layer, kv_head)].get();
  }

  // As Attention::KeepExact: a page is kept exact if it holds a token of a range, or both sides of
  // a border.
  void KeepExact(std::span<const TokenRange> ranges);
  // Of pages [begin, end) those kept exact, ascending.
  std::span<const int64_t> ExactPages(int64_t begin, int64_t end) const;

  // Forgets the pages that hold tokens from `length` on.
  void Truncate(int64_t length);
  // Adds the pages that are full and not yet known, after dropping those that were written anew:
  // tokens from inputs.first_position on are new. Returns how many, over the KV heads.
  // Precondition: Covers(inputs.layer).
  int64_t Update(const AttentionInputs& inputs, const KvCache& cache, ThreadPool& pool);

 private:
  size_t At(int32_t layer, int32_t kv_head) const {
    return static_cast<size_t>(layer * num_kv_heads_ + kv_head);
  }
  PageIndex* Get(int32_t layer, int32_t kv_head) const { return heads_[At(layer, kv_head)].get(); }
  static void AppendPages(const AttentionInputs& inputs, const KvCache& cache, int32_t kv_head,
                          PageIndex& index);
  static void UpdateSigns(const AttentionInputs& inputs, const KvCache& cache, int32_t kv_head,
                          SignCodes& signs);

  int64_t num_kv_heads_;
  std::vector<std::unique_ptr<PageIndex>> heads_;  // [num_layers][num_kv_heads]
  std::vector<std::unique_ptr<SignCodes>> signs_;  // the same, or empty
  std::vector<int64_t> exact_pages_;               // ascending
};

}  // namespace lode

#endif  // LODE_ATTENTION_SPARSE_INDEX_H_
