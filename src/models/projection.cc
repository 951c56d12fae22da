// SPDX-License-Identifier: Apache-2.0
#include "models/projection.h"

#include <algorithm>

#include "kernels/dequantize.h"

namespace lode {
namespace {

// Slices of a region per thread: enough to even out threads of unequal speed, few enough to keep
// streams long.
constexpr int64_t kSlicesPerThread = 4;

std::byte* Aligned(std::vector<std::byte>& storage, int64_t bytes) {
  const size_t alignment = kernels::kPackedAlignment;
  if (storage.size() < static_cast<size_t>(bytes) + alignment) storage.resize(bytes + alignment);
  const auto address = reinterpret_cast<uintptr_t>(storage.data());
  return storage.data() + ((alignment - address % alignment) % alignment);
}

struct GroupSlice {
  size_t projection;
  int64_t begin, end;  // row groups
};

std::vector<GroupSlice> SliceGroups(std::span<const Projection> projections, int num_threads) {
  int64_t total = 0;
  for (const Projection& projection : projections) total += projection.linear->weights.num_groups();
  const int64_t slice = std::max<int64_t>(1, total / (num_threads * kSlicesPerThread));
  std::vector<GroupSlice> slices;
  for (size_t p = 0; p < projections.size(); ++p) {
    const int64_t groups = projections[p].linear->weights.num_groups();
    for (int64_t begin = 0; begin < groups; begin += slice) {
      slices.push_back({p, begin, std::min(groups, begin + slice)});
    }
  }
  return slices;
}

void AddBias(const Projection& projection, int64_t num_tokens, int64_t row_begin, int64_t row_end) {
  const std::vector<float>& bias = projection.linear->bias;
  if (bias.empty()) return;
  for (int64_t t = 0; t < num_tokens; ++t) {
    float* out = projection.out + t * projection.out_stride;
    for (int64_t r = row_begin; r < row_end; ++r) out[r] += bias[r];
  }
}

}  // namespace

void ForTokenSlices(ThreadPool& pool, int64_t num_tokens,
                    FunctionRef<void(int64_t begin, int64_t end)> body) {
  if (num_tokens == 1) return body(0, 1);
  const int64_t slice = std::max<int64_t>(1, num_tokens / (pool.num_threads() * kSlicesPerThread));
  const int64_t num_slices = (num_tokens + slice - 1) / slice;
  pool.ParallelFor(num_slices, [&](int64_t index, int) {
    body(index * slice, std::min(num_tokens, (index + 1) * slice));
  });
}

void Projector::Prepare(std::span<const Projection> projections, const float* x, int64_t x_stride,
                        int64_t num_tokens) {
  prepared_of_.clear();
  size_t used = 0;
  for (const Projection& projection : projections) {
    const kernels::PackedWeights& weights = projection.linear->weights;
    size_t index = 0;
    while (index < used && !kernels::SameActivationLayout(prepared_[index].type, weights.type)) {
      ++index;
    }
    prepared_of_.push_back(index);
    if (index < used) continue;
    if (prepared_.size() == used) prepared_.emplace_back();
    PreparedInput& input = prepared_[used++];
    input.type = weights.type;
    const int64_t row_bytes = kernels::ActivationRowBytes(weights.type, activations_, weights.cols);
    input.rows = Aligned(input.storage, row_bytes * num_tokens);
    ForTokenSlices(pool_, num_tokens, [&](int64_t begin, int64_t end) {
      kernels::PrepareActivations(weights.type, activations_, x + begin * x_stride, x_stride,
                                  end - begin, weights.cols, input.rows + begin * row_bytes);
    });
  }
}

void Projector::Run(std::span<const Projection> projections, const float* x, int64_t x_stride,
                    int64_t num_tokens) {
  Prepare(projections, x, x_stride, num_tokens);
  const std::vector<GroupSlice> slices = SliceGroups(projections, pool_.num_threads());
  scratch_.resize(pool_.num_threads());
  pool_.ParallelFor(static_cast<int64_t>(slices.size()), [&](int64_t index, int worker) {
    const GroupSlice& slice = slices[index];
    const Projection& projection = projections[slice.projection];
    const kernels::PackedWeights& weights = projection.linear->weights;
    std::byte* scratch =
        Aligned(scratch_[worker], kernels::MatMulScratchBytes(weights.type, weights.cols));
    kernels::MatMul(weights, activations_, prepared_[prepared_of_[slice.projection]].rows,
                    num_tokens, slice.begin, slice.end, projection.out, projection.out_stride,
                    scratch);
    AddBias(projection, num_tokens, slice.begin * kernels::kRowGroup,
            std::min(weights.rows, slice.end * kernels::kRowGroup));
  });
}

int64_t PackedBytes(const TensorView& view) {
  const int64_t groups = (view.shape.rows() + kernels::kRowGroup - 1) / kernels::kRowGroup;
  return WeightArena::Rounded(
      groups * kernels::PackedGroupBytes(kernels::PackedTypeFor(view.type), view.shape.cols()));
}

Result<Linear> LoadLinear(const WeightSource& source, const std::string& name, int64_t rows,
                          int64_t cols, WeightArena& arena, ThreadPool& pool) {
  Shape shape;
  shape.num_dims = 2;
  shape.dims = {rows, cols};
  LODE_ASSIGN_OR_RETURN(const TensorView view, source.Get(name, shape));
  const DType packed_type = kernels::PackedTypeFor(view.type);
  std::byte* const packed = arena.Take(PackedBytes(view));
  Linear linear;
  linear.weights = {packed_type, rows, cols, packed};
  const int64_t groups = linear.weights.num_groups();
  const int64_t slice = std::max<int64_t>(1, groups / (pool.num_threads() * kSlicesPerThread));
  pool.ParallelFor((groups + slice - 1) / slice, [&](int64_t index, int) {
    kernels::PackRowGroups(view.type, view.data, rows, cols, index * slice,
                           std::min(groups, (index + 1) * slice), packed);
  });
  const StoredTensor* stored = source.Find(name);
  source.files()[stored->file_index].DontNeed(stored->file_offset, view.bytes());
  return linear;
}

Result<std::vector<float>> LoadVector(const WeightSource& source, const std::string& name,
                                      int64_t n) {
  Shape shape;
  shape.num_dims = 1;
  shape.dims[0] = n;
  LODE_ASSIGN_OR_RETURN(const TensorView view, source.Get(name, shape));
  std::vector<float> values(n);
  kernels::Dequantize(view.type, view.data, n, values.data());
  return values;
}

}  // namespace lode
