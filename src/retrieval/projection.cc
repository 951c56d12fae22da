// SPDX-License-Identifier: Apache-2.0
#include "retrieval/projection.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/check.h"
#include "kernels/dequantize.h"

namespace lode {
namespace {

using Matrix = Eigen::MatrixXd;
using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Share of the mean variance that is added to each: directions that were hardly seen must not
// become infinitely important (queries) or infinitely cheap (keys).
constexpr double kQueryRidge = 0.02;
constexpr double kKeyRidge = 0.001;

// Positive half of the Lloyd-Max levels (Max 1960, table I), and the variance that is left.
constexpr float kLevels1[] = {-0.7979f, 0.7979f};
constexpr float kLevels2[] = {-1.510f, -0.4528f, 0.4528f, 1.510f};
constexpr float kLevels3[] = {-2.152f, -1.344f, -0.7560f, -0.2451f,
                              0.2451f, 0.7560f, 1.344f,   2.152f};
constexpr float kLevels4[] = {-2.733f,  -2.069f,  -1.618f, -1.256f, -0.9424f, -0.6568f,
                              -0.3881f, -0.1284f, 0.1284f, 0.3881f, 0.6568f,  0.9424f,
                              1.256f,   1.618f,   2.069f,  2.733f};
constexpr std::array<double, kMaxBitsPerDim + 1> kVarianceLeft = {1.0, 0.3634, 0.1175, 0.03454,
                                                                  0.009497};

Matrix SecondMoment(const std::vector<double>& sums, int64_t count, int64_t n, double ridge) {
  Matrix moment = Eigen::Map<const RowMajor>(sums.data(), n, n) / static_cast<double>(count);
  moment.diagonal().array() += ridge * moment.diagonal().mean();
  return moment;
}

// Matrix powers 1/2 and -1/2 of a positive definite matrix.
std::pair<Matrix, Matrix> Roots(const Matrix& matrix) {
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(matrix);
  const auto values = solver.eigenvalues().cwiseMax(solver.eigenvalues().maxCoeff() * 1e-7).eval();
  const Matrix& vectors = solver.eigenvectors();
  return {vectors * values.cwiseSqrt().asDiagonal() * vectors.transpose(),
          vectors * values.cwiseSqrt().cwiseInverse().asDiagonal() * vectors.transpose()};
}

// Reverse water-filling: bit by bit to where it takes away the most weighted variance, as long as
// the fields still fit.
std::vector<uint8_t> AllocateBits(const Eigen::VectorXd& weights) {
  const int64_t n = weights.size();
  std::vector<uint8_t> bits(static_cast<size_t>(n), 0);
  const auto gain = [&](int64_t d) {
    const size_t b = bits[static_cast<size_t>(d)];
    return weights[d] * (kVarianceLeft[b] - kVarianceLeft[b + 1]);
  };
  for (int64_t spent = 0; spent < kCodeBits; ++spent) {
    std::vector<int64_t> order;
    for (int64_t d = 0; d < n; ++d) {
      if (bits[static_cast<size_t>(d)] < kMaxBitsPerDim) order.push_back(d);
    }
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return gain(a) > gain(b); });
    const auto fits = [&](int64_t d) {
      ++bits[static_cast<size_t>(d)];
      if (!PackFields(bits).empty()) return true;
      --bits[static_cast<size_t>(d)];
      return false;
    };
    if (std::none_of(order.begin(), order.end(), fits)) break;  // few dimensions: all have four
  }
  return bits;
}

}  // namespace

std::span<const float> LloydMaxLevels(int64_t bits) {
  LODE_CHECK(bits >= 1 && bits <= kMaxBitsPerDim);
  const std::span<const float> tables[] = {kLevels1, kLevels2, kLevels3, kLevels4};
  return tables[bits - 1];
}

std::vector<CodeField> PackFields(std::span<const uint8_t> bits) {
  std::vector<CodeField> fields;
  std::array<int32_t, kCodeNibbles> used = {};
  for (int32_t size = kMaxBitsPerDim; size >= 1; --size) {
    for (size_t d = 0; d < bits.size(); ++d) {
      if (bits[d] != size) continue;
      const auto place =
          std::find_if(used.begin(), used.end(), [&](int32_t u) { return u + size <= 4; });
      if (place == used.end()) return {};
      fields.push_back({.dim = static_cast<int32_t>(d),
                        .nibble = static_cast<int32_t>(place - used.begin()),
                        .shift = *place,
                        .bits = size});
      *place += size;
    }
  }
  return fields;
}

HeadStatistics::HeadStatistics(int64_t head_dim)
    : head_dim_(head_dim),
      key_sums_(static_cast<size_t>(head_dim * head_dim), 0.0),
      query_sums_(key_sums_.size(), 0.0) {}

void HeadStatistics::AddKeyResidual(const float* residual) {
  ++num_keys_;
  for (int64_t i = 0; i < head_dim_; ++i) {
    for (int64_t j = 0; j < head_dim_; ++j) {
      key_sums_[static_cast<size_t>(i * head_dim_ + j)] += double{residual[i]} * residual[j];
    }
  }
}

void HeadStatistics::AddQuery(const float* query) {
  ++num_queries_;
  for (int64_t i = 0; i < head_dim_; ++i) {
    for (int64_t j = 0; j < head_dim_; ++j) {
      query_sums_[static_cast<size_t>(i * head_dim_ + j)] += double{query[i]} * query[j];
    }
  }
}

Result<HeadProjection> HeadProjection::Fit(const HeadStatistics& statistics) {
  const int64_t n = statistics.head_dim();
  if (statistics.num_keys() == 0 || statistics.num_queries() == 0) {
    return InvalidArgumentError("key projection: " + std::to_string(statistics.num_keys()) +
                                " keys and " + std::to_string(statistics.num_queries()) +
                                " queries seen, expected at least one of each");
  }
  const Matrix keys = SecondMoment(statistics.key_sums(), statistics.num_keys(), n, kKeyRidge);
  const Matrix queries =
      SecondMoment(statistics.query_sums(), statistics.num_queries(), n, kQueryRidge);
  if (!keys.allFinite() || !queries.allFinite() || keys.diagonal().maxCoeff() <= 0.0 ||
      queries.diagonal().maxCoeff() <= 0.0) {
    return InvalidArgumentError("key projection: keys or queries are all zero or not finite");
  }
  const auto [root, inverse_root] = Roots(keys);
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(root * queries * root);
  // Ascending; S^2 are the eigenvalues.
  const Eigen::VectorXd squares =
      solver.eigenvalues().cwiseMax(solver.eigenvalues().maxCoeff() * 1e-9).reverse();
  const Matrix vectors = solver.eigenvectors().rowwise().reverse();
  const Eigen::VectorXd s = squares.cwiseSqrt();
  const Matrix map = (inverse_root * vectors * s.cwiseSqrt().asDiagonal()).transpose();
  const Eigen::VectorXd deviations = (map * keys * map.transpose()).diagonal().cwiseSqrt();

  std::vector<float> key_map(static_cast<size_t>(n * n));
  Eigen::Map<Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(
      key_map.data(), n, n) = map.cast<float>();
  // As a calibration file holds it, so that a fit and a loaded file are the same.
  for (float& x : key_map) x = kernels::HalfToFloat(kernels::FloatToHalf(x));
  std::vector<float> deviation_floats(static_cast<size_t>(n));
  for (int64_t d = 0; d < n; ++d) {
    deviation_floats[static_cast<size_t>(d)] = static_cast<float>(deviations[d]);
  }
  return Create(n, std::move(key_map), std::move(deviation_floats), AllocateBits(squares));
}

Result<HeadProjection> HeadProjection::Create(int64_t head_dim, std::vector<float> key_map,
                                              std::vector<float> deviations,
                                              std::vector<uint8_t> bits) {
  const auto n = static_cast<size_t>(head_dim);
  const auto refuse = [](const std::string& what) {
    return InvalidArgumentError("key projection: " + what);
  };
  if (head_dim <= 0 || key_map.size() != n * n || deviations.size() != n || bits.size() != n) {
    return refuse("head_dim " + std::to_string(head_dim) + " does not go with " +
                  std::to_string(key_map.size()) + " map entries, " +
                  std::to_string(deviations.size()) + " deviations and " +
                  std::to_string(bits.size()) + " bit counts");
  }
  const auto is_finite = [](float x) { return std::isfinite(x); };
  const auto is_positive = [](float x) { return std::isfinite(x) && x > 0.0f; };
  if (!std::all_of(key_map.begin(), key_map.end(), is_finite) ||
      !std::all_of(deviations.begin(), deviations.end(), is_positive)) {
    return refuse("expected finite maps and positive deviations");
  }
  std::vector<CodeField> fields = PackFields(bits);
  if (fields.empty() || *std::max_element(bits.begin(), bits.end()) > kMaxBitsPerDim) {
    return refuse("bits per dimension that do not fit " + std::to_string(kCodeNibbles) +
                  " nibbles");
  }
  using RowMajorFloat = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Matrix map =
      Eigen::Map<const RowMajorFloat>(key_map.data(), head_dim, head_dim).cast<double>();
  const Eigen::FullPivLU<Matrix> solver(map);
  if (!solver.isInvertible()) return refuse("the map cannot be inverted");

  HeadProjection projection;
  projection.head_dim_ = head_dim;
  projection.query_map_.resize(n * n);
  Eigen::Map<RowMajorFloat>(projection.query_map_.data(), head_dim, head_dim) =
      solver.inverse().transpose().cast<float>();
  projection.key_map_ = std::move(key_map);
  projection.deviations_ = std::move(deviations);
  projection.bits_ = std::move(bits);
  projection.fields_ = std::move(fields);
  projection.MakeMaps();
  return projection;
}

void HeadProjection::MakeMaps() {
  const auto n = static_cast<size_t>(head_dim_);
  table_map_.assign(n * kCodeEntries, 0.0f);
  for (const CodeField& field : fields_) {
    const auto dim = static_cast<size_t>(field.dim);
    const float deviation = deviations_[dim];
    const std::span<const float> levels = LloydMaxLevels(field.bits);
    const auto mask = static_cast<size_t>((1 << field.bits) - 1);
    for (size_t d = 0; d < n; ++d) {
      field_map_.push_back(key_map_[dim * n + d] / deviation);
      float* tables = &table_map_[d * kCodeEntries + static_cast<size_t>(field.nibble) * 16];
      for (size_t entry = 0; entry < 16; ++entry) {
        tables[entry] +=
            query_map_[dim * n + d] * deviation * levels[(entry >> field.shift) & mask];
      }
    }
  }
}

void HeadProjection::MapKey(const float* key, float* out) const {
  using RowMajorFloat = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  Eigen::Map<Eigen::VectorXf>(out, head_dim_) =
      Eigen::Map<const RowMajorFloat>(key_map_.data(), head_dim_, head_dim_) *
      Eigen::Map<const Eigen::VectorXf>(key, head_dim_);
}

void HeadProjection::MapQuery(const float* query, float* out) const {
  using RowMajorFloat = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  Eigen::Map<Eigen::VectorXf>(out, head_dim_) =
      Eigen::Map<const RowMajorFloat>(query_map_.data(), head_dim_, head_dim_) *
      Eigen::Map<const Eigen::VectorXf>(query, head_dim_);
}

}  // namespace lode
