// SPDX-License-Identifier: Apache-2.0
// The Attention seam: causal softmax attention of new tokens over a sequence's cached keys and
// values.
//
// `eager` is the truth (whole score row in memory, plain loops); every other implementation is
// tested against it by tests/conformance/attention_test, but for `mla_rff`, which is no softmax
// attention, and `index_graph`, which drops most keys: both are there to compare with.
// Implementations are listed in registry.cc.
#ifndef LODE_ATTENTION_ATTENTION_H_
#define LODE_ATTENTION_ATTENTION_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "kv/kv_cache.h"
#include "retrieval/calibration.h"

namespace lode {

// The new tokens of one sequence in a step. Their keys and values are already stored in the cache.
struct AttentionInputs {
  int32_t layer = 0;
  SequenceId sequence = 0;
  int64_t first_position =
      0;  // of the first query; token i attends to positions <= first_position + i
  int64_t num_tokens = 0;
  int32_t num_heads = 0;       // query heads, a multiple of the cache's num_kv_heads
  float scale = 1.0f;          // multiplies q.k, usually 1/sqrt(head_dim)
  int64_t sliding_window = 0;  // 0: all; n: token at position p attends to positions > p - n
  const float* q = nullptr;    // [num_tokens, num_heads, head_dim] after RoPE, row stride q_stride
                               // floats per token
  int64_t q_stride = 0;
};

// Tokens [begin, end) of a sequence. Without any, it is the border between two of them.
struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const TokenRange&) const = default;
};

// How sparse attention chooses what it reads. Counts are tokens; pages are read whole.
struct SparseOptions {
  // Keys read between the sinks and the window: at least top_k; every page whose share of the
  // softmax mass (root mean square over the queries of a selection) is above max_error /
  // sqrt(number of pages), so that the shares left to summaries have a root sum of squares below
  // max_error (0: no such limit); and more until summaries carry max_unread of the mass (0: no such
  // limit).
  int64_t top_k = 256;
  double max_error = 0.025;
  double max_unread = 0.0;
  // So many times the pages that estimates would choose are candidates: they get their true scores,
  // and the choice is made among them. 1: estimates decide.
  int64_t oversample = 1;
  int64_t window = 256;  // newest tokens that are always read
  // Tokens leave the window so many at a time, for csa_hca in whole pages besides: until then it is
  // longer.
  int64_t update_interval = 1;
  // csa_hca: share of the pages whose codes are looked at, those whose means have the largest
  // scores; the others' masses are those of equal keys. index_graph: share of the summaries, those
  // of the largest scores, that a query sees.
  double summary_ratio = 1.0;
  // What stands for keys that are not read: their means; for index_graph alone, what text 1 makes
  // of the feed-forward half of a layer (FeedForwardRows); nothing.
  enum class Summary : uint8_t { kMean, kFeedForward, kNone };
  Summary summary = Summary::kMean;
  // What ranks the pages: key codes, or for comparison page means alone, the true scores, and the
  // two ways of retrieval/sign_codes.h.
  enum class Scores : uint8_t { kCodes, kMeans, kExact, kHamming, kBuckets };
  Scores scores = Scores::kCodes;
  int64_t hash_dim = 64;  // of a key for kHamming and kBuckets: 32, 64 or 128
  uint64_t seed = 0;      // of their random matrix; 0: taken from the model's fingerprint
  // Every so many decoded tokens one layer and KV head is checked against exact attention; 0:
  // never.
  int64_t audit_interval = 0;

  // Of a text of `length` tokens those that have left the window.
  int64_t SummarisedTokens(int64_t length) const {
    return std::max<int64_t>(length - window, 0) / update_interval * update_interval;
  }
};

// The random Fourier features of `mla_rff`.
struct RffOptions {
  int64_t d_proj = 64;  // features of a query or key, at least 1
  uint64_t seed = 1;    // of the frequencies and phases, which all layers and heads share
};

// Sums over the query rows of audits: what sparse attention did, measured by exact attention.
struct AuditCounters {
  double rows = 0;
  double missed_mass = 0;   // share of the softmax mass of keys that were not read
  double output_error = 0;  // |output - exact output| / |exact output|
  double recall = 0;        // share of the 256 keys of largest score that were read
  // Of the rows above, those whose keys have codes; and the share of the 256 keys of largest score
  // between sinks and window that are among the 1,024 of largest estimate there. As many are found
  // when candidates are ranked again by their true scores.
  double code_rows = 0;
  double code_recall = 0;

  AuditCounters& operator+=(const AuditCounters& other);
  AuditCounters operator-(const AuditCounters& earlier) const;
};

// Of the new tokens of one sequence in a step, behind a layer: what the layer's own projections
// make keys of the normalised residual stream, and values of the output of the feed-forward half.
struct FeedForwardRows {
  int32_t layer = 0;
  SequenceId sequence = 0;
  int64_t first_position = 0;
  int64_t num_tokens = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  const float* k = nullptr;  // [num_tokens, num_kv_heads, head_dim] after RoPE
  const float* v = nullptr;  // the same
};

// A sequence's text gives way to another, whose beginning the cache holds.
struct TextChange {
  SequenceId sequence = 0;
  std::span<const int32_t> before;  // the tokens that it held
  std::span<const int32_t> now;     // those that it holds
  int64_t capacity = 0;             // tokens of all texts, this one too, that may be remembered
};

// What an attention has read and left out so far, over all layers, heads and queries.
struct AttentionCounters {
  int64_t keys = 0;           // that the queries attend to
  int64_t keys_read = 0;      // of these
  int64_t bytes_read = 0;     // of keys, values, codes and summaries; 0: not counted
  double rows = 0;            // query rows that left keys out
  double unread_share = 0;    // sum over these rows: share of their softmax mass in summaries
  double select_seconds = 0;  // spent on finding out what to read, where that is known apart
  double attend_seconds = 0;  // and on the rest
  int64_t pages_indexed = 0;  // pages of keys that codes and means were made of
  AuditCounters audits;

  AttentionCounters& operator+=(const AttentionCounters& other);
  AttentionCounters operator-(const AttentionCounters& earlier) const;
};

class Attention {
 public:
  virtual ~Attention() = default;
  virtual AttentionCounters counters() const { return {}; }
  // Writes out [num_tokens, num_heads, head_dim] f32, token stride out_stride floats. Uses the
  // pool's threads; the result does not depend on their number. Softmax and sums are f32.
  virtual void Forward(const AttentionInputs& inputs, const KvCache& cache, ThreadPool& pool,
                       float* out, int64_t out_stride) = 0;
  // Whether the model is to call AddFeedForward after each layer that does not slide; it costs two
  // products.
  virtual bool WantsFeedForward() const { return false; }
  virtual void AddFeedForward(const FeedForwardRows& /*rows*/) {}
  // The sequence's tokens from `length` on are gone or will be other ones: forget what was learnt
  // of them.
  virtual void Truncate(SequenceId /*sequence*/, int64_t /*length*/) {}
  // What was learnt of the tokens that both texts begin with stays. What was learnt of the others
  // may be kept, and be there again when a later text begins with them.
  virtual void ChangeText(const TextChange& change);
  // From now on no summary stands for a token of these ranges, nor for tokens of both sides of a
  // border: they are read. Ranges ascend and may lie ahead of what is cached; they replace the
  // sequence's earlier ones. Truncate forgets those it reaches.
  virtual void KeepExact(SequenceId /*sequence*/, std::span<const TokenRange> /*ranges*/) {}
};

// What some implementations need besides their name.
struct AttentionContext {
  SparseOptions sparse;                            // csa_hca, index_graph
  std::shared_ptr<const Calibration> calibration;  // csa_hca: of the model
  RffOptions rff = {};                             // mla_rff
  ModelFingerprint fingerprint = {};               // index_graph: of the model
};

// Known names, in registry order: "eager", "flash" (aliases of flash: "sdpa", "flash_attention_2"),
// "mla_rff", "csa_hca", "index_graph".
std::vector<std::string> AttentionNames();
// A name may be followed by values for some SparseParameters, which win over those of the context:
// "csa_hca:csa_top_k=1024:hca_summary=none". InvalidArgument lists the known names.
Status CheckAttentionName(std::string_view name);
// Whether the implementation of a known name works with a calibration.
bool NeedsCalibration(std::string_view name);
// Whether it works with a fingerprint alone.
bool NeedsFingerprint(std::string_view name);
// InvalidArgument: as CheckAttentionName, or says what the context lacks.
Result<std::unique_ptr<Attention>> CreateAttention(std::string_view name,
                                                   const AttentionContext& context = {});

}  // namespace lode

#endif  // LODE_ATTENTION_ATTENTION_H_
