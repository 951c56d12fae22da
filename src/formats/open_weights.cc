// SPDX-License-Identifier: Apache-2.0
// OpenWeights: which reader opens which path. A new format adds its line here.
#include <fmt/format.h>

#include "formats/gguf.h"
#include "formats/weight_source.h"

namespace lode {

Result<std::unique_ptr<WeightSource>> OpenWeights(const std::string& path) {
  return OpenGguf(path);
}

}  // namespace lode
