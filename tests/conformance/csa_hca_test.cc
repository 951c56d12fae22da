// SPDX-License-Identifier: Apache-2.0
// What csa_hca must compute whatever it selects, against `eager`.
//
// Two cases are exact by construction: when every page is read, and when all keys of a page are
// equal (then a page's summary says all there is about it). In between, the share of mass that
// summaries carry bounds what can be wrong.
#include "attention/csa_hca.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "attention/phased.h"
#include "kernels/targets.h"
#include "kv/kv_cache.h"
#include "retrieval/page_index.h"

namespace lode {
namespace {

constexpr double kTolerance = 2e-4;      // of the largest output, as in attention_test
constexpr double kMeanTolerance = 2e-2;  // means of keys and values have 8 bits

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
std::shared_ptr<const Calibration> SomeCalibration(const Case& c) {
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

double RelativeError(const std::vector<float>& found, const std::vector<float>& truth) {
  double error = 0, size = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    const double difference = std::abs(double{found[i]} - truth[i]);
    error = std::max(error, std::isnan(difference) ? HUGE_VAL : difference);
    size = std::max(size, std::abs(double{truth[i]}));
  }
  return error / size;
}

TEST(CsaHca, ReadingEveryPageIsExact) {
  for (const int64_t length : {1, 31, 32, 33, 64, 65, 287, 288, 289, 320, 321, 700, 1300}) {
    for (const int64_t window : {int64_t{1}, int64_t{64}, int64_t{256}}) {
      const Case c = {.length = length};
      Fixture f(c);
      const auto attention =
          CreateCsaHcaAttention({.top_k = 1 << 20, .window = window}, SomeCalibration(c));
      const int64_t n = std::min<int64_t>(length, 40);
      EXPECT_LT(RelativeError(f.Run(*attention, length - n, n, 17), f.Truth(length - n, n)),
                kTolerance)
          << length << " window " << window;
      EXPECT_EQ(attention->counters().rows, 0);
    }
  }
}

TEST(CsaHca, SummariesOfEqualKeysAreExact) {
  for (const int64_t top_k : {0, 1, 32, 33, 64, 128}) {
    for (const int64_t length : {400, 416, 417, 1000}) {
      for (const int32_t head_dim : {8, 64, 80, 256}) {
        const Case c = {
            .num_heads = 6, .head_dim = head_dim, .length = length, .equal_pages = true};
        Fixture f(c);
        const auto attention = CreateCsaHcaAttention(
            {.top_k = top_k, .max_unread = 0, .window = 100}, SomeCalibration(c));
        EXPECT_LT(RelativeError(f.Run(*attention, length - 9, 9, 9), f.Truth(length - 9, 9)),
                  kMeanTolerance)
            << top_k << " " << length << " " << head_dim;
        const AttentionCounters counters = attention->counters();
        EXPECT_GT(counters.unread_share, 0);
        EXPECT_LT(counters.unread_share, counters.rows);
        EXPECT_LT(counters.keys_read, counters.keys);
      }
    }
  }
}

// One key that a query points at, far back, among random ones: its page must be the one that is
// read.
TEST(CsaHca, FindsTheKeyThatCounts) {
  const Case c = {.length = 2000, .needle = 777};
  Fixture f(c);
  const auto first_heads = [&](Attention& attention) {
    const std::vector<float> all = f.Run(attention, 1999, 1, 1);
    std::vector<float> heads(all.begin(), all.begin() + 64);
    heads.insert(heads.end(), all.begin() + 7 * 64, all.begin() + 8 * 64);
    return heads;
  };
  const std::vector<float> truth = first_heads(*CreateAttention("eager").value());
  const auto attention =
      CreateCsaHcaAttention({.top_k = 96, .max_unread = 0, .window = 64}, SomeCalibration(c));
  const auto blind =
      CreateCsaHcaAttention({.top_k = 0, .max_unread = 0, .window = 64}, SomeCalibration(c));
  EXPECT_LT(RelativeError(first_heads(*attention), truth), 0.01);
  EXPECT_GT(RelativeError(first_heads(*blind), truth), 0.3) << "a test that cannot fail";
}

TEST(CsaHca, GrowingStepByStepEqualsStartingAnew) {
  const Case c = {.length = 500};
  Fixture f(c);
  const SparseOptions options = {.top_k = 64, .max_unread = 0, .window = 64};
  const auto grown = CreateCsaHcaAttention(options, SomeCalibration(c));
  for (int64_t first = 0; first < 500; ++first) f.Run(*grown, first, 1, 1);
  const auto fresh = CreateCsaHcaAttention(options, SomeCalibration(c));
  EXPECT_EQ(f.Run(*grown, 499, 1, 1), f.Run(*fresh, 499, 1, 1));
  // Tokens written anew replace what the index knew.
  EXPECT_EQ(f.cache().Truncate(0, 300), 300);
  f.Grow(200);
  f.Run(*grown, 300, 200, 200);
  f.Run(*fresh, 300, 200, 200);
  const auto other = CreateCsaHcaAttention(options, SomeCalibration(c));
  EXPECT_EQ(f.Run(*grown, 499, 1, 1), f.Run(*other, 499, 1, 1));
}

TEST(CsaHca, ResultDoesNotDependOnThreads) {
  const Case c = {.length = 900};
  Fixture f(c);
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 4}) {
    const auto attention = CreateCsaHcaAttention({.top_k = 128}, SomeCalibration(c));
    results.push_back(f.Run(*attention, 800, 100, 100, threads));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(CsaHca, SlidingLayersAndLayersWithoutProjectionAreExact) {
  Case c = {.length = 900, .window = 300};
  Fixture sliding(c);
  const auto attention = CreateCsaHcaAttention({.top_k = 0, .window = 32}, SomeCalibration(c));
  EXPECT_LT(RelativeError(sliding.Run(*attention, 890, 10, 10), sliding.Truth(890, 10)),
            kTolerance);
  c.window = 0;
  Fixture global(c);
  const auto empty =
      std::make_shared<Calibration>(2, c.num_kv_heads, c.head_dim, ModelFingerprint{});
  const auto exact = CreateCsaHcaAttention({.top_k = 0, .window = 32}, empty);
  EXPECT_LT(RelativeError(global.Run(*exact, 890, 10, 10), global.Truth(890, 10)), kTolerance);
}

// With true scores the estimate of what is left unread is what an audit finds, the budget keeps it
// small, and reading more misses less.
TEST(CsaHca, AuditsAgreeWithTheEstimateAndTheBudget) {
  const Case c = {.length = 3000};
  Fixture f(c);
  double missed_before = 1.0;
  for (const double max_unread : {0.5, 0.2, 0.05}) {
    const auto attention = CreateCsaHcaAttention({.top_k = 400,
                                                  .max_unread = max_unread,
                                                  .window = 64,
                                                  .scores = SparseOptions::Scores::kExact,
                                                  .audit_interval = 1},
                                                 SomeCalibration(c));
    // Position 2998 audits layer 1, KV head 0; the estimate is of both heads.
    f.Run(*attention, 2998, 1, 1);
    const AttentionCounters counters = attention->counters();
    ASSERT_EQ(counters.audits.rows, 7);
    const double missed = counters.audits.missed_mass / 7;
    EXPECT_NEAR(missed, counters.unread_share / 14, 0.05);
    EXPECT_LT(counters.unread_share / 14, max_unread + 0.01);
    EXPECT_LT(missed, missed_before);
    EXPECT_GT(counters.audits.output_error, 0);
    EXPECT_LT(counters.audits.output_error / 7, 1.5 * max_unread + 0.1);
    EXPECT_GT(counters.audits.recall / 7, 0.3);
    EXPECT_LT(counters.keys_read, counters.keys);
    missed_before = missed;
  }
}

// An audit of what summaries get right by construction.
TEST(CsaHca, AuditOfEqualPages) {
  const Case c = {.length = 1999, .equal_pages = true};
  Fixture f(c);
  const auto attention = CreateCsaHcaAttention(
      {.top_k = 0, .max_unread = 0, .window = 64, .audit_interval = 2}, SomeCalibration(c));
  f.Run(*attention, 1994, 5, 1);  // 1994 and 1998 audit layer 0 and 1 in turn
  const AuditCounters audits = attention->counters().audits;
  EXPECT_GT(audits.rows, 0);
  EXPECT_GT(audits.missed_mass / audits.rows, 0.5);
  EXPECT_LT(audits.output_error / audits.rows, kMeanTolerance);
  EXPECT_LT(audits.recall / audits.rows, 0.9);
}

TEST(CsaHca, NodesWhoseCodesAreNotLookedAtStillCount) {
  const Case c = {.length = 5000, .equal_pages = true};
  Fixture f(c);
  const std::vector<float> truth = f.Truth(4991, 9);
  for (const int64_t scan_tokens : {0, 1, 1024, 3000, 1 << 20}) {
    const auto attention = CreateCsaHcaAttention(
        {.top_k = 96, .max_unread = 0, .scan_tokens = scan_tokens}, SomeCalibration(c));
    EXPECT_LT(RelativeError(f.Run(*attention, 4991, 9, 9), truth), kMeanTolerance) << scan_tokens;
  }
}

TEST(CsaHca, EveryTargetOfTheMachine) {
  const Case c = {.length = 1500, .equal_pages = true};
  Fixture f(c);
  const std::vector<float> truth = f.Truth(1490, 10);
  for (const kernels::Target target : kernels::SupportedTargets()) {
    const kernels::ScopedTarget scoped(target);
    const auto attention =
        CreateCsaHcaAttention({.top_k = 96, .max_unread = 0}, SomeCalibration(c));
    EXPECT_LT(RelativeError(f.Run(*attention, 1490, 10, 10), truth), kMeanTolerance)
        << kernels::TargetName(target);
  }
}

TEST(CsaHca, PromptsMayHaveAnotherAttention) {
  const Case c = {.length = 900};
  Fixture f(c);
  const SparseOptions options = {.top_k = 64, .max_unread = 0, .window = 64};
  const auto phased = CreatePhasedAttention(CreateAttention("flash").value(),
                                            CreateCsaHcaAttention(options, SomeCalibration(c)));
  const auto flash = CreateAttention("flash").value();
  const auto sparse = CreateCsaHcaAttention(options, SomeCalibration(c));
  EXPECT_EQ(f.Run(*phased, 890, 10, 10), f.Run(*flash, 890, 10, 10));
  EXPECT_EQ(f.Run(*phased, 890, 10, 1), f.Run(*sparse, 890, 10, 1));
  EXPECT_EQ(phased->counters().keys_read, sparse->counters().keys_read);
}

TEST(CsaHca, EveryTypeOfTheCache) {
  for (const KvCodec& codec : KvCodecs()) {
    Case c = {.length = 600};
    c.dtypes = codec.dtype;
    Fixture f(c);
    const auto attention = CreateCsaHcaAttention({.top_k = 1 << 20}, SomeCalibration(c));
    EXPECT_LT(RelativeError(f.Run(*attention, 590, 10, 10), f.Truth(590, 10)), 1e-3) << codec.name;
  }
}

}  // namespace
}  // namespace lode
