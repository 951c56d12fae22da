// SPDX-License-Identifier: Apache-2.0
#include "kernels/machine.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/machine.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "kernels/dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lode::kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

uint64_t Read(const std::byte* data, int64_t n) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; i += 8) sum ^= *reinterpret_cast<const uint64_t*>(data + i);
  return sum;
}

double F32Operations(int64_t rounds) {
  float sums[8] = {};
  volatile float factor = 0.5f;
  const float x = factor;
  for (int64_t i = 0; i < rounds; ++i) {
    for (float& sum : sums) sum = sum * x + x;
  }
  factor = sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
  return 16.0 * static_cast<double>(rounds);
}

double Int8Operations(int64_t rounds) {
  int32_t sums[8] = {};
  volatile int32_t factor = 3;
  const int32_t x = factor;
  for (int64_t i = 0; i < rounds; ++i) {
    for (int32_t& sum : sums) sum += x * (sum & 127);
  }
  factor = sums[0] ^ sums[1] ^ sums[2] ^ sums[3] ^ sums[4] ^ sums[5] ^ sums[6] ^ sums[7];
  return 16.0 * static_cast<double>(rounds);
}

#else  // HWY_TARGET == HWY_SCALAR

// Stops the compiler from seeing that a value is constant or unused.
#define LODE_OPAQUE(x) __asm__ volatile("" : "+m"(x))

uint64_t Read(const std::byte* data, int64_t n) {
  const hn::Repartition<uint64_t, DU8> d64;
  constexpr int64_t kStreams = 4;  // as the kernels read: one stream gets a quarter less
  const int64_t part = n / kStreams;
  hn::Vec<decltype(d64)> sums[kStreams] = {hn::Zero(d64), hn::Zero(d64), hn::Zero(d64),
                                           hn::Zero(d64)};
  for (int64_t i = 0; i < part; i += 64) {
    LODE_UNROLL
    for (int64_t k = 0; k < kStreams; ++k) {
      const uint64_t* line = reinterpret_cast<const uint64_t*>(data + k * part + i);
      LODE_UNROLL
      for (size_t v = 0; v < kVectors; ++v) {
        sums[k] = hn::Xor(sums[k], hn::LoadU(d64, line + v * kVectorBytes / 8));
      }
    }
  }
  const auto all = hn::Xor(hn::Xor(sums[0], sums[1]), hn::Xor(sums[2], sums[3]));
  return hn::GetLane(hn::SumOfLanes(d64, all));
}

double F32Operations(int64_t rounds) {
  constexpr int kChains = 10;
  const DF32 df;
  VF32 sums[kChains];
  float factor = 0.5f;
  LODE_OPAQUE(factor);
  const VF32 x = hn::Set(df, factor);
  LODE_UNROLL
  for (int k = 0; k < kChains; ++k) sums[k] = x;
  for (int64_t i = 0; i < rounds; ++i) {
    LODE_UNROLL
    for (int k = 0; k < kChains; ++k) sums[k] = hn::MulAdd(sums[k], x, x);
  }
  VF32 total = sums[0];
  LODE_UNROLL
  for (int k = 1; k < kChains; ++k) total = hn::Add(total, sums[k]);
  float result = hn::GetLane(total);
  LODE_OPAQUE(result);
  return 2.0 * kChains * kRowsPerVector * static_cast<double>(rounds);
}

double Int8Operations(int64_t rounds) {
  constexpr int kChains = 8;
  int8_t columns[4] = {3, -5, 7, -9};
  int32_t codes = 0x1F0E1D0C;
  LODE_OPAQUE(columns);
  LODE_OPAQUE(codes);
  const VI8 a = BroadcastColumns(columns);
  const VU8 w = hn::BitCast(DU8(), hn::Set(DI32(), codes));
  VI32 totals = hn::Zero(DI32());
  Accumulator sums[kChains];
  for (int64_t i = 0; i < rounds; ++i) {
    LODE_UNROLL
    for (int k = 0; k < kChains; ++k) sums[k] = ZeroAccumulator();
    for (int step = 0; step < 8; ++step) {
      LODE_UNROLL
      for (int k = 0; k < kChains; ++k) {
        // The product must not leave the loop: its operand changes as far as the compiler knows.
        VU8 opaque = w;
#if HWY_TARGET != HWY_EMU128
        __asm__ volatile("" : "+x"(opaque.raw));
#endif
        sums[k] = Accumulate(sums[k], opaque, a);
      }
    }
    LODE_UNROLL
    for (int k = 0; k < kChains; ++k) totals = hn::Add(totals, Finish(sums[k]));
  }
  int32_t result = hn::GetLane(totals);
  LODE_OPAQUE(result);
  return 2.0 * 8 * kChains * kVectorBytes * static_cast<double>(rounds);
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace lode::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lode::kernels {

HWY_EXPORT(Read);
uint64_t ReadBytes(const std::byte* data, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(Read)(data, n);
}

HWY_EXPORT(F32Operations);
double RunF32Operations(int64_t rounds) {
  return HWY_DYNAMIC_DISPATCH(F32Operations)(rounds);
}

HWY_EXPORT(Int8Operations);
double RunInt8Operations(int64_t rounds) {
  return HWY_DYNAMIC_DISPATCH(Int8Operations)(rounds);
}

}  // namespace lode::kernels
#endif  // HWY_ONCE
