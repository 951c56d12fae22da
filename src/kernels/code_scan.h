// SPDX-License-Identifier: Apache-2.0
// Estimates of scores from key codes: 4-bit look-ups in tables of 16 entries, as in the fast scan
// of FAISS (Andre et al., arXiv 1704.07355).
//
// The codes of a page of kKvTileTokens keys:
//   codes   uint8 [num_nibbles][kKvTileTokens / 2]: byte j holds the nibbles of key j (low) and of
//           key j + kKvTileTokens / 2 (high)
//   scales  f16 [kKvTileTokens]
// A query has a table per nibble. Plain functions: no allocation, no threads.
#ifndef LODE_KERNELS_CODE_SCAN_H_
#define LODE_KERNELS_CODE_SCAN_H_

#include <cstdint>

#include "kernels/kv_tile.h"

namespace lode::kernels {

// An even number of nibbles, at most this many.
inline constexpr int64_t kMaxCodeNibbles = 64;
// Entries of a table are 0 to 127; this one stands for zero.
inline constexpr uint8_t kCodeTableZero = 64;

// out[r][t] = scales[t] * steps[r] * sum over nibbles n of (tables[r][n][nibble n of key t] - 64).
//   tables uint8 [rows][num_nibbles][16], 16-byte aligned; steps [rows]
//   scales [kKvTileTokens] as f16 bits
//   out [rows][kKvTileTokens], 64-byte aligned
// Cost: rows * num_nibbles * kKvTileTokens look-ups.
void ScanCodes(const uint8_t* codes, const uint16_t* scales, int64_t num_nibbles,
               const uint8_t* tables, const float* steps, int64_t rows, float* out);

// out[r] = log2 of the sum of 2^x over a row of x [rows][kKvTileTokens], 64-byte aligned.
void LogSumsOfPage(const float* x, int64_t rows, float* out);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_CODE_SCAN_H_
