// SPDX-License-Identifier: Apache-2.0
#include "formats/tensor_layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>

#include "formats/quoted.h"

namespace lode {

std::string ShapeText(const Shape& shape) {
  return fmt::format("[{}]",
                     fmt::join(shape.dims.begin(), shape.dims.begin() + shape.num_dims, ", "));
}

Result<uint64_t> TensorBytes(DType type, const Shape& shape) {
  for (int i = 0; i < shape.num_dims; ++i) {
    if (shape.dims[i] >= 1) continue;
    return CorruptionError(
        fmt::format("expected dimensions of at least 1, found shape {}", ShapeText(shape)));
  }
  const DTypeTraits& traits = Traits(type);
  if (shape.cols() % traits.block_elements != 0) {
    return CorruptionError(
        fmt::format("expected rows of a multiple of {} elements for type {}, "
                    "found shape {}",
                    traits.block_elements, traits.name, ShapeText(shape)));
  }
  // Elements, not bytes, decide the limit too: a 2-bit type must not wrap the element count.
  int64_t elements = 1;
  int64_t bytes = traits.block_bytes;
  bool overflow = false;
  for (int i = 0; i < shape.num_dims; ++i) {
    const bool is_last = i + 1 == shape.num_dims;
    overflow |= __builtin_mul_overflow(elements, shape.dims[i], &elements);
    overflow |= __builtin_mul_overflow(
        bytes, is_last ? shape.dims[i] / traits.block_elements : shape.dims[i], &bytes);
  }
  if (overflow) {
    return CorruptionError(fmt::format("expected a size below 2^63, found shape {} of type {}",
                                       ShapeText(shape), traits.name));
  }
  return static_cast<uint64_t>(bytes);
}

Status CheckNoOverlap(std::vector<TensorExtent>& extents) {
  // By end too, so that empty tensors come before the one that begins where they are.
  std::sort(extents.begin(), extents.end(), [](const TensorExtent& a, const TensorExtent& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  for (size_t i = 1; i < extents.size(); ++i) {
    const TensorExtent& before = extents[i - 1];
    const TensorExtent& after = extents[i];
    if (after.begin >= before.end) continue;
    return CorruptionError(fmt::format(
        "tensor {}: expected bytes of its own, found bytes {}-{} overlapping {}-{} of tensor {}",
        Quoted(after.name), after.begin, after.end, before.begin, before.end, Quoted(before.name)));
  }
  return OkStatus();
}

}  // namespace lode
