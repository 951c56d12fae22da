// SPDX-License-Identifier: Apache-2.0
// The configuration of a Hugging Face folder, translated to GGUF's metadata keys. docs/formats.md
// lists which key becomes which. Where a key is absent, the default is that of the model's class in
// transformers, since that is what the reference would use.
#ifndef LODE_FORMATS_HF_CONFIG_H_
#define LODE_FORMATS_HF_CONFIG_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "formats/metadata.h"

namespace lode {

struct HfConfig {
  Metadata metadata;
  std::vector<std::unique_ptr<std::string>> strings;  // what string_views in `metadata` point to
  std::string architecture;                           // "qwen2", as in general.architecture
  bool tied_embeddings = false;                       // no output.weight: token_embd.weight serves
};

// `config` is the text of config.json, `generation` that of generation_config.json or empty;
// `folder` goes into messages. Errors: Corruption (not JSON, a value of the wrong type);
// NotFound (a required key); Unsupported (a class of model or a feature that lodestone would
// compute wrongly: quantised checkpoints, other activations, partial or per-layer rope).
Result<HfConfig> TranslateHfConfig(std::string_view config, std::string_view generation,
                                   const std::string& folder);

}  // namespace lode

#endif  // LODE_FORMATS_HF_CONFIG_H_
