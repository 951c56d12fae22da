// SPDX-License-Identifier: Apache-2.0
// Repacks row-major weights into row groups of 16 (layouts: packed_layout.h).
//
// Works through 256 columns of 16 rows at a time, which stay in L1. Types without a fast kernel are
// first converted, chunk by chunk, to the type that loses least: IQ4_NL to Q8_0 and Q3_K to Q6_K
// without any loss, the others to Q8_0.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/dequantize.h"
#include "kernels/packed_layout.h"

namespace lode::kernels {
namespace {

// The rows of one group, from the first column of a chunk; rows beyond the matrix are zeros.
struct SourceRows {
  const std::byte* row[kRowGroup];

  template <class Block>
  const Block& block(int64_t r, int64_t b) const {
    return reinterpret_cast<const Block*>(row[r])[b];
  }
};

// dst[w][r] = word w of row r, for `words` words of the byte array at `offset` of a source block.
template <class Block, int kWords>
inline void InterleaveWords(const SourceRows& rows, int64_t b, size_t offset,
                            void* __restrict dst) {
  uint32_t* out = static_cast<uint32_t*>(dst);
  for (int64_t r = 0; r < kRowGroup; ++r) {
    const std::byte* src = rows.row[r] + b * static_cast<int64_t>(sizeof(Block)) + offset;
    uint32_t words[kWords];
    std::memcpy(words, src, sizeof(words));
    for (int w = 0; w < kWords; ++w) out[w * kRowGroup + r] = words[w];
  }
}

// Moves bit 4s + j of a word to bit s of byte j. Swapping two bits of every bit index is one delta
// swap; the wanted rotation of five index bits by two places is four of them.
inline uint32_t SpreadHighBits(uint32_t x) {
  const auto delta_swap = [](uint32_t v, int shift, uint32_t mask) {
    const uint32_t t = ((v >> shift) ^ v) & mask;
    return v ^ t ^ (t << shift);
  };
  // Index bits 4..0 are s2 s1 s0 j1 j0; they become j1 j0 s2 s1 s0.
  x = delta_swap(x, 14, 0x0000CCCCu);  // exchanges index bits 4 and 1: j1 s1 s0 s2 j0
  x = delta_swap(x, 7, 0x00AA00AAu);   // exchanges index bits 3 and 0: j1 j0 s0 s2 s1
  x = delta_swap(x, 2, 0x0C0C0C0Cu);   // exchanges index bits 2 and 1: j1 j0 s2 s0 s1
  x = delta_swap(x, 1, 0x22222222u);   // exchanges index bits 1 and 0: j1 j0 s2 s1 s0
  return x;
}

void PackBlock(const SourceRows& rows, int64_t b, PackedQ8_0* out) {
  for (int64_t r = 0; r < kRowGroup; ++r) out->d[r] = rows.block<BlockQ8_0>(r, b).d;
  InterleaveWords<BlockQ8_0, 8>(rows, b, offsetof(BlockQ8_0, qs), out->qs);
}

void PackBlock(const SourceRows& rows, int64_t b, PackedQ4_0* out) {
  for (int64_t r = 0; r < kRowGroup; ++r) out->d[r] = rows.block<BlockQ4_0>(r, b).d;
  InterleaveWords<BlockQ4_0, 4>(rows, b, offsetof(BlockQ4_0, qs), out->qs);
}

void PackBlock(const SourceRows& rows, int64_t b, PackedQ5_0* out) {
  for (int64_t r = 0; r < kRowGroup; ++r) {
    const BlockQ5_0& block = rows.block<BlockQ5_0>(r, b);
    out->d[r] = block.d;
    uint32_t high;
    std::memcpy(&high, block.qh, 4);
    high = SpreadHighBits(high);
    std::memcpy(out->qh[r], &high, 4);
  }
  InterleaveWords<BlockQ5_0, 4>(rows, b, offsetof(BlockQ5_0, qs), out->qs);
}

// The eight 6-bit scales and mins of a Q4_K or Q5_K block, to bytes.
inline void UnpackScalesAndMins(const uint8_t source[12], uint8_t scales[8], uint8_t mins[8]) {
  uint32_t word[3];
  std::memcpy(word, source, 12);
  const uint32_t scale[2] = {word[0] & 0x3F3F3F3Fu,
                             (word[2] & 0x0F0F0F0Fu) | ((word[0] >> 2) & 0x30303030u)};
  const uint32_t min[2] = {word[1] & 0x3F3F3F3Fu,
                           ((word[2] >> 4) & 0x0F0F0F0Fu) | ((word[1] >> 2) & 0x30303030u)};
  std::memcpy(scales, scale, 8);
  std::memcpy(mins, min, 8);
}

template <class Block, class Packed>
void PackScalesAndMins(const SourceRows& rows, int64_t b, Packed* out) {
  for (int64_t r = 0; r < kRowGroup; ++r) {
    const Block& block = rows.block<Block>(r, b);
    out->d[r] = block.d;
    out->dmin[r] = block.dmin;
    uint8_t scales[8], mins[8];
    UnpackScalesAndMins(block.scales, scales, mins);
    for (int s = 0; s < 8; ++s) {
      out->scales[s][r] = scales[s];
      out->mins[s][r] = mins[s];
    }
  }
}

void PackBlock(const SourceRows& rows, int64_t b, PackedQ4_K* out) {
  PackScalesAndMins<BlockQ4_K>(rows, b, out);
  InterleaveWords<BlockQ4_K, 32>(rows, b, offsetof(BlockQ4_K, qs), out->qs);
}

void PackBlock(const SourceRows& rows, int64_t b, PackedQ5_K* out) {
  PackScalesAndMins<BlockQ5_K>(rows, b, out);
  InterleaveWords<BlockQ5_K, 8>(rows, b, offsetof(BlockQ5_K, qh), out->qh);
  InterleaveWords<BlockQ5_K, 32>(rows, b, offsetof(BlockQ5_K, qs), out->qs);
}

void PackBlock(const SourceRows& rows, int64_t b, PackedQ6_K* out) {
  for (int64_t r = 0; r < kRowGroup; ++r) {
    const BlockQ6_K& block = rows.block<BlockQ6_K>(r, b);
    out->d[r] = block.d;
    for (int s = 0; s < 16; ++s) out->scales[s][r] = block.scales[s];
  }
  for (size_t h = 0; h < 2; ++h) {
    InterleaveWords<BlockQ6_K, 8>(rows, b, offsetof(BlockQ6_K, qh) + h * 32, out->halves[h].qh);
    InterleaveWords<BlockQ6_K, 16>(rows, b, offsetof(BlockQ6_K, ql) + h * 64, out->halves[h].ql);
  }
}

template <class Packed>
void PackQuantised(const SourceRows& rows, int64_t num_blocks, std::byte* dst) {
  for (int64_t b = 0; b < num_blocks; ++b) PackBlock(rows, b, reinterpret_cast<Packed*>(dst) + b);
}

template <class T>
void PackFloats(const SourceRows& rows, int64_t cols, std::byte* dst) {
  T* out = reinterpret_cast<T*>(dst);
  for (int64_t r = 0; r < kRowGroup; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      std::memcpy(out + c * kRowGroup + r, rows.row[r] + c * static_cast<int64_t>(sizeof(T)),
                  sizeof(T));
    }
  }
}

// --- Conversions of types without a kernel ---

constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};

void QuantiseQ8_0(const float* x, int64_t cols, BlockQ8_0* out) {
  for (int64_t b = 0; b < cols / 32; ++b) {
    const float* values = x + b * 32;
    float max = 0;
    for (int i = 0; i < 32; ++i) max = std::max(max, std::fabs(values[i]));
    const float d = max / 127.0f;
    const float inverse = d > 0 ? 1.0f / d : 0.0f;
    out[b].d = FloatToHalf(d);
    for (int i = 0; i < 32; ++i) {
      out[b].qs[i] = static_cast<int8_t>(std::lrintf(values[i] * inverse));
    }
  }
}

void ConvertIq4NlRow(const BlockIQ4_NL* in, int64_t cols, BlockQ8_0* out) {
  for (int64_t b = 0; b < cols / 32; ++b) {
    out[b].d = in[b].d;
    for (int i = 0; i < 16; ++i) {
      out[b].qs[i] = kIq4Values[in[b].qs[i] & 15];
      out[b].qs[i + 16] = kIq4Values[in[b].qs[i] >> 4];
    }
  }
}

void ConvertIq4XsRow(const BlockIQ4_XS* in, int64_t cols, BlockQ8_0* out) {
  for (int64_t s = 0; s < cols / 32; ++s) {
    const BlockIQ4_XS& block = in[s / 8];
    const int sub = static_cast<int>(s % 8);
    const int scale = ((block.scales_l[sub / 2] >> (4 * (sub % 2))) & 15) |
                      (((block.scales_h >> (2 * sub)) & 3) << 4);
    out[s].d = FloatToHalf(HalfToFloat(block.d) * static_cast<float>(scale - 32));
    for (int i = 0; i < 16; ++i) {
      out[s].qs[i] = kIq4Values[block.qs[sub * 16 + i] & 15];
      out[s].qs[i + 16] = kIq4Values[block.qs[sub * 16 + i] >> 4];
    }
  }
}

// w = d * (sc - 32) * (q - 4) is a Q6_K value with the same d, scale sc - 32 and code q - 4 + 32.
void ConvertQ3KRow(const BlockQ3_K* in, int64_t cols, BlockQ6_K* out) {
  for (int64_t b = 0; b < cols / kSuperBlockCols; ++b) {
    const BlockQ3_K& src = in[b];
    BlockQ6_K& dst = out[b];
    std::memset(&dst, 0, sizeof(dst));
    dst.d = src.d;
    for (int s = 0; s < 16; ++s) {
      const int low = s < 8 ? src.scales[s] & 15 : src.scales[s - 8] >> 4;
      const int high = (src.scales[8 + s % 4] >> (2 * (s / 4))) & 3;
      dst.scales[s] = static_cast<int8_t>((low | (high << 4)) - 32);
    }
    for (int e = 0; e < kSuperBlockCols; ++e) {
      const int half = e / 128, t = e / 32 % 4, l = e % 32;
      const int low = (src.qs[32 * half + l] >> (2 * t)) & 3;
      const int high = (src.hmask[l] >> (4 * half + t)) & 1;
      const int code = (low | (high << 2)) - 4 + 32;
      dst.ql[64 * half + 32 * (t & 1) + l] |= static_cast<uint8_t>((code & 15) << (t < 2 ? 0 : 4));
      dst.qh[32 * half + l] |= static_cast<uint8_t>((code >> 4) << (2 * t));
    }
  }
}

void ConvertRow(DType type, const std::byte* in, int64_t cols, std::byte* out) {
  auto* q8 = reinterpret_cast<BlockQ8_0*>(out);
  switch (type) {
    case DType::kIQ4_NL:
      return ConvertIq4NlRow(reinterpret_cast<const BlockIQ4_NL*>(in), cols, q8);
    case DType::kIQ4_XS:
      return ConvertIq4XsRow(reinterpret_cast<const BlockIQ4_XS*>(in), cols, q8);
    case DType::kQ3_K:
      return ConvertQ3KRow(reinterpret_cast<const BlockQ3_K*>(in), cols,
                           reinterpret_cast<BlockQ6_K*>(out));
    default: {
      float values[kSuperBlockCols];
      const int64_t step = std::max(kBlockCols, Traits(type).block_elements);
      for (int64_t c = 0; c < cols; c += step) {
        Dequantize(type, in + RowBytes(type, c), step, values);
        QuantiseQ8_0(values, step, q8 + c / 32);
      }
    }
  }
}

void PackChunk(DType type, const SourceRows& rows, int64_t cols, std::byte* dst) {
  switch (type) {
    case DType::kF32:
      return PackFloats<uint32_t>(rows, cols, dst);
    case DType::kF16:
    case DType::kBF16:
      return PackFloats<uint16_t>(rows, cols, dst);
    case DType::kQ8_0:
      return PackQuantised<PackedQ8_0>(rows, cols / 32, dst);
    case DType::kQ4_0:
      return PackQuantised<PackedQ4_0>(rows, cols / 32, dst);
    case DType::kQ5_0:
      return PackQuantised<PackedQ5_0>(rows, cols / 32, dst);
    case DType::kQ4_K:
      return PackQuantised<PackedQ4_K>(rows, cols / kSuperBlockCols, dst);
    case DType::kQ5_K:
      return PackQuantised<PackedQ5_K>(rows, cols / kSuperBlockCols, dst);
    case DType::kQ6_K:
      return PackQuantised<PackedQ6_K>(rows, cols / kSuperBlockCols, dst);
    default:
      LODE_CHECK(false && "not a packed type");
  }
}

}  // namespace

DType PackedTypeFor(DType type) {
  switch (type) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
      return type;
    case DType::kQ3_K:
      return DType::kQ6_K;
    default:
      return DType::kQ8_0;
  }
}

int64_t PackedGroupBytes(DType packed_type, int64_t cols) {
  switch (packed_type) {
    case DType::kF32:
      return cols * kRowGroup * 4;
    case DType::kF16:
    case DType::kBF16:
      return cols * kRowGroup * 2;
    case DType::kQ8_0:
      return cols / 32 * static_cast<int64_t>(sizeof(PackedQ8_0));
    case DType::kQ4_0:
      return cols / 32 * static_cast<int64_t>(sizeof(PackedQ4_0));
    case DType::kQ5_0:
      return cols / 32 * static_cast<int64_t>(sizeof(PackedQ5_0));
    case DType::kQ4_K:
      return cols / kSuperBlockCols * static_cast<int64_t>(sizeof(PackedQ4_K));
    case DType::kQ5_K:
      return cols / kSuperBlockCols * static_cast<int64_t>(sizeof(PackedQ5_K));
    case DType::kQ6_K:
      return cols / kSuperBlockCols * static_cast<int64_t>(sizeof(PackedQ6_K));
    default:
      LODE_CHECK(false && "not a packed type");
  }
  return 0;
}

void PackRowGroups(DType source_type, const std::byte* source, int64_t rows, int64_t cols,
                   int64_t group_begin, int64_t group_end, std::byte* dst) {
  const DType packed_type = PackedTypeFor(source_type);
  const int64_t source_row_bytes = RowBytes(source_type, cols);
  const int64_t group_bytes = PackedGroupBytes(packed_type, cols);
  const bool convert = packed_type != source_type;
  static constexpr std::byte kZeros[kSuperBlockCols * sizeof(float)] = {};
  std::byte converted[kRowGroup][sizeof(BlockQ8_0) * (kSuperBlockCols / 32)];
  for (int64_t g = group_begin; g < group_end; ++g) {
    for (int64_t c = 0; c < cols; c += kSuperBlockCols) {
      const int64_t chunk_cols = std::min(kSuperBlockCols, cols - c);
      SourceRows chunk;
      for (int64_t r = 0; r < kRowGroup; ++r) {
        const int64_t row = g * kRowGroup + r;
        if (row >= rows) {
          chunk.row[r] = kZeros;
          continue;
        }
        chunk.row[r] = source + row * source_row_bytes + RowBytes(source_type, c);
        if (convert) {
          ConvertRow(source_type, chunk.row[r], chunk_cols, converted[r]);
          chunk.row[r] = converted[r];
        }
      }
      PackChunk(packed_type, chunk, chunk_cols,
                dst + g * group_bytes + PackedGroupBytes(packed_type, c));
    }
  }
}

}  // namespace lode::kernels
