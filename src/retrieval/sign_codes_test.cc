// SPDX-License-Identifier: Apache-2.0
// Sign codes against plain implementations of what they stand for.
#include "retrieval/sign_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "retrieval/page_index.h"

namespace lode {
namespace {

using Ranking = SignOptions::Ranking;
using Bits = std::vector<bool>;

constexpr int64_t kDim = 16;

// Keys of a text whose mean and spread differ by component.
struct Text {
  std::vector<std::vector<double>> keys;  // by position

  Text(int64_t num_pages, uint32_t seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    for (int64_t position = 0; position < num_pages * kPageTokens; ++position) {
      keys.emplace_back();
      for (int64_t d = 0; d < kDim; ++d) {
        const float spread = 0.5f + 0.25f * static_cast<float>(d);
        keys.back().push_back(3.0f * static_cast<float>(d % 3) + spread * normal(generator));
      }
    }
  }

  void ReadPage(int64_t page, float* out) const {
    for (int64_t t = 0; t < kPageTokens; ++t) {
      for (int64_t d = 0; d < kDim; ++d) {
        out[d * kPageTokens + t] = static_cast<float>(Key(page * kPageTokens + t, d));
      }
    }
  }
  double Key(int64_t position, int64_t d) const {
    return keys[static_cast<size_t>(position)][static_cast<size_t>(d)];
  }
  void Update(SignCodes& codes, int64_t num_pages) const {
    codes.Update(num_pages, [&](int64_t page, float* out) { ReadPage(page, out); });
  }
};

std::vector<float> SomeQueries(int64_t rows, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> queries(static_cast<size_t>(rows * kDim));
  for (float& x : queries) x = normal(generator);
  return queries;
}

std::vector<float> RanksOf(const SignCodes& codes, const std::vector<float>& queries, int64_t first,
                           int64_t last) {
  std::vector<float> ranks(static_cast<size_t>(last - first));
  codes.Rank(queries.data(), static_cast<int64_t>(queries.size()) / kDim, first, ranks);
  return ranks;
}

// What the header says, in double, with all keys hashed anew.
class Oracle {
 public:
  Oracle(const Text& text, const SignOptions& options, int64_t num_pages)
      : options_(options), mean_(kDim), deviation_(kDim, 1.0) {
    int64_t centre = 1;
    while (centre * 2 <= num_pages) centre *= 2;
    const int64_t count = centre * kPageTokens;
    for (int64_t d = 0; d < kDim; ++d) {
      double& mean = mean_[static_cast<size_t>(d)];
      for (int64_t i = 0; i < count; ++i) mean += text.Key(i, d) / static_cast<double>(count);
      double variance = 0;
      for (int64_t i = 0; i < count; ++i) {
        variance += std::pow(text.Key(i, d) - mean, 2) / static_cast<double>(count);
      }
      length_ += variance;
      if (options.ranking == Ranking::kBuckets) {
        deviation_[static_cast<size_t>(d)] = std::sqrt(variance);
      }
    }
    length_ = std::sqrt(length_);
    Random random(options.seed);
    for (int64_t i = 0; i < options.bits * kDim; ++i) matrix_.push_back(random.NextNormal());
    for (int64_t i = 0; i < num_pages * kPageTokens; ++i) {
      std::vector<double> key;
      key.reserve(kDim);
      for (size_t d = 0; d < kDim; ++d) {
        key.push_back((text.keys[static_cast<size_t>(i)][d] - mean_[d]) / deviation_[d]);
      }
      keys_.push_back(Hash(key));
    }
  }

  Bits HashQuery(const float* query) const {
    std::vector<double> scaled;
    scaled.reserve(kDim);
    for (size_t d = 0; d < kDim; ++d) scaled.push_back(query[d] * deviation_[d]);
    return Hash(scaled);
  }

  std::vector<double> Hamming(const std::vector<float>& queries, int64_t first) const {
    std::vector<double> ranks(keys_.size() / kPageTokens - static_cast<size_t>(first), 0.0);
    for (size_t row = 0; row < queries.size(); row += kDim) {
      const Bits query = HashQuery(&queries[row]);
      double squares = 0, all = 0;
      for (size_t d = 0; d < kDim; ++d) squares += std::pow(double{queries[row + d]}, 2);
      std::vector<double> masses(ranks.size(), 0.0);
      for (size_t i = static_cast<size_t>(first * kPageTokens); i < keys_.size(); ++i) {
        double differing = 0;
        for (size_t b = 0; b < query.size(); ++b) differing += query[b] != keys_[i][b] ? 1 : 0;
        const double angle = std::numbers::pi * differing / static_cast<double>(options_.bits);
        const double mass = std::exp2(std::sqrt(squares) * length_ * std::cos(angle));
        masses[i / kPageTokens - static_cast<size_t>(first)] += mass;
        all += mass;
      }
      for (size_t page = 0; page < ranks.size(); ++page) ranks[page] += masses[page] / all;
    }
    return ranks;
  }

  std::vector<double> Buckets(const std::vector<float>& queries, int64_t first) const {
    const size_t tokens = keys_.size() + static_cast<size_t>(options_.window);
    const size_t num_buckets = std::max<size_t>(1, tokens / 512);
    std::map<size_t, std::vector<size_t>> buckets;
    for (size_t i = 0; i < keys_.size(); ++i) {
      std::vector<size_t>& bucket = buckets[Modulo(keys_[i], num_buckets)];
      if (bucket.size() < 3) bucket.push_back(i);
    }
    std::vector<double> ranks(keys_.size() / kPageTokens - static_cast<size_t>(first), 0.0);
    for (size_t row = 0; row < queries.size(); row += kDim) {
      for (const size_t i : buckets[Modulo(HashQuery(&queries[row]), num_buckets)]) {
        const size_t page = i / kPageTokens;
        if (page >= static_cast<size_t>(first)) ranks[page - static_cast<size_t>(first)] += 1;
      }
    }
    return ranks;
  }

 private:
  Bits Hash(const std::vector<double>& x) const {
    Bits bits;
    for (size_t row = 0; row < matrix_.size(); row += kDim) {
      double sum = 0;
      for (size_t d = 0; d < kDim; ++d) sum += matrix_[row + d] * x[d];
      bits.push_back(sum > 0);
    }
    return bits;
  }
  static size_t Modulo(const Bits& bits, size_t n) {  // the first bit is the lowest
    size_t remainder = 0;
    for (size_t i = bits.size(); i-- > 0;) remainder = (2 * remainder + (bits[i] ? 1 : 0)) % n;
    return remainder;
  }

  const SignOptions options_;
  std::vector<double> mean_, deviation_, matrix_;
  double length_ = 0;
  std::vector<Bits> keys_;
};

TEST(SignCodes, HammingRanksEqualThePlainOnes) {
  const Text text(13, 1);
  for (const int64_t bits : {32, 64, 128}) {
    const SignOptions options = {.ranking = Ranking::kHamming, .bits = bits, .seed = 7};
    SignCodes codes(kDim, options);
    text.Update(codes, 13);
    const std::vector<float> queries = SomeQueries(5, 2);
    for (const int64_t first : {0, 1, 12}) {
      const std::vector<float> found = RanksOf(codes, queries, first, 13);
      const std::vector<double> truth = Oracle(text, options, 13).Hamming(queries, first);
      for (size_t page = 0; page < truth.size(); ++page) {
        // One key near a threshold may fall on its other side in f32.
        EXPECT_NEAR(found[page], truth[page], 1e-3) << bits << " bits, page " << page;
      }
    }
  }
}

TEST(SignCodes, BucketRanksEqualThePlainOnes) {
  const Text text(150, 3);  // 9 buckets, 11 with the window
  for (const auto& [bits, window] : {std::pair<int64_t, int64_t>{32, 0}, {64, 1000}, {128, 0}}) {
    const SignOptions options = {
        .ranking = Ranking::kBuckets, .bits = bits, .seed = 8, .window = window};
    SignCodes codes(kDim, options);
    text.Update(codes, 150);
    EXPECT_EQ(codes.Buckets(150).size(), window > 0 ? 11u : 9u);
    const std::vector<float> queries = SomeQueries(40, 4);
    for (const int64_t first : {0, 1}) {
      const std::vector<float> found = RanksOf(codes, queries, first, 150);
      const std::vector<double> truth = Oracle(text, options, 150).Buckets(queries, first);
      double named = 0;
      for (size_t page = 0; page < truth.size(); ++page) {
        EXPECT_EQ(found[page], truth[page]) << bits << " bits, page " << page;
        named += truth[page];
      }
      if (first > 0) continue;
      EXPECT_EQ(named, 3 * 40) << "each query meets the three keys of its bucket";
    }
  }
}

// Of the key that a query points at, most bits are the query's.
TEST(SignCodes, HammingFindsTheKeyThatAQueryPointsAt) {
  Text text(40, 5);
  std::vector<float> query = SomeQueries(1, 6);
  std::vector<double> mean(kDim, 0.0);
  for (const auto& key : text.keys) {
    for (size_t d = 0; d < kDim; ++d) mean[d] += key[d] / static_cast<double>(text.keys.size());
  }
  for (size_t d = 0; d < kDim; ++d) text.keys[777][d] = mean[d] + 5.0 * query[d];
  for (const int64_t bits : {64, 128}) {
    SignCodes codes(kDim, {.bits = bits});
    text.Update(codes, 40);
    const std::vector<float> ranks = RanksOf(codes, query, 0, 40);
    EXPECT_EQ(std::ranges::max_element(ranks) - ranks.begin(), 777 / kPageTokens);
  }
}

TEST(SignCodes, DoNotDependOnHowATextGrew) {
  const Text text(21, 9), other(21, 10);
  const std::vector<float> queries = SomeQueries(3, 11);
  for (const Ranking ranking : {Ranking::kHamming, Ranking::kBuckets}) {
    SignCodes grown(kDim, {.ranking = ranking});
    for (int64_t pages = 0; pages <= 21; ++pages) {
      text.Update(grown, pages);
      SignCodes fresh(kDim, {.ranking = ranking});
      text.Update(fresh, pages);
      EXPECT_EQ(RanksOf(grown, queries, 0, pages), RanksOf(fresh, queries, 0, pages)) << pages;
    }
    // Pages written anew, some of them among those that gave the mean.
    for (const int64_t kept : {18, 10, 0}) {
      SignCodes codes(kDim, {.ranking = ranking});
      text.Update(codes, 20);
      codes.Truncate(kept);
      EXPECT_EQ(codes.num_pages(), kept);
      Text mixed = other;
      std::copy_n(text.keys.begin(), kept * kPageTokens, mixed.keys.begin());
      mixed.Update(codes, 21);
      SignCodes fresh(kDim, {.ranking = ranking});
      mixed.Update(fresh, 21);
      EXPECT_EQ(RanksOf(codes, queries, 0, 21), RanksOf(fresh, queries, 0, 21)) << kept;
    }
  }
}

TEST(SignCodes, DependOnTheSeedAndReadEachPageOnce) {
  const Text text(9, 12);
  const std::vector<float> queries = SomeQueries(2, 13);
  SignCodes one(kDim, {.seed = 1}), two(kDim, {.seed = 2});
  text.Update(one, 9);
  text.Update(two, 9);
  EXPECT_NE(RanksOf(one, queries, 0, 9), RanksOf(two, queries, 0, 9));
  int64_t reads = 0;
  one.Update(10, [&](int64_t page, float* out) {
    EXPECT_EQ(page, 9);
    std::fill_n(out, kDim * kPageTokens, 0.0f);
    ++reads;
  });
  EXPECT_EQ(reads, 1);
  EXPECT_EQ(one.page_bytes(), 32 * 8);
  EXPECT_EQ(SignCodes(kDim, {.bits = 128}).page_bytes(), 32 * 16);
  EXPECT_EQ(SignCodes::BytesFor(kDim, 64, 330) - SignCodes::BytesFor(kDim, 64, 0),
            10 * one.page_bytes());
  EXPECT_EQ(SignCodes::BytesFor(kDim, 32, 0), (3 * 32 * kDim + 2 * kDim + 32) * 4);
}

}  // namespace
}  // namespace lode
