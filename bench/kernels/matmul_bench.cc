// SPDX-License-Identifier: Apache-2.0
// Times the matrix kernels at the shapes of a real model: one token (GB/s of packed weights read)
// and many (GOP/s, two operations a weight and token), against the machine's limits measured in the
// same run. Weights are larger than the caches in both: each shape is repeated over enough copies.
//
// Usage: matmul_bench [threads] [tokens] [filter]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <sys/mman.h>

#include "base/thread_pool.h"
#include "kernels/machine.h"
#include "kernels/matmul.h"

namespace lode::kernels {
namespace {

struct Shape {
  const char* name;
  DType type;
  int64_t rows, cols;
  int64_t copies;  // in the model
};

// Qwen2.5-Coder-0.5B-Instruct Q4_K_M, then one row for each other type.
constexpr Shape kShapes[] = {
    {"qkv, o", DType::kQ5_0, 896, 896, 48},    {"k, v", DType::kQ5_0, 128, 896, 36},
    {"v", DType::kQ8_0, 128, 896, 12},         {"gate, up", DType::kQ5_0, 4864, 896, 48},
    {"down", DType::kQ4_K, 896, 4864, 12},     {"down", DType::kQ6_K, 896, 4864, 12},
    {"lm head", DType::kQ8_0, 151936, 896, 1}, {"other", DType::kQ4_0, 4864, 896, 16},
    {"other", DType::kQ5_K, 896, 4864, 16},    {"other", DType::kF16, 4864, 896, 8},
    {"other", DType::kBF16, 4864, 896, 8},     {"other", DType::kF32, 4864, 896, 4},
};

// Zeroed memory in huge pages where the system grants them.
std::byte* Allocate(int64_t bytes) {
  void* p = mmap(nullptr, static_cast<size_t>(bytes) + (2 << 20), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) std::exit(1);
  auto address = (reinterpret_cast<uintptr_t>(p) + (2 << 20) - 1) / (2 << 20) * (2 << 20);
  madvise(reinterpret_cast<void*>(address), static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return reinterpret_cast<std::byte*>(address);
}

double Seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The fastest of `repeats` runs.
double Best(int repeats, const std::function<void()>& work) {
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) best = std::min(best, Seconds(work));
  return best;
}

class Bench {
 public:
  Bench(int threads, int64_t tokens) : pool_(threads), tokens_(tokens) {
    for (int i = 0; i < threads; ++i) {
      scratch_.push_back(Allocate(MatMulScratchBytes(DType::kQ8_0, 4864)));
    }
  }

  // Seconds of one matrix product at `tokens`, averaged over `copies` different matrices.
  double Time(const Shape& shape, int64_t copies, int64_t tokens, ActivationType type,
              double* pack_seconds) {
    PackedWeights weights{shape.type, shape.rows, shape.cols, nullptr};
    const int64_t bytes = weights.num_groups() * PackedGroupBytes(shape.type, shape.cols);
    const int64_t source_bytes = shape.rows * RowBytes(shape.type, shape.cols);
    std::byte* source = Allocate(source_bytes);
    std::minstd_rand rng(1);
    // Any bits will do for speed, except infinite scales: bit 6 of every byte stays clear.
    for (int64_t i = 0; i < source_bytes; ++i)
      source[i] = static_cast<std::byte>(rng() >> 8 & 0xBF);
    std::byte* packed = Allocate(bytes * copies);
    std::memset(packed, 0, static_cast<size_t>(bytes * copies));
    *pack_seconds = Seconds([&] {
                      for (int64_t i = 0; i < copies; ++i) {
                        Split(weights.num_groups(), [&](int64_t begin, int64_t end, int) {
                          PackRowGroups(shape.type, source, shape.rows, shape.cols, begin, end,
                                        packed + i * bytes);
                        });
                      }
                    }) /
                    static_cast<double>(copies);
    const int64_t row_bytes = ActivationRowBytes(shape.type, type, shape.cols);
    std::byte* x = Allocate(row_bytes * tokens);
    std::vector<float> values(static_cast<size_t>(shape.cols * tokens));
    std::normal_distribution<float> normal;
    for (float& v : values) v = normal(rng);
    PrepareActivations(shape.type, type, values.data(), shape.cols, tokens, shape.cols, x);
    std::vector<float> out(static_cast<size_t>(shape.rows * tokens));
    const double seconds = Best(tokens == 1 ? 5 : 8, [&] {
      for (int64_t i = 0; i < copies; ++i) {
        weights.data = packed + i * bytes;
        Split(weights.num_groups(), [&](int64_t begin, int64_t end, int worker) {
          MatMul(weights, type, x, tokens, begin, end, out.data(), shape.rows,
                 scratch_[static_cast<size_t>(worker)]);
        });
      }
    });
    munmap(source, static_cast<size_t>(source_bytes));
    munmap(packed, static_cast<size_t>(bytes * copies));
    munmap(x, static_cast<size_t>(row_bytes * tokens));
    return seconds / static_cast<double>(copies);
  }

  void Limits() {
    const int64_t bytes = int64_t{512} << 20;
    std::byte* data = Allocate(bytes);
    std::memset(data, 1, static_cast<size_t>(bytes));
    const int n = pool_.num_threads();
    const double read = Best(3, [&] {
      Split(bytes / 4096, [&](int64_t begin, int64_t end, int) {
        ReadBytes(data + begin * 4096, (end - begin) * 4096);
      });
    });
    read_ = static_cast<double>(bytes) / read;
    double operations[2] = {}, seconds[2];
    for (int kind = 0; kind < 2; ++kind) {
      std::vector<double> done(static_cast<size_t>(n));
      seconds[kind] = Best(3, [&] {
        pool_.ParallelFor(n, [&](int64_t i, int) {
          done[static_cast<size_t>(i)] =
              kind == 0 ? RunF32Operations(2'000'000) : RunInt8Operations(2'000'000);
        });
      });
      for (double d : done) operations[kind] += d;
    }
    int8_ = operations[1] / seconds[1];
    f32_ = operations[0] / seconds[0];
    std::printf("%d threads: %.1f GB/s read, %.0f GFLOP/s f32, %.0f GOP/s int8\n\n", n,
                read_ * 1e-9, f32_ * 1e-9, int8_ * 1e-9);
    munmap(data, static_cast<size_t>(bytes));
  }

  void Run(const char* filter) {
    std::printf("%-9s %-5s %-13s | %8s %6s %5s | %9s %6s %5s | %9s\n", "weights", "type", "shape",
                "1 tok us", "GB/s", "limit", "many us", "GOP/s", "limit", "pack GB/s");
    double decode_total = 0, prefill_total = 0, pack_total = 0;
    for (const Shape& shape : kShapes) {
      const std::string label =
          std::string(shape.name) + " " + std::string(Traits(shape.type).name);
      if (filter != nullptr && label.find(filter) == std::string::npos) continue;
      const int64_t packed = (shape.rows + 15) / 16 * PackedGroupBytes(shape.type, shape.cols);
      const int64_t copies = std::max<int64_t>(1, (int64_t{96} << 20) / packed);
      double pack, unused;
      const double decode = Time(shape, copies, 1, ActivationType::kInt8, &pack);
      const bool head = shape.rows > 100000;
      const double prefill =
          head ? 0
               : Time(shape,
                      std::min<int64_t>(copies, shape.rows < 1000 && shape.cols < 1000 ? 8 : 2),
                      tokens_, ActivationType::kInt8, &unused);
      const double rate = 2.0 * static_cast<double>(shape.rows * shape.cols * tokens_) / prefill;
      const bool is_float = Traits(shape.type).block_elements == 1;
      const double bandwidth = static_cast<double>(packed) / decode;
      std::printf("%-9s %-5s %6ldx%-6ld | %8.1f %6.1f %4.0f%% | %9.0f %6.0f %4.0f%% | %9.2f\n",
                  shape.name, std::string(Traits(shape.type).name).c_str(), shape.rows, shape.cols,
                  decode * 1e6, bandwidth * 1e-9, 100 * bandwidth / read_, prefill * 1e6,
                  head ? 0 : rate * 1e-9, head ? 0 : 100 * rate / (is_float ? f32_ : int8_),
                  static_cast<double>(packed) / pack * 1e-9);
      if (std::strcmp(shape.name, "other") != 0) {
        decode_total += decode * static_cast<double>(shape.copies);
        prefill_total += prefill * static_cast<double>(shape.copies);
        pack_total += pack * static_cast<double>(shape.copies);
      }
    }
    std::printf(
        "\nwhole model: decode %.2f ms, prefill of %ld tokens %.0f ms (%.0f tokens/s), packing "
        "%.0f ms\n",
        decode_total * 1e3, tokens_, prefill_total * 1e3,
        static_cast<double>(tokens_) / prefill_total, pack_total * 1e3);
  }

 private:
  // Contiguous parts, several for each thread.
  template <class F>
  void Split(int64_t n, const F& f) {
    const int64_t parts = std::min<int64_t>(n, pool_.num_threads() * 4);
    pool_.ParallelFor(
        parts, [&](int64_t i, int worker) { f(n * i / parts, n * (i + 1) / parts, worker); });
  }

  ThreadPool pool_;
  int64_t tokens_;
  std::vector<std::byte*> scratch_;
  double read_ = 1, f32_ = 1, int8_ = 1;
};

}  // namespace
}  // namespace lode::kernels

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const int64_t tokens = argc > 2 ? std::atoll(argv[2]) : 512;
  lode::kernels::Bench bench(threads, tokens);
  bench.Limits();
  bench.Run(argc > 3 ? argv[3] : nullptr);
  return 0;
}
