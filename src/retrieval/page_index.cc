// SPDX-License-Identifier: Apache-2.0
#include "retrieval/page_index.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/code_scan.h"
#include "kernels/dequantize.h"

namespace lode {
namespace {

constexpr int64_t kCodeBytes = kCodeNibbles * kPageTokens / 2;  // of a page
// The correction <x,x>/<x,z> of a key is kept within these, as a code may be a poor match.
constexpr float kMinScale = 0.3f;
constexpr float kMaxScale = 3.0f;

// Index of the level nearest to x, in units of the deviation.
int NearestLevel(std::span<const float> levels, float x) {
  const auto above = std::lower_bound(levels.begin(), levels.end(), x);
  if (above == levels.begin()) return 0;
  if (above == levels.end()) return static_cast<int>(levels.size()) - 1;
  const auto below = above - 1;
  return static_cast<int>((x - *below < *above - x ? below : above) - levels.begin());
}

}  // namespace

PageIndex::PageIndex(const HeadProjection* projection) : projection_(projection) {}

void PageIndex::Append(const float* keys, const float* values, int64_t value_stride) {
  const int64_t n = head_dim();
  std::vector<float> mean_key(static_cast<size_t>(n), 0.0f), mean_value(mean_key),
      residual(mean_key);
  for (int64_t t = 0; t < kPageTokens; ++t) {
    for (int64_t d = 0; d < n; ++d) {
      mean_key[static_cast<size_t>(d)] += keys[d * kPageTokens + t] / kPageTokens;
      mean_value[static_cast<size_t>(d)] += values[t * value_stride + d] / kPageTokens;
    }
  }
  const int64_t group = num_pages_ / kPageGroup, place = num_pages_ % kPageGroup;
  ++num_pages_;
  ResizeMeans();
  for (int64_t d = 0; d < n; ++d) {
    mean_keys_[static_cast<size_t>((group * n + d) * kPageGroup + place)] =
        mean_key[static_cast<size_t>(d)];
    mean_values_[static_cast<size_t>((group * kPageGroup + place) * value_cols() + d)] =
        mean_value[static_cast<size_t>(d)];
  }
  codes_.resize(codes_.size() + kCodeBytes, 0);
  scales_.resize(scales_.size() + kPageTokens, 0);
  const int64_t page = num_pages_ - 1;
  uint8_t* codes = codes_.data() + page * kCodeBytes;
  for (int64_t t = 0; t < kPageTokens; ++t) {
    for (int64_t d = 0; d < n; ++d) {
      residual[static_cast<size_t>(d)] =
          keys[d * kPageTokens + t] - mean_key[static_cast<size_t>(d)];
    }
    Encode(residual.data(), t, codes, scales_[static_cast<size_t>(page * kPageTokens + t)]);
  }
}

void PageIndex::Truncate(int64_t num_pages) {
  LODE_CHECK(num_pages >= 0 && num_pages <= num_pages_);
  num_pages_ = num_pages;
  ResizeMeans();
  codes_.resize(static_cast<size_t>(num_pages * kCodeBytes));
  scales_.resize(static_cast<size_t>(num_pages * kPageTokens));
}

void PageIndex::ResizeMeans() {
  mean_keys_.resize(static_cast<size_t>(num_groups() * kPageGroup * head_dim()), 0.0f);
  mean_values_.resize(static_cast<size_t>(num_groups() * kPageGroup * value_cols()), 0.0f);
}

void PageIndex::Encode(const float* residual, int64_t token, uint8_t* codes,
                       uint16_t& scale) const {
  std::vector<float> mapped(static_cast<size_t>(head_dim()));
  projection_->MapKey(residual, mapped.data());
  const int64_t byte = token % (kPageTokens / 2);
  const int high = token < kPageTokens / 2 ? 0 : 4;
  float xx = 0.0f, xz = 0.0f;
  for (const CodeField& field : projection_->fields()) {
    const float x = mapped[static_cast<size_t>(field.dim)];
    const float deviation = projection_->deviations()[static_cast<size_t>(field.dim)];
    const std::span<const float> levels = LloydMaxLevels(field.bits);
    const int level = NearestLevel(levels, x / deviation);
    codes[field.nibble * kPageTokens / 2 + byte] |=
        static_cast<uint8_t>(level << (field.shift + high));
    xx += x * x;
    xz += x * levels[static_cast<size_t>(level)] * deviation;
  }
  // Every level has the sign of what it stands for or is near zero, so xz is hardly ever negative.
  scale = kernels::FloatToHalf(xz > 0.0f ? std::clamp(xx / xz, kMinScale, kMaxScale) : 1.0f);
}

void PageIndex::Prepare(const float* queries, int64_t rows, float factor,
                        PreparedQueries& out) const {
  const int64_t n = head_dim();
  out.rows = rows;
  out.queries.resize(static_cast<size_t>(rows * n));
  out.tables.assign(static_cast<size_t>(rows * kCodeNibbles * 16), kernels::kCodeTableZero);
  out.steps.resize(static_cast<size_t>(rows));
  std::vector<float> mapped(static_cast<size_t>(n));
  std::vector<float> table(kCodeNibbles * 16);
  for (int64_t r = 0; r < rows; ++r) {
    float* query = &out.queries[static_cast<size_t>(r * n)];
    for (int64_t d = 0; d < n; ++d) query[d] = queries[r * n + d] * factor;
    projection_->MapQuery(query, mapped.data());
    std::fill(table.begin(), table.end(), 0.0f);
    for (const CodeField& field : projection_->fields()) {
      const std::span<const float> levels = LloydMaxLevels(field.bits);
      const float q = mapped[static_cast<size_t>(field.dim)] *
                      projection_->deviations()[static_cast<size_t>(field.dim)];
      const auto mask = static_cast<size_t>((1 << field.bits) - 1);
      for (size_t entry = 0; entry < 16; ++entry) {
        table[static_cast<size_t>(field.nibble) * 16 + entry] +=
            q * levels[(entry >> field.shift) & mask];
      }
    }
    float largest = 0.0f;
    for (const float x : table) largest = std::max(largest, std::abs(x));
    const float step = largest / (127 - kernels::kCodeTableZero);
    const bool usable = step > 0.0f && std::isfinite(step);
    out.steps[static_cast<size_t>(r)] = usable ? step : 0.0f;
    if (!usable) continue;  // such a row estimates 0
    for (size_t i = 0; i < table.size(); ++i) {
      out.tables[static_cast<size_t>(r * kCodeNibbles * 16) + i] = static_cast<uint8_t>(
          kernels::kCodeTableZero + static_cast<int>(std::lround(table[i] / step)));
    }
  }
}

void PageIndex::EstimateResiduals(const PreparedQueries& queries, int64_t page, float* out) const {
  LODE_DCHECK(page >= 0 && page < num_pages_);
  kernels::ScanCodes(&codes_[static_cast<size_t>(page * kCodeBytes)],
                     &scales_[static_cast<size_t>(page * kPageTokens)], kCodeNibbles,
                     queries.tables.data(), queries.steps.data(), queries.rows, out);
}

}  // namespace lode
