// SPDX-License-Identifier: Apache-2.0
// SignCodes: random sign bits of the keys of one layer and KV head, and two ways to rank pages by
// them. Plain loops: these are what key codes (page_index.h) are compared with.
//
//   hamming  Charikar 2002: keys less their mean k - mu get the bits sign(R (k - mu)), queries
//            sign(R q); bits that differ tell the angle, cos(pi differing / bits). As all keys
//            count as equally long, keys are ranked by Hamming similarity. Pages are ranked by the
//            softmax mass that these cosines give, summed over the queries.
//   buckets  text 1's CSA: bits sign(R ((k - mu) / sigma)), read as a number modulo N / 512 for N
//            tokens, those of the window among them; of each of these buckets the first three keys
//            are kept, and a query is compared with those of its own bucket. Pages are ranked by
//            how many keys they hold that any query meets. The text does not say how queries are
//            calibrated: here by q sigma, with which (k / sigma).(q sigma) = k.q.
//
// mu and sigma are those of the oldest 2^n pages, as many as there are: when their number has
// doubled, all keys are read and coded again. So codes do not depend on how a text grew.
#ifndef LODE_RETRIEVAL_SIGN_CODES_H_
#define LODE_RETRIEVAL_SIGN_CODES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/aligned_vector.h"
#include "base/function_ref.h"

namespace lode {

struct SignOptions {
  enum class Ranking : uint8_t { kHamming, kBuckets };

  Ranking ranking = Ranking::kHamming;
  int64_t bits = 64;  // of a key: 32, 64 or 128
  uint64_t seed = 1;  // of R [bits][head_dim], standard normal
  // Tokens behind the pages that are ranked, which are read in any case: they count for the number
  // of buckets.
  int64_t window = 0;
};

class SignCodes {
 public:
  static constexpr int64_t kBucketTokens = 512;  // of the text, per bucket
  static constexpr int64_t kKeysKept = 3;        // of a bucket
  // N / kBucketTokens, at least one.
  static constexpr int64_t NumBuckets(int64_t tokens) {
    return tokens < 2 * kBucketTokens ? 1 : tokens / kBucketTokens;
  }
  // The keys that a bucket keeps: the oldest.
  struct Bucket {
    int64_t count = 0;
    std::array<int64_t, kKeysKept> positions = {};
  };
  static constexpr bool IsNumBits(int64_t bits) { return bits == 32 || bits == 64 || bits == 128; }

  // Preconditions: IsNumBits(options.bits); head_dim is a multiple of 8.
  SignCodes(int64_t head_dim, const SignOptions& options);

  int64_t num_pages() const { return num_pages_; }
  // Of the codes of a page.
  int64_t page_bytes() const;
  // What the codes of `tokens` tokens take with their maps, slack of growth left aside.
  static int64_t BytesFor(int64_t head_dim, int64_t bits, int64_t tokens);

  // Makes the codes those of the pages [0, num_pages), of which those that are known stay.
  //   read_page(page, keys)  writes a page's keys [head_dim][kPageTokens], 64-byte aligned
  void Update(int64_t num_pages, FunctionRef<void(int64_t, float*)> read_page);
  // Forgets the pages from num_pages on.
  void Truncate(int64_t num_pages);

  // ranks[i] of page first + i: larger is better, 0 means that nothing names the page. Pages from
  // first + ranks.size() on do not exist for the queries.
  //   queries [rows][head_dim], times scale * log2(e)
  // Cost: every code once per query (hamming), or once (buckets).
  void Rank(const float* queries, int64_t rows, int64_t first, std::span<float> ranks) const;

  // For kBuckets: those of the keys of the pages [0, num_pages).
  std::vector<Bucket> Buckets(int64_t num_pages) const;
  // For kBuckets: which of num_buckets each of the queries [rows][head_dim] meets.
  std::vector<int64_t> BucketsOf(const float* queries, int64_t rows, int64_t num_buckets) const;

 private:
  static constexpr int64_t kWordBits = 64;
  // Words of a code, little end first.
  static int64_t WordsOf(int64_t bits) { return (bits + kWordBits - 1) / kWordBits; }
  int64_t words() const { return WordsOf(options_.bits); }
  bool IsScaled() const { return options_.ranking == SignOptions::Ranking::kBuckets; }
  void Centre(int64_t num_pages, FunctionRef<void(int64_t, float*)> read_page);
  void AppendPage(const float* keys);
  std::vector<uint64_t> CodesOf(const float* queries, int64_t rows) const;
  int64_t BucketOf(const uint64_t* code, int64_t num_buckets) const;
  void RankByHamming(const float* queries, int64_t rows, int64_t first,
                     std::span<float> ranks) const;
  void RankByBuckets(const float* queries, int64_t rows, int64_t first,
                     std::span<float> ranks) const;

  const int64_t head_dim_;
  const SignOptions options_;
  AlignedVector<float> matrix_;  // R, [bits][head_dim]
  int64_t num_pages_ = 0;
  int64_t centre_pages_ = 0;        // that mu and sigma are of; 0: not known
  std::vector<float> mean_;         // mu, [head_dim]
  std::vector<float> deviation_;    // sigma, [head_dim]; ones for hamming
  double key_length_ = 0;           // root mean square of |k - mu|
  AlignedVector<float> key_map_;    // R / sigma, [bits][head_dim]
  AlignedVector<float> query_map_;  // R sigma transposed, [head_dim][bits]
  std::vector<float> thresholds_;   // key_map_ mu, [bits]
  std::vector<uint64_t> codes_;     // [num_pages][kPageTokens][words]
};

}  // namespace lode

#endif  // LODE_RETRIEVAL_SIGN_CODES_H_
