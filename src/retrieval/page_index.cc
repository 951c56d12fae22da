// SPDX-License-Identifier: Apache-2.0
#include "retrieval/page_index.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "base/check.h"
#include "kernels/attention_tile.h"
#include "kernels/kv_codes.h"

namespace lode {
namespace {

// Resizes with an eighth of slack, where a vector's own growth would double it.
template <class Vector>
void GrowTo(size_t size, Vector& vector) {
  if (size > vector.capacity()) vector.reserve(size + size / 8);
  vector.resize(size);
}

}  // namespace

PageIndex::PageIndex(const HeadProjection* projection)
    : projection_(projection),
      key_tile_bytes_(kernels::KeyCodeBytes(kMeanBits, mean_shape())),
      value_tile_bytes_(kernels::ValueCodeBytes(kMeanBits, mean_shape())),
      full_scales_(At(head_dim()), 0.0f),
      open_keys_(At(head_dim() * kNodePages), 0.0f),
      open_values_(open_keys_.size(), 0.0f) {}

int64_t PageIndex::BytesFor(int64_t head_dim, int64_t tokens) {
  const int64_t pages = tokens / kPageTokens, nodes = (pages + kNodePages - 1) / kNodePages;
  const kernels::KvTileShape node = {.head_dim = head_dim};
  return pages * kCodeBytes + nodes * (kernels::KeyCodeBytes(kMeanBits, node) +
                                       kernels::ValueCodeBytes(kMeanBits, node));
}

void PageIndex::Append(const float* keys, const float* values, int64_t value_stride, bool more) {
  const int64_t n = head_dim();
  std::vector<float> mean_key(At(n), 0.0f), mean_value(mean_key);
  AlignedVector<float> residuals(At(n * kPageTokens));
  for (int64_t d = 0; d < n; ++d) {
    const float* row = keys + d * kPageTokens;
    float sum = 0.0f;
    for (int64_t t = 0; t < kPageTokens; ++t) sum += row[t];
    mean_key[At(d)] = sum / kPageTokens;
    for (int64_t t = 0; t < kPageTokens; ++t) {
      residuals[At(d * kPageTokens + t)] = row[t] - mean_key[At(d)];
    }
  }
  for (int64_t t = 0; t < kPageTokens; ++t) {
    for (int64_t d = 0; d < n; ++d) mean_value[At(d)] += values[t * value_stride + d] / kPageTokens;
  }
  GrowTo(At((num_pages_ + 1) * kernels::kCodePageBytes), codes_);
  GrowTo(At(num_pages_ + 1), scales_);
  scales_.back() = Encode(residuals.data(), &codes_[At(num_pages_ * kernels::kCodePageBytes)]);
  AppendMeans(mean_key.data(), mean_value.data(), more);
}

// The open node is encoded anew with every page that it gains, or with the last of several.
void PageIndex::AppendMeans(const float* key, const float* value, bool more) {
  const int64_t node = num_pages_ / kNodePages, place = num_pages_ % kNodePages;
  ++num_pages_;
  for (int64_t d = 0; d < head_dim(); ++d) open_keys_[At(d * kNodePages + place)] = key[d];
  std::copy_n(value, head_dim(), &open_values_[At(place * head_dim())]);
  GrowTo(At((node + 1) * key_tile_bytes_), mean_keys_);
  GrowTo(At((node + 1) * value_tile_bytes_), mean_values_);
  if (more && place + 1 < kNodePages) return;
  // Columns without a page repeat the first: zeros would widen the range that the codes span.
  for (int64_t d = 0; d < head_dim(); ++d) {
    float* row = &open_keys_[At(d * kNodePages)];
    std::fill(row + place + 1, row + kNodePages, row[0]);
  }
  kernels::EncodeKeyCodes(kMeanBits, mean_shape(), open_keys_.data(),
                          &mean_keys_[At(node * key_tile_bytes_)]);
  kernels::EncodeValueCodes(kMeanBits, mean_shape(), open_values_.data(), head_dim(),
                            &mean_values_[At(node * value_tile_bytes_)]);
  if (place + 1 < kNodePages) return;
  kernels::RaiseToKeyScales(kMeanBits, mean_shape(), MeanKeys(node), full_scales_.data());
  std::fill(open_values_.begin(), open_values_.end(), 0.0f);
}

void PageIndex::Truncate(int64_t num_pages) {
  LODE_CHECK(num_pages >= 0 && num_pages <= num_pages_);
  if (num_pages == num_pages_) return;
  const int64_t nodes = num_pages / kNodePages;
  num_pages_ = nodes * kNodePages;
  mean_keys_.resize(At(nodes * key_tile_bytes_));
  mean_values_.resize(At(nodes * value_tile_bytes_));
  codes_.resize(At(num_pages_ * kernels::kCodePageBytes));
  scales_.resize(At(num_pages_));
  std::fill(open_values_.begin(), open_values_.end(), 0.0f);
  std::fill(full_scales_.begin(), full_scales_.end(), 0.0f);
  for (int64_t node = 0; node < nodes; ++node) {
    kernels::RaiseToKeyScales(kMeanBits, mean_shape(), MeanKeys(node), full_scales_.data());
  }
}

void PageIndex::RaiseToMeanScales(float* scales) const {
  for (int64_t d = 0; d < head_dim(); ++d) scales[d] = std::max(scales[d], full_scales_[At(d)]);
  if (num_pages_ % kNodePages != 0) {
    kernels::RaiseToKeyScales(kMeanBits, mean_shape(), MeanKeys(num_pages_ / kNodePages), scales);
  }
}

// The scale is the one of least squared error.
float PageIndex::Encode(const float* residuals, uint8_t* page) const {
  const std::span<const CodeField> fields = projection_->fields();
  AlignedVector<float> mapped(fields.size() * At(kPageTokens));
  kernels::MultiplyTile(projection_->field_map(), head_dim(), residuals,
                        static_cast<int64_t>(fields.size()), head_dim(), kPageTokens, false,
                        mapped.data(), kPageTokens);
  float zz = 0.0f, xz = 0.0f;  // sums over all keys: of squares of what the codes say, of products
  const float* row = mapped.data();
  for (const CodeField& field : fields) {
    const std::span<const float> levels = LloydMaxLevels(field.bits);
    const float deviation = projection_->deviations()[At(field.dim)];
    const float variance = deviation * deviation;
    constexpr int32_t kRows = kCodeNibbles / 2;  // of two nibbles
    uint8_t* bytes = page + field.nibble % kRows * kPageTokens;
    const int shift = field.shift + (field.nibble < kRows ? 0 : 4);
    for (int64_t t = 0; t < kPageTokens; ++t) {
      int level = 0;  // the nearest
      for (size_t i = 1; i < levels.size(); ++i) {
        level += row[t] >= (levels[i - 1] + levels[i]) / 2 ? 1 : 0;
      }
      bytes[t] |= static_cast<uint8_t>(level << shift);
      const float z = levels[static_cast<size_t>(level)];
      zz += z * z * variance;
      xz += row[t] * z * variance;
    }
    row += kPageTokens;
  }
  // Every level has the sign of what it stands for: xz is 0 only where the residuals are.
  return xz > 0.0f ? xz / zz : 0.0f;
}

void PageIndex::Prepare(const float* queries, int64_t rows, PreparedQueries& out) const {
  out.rows = rows;
  out.exact.resize(At(rows * kCodeEntries));
  out.tables.resize(At(rows * kCodeEntries));
  out.steps.resize(At(rows));
  kernels::MultiplyTile(queries, head_dim(), projection_->table_map(), rows, head_dim(),
                        kCodeEntries, false, out.exact.data(), kCodeEntries);
  kernels::QuantizeTables(out.exact.data(), rows, out.tables.data(), out.steps.data());
}

}  // namespace lode
