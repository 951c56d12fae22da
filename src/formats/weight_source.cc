// SPDX-License-Identifier: Apache-2.0
#include "formats/weight_source.h"

#include <fmt/format.h>

#include "formats/quoted.h"
#include "formats/tensor_layout.h"
#include "formats/weight_source_builder.h"

namespace lode {

const StoredTensor* WeightSource::Find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

Result<TensorView> WeightSource::Get(std::string_view name, const Shape& expected) const {
  const StoredTensor* tensor = Find(name);
  if (tensor == nullptr) {
    return NotFoundError(fmt::format("{}: tensor {}: expected shape {}, found no such tensor",
                                     path_, Quoted(name), ShapeText(expected)));
  }
  if (tensor->view.shape != expected) {
    return CorruptionError(fmt::format(
        "{}: tensor {}: byte {}: expected shape {}, found {}", files_[tensor->file_index].path(),
        Quoted(name), tensor->file_offset, ShapeText(expected), ShapeText(tensor->view.shape)));
  }
  return tensor->view;
}

uint64_t WeightSource::tensor_bytes() const {
  uint64_t total = 0;
  for (const StoredTensor& tensor : tensors_) total += static_cast<uint64_t>(tensor.view.bytes());
  return total;
}

std::string_view WeightSource::side_file(std::string_view name) const {
  const auto it = side_files_.find(name);
  if (it == side_files_.end()) return {};
  const std::span<const std::byte> bytes = it->second.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

WeightSourceBuilder::WeightSourceBuilder(FileKind kind, std::string path)
    : source_(std::make_unique<WeightSource>()) {
  source_->kind_ = kind;
  source_->path_ = std::move(path);
}

uint32_t WeightSourceBuilder::AddFile(MappedFile file) {
  source_->files_.push_back(std::move(file));
  return static_cast<uint32_t>(source_->files_.size() - 1);
}

void WeightSourceBuilder::AddSideFile(std::string name, MappedFile file) {
  source_->side_files_.emplace(std::move(name), std::move(file));
}

std::string_view WeightSourceBuilder::OwnString(std::string text) {
  source_->owned_strings_.push_back(std::make_unique<std::string>(std::move(text)));
  return *source_->owned_strings_.back();
}

void WeightSourceBuilder::OwnStrings(std::vector<std::unique_ptr<std::string>> strings) {
  for (std::unique_ptr<std::string>& text : strings) {
    source_->owned_strings_.push_back(std::move(text));
  }
}

Status WeightSourceBuilder::AddTensor(std::string name, DType type, const Shape& shape,
                                      uint32_t file_index, uint64_t file_offset) {
  const MappedFile& file = source_->files_[file_index];
  const auto [it, inserted] = source_->index_.try_emplace(name, source_->tensors_.size());
  if (!inserted) {
    const StoredTensor& first = source_->tensors_[it->second];
    return CorruptionError(
        fmt::format("{}: tensor {}: byte {}: expected a name of its own, found the name already "
                    "used at byte {} of {}",
                    file.path(), Quoted(name), file_offset, first.file_offset,
                    source_->files_[first.file_index].path()));
  }
  const TensorView view{type, shape, file.bytes().data() + file_offset};
  source_->tensors_.push_back({std::move(name), view, file_index, file_offset});
  return OkStatus();
}

}  // namespace lode
