// SPDX-License-Identifier: Apache-2.0
// Byte layouts of the quantised blocks of GGUF files. d, dmin and every other scale are IEEE half
// precision, little endian. Decoders, with the formulas: kernels/dequantize.cc.
#ifndef LODE_TENSOR_BLOCK_FORMATS_H_
#define LODE_TENSOR_BLOCK_FORMATS_H_

#include <cstdint>

namespace lode {

using Half = uint16_t;  // bits of an IEEE half

struct BlockQ4_0 {  // w = d * (q - 8); low nibbles are elements 0-15, high nibbles 16-31
  Half d;
  uint8_t qs[16];
};
struct BlockQ4_1 {  // w = d * q + m
  Half d, m;
  uint8_t qs[16];
};
struct BlockQ5_0 {  // w = d * (q - 16); bit i of qh is bit 4 of element i
  Half d;
  uint8_t qh[4];
  uint8_t qs[16];
};
struct BlockQ5_1 {  // w = d * q + m
  Half d, m;
  uint8_t qh[4];
  uint8_t qs[16];
};
struct BlockQ8_0 {  // w = d * q
  Half d;
  int8_t qs[32];
};
struct BlockQ2_K {  // 16 sub-blocks of 16: w = d * (sc & 15) * q - dmin * (sc >> 4)
  uint8_t scales[16];
  uint8_t qs[64];
  Half d, dmin;
};
struct BlockQ3_K {  // 16 sub-blocks of 16: w = d * (sc - 32) * (q - 4)
  uint8_t hmask[32];
  uint8_t qs[64];
  uint8_t scales[12];
  Half d;
};
struct BlockQ4_K {  // 8 sub-blocks of 32: w = d * sc * q - dmin * m, sc and m 6 bits each
  Half d, dmin;
  uint8_t scales[12];
  uint8_t qs[128];
};
struct BlockQ5_K {  // as Q4_K with a fifth bit
  Half d, dmin;
  uint8_t scales[12];
  uint8_t qh[32];
  uint8_t qs[128];
};
struct BlockQ6_K {  // 16 sub-blocks of 16: w = d * sc * (q - 32), sc signed 8 bits
  uint8_t ql[128];
  uint8_t qh[64];
  int8_t scales[16];
  Half d;
};
struct BlockIQ4_NL {  // w = d * table[q]
  Half d;
  uint8_t qs[16];
};
struct BlockIQ4_XS {  // 8 sub-blocks of 32: w = d * (sc - 32) * table[q]
  Half d;
  uint16_t scales_h;
  uint8_t scales_l[4];
  uint8_t qs[128];
};

static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22);
static_assert(sizeof(BlockQ5_1) == 24 && sizeof(BlockQ8_0) == 34 && sizeof(BlockQ2_K) == 84);
static_assert(sizeof(BlockQ3_K) == 110 && sizeof(BlockQ4_K) == 144 && sizeof(BlockQ5_K) == 176);
static_assert(sizeof(BlockQ6_K) == 210 && sizeof(BlockIQ4_NL) == 18 && sizeof(BlockIQ4_XS) == 136);

}  // namespace lode

#endif  // LODE_TENSOR_BLOCK_FORMATS_H_
