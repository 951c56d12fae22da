// SPDX-License-Identifier: Apache-2.0
#include "kernels/code_scan.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/code_scan.cc"
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "base/check.h"
#include "kernels/dequantize.h"
#include "kernels/exp2-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lode::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kTokens = kKvTileTokens;

#if HWY_TARGET == HWY_SCALAR

void ScanCodes(const uint8_t* codes, const uint16_t* scales, int64_t num_nibbles,
               const uint8_t* tables, const float* steps, int64_t rows, float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t t = 0; t < kTokens; ++t) {
      int32_t sum = 0;
      for (int64_t n = 0; n < num_nibbles; ++n) {
        const int byte = codes[n * kTokens / 2 + t % (kTokens / 2)];
        const int nibble = t < kTokens / 2 ? byte & 15 : byte >> 4;
        sum += tables[(r * num_nibbles + n) * 16 + nibble] - kCodeTableZero;
      }
      out[r * kTokens + t] = HalfToFloat(scales[t]) * steps[r] * static_cast<float>(sum);
    }
  }
}

#else

// Unpacks nibbles to bytes in the order of keys 0, 16, 1, 17, ...: the even bytes of a vector are
// then one half of the page and the odd ones the other, and sums need no shuffling.
void UnpackNibbles(const uint8_t* HWY_RESTRICT codes, int64_t num_nibbles,
                   uint8_t* HWY_RESTRICT out) {
  const hn::FixedTag<uint8_t, 16> d8;
  for (int64_t n = 0; n < num_nibbles; ++n) {
    const auto both = hn::LoadU(d8, codes + n * 16);
    const auto low = hn::And(both, hn::Set(d8, 15));
    const auto high = hn::ShiftRight<4>(both);
    hn::Store(hn::InterleaveLower(d8, low, high), d8, out + n * kTokens);
    hn::Store(hn::InterleaveUpper(d8, low, high), d8, out + n * kTokens + 16);
  }
}

// out[t] = scale * factor * (sum - zero) for as many keys as a vector of 16-bit sums holds.
template <class D16, class V16>
HWY_INLINE void StoreEstimates(D16 d16, V16 sums, const float* HWY_RESTRICT scales, float step,
                               float zero, float* HWY_RESTRICT out) {
  const hn::Repartition<int32_t, D16> d32;
  const hn::RebindToFloat<decltype(d32)> df;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  const hn::Half<D16> half;
  const auto store = [&](auto integers, int64_t at) {
    const auto sum = hn::Sub(hn::ConvertTo(df, integers), hn::Set(df, zero));
    hn::StoreU(hn::Mul(sum, hn::Mul(hn::LoadU(df, scales + at), hn::Set(df, step))), df, out + at);
  };
  store(hn::PromoteTo(d32, hn::LowerHalf(half, sums)), 0);
  store(hn::PromoteTo(d32, hn::UpperHalf(half, sums)), lanes);
}

void ScanCodes(const uint8_t* codes, const uint16_t* scale_bits, int64_t num_nibbles,
               const uint8_t* tables, const float* steps, int64_t rows, float* out) {
  LODE_DCHECK(num_nibbles % 2 == 0 && num_nibbles <= kMaxCodeNibbles);
  const hn::CappedTag<uint8_t, kTokens> d8;
  const hn::Repartition<uint16_t, decltype(d8)> d16;
  const int64_t lanes8 = static_cast<int64_t>(hn::Lanes(d8));
  HWY_ALIGN uint8_t unpacked[kMaxCodeNibbles * kTokens];
  HWY_ALIGN float scales[kTokens];
  UnpackNibbles(codes, num_nibbles, unpacked);
  for (int64_t t = 0; t < kTokens; ++t) scales[t] = HalfToFloat(scale_bits[t]);
  const float zero = static_cast<float>(kCodeTableZero * num_nibbles);
  for (int64_t r = 0; r < rows; ++r) {
    const uint8_t* row_tables = tables + r * num_nibbles * 16;
    for (int64_t first = 0; first < kTokens; first += lanes8) {
      auto even = hn::Zero(d16);
      auto odd = hn::Zero(d16);
      for (int64_t n = 0; n < num_nibbles; n += 2) {
        const auto a = hn::TableLookupBytes(hn::LoadDup128(d8, row_tables + n * 16),
                                            hn::Load(d8, unpacked + n * kTokens + first));
        const auto b = hn::TableLookupBytes(hn::LoadDup128(d8, row_tables + (n + 1) * 16),
                                            hn::Load(d8, unpacked + (n + 1) * kTokens + first));
        const auto pair = hn::BitCast(d16, hn::Add(a, b));  // two entries of 127 fit a byte
        even = hn::Add(even, hn::And(pair, hn::Set(d16, 255)));
        odd = hn::Add(odd, hn::ShiftRight<8>(pair));
      }
      float* row_out = out + r * kTokens + first / 2;
      StoreEstimates(d16, even, scales + first / 2, steps[r], zero, row_out);
      StoreEstimates(d16, odd, scales + (kTokens + first) / 2, steps[r], zero,
                     row_out + kTokens / 2);
    }
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

void LogSumsOfPage(const float* HWY_RESTRICT x, int64_t rows, float* HWY_RESTRICT out) {
  const hn::CappedTag<float, 8> df;
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(hn::CappedTag<float, 8>()));
  for (int64_t r = 0; r < rows; ++r) {
    const float* HWY_RESTRICT row = x + r * kTokens;
    auto max = hn::Load(df, row);
    for (int64_t t = kLanes; t < kTokens; t += kLanes) max = hn::Max(max, hn::Load(df, row + t));
    const auto largest = hn::MaxOfLanes(df, max);
    auto sum = hn::Zero(df);
    for (int64_t t = 0; t < kTokens; t += kLanes) {
      sum = hn::Add(sum, Exp2(df, hn::Sub(hn::Load(df, row + t), largest)));
    }
    out[r] = hn::GetLane(largest) + std::log2(hn::GetLane(hn::SumOfLanes(df, sum)));
  }
}

}  // namespace
}  // namespace lode::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lode::kernels {

HWY_EXPORT(ScanCodes);
HWY_EXPORT(LogSumsOfPage);

void ScanCodes(const uint8_t* codes, const uint16_t* scales, int64_t num_nibbles,
               const uint8_t* tables, const float* steps, int64_t rows, float* out) {
  HWY_DYNAMIC_DISPATCH(ScanCodes)(codes, scales, num_nibbles, tables, steps, rows, out);
}

void LogSumsOfPage(const float* x, int64_t rows, float* out) {
  HWY_DYNAMIC_DISPATCH(LogSumsOfPage)(x, rows, out);
}

}  // namespace lode::kernels
#endif  // HWY_ONCE
