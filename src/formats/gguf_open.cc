// SPDX-License-Identifier: Apache-2.0
// Opening GGUF files as a WeightSource: one file, or all parts of a split model.
#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/gguf.h"
#include "formats/quoted.h"
#include "formats/weight_source_builder.h"

namespace lode {
namespace {

constexpr int64_t kMaxParts = 9999;

// "NAME-00002-of-00003.gguf" taken apart.
struct PartName {
  std::string prefix;  // "NAME", with its folder
  int64_t number = 0;  // from 1
  int64_t count = 0;
};

std::optional<int64_t> ParseFiveDigits(std::string_view text) {
  int64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return value;
}

std::optional<PartName> ParsePartName(std::string_view path) {
  constexpr std::string_view kPattern = "-00000-of-00000.gguf";
  if (path.size() <= kPattern.size()) return std::nullopt;
  const std::string_view tail = path.substr(path.size() - kPattern.size());
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || tail.substr(15) != ".gguf") {
    return std::nullopt;
  }
  const std::optional<int64_t> number = ParseFiveDigits(tail.substr(1, 5));
  const std::optional<int64_t> count = ParseFiveDigits(tail.substr(10, 5));
  if (!number || !count) return std::nullopt;
  return PartName{std::string(path.substr(0, path.size() - kPattern.size())), *number, *count};
}

struct Part {
  MappedFile file;
  GgufHeader header;
  int64_t number = 0;  // split.no + 1
  int64_t count = 1;   // split.count
};

Result<Part> OpenPart(const std::string& path) {
  Part part;
  LODE_ASSIGN_OR_RETURN(part.file, MappedFile::Open(path));
  LODE_ASSIGN_OR_RETURN(part.header, ParseGguf(part.file.bytes(), path));
  const Metadata& metadata = part.header.metadata;
  LODE_ASSIGN_OR_RETURN(part.count, metadata.GetIntOr("split.count", 0, kMaxParts, 1));
  if (part.count <= 1) {
    part.count = 1;
    return part;
  }
  LODE_ASSIGN_OR_RETURN(const int64_t index, metadata.GetInt("split.no", 0, part.count - 1));
  part.number = index + 1;
  return part;
}

// Opens all parts of the set that `opened` belongs to, in order.
Result<std::vector<Part>> OpenSet(Part opened) {
  const std::string path = opened.file.path();
  const std::optional<PartName> name = ParsePartName(path);
  if (!name || name->number != opened.number || name->count != opened.count) {
    return InvalidArgumentError(fmt::format(
        "{}: expected a file name ending in -{:05}-of-{:05}.gguf, by which the other parts of this "
        "split model are found",
        path, opened.number, opened.count));
  }
  std::vector<Part> parts;
  for (int64_t number = 1; number <= name->count; ++number) {
    if (number == opened.number) {
      parts.push_back(std::move(opened));
      continue;
    }
    const std::string part_path =
        fmt::format("{}-{:05}-of-{:05}.gguf", name->prefix, number, name->count);
    Result<Part> part = OpenPart(part_path);
    if (!part.ok()) {
      return part.status().WithContext(
          fmt::format("part {} of {} of the split model", number, name->count));
    }
    if (part->number != number || part->count != name->count) {
      return CorruptionError(fmt::format(
          "{}: keys 'split.no' and 'split.count': expected part {} of {}, found part {} of {}",
          part_path, number, name->count, part->number, part->count));
    }
    parts.push_back(std::move(*part));
  }
  return parts;
}

Status CheckTensorCount(const Metadata& metadata, size_t found) {
  const auto count = static_cast<int64_t>(found);
  LODE_ASSIGN_OR_RETURN(const int64_t expected,
                        metadata.GetIntOr("split.tensors.count", 0, INT32_MAX, count));
  if (expected == count) return OkStatus();
  return CorruptionError(
      fmt::format("{}: key 'split.tensors.count': expected {} tensors in all "
                  "parts, found {}",
                  metadata.origin(), expected, count));
}

}  // namespace

Result<std::unique_ptr<WeightSource>> OpenGguf(const std::string& path) {
  std::vector<Part> parts;
  LODE_ASSIGN_OR_RETURN(Part opened, OpenPart(path));
  if (opened.count > 1) {
    LODE_ASSIGN_OR_RETURN(parts, OpenSet(std::move(opened)));
  } else {
    parts.push_back(std::move(opened));
  }
  WeightSourceBuilder builder(FileKind::kGguf, path);
  size_t num_tensors = 0;
  for (Part& part : parts) {
    const uint32_t file_index = builder.AddFile(std::move(part.file));
    for (const GgufTensor& tensor : part.header.tensors) {
      LODE_RETURN_IF_ERROR(builder.AddTensor(std::string(tensor.name), tensor.type, tensor.shape,
                                             file_index, tensor.file_offset));
    }
    num_tensors += part.header.tensors.size();
  }
  LODE_RETURN_IF_ERROR(CheckTensorCount(parts[0].header.metadata, num_tensors));
  builder.SetMetadata(std::move(parts[0].header.metadata));
  return builder.Build();
}

}  // namespace lode
