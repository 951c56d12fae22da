// SPDX-License-Identifier: Apache-2.0
#include "kernels/code_scan.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/code_scan.cc"
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

#include "base/check.h"

HWY_BEFORE_NAMESPACE();
namespace lode::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kTokens = kKvTileTokens;
// Estimates beyond it mean nothing, and the sum of a page must fit f32.
constexpr float kLargestEstimate = 64.0f;
// Pages whose masses are one vector.
constexpr int64_t kPages = 8;

using F32 = hn::CappedTag<float, 8>;
using VF32 = hn::Vec<F32>;

void QuantizeTables(const float* HWY_RESTRICT tables, int64_t rows, int64_t num_entries,
                    uint8_t* HWY_RESTRICT out, float* HWY_RESTRICT steps) {
  const F32 df;
  const hn::RebindToSigned<F32> di;
  const hn::Rebind<uint8_t, F32> d8;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  for (int64_t r = 0; r < rows; ++r, tables += num_entries, out += num_entries) {
    auto max = hn::Zero(df);
    auto difference = hn::Zero(df);  // x - x is NaN for NaN and infinity
    for (int64_t i = 0; i < num_entries; i += lanes) {
      const auto x = hn::LoadU(df, tables + i);
      max = hn::Max(max, hn::Abs(x));
      difference = hn::Add(difference, hn::Sub(x, x));
    }
    const float step = hn::GetLane(hn::MaxOfLanes(df, max)) / (63 - kCodeTableZero);
    const bool valid = hn::GetLane(hn::SumOfLanes(df, difference)) == 0.0f && step > 1e-30f;
    steps[r] = valid ? step : 0.0f;
    const auto inverse = hn::Set(df, 1.0f / step);
    for (int64_t i = 0; i < num_entries; i += lanes) {
      const auto x = valid ? hn::Mul(hn::LoadU(df, tables + i), inverse) : hn::Zero(df);
      const auto entry = hn::Add(hn::NearestInt(x), hn::Set(di, kCodeTableZero));
      hn::StoreU(hn::DemoteTo(d8, entry), d8, out + i);
    }
  }
}

#if HWY_TARGET == HWY_SCALAR

// A page's codes and scales, unpacked.
struct Page {
  void Load(const uint8_t* page) {
    codes = page;
    for (int64_t t = 0; t < kTokens; ++t) {
      scales[t] = static_cast<float>(page[kCodeNibbles * kTokens / 2 + t]) * kCodeScaleUnit;
    }
  }
  const uint8_t* codes;
  float scales[kTokens];
};

// visit(estimates of keys from t on, t) for one row.
template <class Visit>
void ScanRow(const Page& page, const uint8_t* tables, float step, const Visit& visit) {
  for (int64_t t = 0; t < kTokens; ++t) {
    int32_t sum = 0;
    for (int64_t n = 0; n < kCodeNibbles; ++n) {
      const int byte = page.codes[n * kTokens / 2 + t % (kTokens / 2)];
      const int nibble = t < kTokens / 2 ? byte & 15 : byte >> 4;
      sum += tables[n * 16 + nibble] - kCodeTableZero;
    }
    visit(hn::Set(F32(), page.scales[t] * step * static_cast<float>(sum)), t);
  }
}

#else

// A page's codes and scales, unpacked. Nibbles become bytes in the order of keys 0, 16, 1, 17, ...:
// the even bytes of a vector are then one half of the page and the odd ones the other, and sums
// need no shuffling.
struct Page {
  void Load(const uint8_t* HWY_RESTRICT page) {
    const hn::FixedTag<uint8_t, 16> d8;
    for (int64_t n = 0; n < kCodeNibbles; ++n) {
      const auto both = hn::LoadU(d8, page + n * 16);
      const auto low = hn::And(both, hn::Set(d8, 15));
      const auto high = hn::ShiftRight<4>(both);
      hn::Store(hn::InterleaveLower(d8, low, high), d8, codes + n * kTokens);
      hn::Store(hn::InterleaveUpper(d8, low, high), d8, codes + n * kTokens + 16);
    }
    const F32 df;
    const hn::RebindToSigned<F32> di;
    const hn::Rebind<uint8_t, F32> d_scale;
    const uint8_t* HWY_RESTRICT from = page + kCodeNibbles * kTokens / 2;
    for (int64_t t = 0; t < kTokens; t += static_cast<int64_t>(hn::Lanes(df))) {
      const auto scale = hn::ConvertTo(df, hn::PromoteTo(di, hn::LoadU(d_scale, from + t)));
      hn::Store(hn::Mul(scale, hn::Set(df, kCodeScaleUnit)), df, scales + t);
    }
  }
  HWY_ALIGN uint8_t codes[kCodeNibbles * kTokens];
  HWY_ALIGN float scales[kTokens];
};

// visit(estimates of keys from t on, t) for one row, in any order.
template <class Visit>
HWY_INLINE void ScanRow(const Page& page, const uint8_t* HWY_RESTRICT tables, float step,
                        const Visit& visit) {
  const hn::CappedTag<uint8_t, kTokens> d8;
  const hn::Repartition<uint16_t, decltype(d8)> d16;
  const hn::Half<decltype(d16)> half;
  const F32 df;
  const hn::RebindToSigned<F32> di;
  const int64_t lanes8 = static_cast<int64_t>(hn::Lanes(d8));
  const auto zero = hn::Set(di, static_cast<int32_t>(kCodeTableZero * kCodeNibbles));
  const auto unit = hn::Set(df, step);
  const auto convert = [&](auto sums, int64_t t) {
    const auto x = hn::ConvertTo(df, hn::Sub(hn::PromoteTo(di, sums), zero));
    visit(hn::Mul(x, hn::Mul(hn::Load(df, page.scales + t), unit)), t);
  };
  for (int64_t first = 0; first < kTokens; first += lanes8) {
    auto even = hn::Zero(d16);
    auto odd = hn::Zero(d16);
    const auto look_up = [&](int64_t n) HWY_ATTR {
      return hn::TableLookupBytes(hn::LoadDup128(d8, tables + n * 16),
                                  hn::Load(d8, page.codes + n * kTokens + first));
    };
    for (int64_t n = 0; n < kCodeNibbles; n += 4) {
      const auto sum = hn::Add(hn::Add(look_up(n), look_up(n + 1)),
                               hn::Add(look_up(n + 2), look_up(n + 3)));  // at most 252
      even = hn::Add(even, hn::And(hn::BitCast(d16, sum), hn::Set(d16, 255)));
      odd = hn::Add(odd, hn::ShiftRight<8>(hn::BitCast(d16, sum)));
    }
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
    const int64_t t = first / 2;
    convert(hn::LowerHalf(half, even), t);
    convert(hn::UpperHalf(half, even), t + lanes);
    convert(hn::LowerHalf(half, odd), kTokens / 2 + t);
    convert(hn::UpperHalf(half, odd), kTokens / 2 + t + lanes);
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

void ScanPage(const uint8_t* codes, const CodeTables& tables, float* HWY_RESTRICT out) {
  Page page;
  page.Load(codes);
  for (int64_t r = 0; r < tables.rows; ++r, out += kTokens) {
    ScanRow(page, tables.tables + r * kCodeNibbles * 16, tables.steps[r],
            [&](VF32 x, int64_t t) HWY_ATTR { hn::Store(x, F32(), out + t); });
  }
}

// 2^x as a number whose bits grow linearly with x (Schraudolph 1999), moved down by half the
// largest error of that. Adding 2^15 leaves x + 127 in the low 16 bits, eight of them fractional:
// the exponent and the first bits of the mantissa.
HWY_INLINE VF32 FastExp2(VF32 x) {
  const F32 df;
  const hn::RebindToUnsigned<F32> du;
  const auto clamped = hn::Min(hn::Max(x, hn::Set(df, -126.0f)), hn::Set(df, kLargestEstimate));
  const auto fixed = hn::Add(clamped, hn::Set(df, 32768.0f + 126.957f));
  return hn::BitCast(df, hn::ShiftLeft<15>(hn::BitCast(du, fixed)));
}

void AddPageMasses(const uint8_t* pages, std::span<const int32_t> page_ids,
                   const CodeTables& tables, float* HWY_RESTRICT masses, int64_t stride) {
  const int64_t num_pages = std::ssize(page_ids);
  const F32 df;
  Page group[kPages];
  HWY_ALIGN float sums[kPages];
  for (int64_t first = 0; first < num_pages; first += kPages) {
    const int64_t count = std::min(kPages, num_pages - first);
    const int32_t* HWY_RESTRICT ids = page_ids.data() + first;
    for (int64_t p = 0; p < count; ++p) {
      group[p].Load(pages + ids[p] * kCodePageBytes);
    }
    for (int64_t r = 0; r < tables.rows; ++r) {
      const uint8_t* row_tables = tables.tables + r * kCodeNibbles * 16;
      for (int64_t p = 0; p < count; ++p) {
        auto sum = hn::Zero(df);
        ScanRow(group[p], row_tables, tables.steps[r],
                [&](VF32 x, int64_t) HWY_ATTR { sum = hn::Add(sum, FastExp2(x)); });
        sums[p] = hn::GetLane(hn::SumOfLanes(df, sum));
      }
      for (int64_t p = count; p < kPages; ++p) sums[p] = 1.0f;
      for (int64_t p = 0; p < kPages; p += static_cast<int64_t>(hn::Lanes(df))) {
        hn::Store(hn::Log2(df, hn::Load(df, sums + p)), df, sums + p);
      }
      for (int64_t p = 0; p < count; ++p) masses[r * stride + ids[p]] += sums[p];
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

void QuantizeTables(const float* tables, int64_t rows, int64_t num_entries, uint8_t* out,
                    float* steps) {
  HWY_DYNAMIC_DISPATCH(QuantizeTables)(tables, rows, num_entries, out, steps);
}

void ScanPage(const uint8_t* page, const CodeTables& tables, float* out) {
  HWY_DYNAMIC_DISPATCH(ScanPage)(page, tables, out);
}

void AddPageMasses(const uint8_t* pages, std::span<const int32_t> page_ids,
                   const CodeTables& tables, float* masses, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(AddPageMasses)(pages, page_ids, tables, masses, stride);
}

}  // namespace lode::kernels
#endif  // HWY_ONCE
