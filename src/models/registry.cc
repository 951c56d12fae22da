// SPDX-License-Identifier: Apache-2.0
// LoadModel: from an opened file to a model. All four families are configurations of Decoder.
#include <fmt/format.h>

#include "base/log.h"
#include "models/decoder.h"
#include "models/model.h"

namespace lode {
namespace {

// Text 2 measured that stretching positions further than this hurts a model that was not trained
// with it.
constexpr double kLargestHarmlessFactor = 1.2;

Status OverrideRope(double factor, ModelConfig& config) {
  if (factor == 0.0) return OkStatus();
  if (!(factor >= 1.0 && factor <= 1024.0)) {
    return InvalidArgumentError(
        fmt::format("rope_interpolation_factor: expected a number in [1, 1024], found {}", factor));
  }
  if (factor > kLargestHarmlessFactor && factor != config.rope.factor) {
    LogWarning(fmt::format(
        "rope_interpolation_factor {} is above {}: {} was not trained with it, expect worse "
        "answers",
        factor, kLargestHarmlessFactor, config.name.empty() ? config.architecture : config.name));
  }
  config.rope.scaling = RopeScaling::kLinear;
  config.rope.factor = factor;
  return OkStatus();
}

// A stored vector dimension that the block size of its type does not divide was refused by
// formats/; what the fast kernels lack is converted here, and the user is told once.
void NoteConversions(const WeightSource& source) {
  int64_t converted = 0;
  DType from = DType::kF32;
  for (const StoredTensor& tensor : source.tensors()) {
    if (tensor.view.shape.num_dims != 2) continue;
    if (kernels::PackedTypeFor(tensor.view.type) == tensor.view.type) continue;
    ++converted;
    from = tensor.view.type;
  }
  if (converted == 0) return;
  LogWarning(fmt::format(
      "{} tensors ({} and maybe others) have no kernel of their own: converted to {} at load",
      converted, Traits(from).name, Traits(kernels::PackedTypeFor(from)).name));
}

}  // namespace

Result<std::unique_ptr<Model>> LoadModel(const WeightSource& source,
                                         const ModelLoadOptions& options, ThreadPool& pool) {
  LODE_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(source));
  double factor = options.rope_linear_factor;
  if (factor == 0.0) {
    LODE_ASSIGN_OR_RETURN(factor, source.metadata().GetFloatOr(
                                      config.architecture + ".rope_interpolation_factor", 0.0));
  }
  LODE_RETURN_IF_ERROR(OverrideRope(factor, config));
  NoteConversions(source);
  return Decoder::Load(source, std::move(config), options, pool);
}

}  // namespace lode
