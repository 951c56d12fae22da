// SPDX-License-Identifier: Apache-2.0
#include "attention/phased.h"

#include <utility>

namespace lode {
namespace {

class PhasedAttention final : public Attention {
 public:
  PhasedAttention(std::unique_ptr<Attention> prefill, std::unique_ptr<Attention> decode)
      : prefill_(std::move(prefill)), decode_(std::move(decode)) {}

  AttentionCounters counters() const override {
    AttentionCounters sum = prefill_->counters();
    return sum += decode_->counters();
  }
  void Forward(const AttentionInputs& inputs, const KvCache& cache, ThreadPool& pool, float* out,
               int64_t out_stride) override {
    (inputs.num_tokens > 1 ? prefill_ : decode_)->Forward(inputs, cache, pool, out, out_stride);
  }
  bool WantsFeedForward() const override {
    return prefill_->WantsFeedForward() || decode_->WantsFeedForward();
  }
  void AddFeedForward(const FeedForwardRows& rows) override {
    prefill_->AddFeedForward(rows);
    decode_->AddFeedForward(rows);
  }
  void Truncate(SequenceId sequence, int64_t length) override {
    prefill_->Truncate(sequence, length);
    decode_->Truncate(sequence, length);
  }
  void ChangeText(const TextChange& change) override {
    prefill_->ChangeText(change);
    decode_->ChangeText(change);
  }
  void KeepExact(SequenceId sequence, std::span<const TokenRange> ranges) override {
    prefill_->KeepExact(sequence, ranges);
    decode_->KeepExact(sequence, ranges);
  }

 private:
  const std::unique_ptr<Attention> prefill_, decode_;
};

}  // namespace

std::unique_ptr<Attention> CreatePhasedAttention(std::unique_ptr<Attention> prefill,
                                                 std::unique_ptr<Attention> decode) {
  return std::make_unique<PhasedAttention>(std::move(prefill), std::move(decode));
}

}  // namespace lode
