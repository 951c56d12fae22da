// SPDX-License-Identifier: Apache-2.0
#include "retrieval/sign_codes.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <iterator>
#include <numbers>

#include "base/check.h"
#include "base/random.h"
#include "kernels/attention_tile.h"
#include "retrieval/page_index.h"

namespace lode {
namespace {

constexpr double kSmallestDeviation = 1e-6;  // a component that never changes has no use

size_t At(int64_t index) {
  return static_cast<size_t>(index);
}

int64_t Differing(const uint64_t* a, const uint64_t* b, int64_t words) {
  int64_t bits = 0;
  for (int64_t w = 0; w < words; ++w) bits += std::popcount(a[w] ^ b[w]);
  return bits;
}

}  // namespace

SignCodes::SignCodes(int64_t head_dim, const SignOptions& options)
    : head_dim_(head_dim), options_(options), matrix_(At(options.bits * head_dim)) {
  LODE_CHECK(IsNumBits(options.bits));
  Random random(options.seed);
  for (float& x : matrix_) x = static_cast<float>(random.NextNormal());
}

int64_t SignCodes::page_bytes() const {
  return kPageTokens * words() * int64_t{sizeof(uint64_t)};
}

int64_t SignCodes::BytesFor(int64_t head_dim, int64_t bits, int64_t tokens) {
  const int64_t codes = tokens / kPageTokens * kPageTokens * WordsOf(bits);
  const int64_t floats = 3 * bits * head_dim + 2 * head_dim + bits;  // R and its maps; mu, sigma
  return codes * int64_t{sizeof(uint64_t)} + floats * int64_t{sizeof(float)};
}

void SignCodes::Truncate(int64_t num_pages) {
  LODE_CHECK(num_pages >= 0 && num_pages <= num_pages_);
  num_pages_ = num_pages;
  codes_.resize(At(num_pages * kPageTokens * words()));
  if (num_pages < centre_pages_) centre_pages_ = 0;
}

void SignCodes::Update(int64_t num_pages, FunctionRef<void(int64_t, float*)> read_page) {
  if (num_pages < num_pages_) Truncate(num_pages);
  if (num_pages == 0) return;
  const auto centre = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(num_pages)));
  if (centre != centre_pages_) {
    Truncate(0);
    Centre(centre, read_page);
  }
  AlignedVector<float> keys(At(head_dim_ * kPageTokens));
  while (num_pages_ < num_pages) {
    read_page(num_pages_, keys.data());
    AppendPage(keys.data());
  }
}

void SignCodes::Centre(int64_t num_pages, FunctionRef<void(int64_t, float*)> read_page) {
  AlignedVector<float> keys(At(head_dim_ * kPageTokens));
  std::vector<double> sums(At(head_dim_), 0.0), squares(sums);
  for (int64_t page = 0; page < num_pages; ++page) {
    read_page(page, keys.data());
    for (int64_t d = 0; d < head_dim_; ++d) {
      for (int64_t t = 0; t < kPageTokens; ++t) {
        const double x = keys[At(d * kPageTokens + t)];
        sums[At(d)] += x;
        squares[At(d)] += x * x;
      }
    }
  }
  centre_pages_ = num_pages;
  mean_.assign(At(head_dim_), 0.0f);
  deviation_.assign(At(head_dim_), 1.0f);
  const auto count = static_cast<double>(num_pages * kPageTokens);
  double variances = 0.0;
  for (size_t d = 0; d < At(head_dim_); ++d) {
    const double mean = sums[d] / count;
    const double variance = std::max(squares[d] / count - mean * mean, 0.0);
    variances += variance;
    mean_[d] = static_cast<float>(mean);
    if (!IsScaled()) continue;
    deviation_[d] = static_cast<float>(std::max(std::sqrt(variance), kSmallestDeviation));
  }
  key_length_ = std::sqrt(variances);
  key_map_.resize(matrix_.size());
  query_map_.resize(matrix_.size());
  thresholds_.assign(At(options_.bits), 0.0f);
  for (int64_t bit = 0; bit < options_.bits; ++bit) {
    for (int64_t d = 0; d < head_dim_; ++d) {
      const float x = matrix_[At(bit * head_dim_ + d)];
      key_map_[At(bit * head_dim_ + d)] = x / deviation_[At(d)];
      query_map_[At(d * options_.bits + bit)] = x * deviation_[At(d)];
      thresholds_[At(bit)] += x / deviation_[At(d)] * mean_[At(d)];
    }
  }
}

void SignCodes::AppendPage(const float* keys) {
  AlignedVector<float> mapped(At(options_.bits * kPageTokens));
  kernels::MultiplyTile(key_map_.data(), head_dim_, keys, options_.bits, head_dim_, kPageTokens,
                        false, mapped.data(), kPageTokens);
  codes_.resize(codes_.size() + At(kPageTokens * words()), 0);
  uint64_t* page = &codes_[At(num_pages_++ * kPageTokens * words())];
  for (int64_t bit = 0; bit < options_.bits; ++bit) {
    for (int64_t t = 0; t < kPageTokens; ++t) {
      const bool is_set = mapped[At(bit * kPageTokens + t)] > thresholds_[At(bit)];
      page[t * words() + bit / kWordBits] |= uint64_t{is_set} << (bit % kWordBits);
    }
  }
}

// [rows][words]
std::vector<uint64_t> SignCodes::CodesOf(const float* queries, int64_t rows) const {
  AlignedVector<float> mapped(At(rows * options_.bits));
  kernels::MultiplyTile(queries, head_dim_, query_map_.data(), rows, head_dim_, options_.bits,
                        false, mapped.data(), options_.bits);
  std::vector<uint64_t> codes(At(rows * words()), 0);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t bit = 0; bit < options_.bits; ++bit) {
      const bool is_set = mapped[At(r * options_.bits + bit)] > 0.0f;
      codes[At(r * words() + bit / kWordBits)] |= uint64_t{is_set} << (bit % kWordBits);
    }
  }
  return codes;
}

void SignCodes::Rank(const float* queries, int64_t rows, int64_t first,
                     std::span<float> ranks) const {
  LODE_CHECK(first >= 0 && first + static_cast<int64_t>(ranks.size()) <= num_pages_);
  if (ranks.empty()) return;
  std::fill(ranks.begin(), ranks.end(), 0.0f);
  if (options_.ranking == SignOptions::Ranking::kHamming) {
    RankByHamming(queries, rows, first, ranks);
  } else {
    RankByBuckets(queries, rows, first, ranks);
  }
}

void SignCodes::RankByHamming(const float* queries, int64_t rows, int64_t first,
                              std::span<float> ranks) const {
  const std::vector<uint64_t> codes = CodesOf(queries, rows);
  const int64_t keys = static_cast<int64_t>(ranks.size()) * kPageTokens;
  const uint64_t* page_codes = codes_.data() + first * kPageTokens * words();
  std::vector<uint8_t> differing(At(keys));
  std::vector<double> weights(At(options_.bits + 1)), masses(ranks.size());
  for (int64_t r = 0; r < rows; ++r) {
    int64_t least = options_.bits;
    for (int64_t i = 0; i < keys; ++i) {
      const int64_t bits = Differing(&codes[At(r * words())], page_codes + i * words(), words());
      differing[At(i)] = static_cast<uint8_t>(bits);
      least = std::min(least, bits);
    }
    double squares = 0.0;
    for (int64_t d = 0; d < head_dim_; ++d) {
      squares += double{queries[r * head_dim_ + d]} * queries[r * head_dim_ + d];
    }
    const auto cosine = [&](int64_t bits) {
      return std::cos(std::numbers::pi * static_cast<double>(bits) /
                      static_cast<double>(options_.bits));
    };
    for (int64_t bits = 0; bits <= options_.bits; ++bits) {
      weights[At(bits)] =
          std::exp2(std::sqrt(squares) * key_length_ * (cosine(bits) - cosine(least)));
    }
    double all = 0.0;
    for (size_t page = 0; page < masses.size(); ++page) {
      masses[page] = 0.0;
      for (size_t t = 0; t < At(kPageTokens); ++t) {
        masses[page] += weights[differing[page * At(kPageTokens) + t]];
      }
      all += masses[page];
    }
    for (size_t page = 0; page < masses.size(); ++page) {
      ranks[page] += static_cast<float>(masses[page] / all);
    }
  }
  for (float& rank : ranks) {  // every page is named; NaN cannot be ordered
    if (!(rank > FLT_MIN)) rank = FLT_MIN;
  }
}

int64_t SignCodes::BucketOf(const uint64_t* code, int64_t num_buckets) const {
  const auto buckets = static_cast<uint64_t>(num_buckets);
  uint64_t remainder = 0;  // of the code so far; 2^32 at a time, so that nothing overflows
  for (int64_t word = words() - 1; word >= 0; --word) {
    remainder = (remainder << 32 | code[word] >> 32) % buckets;
    remainder = (remainder << 32 | (code[word] & 0xffffffffu)) % buckets;
  }
  return static_cast<int64_t>(remainder);
}

std::vector<SignCodes::Bucket> SignCodes::Buckets(int64_t num_pages) const {
  LODE_CHECK(num_pages >= 0 && num_pages <= num_pages_);
  const int64_t keys = num_pages * kPageTokens;
  const int64_t num_buckets = NumBuckets(keys + options_.window);
  LODE_CHECK(num_buckets < int64_t{1} << 32);
  std::vector<Bucket> buckets(At(num_buckets));
  for (int64_t position = 0; position < keys; ++position) {
    Bucket& bucket = buckets[At(BucketOf(&codes_[At(position * words())], num_buckets))];
    if (bucket.count < kKeysKept) bucket.positions[At(bucket.count++)] = position;
  }
  return buckets;
}

std::vector<int64_t> SignCodes::BucketsOf(const float* queries, int64_t rows,
                                          int64_t num_buckets) const {
  const std::vector<uint64_t> codes = CodesOf(queries, rows);
  std::vector<int64_t> buckets;
  buckets.reserve(At(rows));
  for (int64_t r = 0; r < rows; ++r) {
    buckets.push_back(BucketOf(&codes[At(r * words())], num_buckets));
  }
  return buckets;
}

void SignCodes::RankByBuckets(const float* queries, int64_t rows, int64_t first,
                              std::span<float> ranks) const {
  const std::vector<Bucket> buckets = Buckets(first + static_cast<int64_t>(ranks.size()));
  for (const int64_t met : BucketsOf(queries, rows, std::ssize(buckets))) {
    const Bucket& bucket = buckets[At(met)];
    for (int64_t i = 0; i < bucket.count; ++i) {
      const int64_t page = bucket.positions[At(i)] / kPageTokens;
      if (page >= first) ranks[At(page - first)] += 1.0f;
    }
  }
}

}  // namespace lode
