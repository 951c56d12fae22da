// SPDX-License-Identifier: Apache-2.0
// 100,000 positions, one by one: what csa_hca has learnt on the way equals what it learns at once.
#include "csa_hca_fixture.h"

namespace lode {
namespace {

TEST(CsaHcaLong, GrowingStaysConsistent) {
  constexpr int64_t kLength = 100'000;
  const Case c = {.num_heads = 2,
                  .num_kv_heads = 1,
                  .head_dim = 8,
                  .dtypes = KvDType::kInt8,
                  .length = kLength};
  Fixture f(c);
  const auto calibration = SomeCalibration(c);
  const SparseOptions options = {.top_k = 64, .max_error = 0, .window = 64};
  const auto grown = CreateCsaHcaAttention(options, calibration);
  for (int64_t first = 0; first < kLength; ++first) {
    const std::vector<float> out = f.Run(*grown, first, 1, 1);
    if ((first + 1) % 10'007 != 0 && first + 1 != kLength) continue;
    const auto fresh = CreateCsaHcaAttention(options, calibration);
    ASSERT_EQ(out, f.Run(*fresh, first, 1, 1)) << first;
  }
}

}  // namespace
}  // namespace lode
