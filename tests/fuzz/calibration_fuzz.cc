// SPDX-License-Identifier: Apache-2.0
// Fuzzes the reader of calibration files. The checksum is put right first, so that what lies behind
// it is reached; what is read must come back as it was written.
#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include "retrieval/calibration.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  if (size >= sizeof(uint64_t)) {
    const uint64_t hash = XXH3_64bits(bytes.data(), size - sizeof(uint64_t));
    std::memcpy(bytes.data() + size - sizeof(hash), &hash, sizeof(hash));
  }
  const auto calibration = lode::Calibration::Parse(std::as_bytes(std::span(bytes)), "fuzz");
  if (!calibration.ok()) return 0;
  const std::string again = calibration->Serialize();
  if (!lode::Calibration::Parse(std::as_bytes(std::span(again)), "fuzz").ok()) std::abort();
  return 0;
}
