// SPDX-License-Identifier: Apache-2.0
#include "kernels/code_matrix.h"

#include <cstring>

namespace lode::kernels {
namespace {

constexpr int kQuad = static_cast<int>(kCodeQuad);

void StoreWord(unsigned word, std::byte* at) {
  const auto half = static_cast<uint16_t>(word);
  std::memcpy(at, &half, sizeof(half));
}

unsigned LoadWord(const std::byte* at) {
  uint16_t half;
  std::memcpy(&half, at, sizeof(half));
  return half;
}

// The lowest `bits` bits of x as a signed number.
int8_t SignExtend(unsigned x, int bits) {
  const unsigned sign = 1u << (bits - 1);
  return static_cast<int8_t>(static_cast<int>((x & (2 * sign - 1)) ^ sign) -
                             static_cast<int>(sign));
}

}  // namespace

void PackCodes(const int8_t* codes, int bits, int64_t pairs, int64_t cols, std::byte* packed) {
  const int64_t lanes = 2 * cols;
  if (bits == 8) {
    std::memcpy(packed, codes, static_cast<size_t>(pairs * lanes));
    return;
  }
  std::byte* low = packed + pairs / kCodeQuad * lanes * 2;  // of 6 bits
  for (int64_t i = 0; i < pairs / kCodeQuad * lanes; ++i) {
    const int8_t* code = codes + i / lanes * kCodeQuad * lanes + i % lanes;
    unsigned word = 0, rest = 0;
    for (int k = 0; k < kQuad; ++k, code += lanes) {
      const auto c = static_cast<unsigned>(*code);
      word |= ((bits == 4 ? c : c >> 2) & 15u) << (4 * k);
      rest |= (c & 3u) << (2 * k);
    }
    StoreWord(word, packed + 2 * i);
    if (bits == 6) low[i] = static_cast<std::byte>(rest);
  }
}

void UnpackCodes(const std::byte* packed, int bits, int64_t pairs, int64_t cols, int8_t* codes) {
  const int64_t lanes = 2 * cols;
  if (bits == 8) {
    std::memcpy(codes, packed, static_cast<size_t>(pairs * lanes));
    return;
  }
  const std::byte* low = packed + pairs / kCodeQuad * lanes * 2;
  for (int64_t i = 0; i < pairs / kCodeQuad * lanes; ++i) {
    int8_t* code = codes + i / lanes * kCodeQuad * lanes + i % lanes;
    const unsigned word = LoadWord(packed + 2 * i);
    const unsigned rest = bits == 6 ? static_cast<unsigned>(low[i]) : 0;
    for (int k = 0; k < kQuad; ++k, code += lanes) {
      const unsigned high = word >> (4 * k) & 15u;
      *code = SignExtend(bits == 4 ? high : high << 2 | (rest >> (2 * k) & 3u), bits);
    }
  }
}

}  // namespace lode::kernels
