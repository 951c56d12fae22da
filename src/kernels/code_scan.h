// SPDX-License-Identifier: Apache-2.0
// Estimates of scores from key codes: 4-bit look-ups in tables of 16 entries, as in the fast scan
// of FAISS (Andre et al., arXiv 1704.07355).
//
// The codes of a page of kKvTileTokens keys are uint8 [kCodeNibbles / 2][kKvTileTokens]: byte t of
// row n holds nibble n (low) and nibble n + kCodeNibbles / 2 (high) of key t. A page has one scale.
// A query has a table per nibble, whose entries are so small that sums stay in a byte. That is what
// makes the scan fast: 32 keys take one look-up and one addition per nibble. Plain functions: no
// allocation, no threads.
#ifndef LODE_KERNELS_CODE_SCAN_H_
#define LODE_KERNELS_CODE_SCAN_H_

#include <cstdint>

#include "kernels/kv_tile.h"

namespace lode::kernels {

inline constexpr int64_t kCodeNibbles = 16;  // of a key
inline constexpr int64_t kCodePageBytes = kCodeNibbles / 2 * kKvTileTokens;

// Pages side by side.
struct CodePages {
  const uint8_t* codes = nullptr;  // [count][kCodePageBytes]
  const float* scales = nullptr;   // [count], at least 0
  int64_t count = 0;
};

// The tables of some queries.
struct CodeTables {
  const int8_t* tables = nullptr;  // [rows][kCodeNibbles][16], 16-byte aligned
  const float* steps = nullptr;    // [rows], at least 0
  int64_t rows = 0;
};

// Rounds the tables of each row to steps of such a size that no sum of one entry per table leaves
// int8. A row that is all zero or not finite gets step 0: it estimates 0.
//   tables f32 [rows][kCodeNibbles][16]
//   out int8 the same, steps [rows]
void QuantizeTables(const float* tables, int64_t rows, int8_t* out, float* steps);

// Estimates for the keys of the first page: out[r][t] = scale * steps[r] * sum over nibbles n of
// tables[r][n][nibble n of key t].
//   out [rows][kKvTileTokens]
// Cost: rows * kCodeNibbles * kKvTileTokens look-ups.
void ScanPage(const CodePages& pages, const CodeTables& tables, float* out);

// masses[r][p] += log2 of the sum of 2^x over the estimates x of page p. Each x counts as at least
// -126 and at most 126, to within 1/64, 2^x is interpolated between integers to within 3.1 %, and
// the logarithm is good to 1e-3 and at most 128.
// A step times a scale counts as at most 2.
//   masses [rows][count], row stride `stride`
void AddPageMasses(const CodePages& pages, const CodeTables& tables, float* masses, int64_t stride);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_CODE_SCAN_H_
