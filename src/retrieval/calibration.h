// SPDX-License-Identifier: Apache-2.0
// Calibration: the key projections of all layers and KV heads of one model, and their file.
//
// The file (little endian): "LODECALB", uint32 version, num_layers, num_kv_heads, head_dim, then
// the 16 bytes of the model's fingerprint, then per layer and KV head one byte, 1 if a projection
// follows: uint8 bits [head_dim], f32 deviations [head_dim], f16 key map [head_dim][head_dim]; and
// at the end the XXH3 hash of all before it.
#ifndef LODE_RETRIEVAL_CALIBRATION_H_
#define LODE_RETRIEVAL_CALIBRATION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "retrieval/projection.h"

namespace lode {

// Says which weights keys come from: a calibration fits no other model.
using ModelFingerprint = std::array<uint8_t, 16>;

class Calibration {
 public:
  Calibration(int64_t num_layers, int64_t num_kv_heads, int64_t head_dim,
              const ModelFingerprint& fingerprint);
  // Corruption (with the offset) for a broken file, Unsupported for another version. `name` is for
  // messages. Never allocates more than a few times the size of `bytes`.
  static Result<Calibration> Parse(std::span<const std::byte> bytes, const std::string& name);
  std::string Serialize() const;

  int64_t num_layers() const { return num_layers_; }
  int64_t num_kv_heads() const { return num_kv_heads_; }
  int64_t head_dim() const { return head_dim_; }
  const ModelFingerprint& fingerprint() const { return fingerprint_; }

  // Null for a layer that has none (its attention slides).
  const HeadProjection* Find(int64_t layer, int64_t kv_head) const;
  void Set(int64_t layer, int64_t kv_head, HeadProjection projection);

 private:
  size_t Index(int64_t layer, int64_t kv_head) const;

  int64_t num_layers_, num_kv_heads_, head_dim_;
  ModelFingerprint fingerprint_;
  std::vector<std::optional<HeadProjection>> heads_;  // [num_layers][num_kv_heads]
};

}  // namespace lode

#endif  // LODE_RETRIEVAL_CALIBRATION_H_
