// SPDX-License-Identifier: Apache-2.0
// Codes of a code matrix (code_matrix.h) as 16-bit vectors, per Highway target: include after
// hwy/highway.h, inside every target's pass (no include guard by design, see the toggle).
#if defined(LODE_KERNELS_CODE_MATRIX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LODE_KERNELS_CODE_MATRIX_INL_H_
#undef LODE_KERNELS_CODE_MATRIX_INL_H_
#else
#define LODE_KERNELS_CODE_MATRIX_INL_H_
#endif

#include <hwy/highway.h>

#include "kernels/code_matrix.h"

HWY_BEFORE_NAMESPACE();
namespace lode::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

template <int kBits>
int ScalarCode(const std::byte* codes, int64_t pair, int64_t lane, int64_t pairs, int64_t lanes) {
  if (kBits == 8) return static_cast<int8_t>(codes[pair * lanes + lane]);
  const int64_t at = pair / kCodeQuad * lanes + lane;
  const int k = static_cast<int>(pair % kCodeQuad);
  const int word = static_cast<int>(codes[2 * at]) | static_cast<int>(codes[2 * at + 1]) << 8;
  const int high = static_cast<int>((static_cast<unsigned>(word) >> (4 * k) & 15u) ^ 8u) - 8;
  if (kBits == 4) return high;
  const auto rest = static_cast<unsigned>(codes[pairs / kCodeQuad * lanes * 2 + at]);
  return high * 4 + static_cast<int>(rest >> (2 * k) & 3u);
}

#else

// One vector (DW: int16) of lanes of the four pairs of a quad.
template <int kBits, class DW>
class CodeQuad;

template <class DW>
class CodeQuad<8, DW> {
 public:
  HWY_INLINE void Load(const std::byte* codes, int64_t quad, int64_t lane, int64_t /*pairs*/,
                       int64_t lanes) {
    at_ = reinterpret_cast<const int8_t*>(codes) + quad * kCodeQuad * lanes + lane;
    lanes_ = lanes;
  }
  template <int kPair>
  HWY_INLINE hwy::HWY_NAMESPACE::Vec<DW> Get() const {
    namespace hn = hwy::HWY_NAMESPACE;
    const hn::Rebind<int8_t, DW> db;
    return hn::PromoteTo(DW(), hn::LoadU(db, at_ + kPair * lanes_));
  }

 private:
  const int8_t* at_;
  int64_t lanes_;
};

template <class DW>
class CodeQuad<4, DW> {
 public:
  HWY_INLINE void Load(const std::byte* codes, int64_t quad, int64_t lane, int64_t /*pairs*/,
                       int64_t lanes) {
    namespace hn = hwy::HWY_NAMESPACE;
    words_ = hn::LoadU(DW(), reinterpret_cast<const int16_t*>(codes) + quad * lanes + lane);
  }
  template <int kPair>
  HWY_INLINE hwy::HWY_NAMESPACE::Vec<DW> Get() const {
    namespace hn = hwy::HWY_NAMESPACE;
    return hn::ShiftRight<12>(hn::ShiftLeft<12 - 4 * kPair>(words_));
  }

 private:
  hwy::HWY_NAMESPACE::Vec<DW> words_;
};

template <class DW>
class CodeQuad<6, DW> {
 public:
  HWY_INLINE void Load(const std::byte* codes, int64_t quad, int64_t lane, int64_t pairs,
                       int64_t lanes) {
    namespace hn = hwy::HWY_NAMESPACE;
    const hn::Rebind<uint8_t, DW> db;
    high_.Load(codes, quad, lane, pairs, lanes);
    const auto* low = reinterpret_cast<const uint8_t*>(codes) + pairs / kCodeQuad * lanes * 2;
    low_ = hn::PromoteTo(DW(), hn::LoadU(db, low + quad * lanes + lane));
  }
  template <int kPair>
  HWY_INLINE hwy::HWY_NAMESPACE::Vec<DW> Get() const {
    namespace hn = hwy::HWY_NAMESPACE;
    const auto low = hn::And(hn::ShiftRight<2 * kPair>(low_), hn::Set(DW(), 3));
    return hn::Or(hn::ShiftLeft<2>(high_.template Get<kPair>()), low);
  }

 private:
  CodeQuad<4, DW> high_;
  hwy::HWY_NAMESPACE::Vec<DW> low_;
};

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace lode::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
