// SPDX-License-Identifier: Apache-2.0
#include "tensor/dtype.h"

#include "base/check.h"

namespace lode {
namespace {

constexpr DTypeTraits kTraits[] = {
    {DType::kF32, "F32", 1, 4},         {DType::kF16, "F16", 1, 2},
    {DType::kQ4_0, "Q4_0", 32, 18},     {DType::kQ4_1, "Q4_1", 32, 20},
    {DType::kQ5_0, "Q5_0", 32, 22},     {DType::kQ5_1, "Q5_1", 32, 24},
    {DType::kQ8_0, "Q8_0", 32, 34},     {DType::kQ2_K, "Q2_K", 256, 84},
    {DType::kQ3_K, "Q3_K", 256, 110},   {DType::kQ4_K, "Q4_K", 256, 144},
    {DType::kQ5_K, "Q5_K", 256, 176},   {DType::kQ6_K, "Q6_K", 256, 210},
    {DType::kIQ4_NL, "IQ4_NL", 32, 18}, {DType::kIQ4_XS, "IQ4_XS", 256, 136},
    {DType::kI8, "I8", 1, 1},           {DType::kI32, "I32", 1, 4},
    {DType::kBF16, "BF16", 1, 2},
};

}  // namespace

const DTypeTraits& Traits(DType type) {
  for (const DTypeTraits& traits : kTraits) {
    if (traits.type == type) return traits;
  }
  LODE_CHECK(false && "DType without a traits row");
  return kTraits[0];
}

std::optional<DType> DTypeFromGgufId(uint32_t id) {
  for (const DTypeTraits& traits : kTraits) {
    if (static_cast<uint32_t>(traits.type) == id) return traits.type;
  }
  return std::nullopt;
}

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const DTypeTraits& traits : kTraits) {
    if (traits.name == name) return traits.type;
  }
  return std::nullopt;
}

int64_t RowBytes(DType type, int64_t elements) {
  const DTypeTraits& traits = Traits(type);
  LODE_DCHECK(elements % traits.block_elements == 0);
  return elements / traits.block_elements * traits.block_bytes;
}

}  // namespace lode
