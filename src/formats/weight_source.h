// SPDX-License-Identifier: Apache-2.0
// WeightSource: a model's named tensors and metadata, whatever the files are (GGUF single or split,
// Hugging Face folder). Tensor names and metadata keys are GGUF's ("blk.0.attn_q.weight"); Hugging
// Face names are translated when the folder is opened, so models/ knows one spelling.
#ifndef LODE_FORMATS_WEIGHT_SOURCE_H_
#define LODE_FORMATS_WEIGHT_SOURCE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "formats/metadata.h"
#include "tensor/tensor.h"

namespace lode {

enum class FileKind : uint8_t { kGguf, kHuggingFace };

struct StoredTensor {
  std::string name;      // canonical (GGUF) name
  TensorView view;       // shape with the contiguous dimension last
  uint32_t file_index;   // into WeightSource::files()
  uint64_t file_offset;  // of the first byte
};

class WeightSource {
 public:
  FileKind kind() const { return kind_; }
  // The path the user gave.
  const std::string& path() const { return path_; }
  const Metadata& metadata() const { return metadata_; }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const std::vector<MappedFile>& files() const { return files_; }
  // Null when there is no such tensor.
  const StoredTensor* Find(std::string_view name) const;
  // The tensor, which must have this shape. NotFound or Corruption with name, expected and found
  // shape.
  Result<TensorView> Get(std::string_view name, const Shape& expected) const;
  // Total bytes of all tensors.
  uint64_t tensor_bytes() const;
  // Contents of a text file of the Hugging Face folder ("tokenizer.json"), empty if absent or for
  // GGUF.
  std::string_view side_file(std::string_view name) const;

 private:
  friend class WeightSourceBuilder;
  FileKind kind_ = FileKind::kGguf;
  std::string path_;
  Metadata metadata_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
  std::vector<MappedFile> files_;
  std::map<std::string, MappedFile, std::less<>> side_files_;
  std::vector<std::unique_ptr<std::string>>
      owned_strings_;  // strings the metadata views point to (Hugging Face)
};

// Opens a .gguf file (any one of a split set) or a Hugging Face folder. Reads headers only.
// Threads: none. Errors: NotFound, Corruption, Unsupported (big-endian, unknown version or tensor
// type), Io; each with file, key or tensor, byte offset, expected and found. Hostile headers are
// refused in under 100 ms and 10 MB.
Result<std::unique_ptr<WeightSource>> OpenWeights(const std::string& path);

}  // namespace lode

#endif  // LODE_FORMATS_WEIGHT_SOURCE_H_
