// SPDX-License-Identifier: Apache-2.0
// Estimates of scores from key codes: 4-bit look-ups in tables of 16 entries, as in the fast scan
// of FAISS (Andre et al., arXiv 1704.07355).
//
// The codes of a page of kKvTileTokens keys, kCodePageBytes bytes:
//   codes   uint8 [kCodeNibbles][kKvTileTokens / 2]: byte j holds the nibbles of key j (low) and of
//           key j + kKvTileTokens / 2 (high)
//   scales  uint8 [kKvTileTokens], in units of kCodeScaleUnit
// A query has a table per nibble. Plain functions: no allocation, no threads.
#ifndef LODE_KERNELS_CODE_SCAN_H_
#define LODE_KERNELS_CODE_SCAN_H_

#include <cstdint>
#include <span>

#include "kernels/kv_tile.h"

namespace lode::kernels {

inline constexpr int64_t kCodeNibbles = 16;  // of a key
// Entries of a table are 0 to 63, so that four add up in a byte; this one stands for zero.
inline constexpr uint8_t kCodeTableZero = 32;
inline constexpr float kCodeScaleUnit = 1.0f / 80;

inline constexpr int64_t kCodePageBytes = kCodeNibbles * kKvTileTokens / 2 + kKvTileTokens;

// The tables of some queries.
struct CodeTables {
  const uint8_t* tables = nullptr;  // [rows][kCodeNibbles][16], 16-byte aligned
  const float* steps = nullptr;     // [rows]
  int64_t rows = 0;
};

// Rounds tables to steps of 1/31 of a row's largest magnitude. A row that is all zero or not finite
// gets step 0: it estimates 0.
//   tables f32 [rows][num_entries], num_entries a multiple of 16
//   out uint8 [rows][num_entries], steps [rows]
void QuantizeTables(const float* tables, int64_t rows, int64_t num_entries, uint8_t* out,
                    float* steps);

// out[r][t] = scale of key t * steps[r] * sum over nibbles n of (tables[r][n][nibble n of key t] -
// kCodeTableZero).
//   out [rows][kKvTileTokens], 64-byte aligned
// Cost: rows * kCodeNibbles * kKvTileTokens look-ups.
void ScanPage(const uint8_t* page, const CodeTables& tables, float* out);

// masses[r][p] += log2 of the sum of 2^x over the estimates x of page p, for every p of page_ids.
// Each x counts as at most 64, and 2^x is interpolated between integers to within 3.1 %.
//   pages      codes of page 0 and those after it
//   masses     [rows], row stride `stride`
void AddPageMasses(const uint8_t* pages, std::span<const int32_t> page_ids,
                   const CodeTables& tables, float* masses, int64_t stride);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_CODE_SCAN_H_
