// SPDX-License-Identifier: Apache-2.0
// WeightSourceBuilder: the one way to make a WeightSource, for the readers in this folder.
#ifndef LODE_FORMATS_WEIGHT_SOURCE_BUILDER_H_
#define LODE_FORMATS_WEIGHT_SOURCE_BUILDER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "formats/weight_source.h"

namespace lode {

class WeightSourceBuilder {
 public:
  // `path` is what the user gave.
  WeightSourceBuilder(FileKind kind, std::string path);

  // Takes a file of weights; returns its index. Its bytes stay where they are.
  uint32_t AddFile(MappedFile file);
  void AddSideFile(std::string name, MappedFile file);
  void SetMetadata(Metadata metadata) { source_->metadata_ = std::move(metadata); }
  // The string, living as long as the source.
  std::string_view OwnString(std::string text);
  // Takes strings that metadata points to.
  void OwnStrings(std::vector<std::unique_ptr<std::string>> strings);
  // Adds a tensor whose bytes were checked to lie in the file. Corruption: the name exists.
  Status AddTensor(std::string name, DType type, const Shape& shape, uint32_t file_index,
                   uint64_t file_offset);
  std::unique_ptr<WeightSource> Build() { return std::move(source_); }

 private:
  std::unique_ptr<WeightSource> source_;
};

}  // namespace lode

#endif  // LODE_FORMATS_WEIGHT_SOURCE_BUILDER_H_
