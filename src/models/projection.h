// SPDX-License-Identifier: Apache-2.0
// Linear: one weight matrix repacked for the CPU. Projector: runs products that share an input in
// one parallel region, so a decode step opens as few regions as it can (each costs about a
// microsecond).
#ifndef LODE_MODELS_PROJECTION_H_
#define LODE_MODELS_PROJECTION_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "formats/weight_source.h"
#include "kernels/matmul.h"
#include "models/weight_arena.h"

namespace lode {

// y = W x (+ b). The packed bytes belong to the model's WeightArena.
struct Linear {
  kernels::PackedWeights weights;
  std::vector<float> bias;  // [rows] or empty
};

// One product of a group that shares its input.
struct Projection {
  const Linear* linear = nullptr;
  float* out = nullptr;  // [num_tokens, rows], row stride out_stride floats
  int64_t out_stride = 0;
};

class Projector {
 public:
  Projector(kernels::ActivationType activations, ThreadPool& pool)
      : activations_(activations), pool_(pool) {}

  // out = linear(x) for each projection; x [num_tokens, cols], row stride x_stride floats, the same
  // cols for all. The result of a token depends neither on num_tokens nor on the number of threads.
  void Run(std::span<const Projection> projections, const float* x, int64_t x_stride,
           int64_t num_tokens);

 private:
  // Quantises x once per activation layout; returns the prepared rows for each projection.
  void Prepare(std::span<const Projection> projections, const float* x, int64_t x_stride,
               int64_t num_tokens);

  struct PreparedInput {
    DType type = DType::kF32;
    std::vector<std::byte> storage;
    std::byte* rows = nullptr;
  };
  kernels::ActivationType activations_;
  ThreadPool& pool_;
  std::vector<PreparedInput> prepared_;          // reused from call to call
  std::vector<size_t> prepared_of_;              // [projections] index into prepared_
  std::vector<std::vector<std::byte>> scratch_;  // one per worker
};

// Calls body(begin, end) in parallel on slices of [0, num_tokens).
void ForTokenSlices(ThreadPool& pool, int64_t num_tokens,
                    FunctionRef<void(int64_t begin, int64_t end)> body);

// Bytes that LoadLinear will take from the arena for this stored tensor.
int64_t PackedBytes(const TensorView& view);
// Repacks [rows, cols] weights into the arena, all threads at once. NotFound and Corruption name
// the tensor. The file's pages are handed back to the system when they are packed.
Result<Linear> LoadLinear(const WeightSource& source, const std::string& name, int64_t rows,
                          int64_t cols, WeightArena& arena, ThreadPool& pool);
// Decodes a stored vector [n] to f32.
Result<std::vector<float>> LoadVector(const WeightSource& source, const std::string& name,
                                      int64_t n);

}  // namespace lode

#endif  // LODE_MODELS_PROJECTION_H_
