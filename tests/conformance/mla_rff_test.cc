// SPDX-License-Identifier: Apache-2.0
// mla_rff against a plain double implementation of its formula. It is no softmax attention, so
// `eager` is only asked where both have the same average: keys of one length, many features.
//
// Tolerances are relative to the largest output: arguments of cosines are f32 sums of head_dim
// products with |argument| < 100 or so, off by 1e-5; a sum of weights that cancels is kept above
// 1/sqrt(d_proj) of the number of keys, so that is not made larger by more than that.
#include "attention/mla_rff.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "attention/kv_chunk.h"
#include "base/aligned_vector.h"
#include "kv/kv_cache.h"

namespace lode {
namespace {

constexpr double kTolerance = 1e-4;
constexpr double kSameSumTolerance = 1e-6;  // in another order of additions, in double

struct Case {
  int32_t num_heads = 6;
  int32_t num_kv_heads = 2;
  int32_t head_dim = 64;
  KvDTypes dtypes = KvDType::kF16;
  int64_t length = 200;
  int64_t window = 0;
  float key_length = 0;  // of every key and query; 0: as they come
  RffOptions rff = {};
};

class Fixture {
 public:
  explicit Fixture(const Case& c) : case_(c), generator_(static_cast<uint32_t>(c.length)) {
    cache_ = KvCache::Create({.num_layers = 2,
                              .num_kv_heads = c.num_kv_heads,
                              .head_dim = c.head_dim,
                              .dtypes = c.dtypes,
                              .max_tokens = 2 * c.length + 64})
                 .value();
    sequence_ = cache_->AddSequence().value();
    queries_ = Random(c.length * c.num_heads);
  }

  KvCache& cache() { return *cache_; }
  SequenceId sequence() const { return sequence_; }
  float& Query(int64_t token, int64_t component) {
    return queries_[static_cast<size_t>(token * case_.num_heads * case_.head_dim + component)];
  }
  std::unique_ptr<Attention> Create() const { return CreateMlaRffAttention(case_.rff); }

  void Grow(int64_t n) {
    const int64_t first = cache_->Length(sequence_);
    ASSERT_TRUE(cache_->Extend(sequence_, n).ok());
    for (int32_t layer = 0; layer < 2; ++layer) {
      const std::vector<float> k = Random(n * case_.num_kv_heads),
                               v = Random(n * case_.num_kv_heads);
      cache_->Store(layer, sequence_, first, n, k.data(), v.data());
    }
  }

  // Output of the tokens [first, first + n) in chunks.
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
                         .scale = Scale(),
                         .sliding_window = case_.window,
                         .q = queries_.data() + (first + done) * row,
                         .q_stride = row},
                        *cache_, pool, out.data() + done * row, row);
    }
    return out;
  }

  // The same by the formula, in double.
  std::vector<float> Formula(int64_t first, int64_t n) const {
    const RandomFourierFeatures features(case_.head_dim, case_.rff);
    std::vector<std::vector<Token>> cached;  // by KV head and position
    for (int32_t kv_head = 0; kv_head < case_.num_kv_heads; ++kv_head) {
      cached.push_back(Decode(features, kv_head, first + n));
    }
    const auto dim = static_cast<size_t>(case_.head_dim);
    const int64_t group = case_.num_heads / case_.num_kv_heads;
    std::vector<float> out;
    for (int64_t token = first; token < first + n; ++token) {
      for (int64_t head = 0; head < case_.num_heads; ++head) {
        const std::vector<double> q =
            Phi(features, &queries_[static_cast<size_t>(token * case_.num_heads + head) * dim]);
        std::vector<double> sum(dim, 0.0);
        double mass = 0.0;
        const int64_t begin =
            case_.window == 0 ? 0 : std::max<int64_t>(0, token + 1 - case_.window);
        for (int64_t j = begin; j <= token; ++j) {
          const Token& key = cached[static_cast<size_t>(head / group)][static_cast<size_t>(j)];
          double weight = 0.0;
          for (size_t i = 0; i < q.size(); ++i) weight += q[i] * key.phi[i];
          mass += weight;
          for (size_t d = 0; d < dim; ++d) sum[d] += weight * key.value[d];
        }
        mass = std::max(mass, static_cast<double>(token + 1 - begin) /
                                  std::sqrt(static_cast<double>(case_.rff.d_proj)));
        for (const double x : sum) out.push_back(static_cast<float>(x / mass));
      }
    }
    return out;
  }

 private:
  struct Token {
    std::vector<double> phi;
    std::vector<float> value;
  };

  float Scale() const { return 1.0f / std::sqrt(static_cast<float>(case_.head_dim)); }

  std::vector<double> Phi(const RandomFourierFeatures& features, const float* x) const {
    const double n = static_cast<double>(features.d_proj());
    std::vector<double> phi;
    for (size_t j = 0; j < features.phases().size(); ++j) {
      double argument = features.phases()[j];
      for (size_t d = 0; d < static_cast<size_t>(case_.head_dim); ++d) {
        const double w = features.frequencies()[d * features.phases().size() + j];
        argument += w * x[d] * std::sqrt(double{Scale()});
      }
      phi.push_back(std::sqrt(2.0 / n) * std::cos(argument));
    }
    return phi;
  }

  // The positions [0, end) of a KV head.
  std::vector<Token> Decode(const RandomFourierFeatures& features, int32_t kv_head,
                            int64_t end) const {
    const auto dim = static_cast<size_t>(case_.head_dim);
    AlignedVector<float> keys(dim * 32), values(dim * 32);
    std::vector<Token> tokens;
    for (int64_t first = 0; first < end; first += 32) {
      const int64_t count = std::min<int64_t>(32, end - first);
      const KvChunk chunk(*cache_, sequence_, 1, kv_head, first, first + count);
      chunk.DecodeKeys(keys.data());
      chunk.DecodeValues(values.data(), case_.head_dim);
      for (size_t slot = 0; slot < static_cast<size_t>(count); ++slot) {
        std::vector<float> key(dim);
        for (size_t d = 0; d < dim; ++d) key[d] = keys[d * 32 + slot];
        const float* value = &values[slot * dim];
        tokens.push_back({Phi(features, key.data()), {value, value + dim}});
      }
    }
    return tokens;
  }

  std::vector<float> Random(int64_t rows) {
    std::normal_distribution<float> normal;
    const auto dim = static_cast<size_t>(case_.head_dim);
    std::vector<float> values(static_cast<size_t>(rows) * dim);
    for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
      double squares = 0.0;
      for (size_t d = 0; d < dim; ++d) {
        const float x = values[row * dim + d] = normal(generator_);
        squares += double{x} * x;
      }
      const auto factor = static_cast<float>(case_.key_length / std::sqrt(squares));
      for (size_t d = 0; case_.key_length > 0 && d < dim; ++d) values[row * dim + d] *= factor;
    }
    return values;
  }

  const Case case_;
  std::mt19937 generator_;
  std::unique_ptr<KvCache> cache_;
  SequenceId sequence_ = 0;
  std::vector<float> queries_;
};

double RelativeError(const std::vector<float>& found, const std::vector<float>& truth) {
  EXPECT_EQ(found.size(), truth.size());
  double error = 0, size = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    const double difference = std::abs(double{found[i]} - truth[i]);
    error = std::max(error, std::isnan(difference) ? HUGE_VAL : difference);
    size = std::max(size, std::abs(double{truth[i]}));
  }
  return error / size;
}

TEST(RandomFourierFeatures, EstimateTheGaussianKernel) {
  constexpr int64_t kDim = 16, kFeatures = 20'000;
  const RandomFourierFeatures features(kDim, {.d_proj = kFeatures});
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<float> a(kDim), b(kDim), phi_a(kFeatures), phi_b(kFeatures);
  for (const float distance : {0.0f, 0.1f, 0.25f, 0.5f, 2.0f}) {
    for (size_t d = 0; d < kDim; ++d) {
      a[d] = 3.0f * normal(generator);
      b[d] = a[d] + distance * normal(generator);
    }
    features.Map(a.data(), 1, 0.5f, phi_a.data());
    features.Map(b.data(), 1, 0.5f, phi_b.data());
    double squares = 0.0, estimate = 0.0;
    for (size_t d = 0; d < kDim; ++d) squares += (a[d] - b[d]) * (a[d] - b[d]);
    for (size_t j = 0; j < kFeatures; ++j) estimate += double{phi_a[j]} * phi_b[j];
    // The scale is 0.5^2; five standard deviations of a mean of kFeatures products.
    EXPECT_NEAR(estimate, std::exp(-0.25 * squares / 2), 5 / std::sqrt(kFeatures)) << distance;
  }
}

TEST(RandomFourierFeatures, DependOnTheSeedAlone) {
  const RandomFourierFeatures one(8, {.seed = 1}), same(8, {.seed = 1}), two(8, {.seed = 2});
  EXPECT_TRUE(std::ranges::equal(one.frequencies(), same.frequencies()));
  EXPECT_TRUE(std::ranges::equal(one.phases(), same.phases()));
  EXPECT_FALSE(std::ranges::equal(one.frequencies(), two.frequencies()));
  EXPECT_EQ(one.d_proj(), 64);
}

TEST(MlaRff, EqualsTheFormula) {
  for (const Case& c : std::vector<Case>{
           {.length = 1},
           {.length = 33},
           {.length = 200},
           {.num_heads = 7, .num_kv_heads = 1, .head_dim = 40, .length = 100},
           {.num_heads = 4, .num_kv_heads = 4, .head_dim = 8, .length = 70, .rff = {.d_proj = 7}},
           {.dtypes = KvDType::kF32, .length = 90, .rff = {.seed = 9}},
           {.dtypes = KvDType::kInt8, .length = 150},
           {.dtypes = KvDTypes(KvDType::kInt8, KvDType::kInt4), .length = 150},
           {.length = 100, .key_length = 3.0f},
           {.length = 60, .window = 1},
           {.length = 150, .window = 5},
           {.length = 150, .window = 32},
           {.dtypes = KvDType::kInt8, .length = 150, .window = 77},
           {.length = 90, .window = 1000}}) {
    Fixture f(c);
    f.Grow(c.length);
    const std::vector<float> truth = f.Formula(0, c.length);
    for (const int64_t chunk : {int64_t{1}, int64_t{13}, c.length}) {
      EXPECT_LT(RelativeError(f.Run(*f.Create(), 0, c.length, chunk), truth), kTolerance)
          << "length " << c.length << " window " << c.window << " chunk " << chunk;
    }
  }
}

// Tokens that came while another attention ran are taken from the cache.
TEST(MlaRff, StartsAnywhere) {
  for (const int64_t window : {0, 50}) {
    Fixture f({.length = 400, .window = window});
    f.Grow(400);
    EXPECT_LT(RelativeError(f.Run(*f.Create(), 390, 10, 1), f.Formula(390, 10)), kTolerance);
    const auto attention = f.Create();
    f.Run(*attention, 0, 100, 100);
    EXPECT_LT(RelativeError(f.Run(*attention, 300, 10, 10), f.Formula(300, 10)), kTolerance);
  }
}

// Of a sequence that grows token by token, tiles are seen open first and encoded later.
TEST(MlaRff, GrowingStepByStepEqualsStartingAnew) {
  for (const KvDType dtype : {KvDType::kF16, KvDType::kInt8, KvDType::kInt4}) {
    for (const int64_t window : {0, 3, 100}) {
      Fixture f({.dtypes = dtype, .length = 300, .window = window});
      const auto grown = f.Create();
      for (int64_t position = 0; position < 300; ++position) {
        f.Grow(1);
        const std::vector<float> out = f.Run(*grown, position, 1, 1);
        if (position % 7 != 0 && position < 295) continue;
        EXPECT_LT(RelativeError(out, f.Run(*f.Create(), position, 1, 1)), kSameSumTolerance)
            << position << " window " << window << " " << KvDTypeName(dtype);
      }
    }
  }
}

TEST(MlaRff, TokensWrittenAnewReplaceTheOldOnes) {
  for (const KvDType dtype : {KvDType::kF16, KvDType::kInt8}) {
    for (const int64_t length : {0, 5, 96, 299, 330}) {
      for (const bool is_told : {true, false}) {
        Fixture f({.dtypes = dtype, .length = 400});
        f.Grow(300);
        const auto attention = f.Create();
        f.Run(*attention, 299, 1, 1);  // catches up with 299
        f.Grow(50);
        f.Run(*attention, 300, 50, 1);
        const int64_t kept = f.cache().Truncate(f.sequence(), length);
        if (is_told) attention->Truncate(f.sequence(), kept);
        f.Grow(20);
        EXPECT_LT(RelativeError(f.Run(*attention, kept, 20, 20), f.Formula(kept, 20)), kTolerance)
            << length << (is_told ? " told" : " not told") << " " << KvDTypeName(dtype);
      }
    }
  }
}

TEST(MlaRff, ResultDoesNotDependOnThreads) {
  Fixture f({.num_heads = 8, .num_kv_heads = 4, .length = 150});
  f.Grow(150);
  const std::vector<float> one = f.Run(*f.Create(), 0, 150, 100, 1);
  for (const int threads : {2, 4}) {
    EXPECT_EQ(f.Run(*f.Create(), 0, 150, 100, threads), one) << threads;
  }
}

// Where all keys have one length, its average is softmax attention; few features are noise on it.
TEST(MlaRff, ComesCloserToSoftmaxWithMoreFeatures) {
  const auto error = [](int64_t d_proj) {
    Fixture f({.num_heads = 2,
               .num_kv_heads = 1,
               .length = 300,
               .key_length = 5.0f,
               .rff = {.d_proj = d_proj}});
    f.Grow(300);
    return RelativeError(f.Run(*f.Create(), 290, 10, 10),
                         f.Run(*CreateAttention("eager").value(), 290, 10, 10));
  };
  const double few = error(64), many = error(8192);
  EXPECT_LT(many, 0.25);
  EXPECT_GT(few, 2 * many);
}

// A broken model must be seen, not smoothed over.
TEST(MlaRff, NanAndInfinityInQueriesReachTheOutput) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Fixture f({.length = 70});
    f.Grow(70);
    f.Query(69, 5) = bad;
    const std::vector<float> out = f.Run(*f.Create(), 69, 1, 1);
    EXPECT_TRUE(std::isnan(out[0]));
    EXPECT_FALSE(std::isnan(out[64]));
  }
}

TEST(MlaRff, NeedsFeatures) {
  for (const int64_t d_proj : {int64_t{0}, int64_t{-3}}) {
    AttentionContext context;
    context.rff.d_proj = d_proj;
    const auto refused = CreateAttention("mla_rff", context);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.status().message().find(std::to_string(d_proj)), std::string::npos);
  }
}

}  // namespace
}  // namespace lode
