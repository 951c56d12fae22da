// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/dequantize.h"
#include "kernels/packed_layout.h"

namespace lode::kernels {
namespace {

// One row of a block of 32 columns: w[c] = scale * sub_scale[c / 16] * q[c] - min, q signed.
struct RowBlock {
  int32_t q[32];
  int32_t sub_scale[2] = {1, 1};
  float scale;
  float min = 0;
  int32_t offset = 0;  // the kernels' dot products use q - offset (and a min to match)
};

RowBlock DecodeQ8_0(const PackedQ8_0& block, int64_t r) {
  RowBlock out;
  for (int c = 0; c < 32; ++c) out.q[c] = block.qs[c / 4][r][c % 4];
  out.scale = HalfToFloat(block.d[r]);
  return out;
}

RowBlock DecodeQ4_0(const PackedQ4_0& block, int64_t r) {
  RowBlock out;
  for (int c = 0; c < 16; ++c) {
    out.q[c] = (block.qs[c / 4][r][c % 4] & 15) - 8;
    out.q[c + 16] = (block.qs[c / 4][r][c % 4] >> 4) - 8;
  }
  out.scale = HalfToFloat(block.d[r]);
  return out;
}

RowBlock DecodeQ5_0(const PackedQ5_0& block, int64_t r) {
  RowBlock out;
  for (int c = 0; c < 32; ++c) {
    const int nibble = (block.qs[c % 16 / 4][r][c % 4] >> (c / 16 * 4)) & 15;
    const int high = (block.qh[r][c % 4] >> (c / 4)) & 1;
    out.q[c] = (nibble | high << 4) - 16;
  }
  out.scale = HalfToFloat(block.d[r]);
  return out;
}

// Q4_K and Q5_K: sub-block `sub` of 32 columns.
template <class Packed>
RowBlock DecodeScaleMin(const Packed& block, int sub, int64_t r) {
  RowBlock out;
  for (int c = 0; c < 32; ++c) {
    out.q[c] = (block.qs[sub / 2 * 8 + c / 4][r][c % 4] >> (sub % 2 * 4)) & 15;
  }
  out.scale = HalfToFloat(block.d[r]) * static_cast<float>(block.scales[sub][r]);
  out.min = HalfToFloat(block.dmin[r]) * static_cast<float>(block.mins[sub][r]);
  return out;
}

RowBlock DecodeQ5_K(const PackedQ5_K& block, int sub, int64_t r) {
  RowBlock out = DecodeScaleMin(block, sub, r);
  for (int c = 0; c < 32; ++c) out.q[c] |= ((block.qh[c / 4][r][c % 4] >> sub) & 1) << 4;
  out.offset = 16;
  return out;
}

RowBlock DecodeQ6_K(const PackedQ6_K& block, int sub, int64_t r) {
  RowBlock out;
  const int half = sub / 4, t = sub % 4;
  for (int c = 0; c < 32; ++c) {
    const int low = (block.halves[half].ql[t % 2 * 8 + c / 4][r][c % 4] >> (t / 2 * 4)) & 15;
    const int high = (block.halves[half].qh[c / 4][r][c % 4] >> (2 * t)) & 3;
    out.q[c] = (low | high << 4) - 32;
  }
  for (int s = 0; s < 2; ++s) out.sub_scale[s] = block.scales[sub * 2 + s][r];
  out.scale = HalfToFloat(block.d[r]);
  return out;
}

// Columns 32b..32b+31 of row r of a group of quantised weights.
RowBlock DecodeRowBlock(DType type, const std::byte* group, int64_t b, int64_t r) {
  const int sub = static_cast<int>(b % 8);
  switch (type) {
    case DType::kQ8_0:
      return DecodeQ8_0(reinterpret_cast<const PackedQ8_0*>(group)[b], r);
    case DType::kQ4_0:
      return DecodeQ4_0(reinterpret_cast<const PackedQ4_0*>(group)[b], r);
    case DType::kQ5_0:
      return DecodeQ5_0(reinterpret_cast<const PackedQ5_0*>(group)[b], r);
    case DType::kQ4_K:
      return DecodeScaleMin(reinterpret_cast<const PackedQ4_K*>(group)[b / 8], sub, r);
    case DType::kQ5_K:
      return DecodeQ5_K(reinterpret_cast<const PackedQ5_K*>(group)[b / 8], sub, r);
    case DType::kQ6_K:
      return DecodeQ6_K(reinterpret_cast<const PackedQ6_K*>(group)[b / 8], sub, r);
    default:
      LODE_CHECK(false && "not a quantised packed type");
  }
  return {};
}

float DecodeFloat(DType type, const std::byte* group, int64_t c, int64_t r) {
  const int64_t i = c * kRowGroup + r;
  if (type == DType::kF32) return reinterpret_cast<const float*>(group)[i];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(group)[i];
  return type == DType::kF16 ? HalfToFloat(bits) : Bf16ToFloat(bits);
}

const std::byte* GroupOf(const PackedWeights& weights, int64_t row) {
  return weights.data + row / kRowGroup * PackedGroupBytes(weights.type, weights.cols);
}

// Adds columns 32b..32b+31 of a row times a token to the token's sum.
float AddBlockInt8(const RowBlock& w, bool has_min, const ActivationBlock& x, float sum) {
  int32_t dots[2] = {};
  for (int c = 0; c < 32; ++c) dots[c / 16] += (w.q[c] - w.offset) * x.q[c];
  const int32_t dot = w.sub_scale[0] * dots[0] + w.sub_scale[1] * dots[1];
  sum = std::fma(static_cast<float>(dot), w.scale * x.d, sum);
  if (!has_min) return sum;
  const float min = std::fma(-static_cast<float>(w.offset), w.scale, w.min);
  return std::fma(-min, x.d_sum, sum);
}

// The sum over a token's outliers, in f32.
float OutlierSum(const PackedWeights& weights, bool has_min, int64_t row,
                 std::span<const Outlier> outliers) {
  float sum = 0;
  for (const Outlier& outlier : outliers) {
    const int64_t c = outlier.column % kBlockCols;
    const RowBlock w = DecodeRowBlock(weights.type, GroupOf(weights, row),
                                      outlier.column / kBlockCols, row % kRowGroup);
    const float q = static_cast<float>(w.sub_scale[c / 16] * (w.q[c] - w.offset));
    const float min = std::fma(-static_cast<float>(w.offset), w.scale, w.min);
    sum = std::fma(has_min ? std::fma(q, w.scale, -min) : q * w.scale, outlier.value, sum);
  }
  return sum;
}

float AddBlockF32(const float* w, const float* x, int64_t cols, float sum) {
  float partial = 0;
  for (int64_t c = 0; c < cols; ++c) partial = std::fma(w[c], x[c], partial);
  return sum + partial;
}

// Columns [first, first + cols) of a row, at most 32 of one block, as f32.
void DecodeColumns(const PackedWeights& weights, int64_t row, int64_t first, int64_t cols,
                   float* out) {
  const std::byte* group = GroupOf(weights, row);
  const int64_t r = row % kRowGroup;
  if (IsFloatType(weights.type)) {
    for (int64_t c = 0; c < cols; ++c) out[c] = DecodeFloat(weights.type, group, first + c, r);
    return;
  }
  const RowBlock w = DecodeRowBlock(weights.type, group, first / kBlockCols, r);
  for (int64_t c = 0; c < cols; ++c) {
    out[c] = std::fma(w.scale, static_cast<float>(w.sub_scale[c / 16] * w.q[c]), -w.min);
  }
}

// The sum of squares in 16 partial sums, as vectors of any width up to 16 have it.
float SumOfSquares(const float* x, int64_t cols) {
  float partial[16] = {};
  for (int64_t c = 0; c < cols; ++c) partial[c % 16] += x[c] * x[c];
  float sum = 0;
  for (float p : partial) sum += p;
  return sum;
}

void QuantiseBlock(const float* x, ActivationBlock* out) {
  uint32_t max_bits = 0;  // of |x|: orders like the values, NaN above infinity
  for (int i = 0; i < 32; ++i) {
    max_bits = std::max(max_bits, __builtin_bit_cast(uint32_t, x[i]) & 0x7FFFFFFFu);
  }
  const float max = __builtin_bit_cast(float, max_bits);
  const bool tiny = max < 1e-30f;  // the inverse would overflow; NaN is not tiny
  const float inverse = tiny ? 0.0f : 127.0f / max;
  out->d = tiny ? 0.0f : max / 127.0f;
  int32_t sums[2][2] = {};
  for (int i = 0; i < 32; ++i) {
    const float scaled = std::nearbyint(x[i] * inverse);
    const int32_t q = std::isfinite(scaled) ? static_cast<int32_t>(scaled) : 0;
    out->q[i] = static_cast<int8_t>(q);
    sums[i / 16][i % 4 / 2] += q;
  }
  for (int parity = 0; parity < 2; ++parity) {
    out->correction16[parity] = static_cast<int16_t>(-16 * (sums[0][parity] + sums[1][parity]));
    for (int half = 0; half < 2; ++half) {
      out->correction32[half][parity] = static_cast<int16_t>(-32 * sums[half][parity]);
    }
  }
  out->d_sum = out->d * static_cast<float>(sums[0][0] + sums[0][1] + sums[1][0] + sums[1][1]);
}

}  // namespace

void ReferenceUnpackRow(const PackedWeights& weights, int64_t row, float* out) {
  for (int64_t c = 0; c < weights.cols; c += kBlockCols) {
    DecodeColumns(weights, row, c, std::min(kBlockCols, weights.cols - c), out + c);
  }
}

void ReferencePrepareActivations(DType packed_type, ActivationType type, const float* x,
                                 int64_t cols, std::byte* out) {
  if (type == ActivationType::kF32 || IsFloatType(packed_type)) {
    std::memcpy(out, x, static_cast<size_t>(cols) * sizeof(float));
    return;
  }
  const float threshold = OutlierThreshold(SumOfSquares(x, cols), cols);
  OutlierWriter outliers(out, cols);
  for (int64_t c = 0; c < cols; c += kBlockCols) {
    float rest[kBlockCols];
    for (int64_t i = 0; i < kBlockCols; ++i) {
      const float value = x[c + i];
      rest[i] = std::fabs(value) > threshold && outliers.Add(c + i, value) ? 0.0f : value;
    }
    QuantiseBlock(rest, reinterpret_cast<ActivationBlock*>(out) + c / kBlockCols);
  }
}

void ReferenceMatMul(const PackedWeights& weights, ActivationType type,
                     const std::byte* activations, int64_t num_tokens, int64_t group_begin,
                     int64_t group_end, float* out, int64_t out_stride) {
  const int64_t stride = ActivationRowBytes(weights.type, type, weights.cols);
  const bool f32 = type == ActivationType::kF32 || IsFloatType(weights.type);
  const bool has_min = weights.type == DType::kQ4_K || weights.type == DType::kQ5_K;
  const int64_t row_end = std::min(weights.rows, group_end * kRowGroup);
  for (int64_t row = group_begin * kRowGroup; row < row_end; ++row) {
    for (int64_t t = 0; t < num_tokens; ++t) out[t * out_stride + row] = 0;
    for (int64_t c = 0; c < weights.cols; c += kBlockCols) {
      const int64_t block = c / kBlockCols;
      const int64_t cols = std::min(kBlockCols, weights.cols - c);
      float decoded[kBlockCols];
      RowBlock w;
      if (f32) {
        DecodeColumns(weights, row, c, cols, decoded);
      } else {
        w = DecodeRowBlock(weights.type, GroupOf(weights, row), block, row % kRowGroup);
      }
      for (int64_t t = 0; t < num_tokens; ++t) {
        const std::byte* x = activations + t * stride;
        float& sum = out[t * out_stride + row];
        sum =
            f32 ? AddBlockF32(decoded, reinterpret_cast<const float*>(x) + c, cols, sum)
                : AddBlockInt8(w, has_min, reinterpret_cast<const ActivationBlock*>(x)[block], sum);
      }
    }
    for (int64_t t = 0; !f32 && t < num_tokens; ++t) {
      const auto outliers = OutliersOf(activations + t * stride, weights.cols);
      if (!outliers.empty())
        out[t * out_stride + row] += OutlierSum(weights, has_min, row, outliers);
    }
  }
}

}  // namespace lode::kernels
