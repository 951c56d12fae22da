// SPDX-License-Identifier: Apache-2.0
// Names of tensors in Hugging Face checkpoints, translated to GGUF's.
#ifndef LODE_FORMATS_HF_NAMES_H_
#define LODE_FORMATS_HF_NAMES_H_

#include <optional>
#include <string>
#include <string_view>

namespace lode {

// The canonical name of a text model's tensor ("model.layers.0.self_attn.q_proj.weight" is
// "blk.0.attn_q.weight"), or nothing for tensors that lodestone has no use for. `architecture` is
// GGUF's: the same Hugging Face name means different norms in gemma3 and elsewhere.
std::optional<std::string> CanonicalTensorName(std::string_view architecture,
                                               std::string_view hf_name);

// Whether this tensor is known and deliberately left out: the vision tower and its projector, and
// rope tables that follow from the configuration.
bool IsIgnoredTensor(std::string_view hf_name);

}  // namespace lode

#endif  // LODE_FORMATS_HF_NAMES_H_
