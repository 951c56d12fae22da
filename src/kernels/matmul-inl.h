// SPDX-License-Identifier: Apache-2.0
// The matrix kernels, generic over the weight format and the Highway target.
//
// A Format opens one block of 32 columns of a row group and yields its codes, four columns at a
// time, and its scales, as vectors of rows. DotBlocks multiplies blocks with up to kMaxTokens
// tokens; it reads either packed weights (one token: each weight is used once, so it is unpacked in
// registers) or a tile of codes unpacked beforehand (several tokens). Both do the same arithmetic
// in the same order, stated in reference.cc, so a token's result does not depend on its companions.
//
// A Format has:
//   Packed            its struct in packed_layout.h, kBlocks blocks of 32 columns each
//   kOffset           what the codes exceed the signed weight by (0, 8, 16 or 32)
//   kSigned           codes are signed bytes (Q8_0)
//   kHasMin           a minimum per 32 columns is subtracted
//   kHasSubScales     8-bit integer scales per 16 columns (Q6_K)
//   kUnit             consecutive blocks that share bytes: their position is a template argument,
//                     so that shifts are constants
//   Open<P>(group, b) block b + P, b a multiple of kUnit; then Codes<S>(block, v) (columns 4S to
//                     4S + 3), Scale(block, v), and Min / SubScales if it has them
#if defined(LODE_KERNELS_MATMUL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LODE_KERNELS_MATMUL_INL_H_
#undef LODE_KERNELS_MATMUL_INL_H_
#else
#define LODE_KERNELS_MATMUL_INL_H_
#endif

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>
#include <utility>

#include "hwy/cache_control.h"
#include "kernels/dot-inl.h"
#include "kernels/matmul_outliers-inl.h"
#include "kernels/matmul_task.h"
#include "kernels/packed_layout.h"
#include "kernels/reference.h"

#if HWY_TARGET == HWY_SCALAR

// Without vectors: the reference. Formats need only be declared.
HWY_BEFORE_NAMESPACE();
namespace lode::kernels {
namespace HWY_NAMESPACE {

template <class F>
struct Int8Kernel {
  static constexpr ActivationType kActivations = ActivationType::kInt8;
};
template <class F>
struct F32Kernel {
  static constexpr ActivationType kActivations = ActivationType::kF32;
};
template <class Columns>
struct FloatKernel : F32Kernel<Columns> {};

template <class Kernel>
HWY_INLINE void RunMatMul(const MatMulTask& task) {
  ReferenceMatMul(task.weights, Kernel::kActivations, task.activations, task.num_tokens,
                  task.group_begin, task.group_end, task.out, task.out_stride);
}

}  // namespace HWY_NAMESPACE
}  // namespace lode::kernels
HWY_AFTER_NAMESPACE();

#else  // HWY_TARGET == HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace lode::kernels {
namespace HWY_NAMESPACE {

using Steps = std::make_index_sequence<8>;  // of four columns, in a block
template <class F>
using Unit = std::make_index_sequence<static_cast<size_t>(F::kUnit)>;

// --- Tiles: blocks unpacked to one byte a code and f32 scales ---

// 64-byte rows of a tile block: codes of the eight steps, f32 scales, then f32 minima or two rows
// of sub-scales.
template <class F>
inline constexpr int64_t kTileBlockBytes =
    (9 + (F::kHasMin ? 1 : 0) + (F::kHasSubScales ? 2 : 0)) * 64;

// The Format that reads what UnpackTile<F> wrote.
template <class F>
struct Tile {
  static constexpr int kOffset = F::kOffset;
  static constexpr bool kSigned = F::kSigned;
  static constexpr bool kHasMin = F::kHasMin;
  static constexpr bool kHasSubScales = F::kHasSubScales;
  static constexpr int64_t kUnit = 1;
  static constexpr bool kIsPacked = false;
  using Block = const uint8_t*;

  template <int>
  static HWY_INLINE Block Open(const std::byte* tile, int64_t b) {
    return reinterpret_cast<Block>(tile) + b * kTileBlockBytes<F>;
  }
  template <size_t S>
  static HWY_INLINE VU8 Codes(Block block, size_t v) {
    return LoadRow(block, S, v);
  }
  static HWY_INLINE VU8 CodesAt(Block block, size_t step, size_t v) {
    return LoadRow(block, step, v);
  }
  static HWY_INLINE VF32 Scale(Block block, size_t v) {
    return hn::BitCast(DF32(), LoadRow(block, 8, v));
  }
  static HWY_INLINE VF32 AdjustedMin(Block block, VF32 /*scale*/, size_t v) {
    return hn::BitCast(DF32(), LoadRow(block, 9, v));
  }
  static HWY_INLINE Accumulator SubScales(Block block, size_t half, size_t v) {
    return hn::BitCast(hn::DFromV<Accumulator>(), LoadRow(block, 9 + half, v));
  }

 private:
  static HWY_INLINE VU8 LoadRow(Block block, size_t row, size_t v) {
    return hn::Load(DU8(), block + row * 64 + v * kVectorBytes);
  }
};

// Reads packed weights in place.
template <class F>
struct InPlace : F {
  static constexpr bool kIsPacked = true;
  // The dot products use code - kOffset, also when there is a minimum: it absorbs the offset.
  template <class Block>
  static HWY_INLINE VF32 AdjustedMin(const Block& block, VF32 scale, size_t v) {
    if constexpr (F::kOffset == 0) return F::Min(block, v);
    return hn::NegMulAdd(hn::Set(DF32(), static_cast<float>(F::kOffset)), scale, F::Min(block, v));
  }
};

template <class V>
HWY_INLINE void StoreRow(V x, uint8_t* block, size_t row, size_t v) {
  hn::Store(hn::BitCast(DU8(), x), DU8(), block + row * 64 + v * kVectorBytes);
}

template <class F, class Block, size_t... S>
HWY_INLINE void UnpackBlock(const Block& block, uint8_t* out, std::index_sequence<S...>) {
  LODE_UNROLL
  for (size_t v = 0; v < kVectors; ++v) {
    (StoreRow(F::template Codes<S>(block, v), out, S, v), ...);
    const VF32 scale = F::Scale(block, v);
    StoreRow(scale, out, 8, v);
    if constexpr (F::kHasMin) StoreRow(InPlace<F>::AdjustedMin(block, scale, v), out, 9, v);
    if constexpr (F::kHasSubScales) {
      StoreRow(F::SubScales(block, 0, v), out, 9, v);
      StoreRow(F::SubScales(block, 1, v), out, 10, v);
    }
  }
}

template <class F, size_t... P>
HWY_INLINE void UnpackUnit(const std::byte* group, int64_t b, uint8_t* out,
                           std::index_sequence<P...>) {
  (UnpackBlock<F>(F::template Open<P>(group, b), out + P * kTileBlockBytes<F>, Steps()), ...);
}

template <class F>
HWY_INLINE void UnpackTile(const std::byte* group, int64_t begin, int64_t end, std::byte* tile) {
  uint8_t* out = reinterpret_cast<uint8_t*>(tile);
  for (int64_t b = begin; b < end; b += F::kUnit, out += F::kUnit * kTileBlockBytes<F>) {
    UnpackUnit<F>(group, b, out, Unit<F>());
  }
}

// --- int8 dot products ---

template <int kTokens>
struct TokenBlocks {  // the same block of kTokens tokens
  const std::byte* first;
  int64_t stride;
  HWY_INLINE const ActivationBlock& operator[](int t) const {
    return *reinterpret_cast<const ActivationBlock*>(first + t * stride);
  }
};

// One step: four columns of all rows and tokens.
template <class F, int kTokens, size_t S, class Block>
HWY_INLINE void Step(const Block& block, const TokenBlocks<kTokens>& x,
                     Accumulator (&sums)[kTokens][kVectors]) {
  VU8 w[kVectors];
  LODE_UNROLL
  for (size_t v = 0; v < kVectors; ++v) w[v] = F::template Codes<S>(block, v);
  LODE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    const VI8 a = BroadcastColumns(x[t].q + 4 * S);
    LODE_UNROLL
    for (size_t v = 0; v < kVectors; ++v) sums[t][v] = Accumulate(sums[t][v], w[v], a);
  }
}

template <class F, int kTokens, size_t S, class Block>
HWY_INLINE void StepSigned(const Block& block, const TokenBlocks<kTokens>& x,
                           VI32 (&sums)[kTokens][kVectors]) {
  LODE_UNROLL
  for (size_t v = 0; v < kVectors; ++v) {
    const SignedColumns w = PrepareSigned(hn::BitCast(DI8(), F::template Codes<S>(block, v)));
    LODE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      sums[t][v] = AccumulateSigned(sums[t][v], w, BroadcastColumns(x[t].q + 4 * S));
    }
  }
}

template <class F, int kTokens>
HWY_INLINE void StartSums(const TokenBlocks<kTokens>& x, size_t half,
                          Accumulator (&sums)[kTokens][kVectors]) {
  LODE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    Accumulator start = ZeroAccumulator();
    if constexpr (F::kOffset == 8) {
      start = CorrectedAccumulator(hn::ShiftRight<1>(BroadcastPair(x[t].correction16)));
    } else if constexpr (F::kOffset == 16) {
      start = CorrectedAccumulator(BroadcastPair(x[t].correction16));
    } else if constexpr (F::kOffset == 32) {
      start = CorrectedAccumulator(BroadcastPair(x[t].correction32[half]));
    }
    LODE_UNROLL
    for (size_t v = 0; v < kVectors; ++v) sums[t][v] = start;
  }
}

// Dot products of 16 columns, times their sub-scales.
template <class F, int kTokens, size_t kHalf, class Block, size_t... S>
HWY_INLINE void HalfBlockDots(const Block& block, const TokenBlocks<kTokens>& x,
                              VI32 (&dots)[kTokens][kVectors], std::index_sequence<S...>) {
  Accumulator sums[kTokens][kVectors];
  StartSums<F, kTokens>(x, kHalf, sums);
  (Step<F, kTokens, 4 * kHalf + S>(block, x, sums), ...);
  LODE_UNROLL
  for (size_t v = 0; v < kVectors; ++v) {
    const Accumulator scales = F::SubScales(block, kHalf, v);
    LODE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const VI32 dot = FinishScaled(sums[t][v], scales);
      dots[t][v] = kHalf == 0 ? dot : hn::Add(dots[t][v], dot);
    }
  }
}

// dots[t][v] = exact integer dot products of a block (times the sub-scales, if any).
template <class F, int kTokens, class Block, size_t... S>
HWY_INLINE void BlockDots(const Block& block, const TokenBlocks<kTokens>& x,
                          VI32 (&dots)[kTokens][kVectors], std::index_sequence<S...>) {
  if constexpr (F::kSigned) {
    LODE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      LODE_UNROLL
      for (size_t v = 0; v < kVectors; ++v) dots[t][v] = StartSigned(x[t].correction16);
    }
    (StepSigned<F, kTokens, S>(block, x, dots), ...);
  } else if constexpr (F::kHasSubScales) {
    HalfBlockDots<F, kTokens, 0>(block, x, dots, std::make_index_sequence<4>());
    HalfBlockDots<F, kTokens, 1>(block, x, dots, std::make_index_sequence<4>());
  } else {
    Accumulator sums[kTokens][kVectors];
    StartSums<F, kTokens>(x, 0, sums);
    (Step<F, kTokens, S>(block, x, sums), ...);
    LODE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      LODE_UNROLL
      for (size_t v = 0; v < kVectors; ++v) dots[t][v] = Finish(sums[t][v]);
    }
  }
}

template <class F, int kTokens>
inline constexpr bool kSumsInRegisters = kTokens == 1 || kVectors == 1;

// Adds one block to the sums, which live in `total` or, with several tokens, whose integer sums
// need the registers, in memory.
template <class F, int kTokens, class Block>
HWY_INLINE void AddBlock(const Block& block, const TokenBlocks<kTokens>& tokens,
                         VF32 (&total)[kTokens][kVectors], float* HWY_RESTRICT sums) {
  // Blocks of a unit share bytes: loading them again is cheaper than keeping them, on the stack.
  if constexpr (F::kUnit > 1) std::atomic_signal_fence(std::memory_order_seq_cst);
  constexpr bool kInRegisters = kSumsInRegisters<F, kTokens>;
  const DF32 df;
  VI32 dots[kTokens][kVectors];
  BlockDots<F, kTokens>(block, tokens, dots, Steps());
  LODE_UNROLL
  for (size_t v = 0; v < kVectors; ++v) {
    const VF32 scale = F::Scale(block, v);
    VF32 min = hn::Zero(df);
    if constexpr (F::kHasMin) min = F::AdjustedMin(block, scale, v);
    LODE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      float* sum_at = sums + t * 16 + v * kRowsPerVector;
      VF32 sum = kInRegisters ? total[t][v] : hn::Load(df, sum_at);
      const VF32 scales = hn::Mul(scale, hn::Set(df, tokens[t].d));
      sum = hn::MulAdd(hn::ConvertTo(df, dots[t][v]), scales, sum);
      if constexpr (F::kHasMin) sum = hn::NegMulAdd(min, hn::Set(df, tokens[t].d_sum), sum);
      if constexpr (kInRegisters) {
        total[t][v] = sum;
      } else {
        hn::Store(sum, df, sum_at);
      }
    }
  }
}

template <class F, int kTokens, size_t... P>
HWY_INLINE void AddUnit(const std::byte* weights, int64_t b, const std::byte* x, int64_t x_stride,
                        VF32 (&total)[kTokens][kVectors], float* HWY_RESTRICT sums,
                        std::index_sequence<P...>) {
  (AddBlock<F, kTokens>(F::template Open<P>(weights, b),
                        TokenBlocks<kTokens>{x + P * sizeof(ActivationBlock), x_stride}, total,
                        sums),
   ...);
}

// One token runs at the speed of memory: its streams are read so far ahead.
inline constexpr int64_t kPrefetchBytes = 1024;

HWY_INLINE void PrefetchStream(const std::byte* at, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) hwy::Prefetch(at + i + kPrefetchBytes);
}

// sums[t][16 rows] += blocks [begin, end) of one row group times kTokens tokens; both multiples of
// F::kUnit. F reads `weights`; x is block `begin` of the first token.
template <class F, int kTokens>
HWY_INLINE void DotBlocks(const std::byte* weights, int64_t begin, int64_t end, const std::byte* x,
                          int64_t x_stride, float* HWY_RESTRICT sums) {
  const DF32 df;
  VF32 total[kTokens][kVectors];
  LODE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    LODE_UNROLL
    for (size_t v = 0; v < kVectors; ++v) {
      total[t][v] = hn::Load(df, sums + t * 16 + v * kRowsPerVector);
    }
  }
  constexpr int64_t kUnitBytes = F::kUnit * static_cast<int64_t>(sizeof(ActivationBlock));
  for (int64_t b = begin; b < end; b += F::kUnit, x += kUnitBytes) {
    if constexpr (F::kIsPacked) {
      constexpr int64_t kBlockBytes = sizeof(typename F::Packed) / F::kBlocks;
      PrefetchStream(weights + b * kBlockBytes, F::kUnit * kBlockBytes);
    }
    AddUnit<F, kTokens>(weights, b, x, x_stride, total, sums, Unit<F>());
  }
  if constexpr (kSumsInRegisters<F, kTokens>) {
    LODE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      LODE_UNROLL
      for (size_t v = 0; v < kVectors; ++v) {
        hn::Store(total[t][v], df, sums + t * 16 + v * kRowsPerVector);
      }
    }
  }
}

// --- f32 dot products ---

// Weights as f32, [columns][16 rows].
struct F32Columns {
  static constexpr int64_t kBytes = 4;
  static HWY_INLINE VF32 Load(const std::byte* weights, int64_t c, size_t v) {
    return hn::LoadU(DF32(), reinterpret_cast<const float*>(weights) + c * 16 + v * kRowsPerVector);
  }
};

// sums[t][16 rows] += columns [begin, end) times kTokens tokens, in blocks of 32 columns.
template <class Columns, int kTokens>
HWY_INLINE void DotColumns(const std::byte* weights, int64_t begin, int64_t end, const float* x,
                           int64_t x_stride, float* HWY_RESTRICT sums) {
  const DF32 df;
  for (int64_t block = begin; block < end; block += kBlockCols) {
    const int64_t block_end = std::min(end, block + kBlockCols);
    VF32 partial[kTokens][kVectors];
    LODE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      LODE_UNROLL
      for (size_t v = 0; v < kVectors; ++v) partial[t][v] = hn::Zero(df);
    }
    for (int64_t c = block; c < block_end; ++c) {
      VF32 w[kVectors];
      LODE_UNROLL
      for (size_t v = 0; v < kVectors; ++v) w[v] = Columns::Load(weights, c, v);
      LODE_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        const VF32 a = hn::Set(df, x[t * x_stride + c]);
        LODE_UNROLL
        for (size_t v = 0; v < kVectors; ++v) partial[t][v] = hn::MulAdd(w[v], a, partial[t][v]);
      }
    }
    LODE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      LODE_UNROLL
      for (size_t v = 0; v < kVectors; ++v) {
        float* sum = sums + t * 16 + v * kRowsPerVector;
        hn::Store(hn::Add(hn::Load(df, sum), partial[t][v]), df, sum);
      }
    }
  }
}

// Columns 4S + j of a block as f32, exactly (tile: [32 columns][16 rows]).
template <class F, size_t S, class Block>
HWY_INLINE void DecodeStep(const Block& block, VF32 scale, VF32 min, size_t v, float* tile) {
  const DI32 di;
  const DF32 df;
  const VI32 codes = hn::BitCast(di, F::template Codes<S>(block, v));
  const VI32 columns[4] = {hn::ShiftLeft<24>(codes), hn::ShiftLeft<16>(codes),
                           hn::ShiftLeft<8>(codes), codes};
  LODE_UNROLL
  for (size_t j = 0; j < 4; ++j) {
    // Codes are below 128 unless they are signed bytes.
    VI32 q = hn::ShiftRight<24>(columns[j]);
    if constexpr (!F::kSigned && !F::kHasMin) q = hn::Sub(q, hn::Set(di, F::kOffset));
    VF32 w = hn::ConvertTo(df, q);
    if constexpr (F::kHasSubScales) w = hn::Mul(w, F::SubScaleFloats(block, S / 4, v));
    w = F::kHasMin ? hn::MulSub(w, scale, min) : hn::Mul(w, scale);
    hn::Store(w, df, tile + (4 * S + j) * 16 + v * kRowsPerVector);
  }
}

template <class F, class Block, size_t... S>
HWY_INLINE void DecodeBlock(const Block& block, float* tile, std::index_sequence<S...>) {
  for (size_t v = 0; v < kVectors; ++v) {
    const VF32 scale = F::Scale(block, v);
    VF32 min = hn::Zero(DF32());
    if constexpr (F::kHasMin) min = F::Min(block, v);
    (DecodeStep<F, S>(block, scale, min, v, tile), ...);
  }
}

template <class F, size_t... P>
HWY_INLINE void DecodeUnit(const std::byte* group, int64_t b, float* tile,
                           std::index_sequence<P...>) {
  (DecodeBlock<F>(F::template Open<P>(group, b), tile + P * kBlockCols * kRowGroup, Steps()), ...);
}

// --- Loops over row groups, tiles and tokens ---

HWY_INLINE void StoreRows(const float* sums, const MatMulTask& task, int64_t group, int64_t token) {
  const int64_t first = group * kRowGroup;
  float* out = task.out + token * task.out_stride + first;
  if (first + kRowGroup <= task.weights.rows) {
    std::memcpy(out, sums, kRowGroup * sizeof(float));  // a constant size: no call
  } else {
    std::memcpy(out, sums, static_cast<size_t>(task.weights.rows - first) * sizeof(float));
  }
}

// Kernels: Unpack(group, begin, end, tile) returns the weights for Dot<kTokens>(weights, begin,
// end, x, x_stride, sums), begin and end in columns.
template <class F>
struct Int8Kernel {
  static constexpr bool kHasOutliers = true;
  static constexpr int64_t kTileCols =
      kTileBytes / kTileBlockBytes<F> / F::kUnit * F::kUnit * kBlockCols;

  static constexpr int64_t kStepCols = F::kUnit * kBlockCols;

  static HWY_INLINE void DotInPlace(const MatMulTask& task, const std::byte* group, int64_t begin,
                                    int64_t end, float* sums) {
    const int64_t b = begin / kBlockCols;
    const std::byte* x = task.activations + b * static_cast<int64_t>(sizeof(ActivationBlock));
    DotBlocks<InPlace<F>, 1>(group, b, end / kBlockCols, x, 0, sums);
  }
  static HWY_INLINE const std::byte* Unpack(const std::byte* group, int64_t begin, int64_t end,
                                            std::byte* tile) {
    UnpackTile<F>(group, begin / kBlockCols, end / kBlockCols, tile);
    return tile;
  }
  template <int kTokens>
  static HWY_INLINE void Dot(const std::byte* tile, int64_t begin, int64_t end, const std::byte* x,
                             int64_t x_stride, float* sums) {
    const std::byte* first = x + begin / kBlockCols * static_cast<int64_t>(sizeof(ActivationBlock));
    DotBlocks<Tile<F>, kTokens>(tile, 0, (end - begin) / kBlockCols, first, x_stride, sums);
  }
  static HWY_INLINE void AddOutliersInPlace(std::span<const Outlier> outliers,
                                            const PackedGroups& groups) {
    AddPackedOutliers<InPlace<F>>(outliers, groups);
  }
  static HWY_INLINE std::span<const TokenOutlier> AddOutliers(
      std::span<const TokenOutlier> outliers, const std::byte* tile, int64_t begin, int64_t end,
      float* sums) {
    return AddTileOutliers<Tile<F>>(outliers, tile, begin, end, sums);
  }
};

// A tile of f32 columns [begin, end) times kTokens tokens.
template <int kTokens>
HWY_INLINE void F32Dot(const std::byte* tile, int64_t begin, int64_t end, const std::byte* x,
                       int64_t x_stride, float* sums) {
  DotColumns<F32Columns, kTokens>(tile, 0, end - begin, reinterpret_cast<const float*>(x) + begin,
                                  x_stride / static_cast<int64_t>(sizeof(float)), sums);
}

// Quantised weights with f32 activations.
template <class F>
struct F32Kernel {
  static constexpr bool kHasOutliers = false;
  static constexpr int64_t kTileCols = 256;

  static constexpr int64_t kStepCols = kTileCols;

  static HWY_INLINE void DotInPlace(const MatMulTask& task, const std::byte* group, int64_t begin,
                                    int64_t end, float* sums) {
    const std::byte* tile = Unpack(group, begin, end, task.scratch);
    Dot<1>(tile, begin, end, task.activations, 0, sums);
  }
  static HWY_INLINE const std::byte* Unpack(const std::byte* group, int64_t begin, int64_t end,
                                            std::byte* tile) {
    float* out = reinterpret_cast<float*>(tile);
    constexpr int64_t kUnitCols = F::kUnit * kBlockCols;
    for (int64_t c = begin; c < end; c += kUnitCols, out += kUnitCols * kRowGroup) {
      DecodeUnit<F>(group, c / kBlockCols, out, Unit<F>());
    }
    return tile;
  }
  template <int kTokens>
  static HWY_INLINE void Dot(const std::byte* tile, int64_t begin, int64_t end, const std::byte* x,
                             int64_t x_stride, float* sums) {
    F32Dot<kTokens>(tile, begin, end, x, x_stride, sums);
  }
};

// Float weights.
template <class Columns>
struct FloatKernel {
  static constexpr bool kHasOutliers = false;
  static constexpr int64_t kTileCols = 256;

  static constexpr int64_t kStepCols = kBlockCols;

  static HWY_INLINE void DotInPlace(const MatMulTask& task, const std::byte* group, int64_t begin,
                                    int64_t end, float* sums) {
    constexpr int64_t kColumnBytes = kRowGroup * Columns::kBytes;
    PrefetchStream(group + begin * kColumnBytes, (end - begin) * kColumnBytes);
    DotColumns<Columns, 1>(group, begin, end, reinterpret_cast<const float*>(task.activations), 0,
                           sums);
  }
  static HWY_INLINE const std::byte* Unpack(const std::byte* group, int64_t begin, int64_t end,
                                            std::byte* tile) {
    float* out = reinterpret_cast<float*>(tile);
    for (int64_t c = begin; c < end; ++c, out += kRowGroup) {
      for (size_t v = 0; v < kVectors; ++v) {
        hn::Store(Columns::Load(group, c, v), DF32(), out + v * kRowsPerVector);
      }
    }
    return tile;
  }
  template <int kTokens>
  static HWY_INLINE void Dot(const std::byte* tile, int64_t begin, int64_t end, const std::byte* x,
                             int64_t x_stride, float* sums) {
    F32Dot<kTokens>(tile, begin, end, x, x_stride, sums);
  }
};

// Columns [begin, end) of one row group, unpacked, times a block of tokens.
struct TileJob {
  const MatMulTask& task;
  int64_t group;
  int64_t first_token, num_tokens;
  const std::byte* tile;
  int64_t begin, end;
  float* sums;                // [num_tokens][16]
  const float* outlier_sums;  // [num_tokens][16], or null: there are no outliers
};

// Stores the finished sums of token i of the job.
HWY_INLINE void StoreToken(const TileJob& job, int64_t i) {
  float* sums = job.sums + i * kRowGroup;
  if (job.outlier_sums != nullptr) {
    const DF32 df;
    const float* outlier_sums = job.outlier_sums + i * kRowGroup;
    LODE_UNROLL
    for (size_t v = 0; v < kVectors; ++v) {
      float* at = sums + v * kRowsPerVector;
      const VF32 outliers = hn::Load(df, outlier_sums + v * kRowsPerVector);
      hn::Store(hn::Add(hn::Load(df, at), outliers), df, at);
    }
  }
  StoreRows(sums, job.task, job.group, job.first_token + i);
}

// Does kTokens tokens at a time from *done on, as long as so many are left.
template <class Kernel, int kTokens>
HWY_INLINE void DotTokens(const TileJob& job, int64_t* done) {
  const MatMulTask& task = job.task;
  for (; *done + kTokens <= job.num_tokens; *done += kTokens) {
    const int64_t token = job.first_token + *done;
    float* sums = job.sums + *done * kRowGroup;
    if (job.begin == 0) std::memset(sums, 0, kTokens * kRowGroup * sizeof(float));
    const bool last = job.end == task.weights.cols;
    if (last) {
      // The lines to be written are a row of the output apart, rarely in cache.
      for (int t = 0; t < kTokens; ++t) {
        __builtin_prefetch(task.out + (token + t) * task.out_stride + job.group * kRowGroup, 1);
      }
    }
    Kernel::template Dot<kTokens>(job.tile, job.begin, job.end,
                                  task.activations + token * task.activation_bytes,
                                  task.activation_bytes, sums);
    if (last) {
      for (int t = 0; t < kTokens; ++t) StoreToken(job, *done + t);
    }
  }
}

// One row group times tokens [first, first + num_tokens), num_tokens <= kTokenBlock, whose outliers
// are given.
template <class Kernel>
HWY_INLINE void MultiplyGroup(const MatMulTask& task, int64_t group, int64_t first,
                              int64_t num_tokens, std::span<const TokenOutlier> outliers) {
  const std::byte* weights = task.weights.data + group * task.group_bytes;
  float* sums = reinterpret_cast<float*>(task.scratch + kTileBytes);
  float* outlier_sums = outliers.empty() ? nullptr : sums + kTokenBlock * kRowGroup;
  if (!outliers.empty()) std::fill_n(outlier_sums, num_tokens * kRowGroup, 0.0f);
  for (int64_t c = 0; c < task.weights.cols; c += Kernel::kTileCols) {
    const int64_t end = std::min(task.weights.cols, c + Kernel::kTileCols);
    const std::byte* tile = Kernel::Unpack(weights, c, end, task.scratch);
    if constexpr (Kernel::kHasOutliers) {
      outliers = Kernel::AddOutliers(outliers, tile, c, end, outlier_sums);
    }
    const TileJob job{task, group, first, num_tokens, tile, c, end, sums, outlier_sums};
    int64_t done = 0;
    DotTokens<Kernel, kMaxTokens>(job, &done);
    if constexpr (kMaxTokens > 4) DotTokens<Kernel, 4>(job, &done);
    if constexpr (kMaxTokens > 2) DotTokens<Kernel, 2>(job, &done);
    DotTokens<Kernel, 1>(job, &done);
  }
}

// One token times kStreams row groups, `stride` apart, a few columns of each in turn: the memory
// delivers a quarter more to two streams than to one (docs/kernels.md).
template <class Kernel, int kStreams>
HWY_INLINE void MultiplyStreams(const MatMulTask& task, int64_t first, int64_t stride) {
  const int64_t cols = task.weights.cols;
  HWY_ALIGN float sums[kStreams][kRowGroup] = {};
  const std::byte* weights[kStreams];
  for (int s = 0; s < kStreams; ++s) {
    weights[s] = task.weights.data + (first + s * stride) * task.group_bytes;
  }
  for (int64_t c = 0; c < cols; c += Kernel::kStepCols) {
    const int64_t end = std::min(cols, c + Kernel::kStepCols);
    for (int s = 0; s < kStreams; ++s) Kernel::DotInPlace(task, weights[s], c, end, sums[s]);
  }
  for (int s = 0; s < kStreams; ++s) StoreRows(sums[s], task, first + s * stride, 0);
}

// Adds the outliers of one token to its finished products with row groups [begin, end), at most
// kOutlierGroups.
inline constexpr int64_t kOutlierGroups = 16;

template <class Kernel>
HWY_INLINE void FinishOneToken(const MatMulTask& task, int64_t begin, int64_t end) {
  if constexpr (Kernel::kHasOutliers) {
    const std::span<const Outlier> outliers = OutliersOf(task.activations, task.weights.cols);
    if (outliers.empty()) return;
    HWY_ALIGN float sums[kOutlierGroups * kRowGroup] = {};
    Kernel::AddOutliersInPlace(outliers, {task.weights.data + begin * task.group_bytes,
                                          task.group_bytes, end - begin, sums});
    const int64_t first_row = begin * kRowGroup;
    const int64_t rows = std::min(task.weights.rows, end * kRowGroup) - first_row;
    for (int64_t r = 0; r < rows; ++r) task.out[first_row + r] += sums[r];
  }
}

template <class Kernel>
HWY_INLINE void MultiplyOneToken(const MatMulTask& task) {
  constexpr int kStreams = 2;
  const int64_t length = (task.group_end - task.group_begin) / kStreams;
  // Outliers follow while the weights are still in a cache.
  for (int64_t i = 0; i < length; i += kOutlierGroups) {
    const int64_t end = std::min(length, i + kOutlierGroups);
    for (int64_t j = i; j < end; ++j) {
      MultiplyStreams<Kernel, kStreams>(task, task.group_begin + j, length);
    }
    for (int s = 0; s < kStreams; ++s) {
      const int64_t first = task.group_begin + s * length;
      FinishOneToken<Kernel>(task, first + i, first + end);
    }
  }
  for (int64_t g = task.group_begin + length * kStreams; g < task.group_end; ++g) {
    MultiplyStreams<Kernel, 1>(task, g, 0);
    FinishOneToken<Kernel>(task, g, g + 1);
  }
}

template <class Kernel>
HWY_INLINE void RunMatMul(const MatMulTask& task) {
  if (task.num_tokens == 1) return MultiplyOneToken<Kernel>(task);
  // A block of tokens is read once per row group: it should stay in L2.
  for (int64_t t = 0; t < task.num_tokens; t += kTokenBlock) {
    const int64_t tokens = std::min(kTokenBlock, task.num_tokens - t);
    std::span<const TokenOutlier> outliers;
    if constexpr (Kernel::kHasOutliers) outliers = SortOutliers(task, t, tokens);
    for (int64_t g = task.group_begin; g < task.group_end; ++g) {
      MultiplyGroup<Kernel>(task, g, t, tokens, outliers);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lode::kernels
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET == HWY_SCALAR
#endif  // LODE_KERNELS_MATMUL_INL_H_
