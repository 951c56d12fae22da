// SPDX-License-Identifier: Apache-2.0
// DType: the element types of stored tensors, one traits row each. Quantised types store blocks of
// `block_elements` consecutive elements of a row in `block_bytes` bytes (layouts: block_formats.h).
#ifndef LODE_TENSOR_DTYPE_H_
#define LODE_TENSOR_DTYPE_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace lode {

// Values are the type ids of the GGUF specification.
enum class DType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kI8 = 24,
  kI32 = 26,
  kBF16 = 30,
};

struct DTypeTraits {
  DType type;
  std::string_view name;   // as llama.cpp and the gguf package spell it: "Q4_K"
  int64_t block_elements;  // 1 for plain types
  int64_t block_bytes;
};

// The traits row of `type`. Every enumerator has one.
const DTypeTraits& Traits(DType type);
// The type with this GGUF id or name, if lodestone reads it.
std::optional<DType> DTypeFromGgufId(uint32_t id);
std::optional<DType> DTypeFromName(std::string_view name);
// Bytes of a row of `elements`, a multiple of the block's elements.
int64_t RowBytes(DType type, int64_t elements);

}  // namespace lode

#endif  // LODE_TENSOR_DTYPE_H_
