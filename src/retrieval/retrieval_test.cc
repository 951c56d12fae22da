// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/aligned_vector.h"
#include "kernels/kv_codes.h"
#include "retrieval/calibration.h"
#include "retrieval/page_index.h"
#include "retrieval/projection.h"

namespace lode {
namespace {

constexpr int64_t kDim = 64;

// Keys and queries with channels of very different sizes, correlated, as real heads have.
class Generator {
 public:
  explicit Generator(uint32_t seed) : random_(seed), mix_(kDim * kDim) {
    std::mt19937 fixed(99);  // the same head for every seed
    for (float& x : mix_) x = normal_(fixed) / 8.0f;
  }
  std::vector<float> Key() { return Vector(3.0f, false); }
  std::vector<float> Query() { return Vector(2.0f, true); }

 private:
  std::vector<float> Vector(float size, bool reversed) {
    std::vector<float> raw(kDim), out(kDim, 0.0f);
    for (size_t i = 0; i < kDim; ++i) {
      const size_t order = reversed ? kDim - 1 - i : i;
      raw[i] = normal_(random_) * size * std::pow(0.9f, static_cast<float>(order % 40));
    }
    for (size_t i = 0; i < kDim; ++i) {
      out[i] += raw[i];
      for (size_t j = 0; j < kDim; ++j) out[i] += mix_[i * kDim + j] * raw[j];
    }
    return out;
  }
  std::mt19937 random_;
  std::normal_distribution<float> normal_;
  std::vector<float> mix_;
};

std::vector<float> DecodeMeans(const PageIndex& index, int64_t node, bool keys) {
  std::vector<float> out(kDim * kNodePages);
  if (keys) {
    kernels::DecodeKeyCodes(kMeanBits, index.mean_shape(), index.MeanKeys(node), out.data());
  } else {
    kernels::DecodeValueCodes(kMeanBits, index.mean_shape(), index.MeanValues(node), out.data(),
                              kDim);
  }
  return out;
}

std::vector<float> MeanKey(const PageIndex& index, int64_t page) {
  const std::vector<float> node = DecodeMeans(index, page / kNodePages, true);
  std::vector<float> mean(kDim);
  for (size_t d = 0; d < kDim; ++d) mean[d] = node[d * kNodePages + page % kNodePages];
  return mean;
}

double Dot(const float* a, const float* b) {
  return std::inner_product(a, a + kDim, b, 0.0);
}

HeadProjection FitOnRandomHeads() {
  Generator generator(1);
  HeadStatistics statistics(kDim);
  for (int i = 0; i < 4000; ++i) statistics.AddKeyResidual(generator.Key().data());
  for (int i = 0; i < 1000; ++i) statistics.AddQuery(generator.Query().data());
  return HeadProjection::Fit(statistics).value();
}

TEST(HeadProjection, KeepsScores) {
  const HeadProjection projection = FitOnRandomHeads();
  Generator generator(2);
  for (int i = 0; i < 20; ++i) {
    const std::vector<float> key = generator.Key(), query = generator.Query();
    std::vector<float> k(kDim), q(kDim);
    projection.MapKey(key.data(), k.data());
    projection.MapQuery(query.data(), q.data());
    EXPECT_NEAR(Dot(k.data(), q.data()), Dot(key.data(), query.data()), 2e-3);
  }
}

TEST(HeadProjection, BalancesKeysAndQueriesAndSpendsAllBits) {
  const HeadProjection projection = FitOnRandomHeads();
  Generator generator(3);
  std::vector<double> key_variance(kDim, 0), query_variance(kDim, 0);
  for (int i = 0; i < 4000; ++i) {
    std::vector<float> k(kDim), q(kDim);
    projection.MapKey(generator.Key().data(), k.data());
    projection.MapQuery(generator.Query().data(), q.data());
    for (size_t d = 0; d < kDim; ++d) {
      key_variance[d] += double{k[d]} * k[d] / 4000;
      query_variance[d] += double{q[d]} * q[d] / 4000;
    }
  }
  for (size_t d = 0; d < 8; ++d) {  // the large ones, where the ridges do not show
    EXPECT_NEAR(key_variance[d] / query_variance[d], 1.0, 0.25) << d;
    EXPECT_NEAR(std::sqrt(key_variance[d]) / projection.deviations()[d], 1.0, 0.1) << d;
  }
  const auto bits = projection.bits();
  EXPECT_EQ(std::accumulate(bits.begin(), bits.end(), 0), kCodeBits);
  EXPECT_TRUE(std::is_sorted(bits.rbegin(), bits.rend())) << "larger dimensions get more bits";
}

TEST(PackFields, NoFieldCrossesANibble) {
  std::mt19937 random(4);
  for (int round = 0; round < 200; ++round) {
    std::vector<uint8_t> bits(40, 0);
    int total = 0;
    for (uint8_t& b : bits) {
      b = static_cast<uint8_t>(random() % 5);
      total += b;
    }
    const std::vector<CodeField> fields = PackFields(bits);
    if (fields.empty()) {
      EXPECT_GT(total, kCodeBits - 3 * kCodeNibbles / 4);  // never refused while much is free
      continue;
    }
    std::vector<int> used(kCodeNibbles, 0);
    for (const CodeField& field : fields) {
      EXPECT_EQ(field.bits, bits[static_cast<size_t>(field.dim)]);
      EXPECT_LE(field.shift + field.bits, 4);
      const int mask = ((1 << field.bits) - 1) << field.shift;
      EXPECT_EQ(used[static_cast<size_t>(field.nibble)] & mask, 0);
      used[static_cast<size_t>(field.nibble)] |= mask;
    }
  }
}

TEST(HeadProjection, RefusesNonsense) {
  EXPECT_FALSE(HeadProjection::Fit(HeadStatistics(8)).ok());
  HeadStatistics zeros(8);
  const std::vector<float> zero(8, 0.0f);
  zeros.AddKeyResidual(zero.data());
  zeros.AddQuery(zero.data());
  EXPECT_FALSE(HeadProjection::Fit(zeros).ok());

  const std::vector<float> identity = {1, 0, 0, 1}, singular = {1, 1, 1, 1}, one = {1, 1};
  const std::vector<uint8_t> bits = {4, 4};
  EXPECT_TRUE(HeadProjection::Create(2, identity, one, bits).ok());
  EXPECT_FALSE(HeadProjection::Create(3, identity, one, bits).ok());
  EXPECT_FALSE(HeadProjection::Create(2, singular, one, bits).ok());
  EXPECT_FALSE(HeadProjection::Create(2, {NAN, 0, 0, 1}, one, bits).ok());
  EXPECT_FALSE(HeadProjection::Create(2, identity, {1, 0}, bits).ok());
  EXPECT_FALSE(HeadProjection::Create(2, identity, one, {5, 0}).ok());
  EXPECT_FALSE(HeadProjection::Create(2, identity, one, {0, 0}).ok());
}

struct Pages {
  std::vector<std::vector<float>> keys;  // by token
  PageIndex index;

  // `at_once`: says with every page that another follows, but for the last.
  Pages(const HeadProjection* projection, int64_t count, uint32_t seed, bool at_once = false)
      : index(projection) {
    Generator generator(seed);
    for (int64_t page = 0; page < count; ++page) {
      AlignedVector<float> columns(kDim * kPageTokens), values(kPageTokens * kDim);
      for (int64_t t = 0; t < kPageTokens; ++t) {
        keys.push_back(generator.Key());
        for (int64_t d = 0; d < kDim; ++d) {
          columns[static_cast<size_t>(d * kPageTokens + t)] = keys.back()[static_cast<size_t>(d)];
          values[static_cast<size_t>(t * kDim + d)] = static_cast<float>(page + t);
        }
      }
      index.Append(columns.data(), values.data(), kDim, at_once && page + 1 < count);
    }
  }
};

TEST(PageIndex, SeveralPagesAtOnceAreTheSame) {
  const HeadProjection projection = FitOnRandomHeads();
  for (const int64_t count : {int64_t{1}, int64_t{5}, kNodePages, kNodePages + 3}) {
    const Pages one(&projection, count, 5), all(&projection, count, 5, true);
    ASSERT_EQ(one.index.num_nodes(), all.index.num_nodes());
    const auto same = [](const std::byte* a, const std::byte* b, int64_t bytes) {
      return std::equal(a, a + bytes, b);
    };
    const int64_t key_bytes = kernels::KeyCodeBytes(kMeanBits, one.index.mean_shape());
    const int64_t value_bytes = kernels::ValueCodeBytes(kMeanBits, one.index.mean_shape());
    for (int64_t node = 0; node < one.index.num_nodes(); ++node) {
      EXPECT_TRUE(same(one.index.MeanKeys(node), all.index.MeanKeys(node), key_bytes)) << count;
      EXPECT_TRUE(same(one.index.MeanValues(node), all.index.MeanValues(node), value_bytes));
    }
    std::vector<float> scales(kDim), others(kDim);
    one.index.RaiseToMeanScales(scales.data());
    all.index.RaiseToMeanScales(others.data());
    EXPECT_EQ(scales, others);
  }
}

// The estimate explains most of the variance of the true scores: at one bit per dimension, and with
// bits where the scores are decided.
TEST(PageIndex, EstimatesScores) {
  const HeadProjection projection = FitOnRandomHeads();
  const Pages pages(&projection, 16, 5);
  Generator generator(6);
  std::vector<float> queries;
  for (int r = 0; r < 3; ++r) {
    const std::vector<float> query = generator.Query();
    queries.insert(queries.end(), query.begin(), query.end());
  }
  PreparedQueries prepared;
  pages.index.Prepare(queries.data(), 3, prepared);
  alignas(64) float out[3 * kPageTokens];
  double error = 0, variance = 0, bias = 0;
  for (int64_t page = 0; page < 16; ++page) {
    kernels::ScanPage(pages.index.Codes(page, page + 1), prepared.Tables(), out);
    for (int64_t r = 0; r < 3; ++r) {
      const float* query = &queries[static_cast<size_t>(r * kDim)];
      const double base = Dot(query, MeanKey(pages.index, page).data());
      for (int64_t t = 0; t < kPageTokens; ++t) {
        const double truth =
            Dot(query, pages.keys[static_cast<size_t>(page * kPageTokens + t)].data());
        const double estimate = base + out[r * kPageTokens + t];
        error += (estimate - truth) * (estimate - truth);
        bias += (estimate - truth) / (3 * 16 * kPageTokens);
        variance += truth * truth;
      }
    }
  }
  EXPECT_LT(error / variance, 0.06);
  EXPECT_LT(std::abs(bias), 0.05 * std::sqrt(variance / (3 * 16 * kPageTokens)));
}

TEST(PageIndex, MeansOfFullAndOpenNodes) {
  const HeadProjection projection = FitOnRandomHeads();
  const Pages pages(&projection, kNodePages + 5, 7);
  EXPECT_EQ(pages.index.num_pages(), kNodePages + 5);
  EXPECT_EQ(pages.index.num_nodes(), 2);
  for (const int64_t page : {int64_t{2}, kNodePages - 1, kNodePages, kNodePages + 4}) {
    const std::vector<float> found = MeanKey(pages.index, page);
    for (int64_t d = 0; d < kDim; ++d) {
      double mean = 0;
      for (int64_t t = page * 32; t < page * 32 + 32; ++t) {
        mean += pages.keys[static_cast<size_t>(t)][static_cast<size_t>(d)] / 32;
      }
      EXPECT_NEAR(found[static_cast<size_t>(d)], mean, 0.02) << page << " " << d;
    }
    const std::vector<float> values = DecodeMeans(pages.index, page / kNodePages, false);
    const double value = static_cast<double>(page) + 15.5;
    EXPECT_NEAR(values[static_cast<size_t>(page % kNodePages * kDim + 3)], value, 0.02 * value);
  }
}

// After a truncation, pages appended again give the index of one that never had others.
TEST(PageIndex, Truncation) {
  const HeadProjection projection = FitOnRandomHeads();
  Pages pages(&projection, 2 * kNodePages + 5, 7);
  pages.index.Truncate(2 * kNodePages + 5);
  EXPECT_EQ(pages.index.num_pages(), 2 * kNodePages + 5);
  pages.index.Truncate(2 * kNodePages - 1);
  EXPECT_EQ(pages.index.num_pages(), kNodePages) << "whole nodes stay";
  const Pages again(&projection, kNodePages, 7);
  const kernels::CodePages found = pages.index.Codes(0, kNodePages);
  const kernels::CodePages expected = again.index.Codes(0, kNodePages);
  EXPECT_TRUE(
      std::equal(found.codes, found.codes + kNodePages * kernels::kCodePageBytes, expected.codes));
  EXPECT_TRUE(std::equal(found.scales, found.scales + kNodePages, expected.scales));
  EXPECT_EQ(DecodeMeans(pages.index, 0, true), DecodeMeans(again.index, 0, true));
  std::vector<float> scales(kDim, 0.0f), fresh(kDim, 0.0f);
  pages.index.RaiseToMeanScales(scales.data());
  again.index.RaiseToMeanScales(fresh.data());
  EXPECT_EQ(scales, fresh);
}

Calibration SomeCalibration() {
  Calibration calibration(3, 2, kDim, {1, 2, 3});
  for (const int64_t layer : {0, 2}) {
    for (const int64_t head : {0, 1}) calibration.Set(layer, head, FitOnRandomHeads());
  }
  return calibration;
}

Result<Calibration> Parse(const std::string& bytes) {
  return Calibration::Parse(std::as_bytes(std::span(bytes)), "x.calibration");
}

TEST(Calibration, ComesBackAsItWasWritten) {
  const Calibration calibration = SomeCalibration();
  const std::string bytes = calibration.Serialize();
  const Calibration loaded = Parse(bytes).value();
  EXPECT_EQ(loaded.Serialize(), bytes);
  EXPECT_EQ(loaded.num_layers(), 3);
  EXPECT_EQ(loaded.fingerprint(), calibration.fingerprint());
  EXPECT_EQ(loaded.Find(1, 0), nullptr);
  const auto fitted = calibration.Find(2, 1)->key_map(), read = loaded.Find(2, 1)->key_map();
  EXPECT_TRUE(std::equal(fitted.begin(), fitted.end(), read.begin(), read.end()));
}

TEST(Calibration, RefusesBrokenFiles) {
  const std::string bytes = SomeCalibration().Serialize();
  for (size_t size = 0; size < bytes.size(); size = size < 100 ? size + 1 : size * 2) {
    EXPECT_EQ(Parse(bytes.substr(0, size)).status().code(), StatusCode::kCorruption) << size;
  }
  EXPECT_FALSE(Parse(bytes + "x").ok());
  for (const size_t at : {size_t{0}, size_t{9}, size_t{13}, size_t{60}, bytes.size() - 1}) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    const Result<Calibration> parsed = Parse(flipped);
    EXPECT_FALSE(parsed.ok()) << at;
    EXPECT_NE(parsed.status().message().find("x.calibration"), std::string::npos);
  }
  std::string version = bytes;
  version[8] = 7;
  EXPECT_EQ(Parse(version).status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace lode
