// SPDX-License-Identifier: Apache-2.0
// Hugging Face folders: config.json, generation_config.json, safetensors (one file, or several with
// an index) and the tokenizer's files, opened as a WeightSource with GGUF's names and keys.
#ifndef LODE_FORMATS_HUGGING_FACE_H_
#define LODE_FORMATS_HUGGING_FACE_H_

#include <memory>
#include <string>

#include "base/status.h"
#include "formats/weight_source.h"

namespace lode {

// Weights stay as stored: Gemma's norms without the 1 that GGUF adds, Llama's query and key rows
// not permuted. Whoever reads them asks WeightSource::kind(). Errors: NotFound (config.json,
// weights or a shard), and those of TranslateHfConfig, ParseSafetensors and ParseSafetensorsIndex.
Result<std::unique_ptr<WeightSource>> OpenHuggingFace(const std::string& folder);

}  // namespace lode

#endif  // LODE_FORMATS_HUGGING_FACE_H_
