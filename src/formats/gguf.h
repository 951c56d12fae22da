// SPDX-License-Identifier: Apache-2.0
// GGUF reader, versions 2 and 3, little endian. A file is: "GGUF", version, counts, key-value
// pairs, tensor infos, padding to general.alignment, tensor data. Specification:
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
//
// One pass over the header, every length checked against the bytes that remain before it is used.
// Strings and tensor data stay in the mapping.
#ifndef LODE_FORMATS_GGUF_H_
#define LODE_FORMATS_GGUF_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "formats/metadata.h"
#include "formats/weight_source.h"
#include "tensor/tensor.h"

namespace lode {

// Type ids of metadata values.
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

struct GgufTensor {
  std::string_view name;
  DType type = DType::kF32;
  Shape shape;               // contiguous dimension last: the file's order turned round
  uint64_t file_offset = 0;  // of the first byte
  uint64_t info_offset = 0;  // where the header describes it
};

struct GgufHeader {
  uint32_t version = 0;
  uint64_t alignment = 0;
  Metadata metadata;
  std::vector<GgufTensor> tensors;
};

// Parses and checks everything but the weights' values: types, shapes, that each tensor's bytes lie
// aligned inside the file, and that no two share any. `file` is the whole file and must outlive the
// result; `origin` names it in messages. Errors: Corruption; Unsupported (version 1, big-endian,
// arrays of arrays, tensor types lodestone does not read).
Result<GgufHeader> ParseGguf(std::span<const std::byte> file, const std::string& origin);

// Opens a file, or the whole set when it is one part of a split model
// (NAME-00001-of-00003.gguf). Metadata is the first part's. NotFound names a missing part.
Result<std::unique_ptr<WeightSource>> OpenGguf(const std::string& path);

}  // namespace lode

#endif  // LODE_FORMATS_GGUF_H_
