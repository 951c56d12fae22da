// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding tables: inverse frequencies of a RopeConfig and the cosines and sines
// of positions.
//
// Equal to transformers' rope initialisation functions: the angle is the f32 product of position
// and inverse frequency. Sources: Su et al. 2021 (RoPE); Chen et al. 2023 (linear interpolation);
// Peng et al. 2023 (YaRN, section 3); Llama 3.1's frequency-dependent scaling.
#ifndef LODE_MODELS_ROPE_H_
#define LODE_MODELS_ROPE_H_

#include <cstdint>
#include <vector>

#include "models/model_config.h"

namespace lode {

class RopeTable {
 public:
  // context_len: tokens the sequence may reach. Only the dynamic type depends on it: its base is
  // fixed for that length, so that the keys of a sequence agree with each other however it was
  // chunked.
  RopeTable(const RopeConfig& config, int64_t head_dim, int64_t context_len);

  // Cosines and sines of one position, each [head_dim / 2], times the YaRN attention factor.
  void Fill(int64_t position, float* cos, float* sin) const;
  const std::vector<float>& inverse_frequencies() const { return inverse_frequencies_; }

 private:
  std::vector<float> inverse_frequencies_;  // [head_dim / 2]
  float magnitude_ = 1.0f;
};

}  // namespace lode

#endif  // LODE_MODELS_ROPE_H_
