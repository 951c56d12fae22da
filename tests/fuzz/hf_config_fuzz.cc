// SPDX-License-Identifier: Apache-2.0
// Fuzzes TranslateHfConfig and CanonicalTensorName. The input is config.json and, after a zero
// byte, generation_config.json.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "formats/hf_config.h"
#include "formats/hf_names.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t split = std::min(text.find('\0'), text.size());
  const std::string_view generation = text.substr(std::min(split + 1, text.size()));
  (void)lode::TranslateHfConfig(text.substr(0, split), generation, "fuzz").status();
  (void)lode::CanonicalTensorName("gemma3", text);
  return 0;
}
