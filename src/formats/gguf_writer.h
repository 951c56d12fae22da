// SPDX-License-Identifier: Apache-2.0
// GgufWriter: builds a small GGUF file in memory. Used by tests; it checks nothing, so that tests
// can write files that break the rules.
#ifndef LODE_FORMATS_GGUF_WRITER_H_
#define LODE_FORMATS_GGUF_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "formats/gguf.h"
#include "tensor/tensor.h"

namespace lode {

class GgufWriter {
 public:
  // Data is padded to `alignment`; add the key general.alignment yourself when it is not 32.
  explicit GgufWriter(uint32_t version = 3, uint64_t alignment = 32)
      : version_(version), alignment_(alignment) {}

  void AddUint32(std::string_view key, uint32_t value);
  void AddInt32(std::string_view key, int32_t value);
  void AddUint64(std::string_view key, uint64_t value);
  void AddFloat32(std::string_view key, float value);
  void AddBool(std::string_view key, bool value);
  void AddString(std::string_view key, std::string_view value);
  void AddStrings(std::string_view key, std::span<const std::string> values);
  void AddInt32s(std::string_view key, std::span<const int32_t> values);
  void AddFloat32s(std::string_view key, std::span<const float> values);
  // Any type id with the value's bytes as they stand in the file.
  void AddRaw(std::string_view key, uint32_t type_id, std::string_view value_bytes);

  // `shape` has the contiguous dimension last. `data` is copied.
  void AddTensor(std::string_view name, DType type, const Shape& shape,
                 std::span<const std::byte> data);
  // As above with zeros.
  void AddZeroTensor(std::string_view name, DType type, const Shape& shape);

  // The file's bytes.
  std::string Serialize() const;
  // Writes them to `path`. Io with the system's reason.
  Status WriteTo(const std::string& path) const;

 private:
  void StartPair(std::string_view key, GgufType type);

  uint32_t version_;
  uint64_t alignment_;
  uint64_t num_pairs_ = 0;
  uint64_t num_tensors_ = 0;
  std::string pairs_;
  std::string infos_;
  std::string data_;
};

}  // namespace lode

#endif  // LODE_FORMATS_GGUF_WRITER_H_
