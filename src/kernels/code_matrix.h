// SPDX-License-Identifier: Apache-2.0
// Matrices of small signed codes, as quantised KV tiles hold them, for 16-bit multiplications of
// neighbouring pairs (attention_codes.h).
//
// A code matrix is [2 * pairs, cols]: row 2 p + j of column c is the code (p, c, j), and a lane is
// one (c, j) of a pair of rows, 2 * cols of them. Four pairs (a quad) share the words of a lane, so
// that one load and shifts by constants give four vectors of codes, whatever the vector's width:
//   8 bits   int8 [pairs][lanes]
//   6 bits   uint16 [pairs / 4][lanes], pair 4 q + k in bits 4 k: code >> 2
//            uint8 [pairs / 4][lanes], pair 4 q + k in bits 2 k: code & 3
//   4 bits   uint16 [pairs / 4][lanes], pair 4 q + k in bits 4 k: code & 15
// pairs is a multiple of 4, cols a multiple of 8. Nothing is padded: bits / 8 bytes per code.
#ifndef LODE_KERNELS_CODE_MATRIX_H_
#define LODE_KERNELS_CODE_MATRIX_H_

#include <cstddef>
#include <cstdint>

namespace lode::kernels {

inline constexpr int64_t kCodeQuad = 4;     // pairs that share words
inline constexpr int64_t kCodeColumns = 8;  // cols is a multiple of this

constexpr int64_t CodeMatrixBytes(int bits, int64_t pairs, int64_t cols) {
  return pairs * cols * 2 * bits / 8;
}

struct CodeMatrix {
  const std::byte* codes;
  int bits;
  int64_t pairs;
  int64_t cols;
};

// Where the code (pair, col, j) lies in int8 [pairs][lanes].
constexpr int64_t CodeAt(int64_t pair, int64_t col, int64_t j, int64_t cols) {
  return (pair * cols + col) * 2 + j;
}

// Packs int8 codes [pairs][lanes], each in [-2^(bits - 1), 2^(bits - 1)), into `bits` bits; unpacks
// them. bits is 4, 6 or 8.
void PackCodes(const int8_t* codes, int bits, int64_t pairs, int64_t cols, std::byte* packed);
void UnpackCodes(const std::byte* packed, int bits, int64_t pairs, int64_t cols, int8_t* codes);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_CODE_MATRIX_H_
