// SPDX-License-Identifier: Apache-2.0
// Byte layouts of packed weights and prepared activations (see docs/kernels.md).
//
// A packed block holds the same block column of 16 rows. Every byte array of the source block is
// cut into words of four bytes and the words of the 16 rows are interleaved: array[w][r] is word w
// of row r. One 64-byte load therefore holds four consecutive columns of 16 rows (of one or, for
// nibbles, two column ranges), and packing is a transposition of 32-bit words, never a bit shuffle
// (except for the high bits of Q5_0, which are four bytes per row and must be transposed bit-wise).
// A row group is the sequence of its blocks; sizes differ from the source by at most 3 %.
#ifndef LODE_KERNELS_PACKED_LAYOUT_H_
#define LODE_KERNELS_PACKED_LAYOUT_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "kernels/matmul.h"
#include "tensor/block_formats.h"

namespace lode::kernels {

// Columns that share one activation scale; every integer dot product spans at most so many.
inline constexpr int64_t kBlockCols = 32;
inline constexpr int64_t kSuperBlockCols = 256;

struct PackedQ8_0 {  // 32 columns; word w of a row is columns 4w..4w+3
  Half d[16];
  int8_t qs[8][16][4];
};
struct PackedQ4_0 {  // low nibbles of word w: columns 4w.., high nibbles: columns 16 + 4w..
  Half d[16];
  uint8_t qs[4][16][4];
};
struct PackedQ5_0 {  // bit s of qh[r][j] is bit 4 of column 4s + j
  Half d[16];
  uint8_t qh[16][4];
  uint8_t qs[4][16][4];
};
// Sub-blocks b = 0..7 of 32 columns. The nibbles of sub-blocks 2c and 2c + 1 are the low and high
// nibbles of qs[8c..8c+7].
struct PackedQ4_K {
  Half d[16], dmin[16];
  uint8_t scales[8][16], mins[8][16];  // 6-bit values, unpacked to bytes
  uint8_t qs[32][16][4];
};
struct PackedQ5_K {  // bit b of qh[w] is bit 4 of word w of sub-block b
  Half d[16], dmin[16];
  uint8_t scales[8][16], mins[8][16];
  uint8_t qh[8][16][4];
  uint8_t qs[32][16][4];
};
// Each half is 128 columns in four sub-blocks t of 32: sub-block t takes its nibbles from
// ql[8 (t & 1)..], low ones for t < 2, and its two high bits from bits 2t of qh.
struct PackedQ6_K {
  Half d[16];
  int8_t scales[16][16];  // of 16 columns each
  struct {
    uint8_t qh[8][16][4];
    uint8_t ql[16][16][4];
  } halves[2];
};

static_assert(sizeof(PackedQ8_0) == 16 * sizeof(BlockQ8_0));
static_assert(sizeof(PackedQ4_0) == 16 * sizeof(BlockQ4_0));
static_assert(sizeof(PackedQ5_0) == 16 * sizeof(BlockQ5_0));
static_assert(sizeof(PackedQ4_K) == 16 * sizeof(BlockQ4_K) + 64);
static_assert(sizeof(PackedQ5_K) == 16 * sizeof(BlockQ5_K) + 64);
static_assert(sizeof(PackedQ6_K) == 16 * sizeof(BlockQ6_K));

// 32 columns of one token for quantised weights: x ~ d * q, q in [-127, 127]. The corrections serve
// weights stored with an offset (q + 16 or q + 32): pairs of sums modulo 2^16, first over the
// columns c with c % 4 < 2, then over the others, so that a 32-bit broadcast starts a lane of two
// 16-bit accumulators.
struct ActivationBlock {
  int8_t q[32];
  float d;
  float d_sum;                 // d * (sum of q)
  int16_t correction16[2];     // -16 * sums over all 32 columns
  int16_t correction32[2][2];  // -32 * sums over columns 0..15 and 16..31
};
static_assert(sizeof(ActivationBlock) == 52);

// An activation far above its row's others. One that shared a block would leave the other 31 a few
// coarse steps, so outliers stay f32, and their blocks hold zeros in their place.
struct Outlier {
  int32_t column;
  float value;
};

// Outliers exceed so many root mean squares of their row (docs/kernels.md says why so many).
inline constexpr int64_t kOutlierRms = 6;

// No more than cols / kOutlierRms^2 values of a row can exceed kOutlierRms root mean squares.
inline int64_t MaxOutliers(int64_t cols) {
  return cols / (kOutlierRms * kOutlierRms);
}

// Magnitude above which a value is an outlier. A row whose squares overflow or vanish has none.
inline float OutlierThreshold(float sum_of_squares, int64_t cols) {
  if (sum_of_squares < 1e-20f) return std::numeric_limits<float>::infinity();
  return static_cast<float>(kOutlierRms) * std::sqrt(sum_of_squares / static_cast<float>(cols));
}

// A prepared row for quantised weights: cols / 32 ActivationBlocks, the number of outliers, the
// outliers in the order of their columns.
inline int64_t QuantisedRowBytes(int64_t cols) {
  return cols / kBlockCols * static_cast<int64_t>(sizeof(ActivationBlock)) +
         static_cast<int64_t>(sizeof(int32_t)) +
         MaxOutliers(cols) * static_cast<int64_t>(sizeof(Outlier));
}

// Appends to the outliers of a row that is being prepared.
class OutlierWriter {
 public:
  OutlierWriter(std::byte* row, int64_t cols)
      : count_(reinterpret_cast<int32_t*>(row + cols / kBlockCols * sizeof(ActivationBlock))),
        max_(static_cast<int32_t>(MaxOutliers(cols))) {
    *count_ = 0;
  }
  // False when there is no room, which takes rounding errors in the threshold.
  bool Add(int64_t column, float value) {
    if (*count_ == max_) return false;
    reinterpret_cast<Outlier*>(count_ + 1)[(*count_)++] = {static_cast<int32_t>(column), value};
    return true;
  }

 private:
  int32_t* count_;
  int32_t max_;
};

inline std::span<const Outlier> OutliersOf(const std::byte* row, int64_t cols) {
  const auto* count =
      reinterpret_cast<const int32_t*>(row + cols / kBlockCols * sizeof(ActivationBlock));
  return {reinterpret_cast<const Outlier*>(count + 1), static_cast<size_t>(*count)};
}

// Whether weights of this packed type are floats: they always take f32 activations.
inline bool IsFloatType(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
}

// Weights packed as floats: column-major, [cols][16 rows] of the type itself.

}  // namespace lode::kernels

#endif  // LODE_KERNELS_PACKED_LAYOUT_H_
