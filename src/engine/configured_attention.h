// SPDX-License-Identifier: Apache-2.0
// What a model's own configuration says of attention: keys of config.json, or with "lode." before
// them, metadata of a GGUF file. Options of the caller win over it.
#ifndef LODE_ENGINE_CONFIGURED_ATTENTION_H_
#define LODE_ENGINE_CONFIGURED_ATTENTION_H_

#include <string>

#include "attention/attention.h"
#include "base/status.h"
#include "engine/engine.h"
#include "formats/metadata.h"
#include "formats/weight_source.h"

namespace lode {

// The attention that options or else attention_implementation name, else flash. InvalidArgument
// names the file and lists the known ones.
Result<std::string> AttentionOf(const WeightSource& source, const EngineOptions& options);

// options.sparse, with the values of the configuration for all SparseParameters that are not in
// options.sparse_given, where use_hca and hca_summary are one: a flag for either wins. Corruption
// names the file, the key, what was expected and what was found.
Result<SparseOptions> SparseOptionsOf(const WeightSource& source, const EngineOptions& options);

// A line in the log for every csa_ and hca_ key that is no parameter.
void WarnOfUnknownSparseKeys(const Metadata& metadata);

}  // namespace lode

#endif  // LODE_ENGINE_CONFIGURED_ATTENTION_H_
