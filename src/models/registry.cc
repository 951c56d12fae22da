// SPDX-License-Identifier: Apache-2.0
// LoadModel: from an opened file to a model. All four families are configurations of Decoder.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "base/log.h"
#include "models/decoder.h"
#include "models/model.h"

namespace lode {
namespace {

// Text 2 measured that stretching positions further than this hurts a model that was not trained
// with it.
constexpr double kLargestHarmlessFactor = 1.2;

const std::string& DisplayName(const ModelConfig& config) {
  return config.name.empty() ? config.architecture : config.name;
}

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
        factor, kLargestHarmlessFactor, DisplayName(config)));
  }
  config.rope.scaling = RopeScaling::kLinear;
  config.rope.factor = factor;
  return OkStatus();
}

// Tokens that positions reach once rope scaling has stretched them. Files of linear and llama3
// scaling state the stretched length as their context length; those of dynamic and YaRN scaling
// state either length. `linear_factor` (0: none) replaces the stored scaling.
int64_t StretchedContext(int64_t context_length, const RopeConfig& rope, double linear_factor) {
  const double trained = static_cast<double>(context_length);
  double reach = trained;
  if (linear_factor > 0.0) {
    reach = trained * linear_factor / (rope.scaling == RopeScaling::kLinear ? rope.factor : 1.0);
  } else if (rope.scaling == RopeScaling::kDynamic || rope.scaling == RopeScaling::kYarn) {
    reach = std::max(trained, static_cast<double>(rope.original_context) * rope.factor);
  }
  return static_cast<int64_t>(std::min(reach, 1e15));
}

// Nothing stops a longer context, but the model has never seen such positions.
void WarnOfLongContext(const ModelConfig& config, const RopeConfig& stored_rope, int64_t context,
                       double linear_factor) {
  const int64_t reach = StretchedContext(config.context_length, stored_rope, linear_factor);
  if (context <= reach) return;
  const std::string stretched =
      reach == config.context_length ? "" : fmt::format(", stretched to {}", reach);
  const double needed =
      std::ceil(100.0 * static_cast<double>(context) / static_cast<double>(config.context_length)) /
      100.0;
  LogWarning(fmt::format(
      "context of {} tokens: {} was trained for {}{}; expect bad answers beyond. Linear rope "
      "scaling would stretch its positions: --rope-interpolation-factor {} (above {} answers get "
      "worse everywhere unless the model was trained with it). Dynamic, yarn and llama3 scaling "
      "are "
      "used when the model's own file asks for them",
      context, DisplayName(config), config.context_length, stretched, needed,
      kLargestHarmlessFactor));
}

// A stored vector dimension that the block size of its type does not divide was refused by
// formats/; what the fast kernels lack is converted here, and the user is told once.
void NoteConversions(const WeightSource& source) {
  std::map<DType, int64_t> converted;  // tensors by stored type
  for (const StoredTensor& tensor : source.tensors()) {
    if (tensor.view.shape.num_dims != 2) continue;
    if (kernels::PackedTypeFor(tensor.view.type) != tensor.view.type) ++converted[tensor.view.type];
  }
  std::string list;
  for (const auto& [type, count] : converted) {
    list += fmt::format("{}{} {} to {}", list.empty() ? "" : ", ", count, Traits(type).name,
                        Traits(kernels::PackedTypeFor(type)).name);
  }
  if (list.empty()) return;
  LogWarning("types without a kernel of their own, converted at load (tensors): " + list);
}

}  // namespace

Result<ModelConfig> ConfigureModel(const WeightSource& source, const ModelLoadOptions& options) {
  LODE_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(source));
  double factor = options.rope_linear_factor;
  if (factor == 0.0) {
    LODE_ASSIGN_OR_RETURN(factor, source.metadata().GetFloatOr(
                                      config.architecture + ".rope_interpolation_factor", 0.0));
  }
  const RopeConfig stored_rope = config.rope;
  LODE_RETURN_IF_ERROR(OverrideRope(factor, config));
  WarnOfLongContext(config, stored_rope, options.context_len, factor);
  return config;
}

Result<std::unique_ptr<Model>> LoadModel(const WeightSource& source,
                                         const ModelLoadOptions& options, ThreadPool& pool) {
  LODE_ASSIGN_OR_RETURN(ModelConfig config, ConfigureModel(source, options));
  NoteConversions(source);
  return Decoder::Load(source, std::move(config), options, pool);
}

}  // namespace lode
