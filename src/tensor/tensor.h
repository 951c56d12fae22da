// SPDX-License-Identifier: Apache-2.0
// TensorView: a named-dimension-free view of stored weights. Row-major; the last dimension is
// contiguous, and quantised blocks lie along it. (GGUF lists dimensions in the opposite order;
// formats/ turns them round.)
#ifndef LODE_TENSOR_TENSOR_H_
#define LODE_TENSOR_TENSOR_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace lode {

struct Shape {
  static constexpr int kMaxDims = 4;
  int num_dims = 0;
  std::array<int64_t, kMaxDims> dims = {};  // dims[num_dims - 1] is contiguous

  int64_t rows() const {  // product of all dimensions but the last
    int64_t n = 1;
    for (int i = 0; i + 1 < num_dims; ++i) n *= dims[i];
    return n;
  }
  int64_t cols() const { return num_dims == 0 ? 0 : dims[num_dims - 1]; }
  int64_t elements() const { return rows() * cols(); }
  bool operator==(const Shape&) const = default;
};

// Does not own its bytes: they belong to the WeightSource (usually file cache pages).
struct TensorView {
  DType type = DType::kF32;
  Shape shape;
  const std::byte* data = nullptr;

  int64_t row_bytes() const { return RowBytes(type, shape.cols()); }
  int64_t bytes() const { return shape.rows() * row_bytes(); }
  const std::byte* row(int64_t r) const { return data + r * row_bytes(); }
};

}  // namespace lode

#endif  // LODE_TENSOR_TENSOR_H_
