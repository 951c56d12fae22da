// SPDX-License-Identifier: Apache-2.0
// Random keys, values and queries behind a cache, and csa_hca and `eager` over them.
#ifndef LODE_CONFORMANCE_CSA_HCA_FIXTURE_H_
#define LODE_CONFORMANCE_CSA_HCA_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "attention/csa_hca.h"
#include "kv/kv_cache.h"
#include "retrieval/page_index.h"

namespace lode {

struct Case {
  int32_t num_heads = 14;
  int32_t num_kv_heads = 2;
  int32_t head_dim = 64;
  KvDTypes dtypes = KvDType::kF16;
  int64_t length = 700;
  int64_t window = 0;        // of a sliding layer
  bool equal_pages = false;  // all keys and values of a page are the same
  int64_t needle = -1;  // position whose key the last query's first head of each group points at
};

// A projection fitted to normally distributed keys and queries.
inline std::shared_ptr<const Calibration> SomeCalibration(const Case& c) {
  std::mt19937 generator(5);
  std::normal_distribution<float> normal;
  HeadStatistics statistics(c.head_dim);
  std::vector<float> vector(static_cast<size_t>(c.head_dim));
  for (int i = 0; i < 600; ++i) {
    for (float& x : vector) x = normal(generator);
    statistics.AddKeyResidual(vector.data());
    statistics.AddQuery(vector.data());
  }
  auto calibration =
      std::make_shared<Calibration>(2, c.num_kv_heads, c.head_dim, ModelFingerprint{});
  for (int32_t head = 0; head < c.num_kv_heads; ++head) {
    calibration->Set(1, head, HeadProjection::Fit(statistics).value());
  }
  return calibration;
}

class Fixture {
 public:
  explicit Fixture(const Case& c) : case_(c), generator_(static_cast<uint32_t>(c.length)) {
    cache_ = KvCache::Create({.num_layers = 2,
                              .num_kv_heads = c.num_kv_heads,
                              .head_dim = c.head_dim,
                              .dtypes = c.dtypes,
                              .max_tokens = 2 * c.length})
                 .value();
    sequence_ = cache_->AddSequence().value();
    queries_ = Random(c.length * c.num_heads * c.head_dim, 1.0f);
    Grow(c.length);
  }

  KvCache& cache() { return *cache_; }

  void Grow(int64_t n) {
    const int64_t first = cache_->Length(sequence_), row = case_.num_kv_heads * case_.head_dim;
    EXPECT_TRUE(cache_->Extend(sequence_, n).ok());
    for (int32_t layer = 0; layer < 2; ++layer) {
      std::vector<float> k = Random(n * row, 2.0f), v = Random(n * row, 1.0f);
      for (int64_t t = 0; case_.equal_pages && t < n; ++t) {
        const int64_t same = (first + t) / kPageTokens * kPageTokens - first;
        if (same < 0) continue;
        std::copy_n(k.begin() + same * row, row, k.begin() + t * row);
        std::copy_n(v.begin() + same * row, row, v.begin() + t * row);
      }
      if (case_.needle >= first && case_.needle < first + n)
        HideNeedle(&k[(case_.needle - first) * row]);
      cache_->Store(layer, sequence_, first, n, k.data(), v.data());
    }
  }

  // Of one query head, [head_dim].
  const float* Query(int64_t token, int64_t head) const {
    return &queries_[static_cast<size_t>((token * case_.num_heads + head) * case_.head_dim)];
  }
  void SpoilQuery(int64_t token, int64_t head, float value) {
    queries_[(token * case_.num_heads + head) * case_.head_dim] = value;
  }

  // Output of tokens [first, first + n) in chunks.
  std::vector<float> Run(Attention& attention, int64_t first, int64_t n, int64_t chunk,
                         int threads = 1) {
    const int64_t row = int64_t{case_.num_heads} * case_.head_dim;
    ThreadPool pool(threads);
    std::vector<float> out(static_cast<size_t>(n * row), NAN);
    for (int64_t done = 0; done < n; done += chunk) {
      attention.Forward({.layer = 1,
                         .sequence = sequence_,
                         .first_position = first + done,
                         .num_tokens = std::min(chunk, n - done),
                         .num_heads = case_.num_heads,
                         .scale = 1.0f / std::sqrt(static_cast<float>(case_.head_dim)),
                         .sliding_window = case_.window,
                         .q = queries_.data() + (first + done) * row,
                         .q_stride = row},
                        *cache_, pool, out.data() + done * row, row);
    }
    return out;
  }
  std::vector<float> Truth(int64_t first, int64_t n) {
    return Run(*CreateAttention("eager").value(), first, n, n);
  }

 private:
  std::vector<float> Random(int64_t n, float scale) {
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> values(static_cast<size_t>(n));
    for (float& x : values) x = normal(generator_);
    return values;
  }

  void HideNeedle(float* key) {
    const int64_t group = case_.num_heads / case_.num_kv_heads;
    const float* query = &queries_[(case_.length - 1) * case_.num_heads * case_.head_dim];
    for (int64_t head = 0; head < case_.num_kv_heads; ++head) {
      for (int64_t d = 0; d < case_.head_dim; ++d) {
        key[head * case_.head_dim + d] = 2.5f * query[head * group * case_.head_dim + d];
      }
    }
  }

  const Case case_;
  std::mt19937 generator_;
  std::unique_ptr<KvCache> cache_;
  SequenceId sequence_ = 0;
  std::vector<float> queries_;
};

inline double RelativeError(const std::vector<float>& found, const std::vector<float>& truth) {
  double error = 0, size = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    const double difference = std::abs(double{found[i]} - truth[i]);
    error = std::max(error, std::isnan(difference) ? HUGE_VAL : difference);
    size = std::max(size, std::abs(double{truth[i]}));
  }
  return error / size;
}

}  // namespace lode

#endif  // LODE_CONFORMANCE_CSA_HCA_FIXTURE_H_
