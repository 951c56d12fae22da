// SPDX-License-Identifier: Apache-2.0
// OpenWeights: which reader opens which path. A new format adds its line here.
#include <filesystem>
#include <string>
#include <system_error>

#include "formats/gguf.h"
#include "formats/hugging_face.h"
#include "formats/weight_source.h"

namespace lode {

Result<std::unique_ptr<WeightSource>> OpenWeights(const std::string& path) {
  std::error_code ignored;  // A path that cannot be examined fails in the reader, with its reason.
  if (std::filesystem::is_directory(path, ignored)) return OpenHuggingFace(path);
  if (path.ends_with(".safetensors") || path.ends_with(".json")) {
    return InvalidArgumentError(path +
                                ": expected a .gguf file or a Hugging Face folder, found a "
                                "file of such a folder; give the folder itself");
  }
  return OpenGguf(path);
}

}  // namespace lode
