// SPDX-License-Identifier: Apache-2.0
// Fuzzes ParseSafetensors and ParseSafetensorsIndex. The first byte chooses how the file is made of
// the rest: as it is, or as header and data with a header length that fits, which gets past the
// first check. Invariant: accepted tensors lie inside the file and cover its data.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "formats/safetensors.h"

namespace {

void ParseFile(std::string_view file) {
  const auto tensors = lode::ParseSafetensors(std::as_bytes(std::span(file)), "fuzz");
  if (!tensors.ok()) return;
  uint64_t covered = 0;
  for (const lode::SafetensorsTensor& tensor : *tensors) {
    if (tensor.begin > tensor.end || tensor.end > file.size()) std::abort();
    covered += tensor.end - tensor.begin;
  }
  if (covered > file.size()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const uint8_t choice = data[0];
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (choice == 0) {
    ParseFile(rest);
  } else if (choice < 32) {
    (void)lode::ParseSafetensorsIndex(rest, "fuzz").status();
  } else {
    // Up to 223 bytes of data behind the header: with and without room for the parser's padding.
    const uint64_t header_bytes = rest.size();
    std::string file(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
    file.append(rest).append(choice - 32, '\0');
    ParseFile(file);
  }
  return 0;
}
