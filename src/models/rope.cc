// SPDX-License-Identifier: Apache-2.0
#include "models/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lode {
namespace {

using Frequencies = std::vector<double>;

Frequencies PlainFrequencies(double base, int64_t head_dim) {
  Frequencies frequencies(head_dim / 2);
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    frequencies[i] = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
  }
  return frequencies;
}

// "NTK-aware" growth of the base once the context exceeds the trained one.
double DynamicBase(const RopeConfig& config, int64_t head_dim, int64_t context_len) {
  if (context_len <= config.original_context) return config.base;
  const double stretch = config.factor * static_cast<double>(context_len) /
                             static_cast<double>(config.original_context) -
                         (config.factor - 1.0);
  const double dim = static_cast<double>(head_dim);
  return config.base * std::pow(stretch, dim / (dim - 2.0));
}

// YaRN: low frequencies are interpolated, high ones kept, with a linear ramp over the pairs between
// them.
void ApplyYarn(const RopeConfig& config, int64_t head_dim, Frequencies& frequencies) {
  const double dim = static_cast<double>(head_dim);
  // The (fractional) pair that turns `rotations` times over the original context.
  const auto pair_of = [&](double rotations) {
    return dim *
           std::log(static_cast<double>(config.original_context) /
                    (rotations * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(config.base));
  };
  const double low = std::max(std::floor(pair_of(config.beta_fast)), 0.0);
  double high = std::min(std::ceil(pair_of(config.beta_slow)), dim - 1.0);
  if (low == high) high += 0.001;  // As the reference does, to keep the ramp finite.
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / config.factor * ramp + frequencies[i] * (1.0 - ramp);
  }
}

void ApplyLlama3(const RopeConfig& config, Frequencies& frequencies) {
  const double original = static_cast<double>(config.original_context);
  for (double& frequency : frequencies) {
    const double turns = original * frequency / (2.0 * std::numbers::pi);  // over the old context
    if (turns < config.low_freq_factor) {
      frequency /= config.factor;
    } else if (turns <= config.high_freq_factor) {
      const double smooth =
          (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor);
      frequency = (1.0 - smooth) * frequency / config.factor + smooth * frequency;
    }
  }
}

}  // namespace

RopeTable::RopeTable(const RopeConfig& config, int64_t head_dim, int64_t context_len) {
  const double base = config.scaling == RopeScaling::kDynamic
                          ? DynamicBase(config, head_dim, context_len)
                          : config.base;
  Frequencies frequencies = PlainFrequencies(base, head_dim);
  switch (config.scaling) {
    case RopeScaling::kNone:
    case RopeScaling::kDynamic:
      break;
    case RopeScaling::kLinear:
      for (double& frequency : frequencies) frequency /= config.factor;
      break;
    case RopeScaling::kYarn:
      ApplyYarn(config, head_dim, frequencies);
      magnitude_ = static_cast<float>(config.attention_factor);
      break;
    case RopeScaling::kLlama3:
      ApplyLlama3(config, frequencies);
      break;
  }
  for (size_t i = 0; i < config.factors.size(); ++i) frequencies[i] /= config.factors[i];
  inverse_frequencies_.assign(frequencies.begin(), frequencies.end());
}

void RopeTable::Fill(int64_t position, float* cos, float* sin) const {
  for (size_t i = 0; i < inverse_frequencies_.size(); ++i) {
    const float angle = static_cast<float>(position) * inverse_frequencies_[i];
    cos[i] = magnitude_ * std::cos(angle);
    sin[i] = magnitude_ * std::sin(angle);
  }
}

}  // namespace lode
