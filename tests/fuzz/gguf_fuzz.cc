// SPDX-License-Identifier: Apache-2.0
// Fuzzes ParseGguf. Invariant: whatever is accepted lies inside the input. The custom mutator keeps
// inputs past the magic and version, where the parser is; without it nearly all die there.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "formats/gguf.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  constexpr size_t kPreamble = 24;
  size = LLVMFuzzerMutate(data, size, max_size);
  if (seed % 8 == 0 || max_size < kPreamble) return size;
  if (size < kPreamble) {
    std::memset(data + size, 0, kPreamble - size);
    size = kPreamble;
  }
  std::memcpy(data, "GGUF\3\0\0\0", 8);
  // Counts of a few, so that they fit the input.
  for (const size_t count : {size_t{8}, size_t{16}}) {
    data[count] &= 7;
    std::memset(data + count + 1, 0, 7);
  }
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  const lode::Result<lode::GgufHeader> header = lode::ParseGguf(file, "fuzz");
  if (!header.ok()) return 0;
  for (const lode::GgufTensor& tensor : header->tensors) {
    const lode::TensorView view{tensor.type, tensor.shape, file.data() + tensor.file_offset};
    if (view.bytes() <= 0 || tensor.file_offset + static_cast<uint64_t>(view.bytes()) > size) {
      std::abort();
    }
  }
  for (const auto& [key, value] : header->metadata.values()) {
    (void)header->metadata.GetInt(key, 1, 512).status();
    (void)header->metadata.GetFloat(key).status();
  }
  return 0;
}
