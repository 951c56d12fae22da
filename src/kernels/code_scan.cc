// SPDX-License-Identifier: Apache-2.0
#include "kernels/code_scan.h"

#include <algorithm>
#include <bit>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/code_scan.cc"
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "base/check.h"

HWY_BEFORE_NAMESPACE();
namespace lode::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kTokens = kKvTileTokens;
// Pages whose masses are one vector.
constexpr int64_t kPages = 8;

using F32 = hn::CappedTag<float, 8>;
using VF32 = hn::Vec<F32>;

void QuantizeTables(const float* HWY_RESTRICT tables, int64_t rows, int8_t* HWY_RESTRICT out,
                    float* HWY_RESTRICT steps) {
  const F32 df;
  const hn::Rebind<int8_t, F32> d8;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  constexpr int64_t kEntries = kCodeNibbles * 16;
  for (int64_t r = 0; r < rows; ++r, tables += kEntries, out += kEntries) {
    float largest_sum = 0.0f;
    auto difference = hn::Zero(df);  // x - x is NaN for NaN and infinity
    for (int64_t n = 0; n < kCodeNibbles; ++n) {
      auto max = hn::Zero(df);
      for (int64_t i = n * 16; i < (n + 1) * 16; i += lanes) {
        const auto x = hn::LoadU(df, tables + i);
        max = hn::Max(max, hn::Abs(x));
        difference = hn::Add(difference, hn::Sub(x, x));
      }
      largest_sum += hn::GetLane(hn::MaxOfLanes(df, max));
    }
    // Rounding may add half a step per table.
    constexpr int64_t kLargestSteps = 127 - kCodeNibbles / 2;
    const float step = largest_sum / kLargestSteps;
    const bool valid = hn::GetLane(hn::SumOfLanes(df, difference)) == 0.0f && step > 1e-30f;
    steps[r] = valid ? step : 0.0f;
    const auto inverse = hn::Set(df, 1.0f / step);
    for (int64_t i = 0; i < kEntries; i += lanes) {
      const auto x = valid ? hn::Mul(hn::LoadU(df, tables + i), inverse) : hn::Zero(df);
      hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(x)), d8, out + i);
    }
  }
}

// A page's codes, a byte per nibble: [kCodeNibbles][keys].
struct PageCodes {
  void Load(const uint8_t* HWY_RESTRICT page) {
    const hn::CappedTag<uint8_t, kTokens> d8;
    for (int64_t i = 0; i < kCodePageBytes; i += static_cast<int64_t>(hn::Lanes(d8))) {
      const auto both = hn::LoadU(d8, page + i);
      hn::Store(hn::And(both, hn::Set(d8, 15)), d8, codes + i);
      hn::Store(hn::ShiftRight<4>(both), d8, codes + kCodePageBytes + i);
    }
  }
  HWY_ALIGN uint8_t codes[kCodeNibbles * kTokens];
};

// The entries of keys, a vector of them, in table n of a row; `codes` are those of the first key.
using I8 = hn::CappedTag<int8_t, kTokens>;
struct Table {
#if HWY_TARGET == HWY_SCALAR
  Table(const int8_t* tables, int64_t n) : entries(tables + n * 16), begin(n * kTokens) {}
  hn::Vec<I8> Get(const uint8_t* codes) const { return hn::Set(I8(), entries[codes[begin]]); }
  const int8_t* entries;
#else
  Table(const int8_t* tables, int64_t n)
      : entries(hn::LoadDup128(I8(), tables + n * 16)), begin(n * kTokens) {}
  HWY_INLINE hn::Vec<I8> Get(const uint8_t* HWY_RESTRICT codes) const {
    const hn::RebindToUnsigned<I8> du;
    return hn::TableLookupBytes(entries, hn::BitCast(I8(), hn::Load(du, codes + begin)));
  }
  hn::Vec<I8> entries;
#endif
  int64_t begin;
};

void ScanPage(const CodePages& pages, const CodeTables& tables, float* HWY_RESTRICT out) {
  PageCodes page;
  page.Load(pages.codes);
  const I8 d8;
  for (int64_t r = 0; r < tables.rows; ++r, out += kTokens) {
    HWY_ALIGN int8_t sums[kTokens];
    for (int64_t t = 0; t < kTokens; t += static_cast<int64_t>(hn::Lanes(d8))) {
      auto sum = hn::Zero(d8);
      for (int64_t n = 0; n < kCodeNibbles; ++n) {
        sum = hn::Add(sum, Table(tables.tables + r * kCodeNibbles * 16, n).Get(page.codes + t));
      }
      hn::Store(sum, d8, sums + t);
    }
    const float step = pages.scales[0] * tables.steps[r];
    for (int64_t t = 0; t < kTokens; ++t) out[t] = static_cast<float>(sums[t]) * step;
  }
}

// ---- Masses

// 2^x is taken as a number whose bits grow linearly with x (Schraudolph 1999), moved down by half
// the largest error of that: in 16 bits, x in 1/128 plus the bias of the exponent are the upper
// half of an f32.
constexpr int kUnit = 128;
constexpr int16_t kLargestPower = 126 * kUnit;
constexpr int16_t kExponentBias = 127 * kUnit - 5;

// Factors from 256 times a sum to x, in 1/2^15.
constexpr float kFactorUnit = 128.0f * kUnit;
constexpr float kLargestFactor = 32767.0f;
// Up to here x stays within kLargestPower whatever the sum.
constexpr float kTameFactor = 16127.0f;

#if HWY_TARGET == HWY_SCALAR

// masses[p] = the sum of 2^x over the keys of page p.
template <bool kTame>
void SumPowers(const PageCodes (&group)[kPages], const int8_t* tables, const int16_t* factors,
               float* masses) {
  for (int64_t p = 0; p < kPages; ++p) {
    masses[p] = 0.0f;
    for (int64_t t = 0; t < kTokens; ++t) {
      int sum = 0;
      for (int64_t n = 0; n < kCodeNibbles; ++n) {
        sum += hn::GetLane(Table(tables, n).Get(group[p].codes + t));
      }
      const int x = std::clamp((sum * 256 * factors[p] + (1 << 14)) >> 15, -int{kLargestPower},
                               int{kLargestPower});
      masses[p] += std::bit_cast<float>(static_cast<uint32_t>(x + kExponentBias) << 16);
    }
  }
}

#else

// 2^x of one key plus that of the next, per lane; `sums_times_256` are int16. The second key's
// power keeps the bits of the first behind its own, which are less than 2^-7 of it.
template <bool kTame, class V8>
HWY_INLINE auto PairPowers(V8 sums_times_256, int16_t factor) {
  const hn::Repartition<float, hn::DFromV<V8>> df;
  const hn::RebindToUnsigned<decltype(df)> d32;
  const hn::Repartition<int16_t, decltype(df)> d16;
  auto x = hn::MulFixedPoint15(hn::BitCast(d16, sums_times_256), hn::Set(d16, factor));
  if constexpr (!kTame) {
    x = hn::Max(x, hn::Set(d16, static_cast<int16_t>(-kLargestPower)));
    x = hn::Min(x, hn::Set(d16, kLargestPower));
  }
  const auto bits = hn::BitCast(d32, hn::Add(x, hn::Set(d16, kExponentBias)));
  return hn::Add(hn::BitCast(df, hn::ShiftLeft<16>(bits)), hn::BitCast(df, bits));
}

// masses[p] = the sum of 2^x over the keys of page p. A table is loaded once for all pages.
template <bool kTame>
HWY_INLINE void SumPowers(const PageCodes (&group)[kPages], const int8_t* HWY_RESTRICT tables,
                          const int16_t* HWY_RESTRICT factors, float* HWY_RESTRICT masses) {
  const I8 d8;
  const hn::Repartition<float, I8> df;
  constexpr int64_t kLanes = hn::MaxLanes(df);
  hn::Vec<decltype(df)> sum[kPages];
  for (int64_t t = 0; t < kTokens; t += hn::MaxLanes(d8)) {
    hn::Vec<I8> sums[kPages];
    const Table first(tables, 0);
    for (int64_t p = 0; p < kPages; ++p) sums[p] = first.Get(group[p].codes + t);
    for (int64_t n = 1; n < kCodeNibbles; ++n) {
      const Table table(tables, n);
      for (int64_t p = 0; p < kPages; ++p) {
        sums[p] = hn::Add(sums[p], table.Get(group[p].codes + t));
      }
    }
    for (int64_t p = 0; p < kPages; ++p) {
      const auto zero = hn::Zero(d8);
      const auto lower = PairPowers<kTame>(hn::InterleaveLower(d8, zero, sums[p]), factors[p]);
      const auto upper = PairPowers<kTame>(hn::InterleaveUpper(d8, zero, sums[p]), factors[p]);
      const auto both = hn::Add(lower, upper);
      sum[p] = t == 0 ? both : hn::Add(sum[p], both);
    }
  }
  // Sums of neighbouring lanes, of two pages in one vector, until a lane is a page.
  for (int64_t vectors = kPages / 2; vectors >= kPages / kLanes; vectors /= 2) {
    for (int64_t i = 0; i < vectors; ++i) {
      const auto lo = sum[2 * i], hi = sum[2 * i + 1];
      sum[i] = hn::Add(hn::ConcatEven(df, hi, lo), hn::ConcatOdd(df, hi, lo));
    }
  }
  for (int64_t i = 0; i < kPages / kLanes; ++i) hn::StoreU(sum[i], df, masses + i * kLanes);
}

#endif  // HWY_TARGET == HWY_SCALAR

// log2(x) for positive normal x, to within 9e-4, and 128 for infinity: the exponent, the mantissa
// m, and what log2(1 + m) exceeds m by.
template <class DF, class V = hn::Vec<DF>>
HWY_INLINE V RoughLog2(DF df, V x) {
  const hn::RebindToSigned<DF> di;
  const auto one = hn::Set(di, 0x3f800000);
  const auto bits = hn::BitCast(di, x);
  const auto linear = hn::Mul(hn::ConvertTo(df, hn::Sub(bits, one)), hn::Set(df, 0x1p-23f));
  const auto mantissa = hn::BitCast(df, hn::Or(hn::And(bits, hn::Set(di, 0x7fffff)), one));
  const auto m = hn::Sub(mantissa, hn::Set(df, 1.0f));
  const auto rest = hn::MulAdd(hn::Set(df, -0.15921954f), m, hn::Set(df, 0.42286495f));
  return hn::MulAdd(rest, hn::Mul(m, hn::Sub(hn::Set(df, 1.0f), m)), linear);
}

// factors[p] for the pages of a group and one row.
HWY_INLINE void SetFactors(const float* HWY_RESTRICT scales, float step,
                           int16_t* HWY_RESTRICT factors) {
  const F32 df;
  const hn::Rebind<int16_t, F32> d16;
  for (int64_t p = 0; p < kPages; p += static_cast<int64_t>(hn::Lanes(df))) {
    const auto factor = hn::Mul(hn::Load(df, scales + p), hn::Set(df, step * kFactorUnit));
    const auto least = hn::Min(factor, hn::Set(df, kLargestFactor));
    hn::StoreU(hn::DemoteTo(d16, hn::NearestInt(least)), d16, factors + p);
  }
}

void AddPageMasses(const CodePages& pages, const CodeTables& tables, float* HWY_RESTRICT masses,
                   int64_t stride) {
  // Rows whose logarithms are taken side by side, because one waits long for its steps.
  constexpr int64_t kRows = 8;
  const F32 df;
  PageCodes group[kPages] = {};
  HWY_ALIGN float scales[kPages] = {};
  HWY_ALIGN float sums[kRows * kPages];
  int16_t factors[kPages];
  for (int64_t first = 0; first < pages.count; first += kPages) {
    const int64_t count = std::min(kPages, pages.count - first);
    const uint8_t* codes = pages.codes + first * kCodePageBytes;
    for (int64_t p = 0; p < count; ++p) group[p].Load(codes + p * kCodePageBytes);
    for (int64_t p = kPages; p < std::min(2 * kPages, pages.count - first); ++p) {
      for (int64_t i = 0; i < kCodePageBytes; i += 64) {
        __builtin_prefetch(codes + p * kCodePageBytes + i);
      }
    }
    std::copy_n(pages.scales + first, count, scales);
    const float largest = *std::max_element(scales, scales + kPages);
    for (int64_t r = 0; r < tables.rows; r += kRows) {
      const int64_t rows = std::min(kRows, tables.rows - r);
      for (int64_t i = 0; i < rows; ++i) {
        const int8_t* row_tables = tables.tables + (r + i) * kCodeNibbles * 16;
        const float step = tables.steps[r + i];
        SetFactors(scales, step, factors);
        if (step * largest * kFactorUnit < kTameFactor) {
          SumPowers<true>(group, row_tables, factors, sums + i * kPages);
        } else {
          SumPowers<false>(group, row_tables, factors, sums + i * kPages);
        }
      }
      for (int64_t i = 0; i < rows * kPages; i += static_cast<int64_t>(hn::Lanes(df))) {
        hn::Store(RoughLog2(df, hn::Load(df, sums + i)), df, sums + i);
      }
      for (int64_t i = 0; i < rows; ++i) {
        float* HWY_RESTRICT row = masses + (r + i) * stride + first;
        for (int64_t p = 0; p < count; ++p) row[p] += sums[i * kPages + p];
      }
    }
  }
}

}  // namespace
}  // namespace lode::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lode::kernels {

HWY_EXPORT(QuantizeTables);
HWY_EXPORT(ScanPage);
HWY_EXPORT(AddPageMasses);

void QuantizeTables(const float* tables, int64_t rows, int8_t* out, float* steps) {
  HWY_DYNAMIC_DISPATCH(QuantizeTables)(tables, rows, out, steps);
}

void ScanPage(const CodePages& pages, const CodeTables& tables, float* out) {
  HWY_DYNAMIC_DISPATCH(ScanPage)(pages, tables, out);
}

void AddPageMasses(const CodePages& pages, const CodeTables& tables, float* masses,
                   int64_t stride) {
  HWY_DYNAMIC_DISPATCH(AddPageMasses)(pages, tables, masses, stride);
}

}  // namespace lode::kernels
#endif  // HWY_ONCE
