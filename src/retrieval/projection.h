// SPDX-License-Identifier: Apache-2.0
// HeadProjection: the linear map and the bit plan by which the keys of one KV head become codes.
//
// The "balanced space" of a layer and KV head is the closed-form map k' = A^T k, q' = A^-1 q with
// which q'.k' = q.k and the covariance of keys equals that of queries, diag(S): with key covariance
// Ck and query second moment Cq, Ck^(1/2) Cq Ck^(1/2) = U S^2 U^T and A = Ck^(-1/2) U S^(1/2). In
// it a dimension matters to scores in proportion to S^2, so bits go to dimensions by reverse
// water-filling (Cover and Thomas, section 10.3), each dimension is quantised with the Lloyd-Max
// levels of a normal distribution. A scale per key, as in RaBitQ (arXiv 2405.12497), gained too
// little here to be worth its look-ups (docs/attention_studies.md).
//
// Bits are packed so that no dimension crosses a nibble (4 x 1, 2 x 2, 1 + 3 or 1 x 4 bits):
// scoring a key is one look-up per nibble in a table of 16 entries.
#ifndef LODE_RETRIEVAL_PROJECTION_H_
#define LODE_RETRIEVAL_PROJECTION_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/aligned_vector.h"
#include "base/status.h"
#include "kernels/code_scan.h"

namespace lode {

inline constexpr int64_t kCodeNibbles = kernels::kCodeNibbles;
inline constexpr int64_t kCodeBits = kCodeNibbles * 4;  // of a key
inline constexpr int64_t kMaxBitsPerDim = 4;
inline constexpr int64_t kCodeEntries = kCodeNibbles * 16;

// Second moments of one KV head, gathered from a run of the model on some text.
class HeadStatistics {
 public:
  explicit HeadStatistics(int64_t head_dim);

  int64_t head_dim() const { return head_dim_; }
  int64_t num_keys() const { return num_keys_; }
  int64_t num_queries() const { return num_queries_; }
  // [head_dim][head_dim], sums of outer products.
  const std::vector<double>& key_sums() const { return key_sums_; }
  const std::vector<double>& query_sums() const { return query_sums_; }

  // A key less the mean of its page, and a query of one of the head's query heads: [head_dim].
  void AddKeyResidual(const float* residual);
  void AddQuery(const float* query);

 private:
  int64_t head_dim_;
  int64_t num_keys_ = 0;
  int64_t num_queries_ = 0;
  std::vector<double> key_sums_, query_sums_;
};

// Where the bits of one dimension lie in a code.
struct CodeField {
  int32_t dim = 0;
  int32_t nibble = 0;
  int32_t shift = 0;  // inside the nibble
  int32_t bits = 0;   // 1 to kMaxBitsPerDim
};

class HeadProjection {
 public:
  // InvalidArgument without any key or query, or when their moments are not finite.
  static Result<HeadProjection> Fit(const HeadStatistics& statistics);
  // From what a calibration file holds. InvalidArgument when the sizes disagree, a number is not
  // finite, the map cannot be inverted or the bits do not fit a code.
  //   key_map [head_dim][head_dim] row-major, deviations [head_dim], bits [head_dim]
  static Result<HeadProjection> Create(int64_t head_dim, std::vector<float> key_map,
                                       std::vector<float> deviations, std::vector<uint8_t> bits);

  // What a projection takes.
  static int64_t BytesFor(int64_t head_dim) {
    return (3 * head_dim + kCodeEntries) * head_dim * int64_t{sizeof(float)};
  }

  int64_t head_dim() const { return head_dim_; }
  std::span<const float> key_map() const { return key_map_; }
  std::span<const float> deviations() const { return deviations_; }
  std::span<const uint8_t> bits() const { return bits_; }
  std::span<const CodeField> fields() const { return fields_; }

  // For many keys and queries at once (kernels::MultiplyTile):
  //   field_map [fields().size()][head_dim]    field_map k is what the fields' dimensions of k'
  //   are,
  //                                            in units of their deviations
  //   table_map [head_dim][kCodeEntries]       q table_map is what every value of every nibble adds
  //                                            to a score, 64-byte aligned
  const float* field_map() const { return field_map_.data(); }
  const float* table_map() const { return table_map_.data(); }

  // k' [head_dim] = key_map k.
  void MapKey(const float* key, float* out) const;
  // q' [head_dim], with which q'.k' = q.k.
  void MapQuery(const float* query, float* out) const;

 private:
  HeadProjection() = default;
  void MakeMaps();

  int64_t head_dim_ = 0;
  std::vector<float> key_map_;     // [head_dim][head_dim]
  std::vector<float> query_map_;   // its inverse, transposed
  std::vector<float> deviations_;  // [head_dim] of k', the unit of the levels
  std::vector<uint8_t> bits_;      // [head_dim]
  std::vector<CodeField> fields_;  // of the dimensions that have bits
  std::vector<float> field_map_;
  AlignedVector<float> table_map_;
};

// Lloyd-Max levels of a standard normal distribution with 2^bits steps, ascending. 1 <= bits <= 4.
std::span<const float> LloydMaxLevels(int64_t bits);

// Places bits[d] for every dimension in nibbles, largest first; empty when they do not fit.
std::vector<CodeField> PackFields(std::span<const uint8_t> bits);

}  // namespace lode

#endif  // LODE_RETRIEVAL_PROJECTION_H_
