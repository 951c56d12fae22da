// SPDX-License-Identifier: Apache-2.0
// Outliers of the activations (packed_layout.h) times their columns of the weights, in f32.
//
// They have sums of their own, in the order of the columns, which are added to the row's sums at
// the end: so the sums do not depend on tiles, and the integer kernels know nothing of outliers. A
// column is taken from the tile of unpacked weights and serves all tokens that have an outlier in
// it; with one token it is taken from the packed weights, of several row groups at a time.
#if defined(LODE_KERNELS_MATMUL_OUTLIERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LODE_KERNELS_MATMUL_OUTLIERS_INL_H_
#undef LODE_KERNELS_MATMUL_OUTLIERS_INL_H_
#else
#define LODE_KERNELS_MATMUL_OUTLIERS_INL_H_
#endif

#include <span>
#include <utility>

#include "kernels/dot-inl.h"
#include "kernels/matmul_task.h"
#include "kernels/packed_layout.h"

#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace lode::kernels {
namespace HWY_NAMESPACE {

// Byte `byte` of the codes, decoded: one column of the rows of vector v. `half` is the column's
// half of the block.
template <class F, class Block>
HWY_INLINE VF32 DecodeColumn(const Block& block, VU8 codes, size_t half, size_t v, int byte) {
  const DI32 di;
  // Codes are below 128 unless they are signed bytes.
  VI32 q = hn::ShiftRight<24>(hn::ShiftLeftSame(hn::BitCast(di, codes), 24 - 8 * byte));
  if constexpr (!F::kSigned && F::kOffset != 0) q = hn::Sub(q, hn::Set(di, F::kOffset));
  if constexpr (F::kHasSubScales) q = hn::Mul(q, SubScaleIntegers(F::SubScales(block, half, v)));
  const VF32 scale = F::Scale(block, v);
  const VF32 w = hn::ConvertTo(DF32(), q);
  if constexpr (F::kHasMin) return hn::MulSub(w, scale, F::AdjustedMin(block, scale, v));
  return hn::Mul(w, scale);
}

// Adds the first of `outliers`, those in columns [begin, end), which `tile` holds in the form that
// T reads, to sums[token][16 rows]. Returns the others. A column is decoded once for all its
// tokens.
template <class T>
HWY_INLINE std::span<const TokenOutlier> AddTileOutliers(std::span<const TokenOutlier> outliers,
                                                         const std::byte* tile, int64_t begin,
                                                         int64_t end, float* sums) {
  size_t i = 0;
  while (i < outliers.size() && outliers[i].column < end) {
    const int32_t column = outliers[i].column;
    const auto block = T::template Open<0>(tile, (column - begin) / kBlockCols);
    const size_t step = static_cast<size_t>(column % kBlockCols / 4);
    VF32 w[kVectors];
    LODE_UNROLL
    for (size_t v = 0; v < kVectors; ++v) {
      w[v] = DecodeColumn<T>(block, T::CodesAt(block, step, v), step / 4, v, column % 4);
    }
    for (; i < outliers.size() && outliers[i].column == column; ++i) {
      const VF32 value = hn::Set(DF32(), outliers[i].value);
      LODE_UNROLL
      for (size_t v = 0; v < kVectors; ++v) {
        float* at = sums + outliers[i].token * kRowGroup + v * kRowsPerVector;
        hn::StoreU(hn::MulAdd(w[v], value, hn::LoadU(DF32(), at)), DF32(), at);
      }
    }
  }
  return outliers.subspan(i);
}

// Consecutive row groups of packed weights, and a sum for each of their rows.
struct PackedGroups {
  const std::byte* first;
  int64_t group_bytes, count;
  float* sums;  // [count][16]
};

// Adds value * column, byte `byte` of a word of block b + kPosition, to the sums of all groups.
// Position and step are template arguments of the packed formats: one function for each.
template <class F, size_t kPosition, size_t kStep>
void AddPackedColumn(const PackedGroups& groups, int64_t b, int byte, float value) {
  for (int64_t g = 0; g < groups.count; ++g) {
    const auto block =
        F::template Open<static_cast<int>(kPosition)>(groups.first + g * groups.group_bytes, b);
    LODE_UNROLL
    for (size_t v = 0; v < kVectors; ++v) {
      const VF32 w = DecodeColumn<F>(block, F::template Codes<kStep>(block, v), kStep / 4, v, byte);
      float* at = groups.sums + g * kRowGroup + v * kRowsPerVector;
      const VF32 sum = hn::MulAdd(w, hn::Set(DF32(), value), hn::LoadU(DF32(), at));
      hn::StoreU(sum, DF32(), at);
    }
  }
}

using PackedColumnFunction = void (*)(const PackedGroups&, int64_t, int, float);

template <class F, class Indices>
struct PackedColumnTable;
template <class F, size_t... I>
struct PackedColumnTable<F, std::index_sequence<I...>> {
  static constexpr PackedColumnFunction kFunctions[] = {AddPackedColumn<F, I / 8, I % 8>...};
};

template <class F>
HWY_INLINE void AddPackedOutliers(std::span<const Outlier> outliers, const PackedGroups& groups) {
  constexpr int64_t kUnitCols = F::kUnit * kBlockCols;
  using Table = PackedColumnTable<F, std::make_index_sequence<static_cast<size_t>(F::kUnit * 8)>>;
  for (const Outlier& outlier : outliers) {
    const int64_t column = outlier.column % kUnitCols;
    Table::kFunctions[column / 4](groups, outlier.column / kUnitCols * F::kUnit,
                                  static_cast<int>(column % 4), outlier.value);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lode::kernels
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET != HWY_SCALAR
#endif  // LODE_KERNELS_MATMUL_OUTLIERS_INL_H_
