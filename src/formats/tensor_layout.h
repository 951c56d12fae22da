// SPDX-License-Identifier: Apache-2.0
// Checks of where tensors lie in a file, shared by all formats. Nothing here trusts a number: sizes
// are multiplied with overflow checks before anything is allocated or addressed.
#ifndef LODE_FORMATS_TENSOR_LAYOUT_H_
#define LODE_FORMATS_TENSOR_LAYOUT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/tensor.h"

namespace lode {

// "[2, 3]".
std::string ShapeText(const Shape& shape);

// Bytes of a tensor. Corruption: a dimension below 1, a row that is not whole blocks, or a size
// beyond 2^63 - 1.
Result<uint64_t> TensorBytes(DType type, const Shape& shape);

// The bytes [begin, end) of a file that belong to a tensor.
struct TensorExtent {
  std::string_view name;
  uint64_t begin;
  uint64_t end;
};

// Corruption names the first two tensors that share bytes. Sorts `extents` by where they begin.
// Cost: n log n.
Status CheckNoOverlap(std::vector<TensorExtent>& extents);

}  // namespace lode

#endif  // LODE_FORMATS_TENSOR_LAYOUT_H_
