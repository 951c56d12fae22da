// SPDX-License-Identifier: Apache-2.0
#include "formats/hugging_face.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/log.h"
#include "formats/hf_config.h"
#include "formats/hf_names.h"
#include "formats/quoted.h"
#include "formats/safetensors.h"
#include "formats/tensor_layout.h"
#include "formats/weight_source_builder.h"

namespace lode {
namespace {

constexpr std::string_view kSideFiles[] = {"config.json",
                                           "generation_config.json",
                                           "tokenizer.json",
                                           "tokenizer_config.json",
                                           "chat_template.jinja",
                                           "chat_template.json",
                                           "special_tokens_map.json",
                                           "added_tokens.json"};
constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr char kSingleName[] = "model.safetensors";

std::string_view AsText(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// The file, or nothing when there is none.
Result<std::optional<MappedFile>> OpenIfPresent(const std::string& path) {
  Result<MappedFile> file = MappedFile::Open(path);
  if (file.ok()) return std::optional<MappedFile>(std::move(*file));
  if (file.status().code() == StatusCode::kNotFound) return std::optional<MappedFile>();
  return file.status();
}

class FolderReader {
 public:
  explicit FolderReader(const std::string& folder)
      : folder_(folder), builder_(FileKind::kHuggingFace, folder) {}

  Result<std::unique_ptr<WeightSource>> Read() {
    LODE_RETURN_IF_ERROR(ReadSideFiles());
    LODE_RETURN_IF_ERROR(ReadConfig());
    LODE_RETURN_IF_ERROR(ReadWeights());
    LODE_RETURN_IF_ERROR(CheckOutput());
    builder_.SetMetadata(std::move(config_.metadata));
    return builder_.Build();
  }

 private:
  std::string Path(std::string_view name) const { return fmt::format("{}/{}", folder_, name); }

  Status ReadSideFiles();
  Status ReadConfig();
  Status ReadWeights();
  Status ReadShards(const MappedFile& index);
  Result<std::string> FindSingleFile() const;
  // Adds the tensors of one file. `shard`: only those that the index places there, all of which
  // must be found.
  Status AddFile(const std::string& name, const std::set<std::string_view>* shard);
  Status AddTensor(const SafetensorsTensor& tensor, uint32_t file_index, const std::string& path);
  Status CheckOutput() const;

  const std::string& folder_;
  WeightSourceBuilder builder_;
  std::map<std::string_view, std::string_view> texts_;  // of the side files
  HfConfig config_;
  bool has_output_ = false;
};

Status FolderReader::ReadSideFiles() {
  for (const std::string_view name : kSideFiles) {
    LODE_ASSIGN_OR_RETURN(std::optional<MappedFile> file, OpenIfPresent(Path(name)));
    if (!file) continue;
    texts_[name] = AsText(*file);
    builder_.AddSideFile(std::string(name), std::move(*file));
  }
  return OkStatus();
}

Status FolderReader::ReadConfig() {
  if (!texts_.contains("config.json")) {
    return NotFoundError(folder_ +
                         ": expected config.json (a Hugging Face folder holds config.json, "
                         "tokenizer.json and *.safetensors), found none");
  }
  LODE_ASSIGN_OR_RETURN(
      config_, TranslateHfConfig(texts_["config.json"], texts_["generation_config.json"], folder_));
  builder_.OwnStrings(std::move(config_.strings));
  const std::filesystem::path path(folder_);
  const std::string name = (path.has_filename() ? path : path.parent_path()).filename().string();
  return config_.metadata.Add("general.name", builder_.OwnString(name));
}

Status FolderReader::ReadWeights() {
  LODE_ASSIGN_OR_RETURN(const std::optional<MappedFile> index, OpenIfPresent(Path(kIndexName)));
  if (index) return ReadShards(*index);
  LODE_ASSIGN_OR_RETURN(const std::string name, FindSingleFile());
  return AddFile(name, nullptr);
}

Status FolderReader::ReadShards(const MappedFile& index) {
  using Map = std::map<std::string, std::string>;
  LODE_ASSIGN_OR_RETURN(const Map files, ParseSafetensorsIndex(AsText(index), index.path()));
  std::map<std::string, std::set<std::string_view>> shards;
  for (const auto& [tensor, file] : files) shards[file].insert(tensor);
  for (const auto& [file, tensors] : shards) LODE_RETURN_IF_ERROR(AddFile(file, &tensors));
  return OkStatus();
}

// model.safetensors, else the only *.safetensors there is.
Result<std::string> FolderReader::FindSingleFile() const {
  std::vector<std::string> found;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder_, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() == ".safetensors") found.push_back(it->path().filename().string());
  }
  if (error) return IoError(folder_ + ": " + error.message());
  if (std::find(found.begin(), found.end(), kSingleName) != found.end())
    return std::string(kSingleName);
  if (found.size() == 1) return found[0];
  return NotFoundError(fmt::format("{}: expected {} or {}, found {} other .safetensors files",
                                   folder_, kSingleName, kIndexName, found.size()));
}

Status FolderReader::AddFile(const std::string& name, const std::set<std::string_view>* shard) {
  const std::string path = Path(name);
  LODE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  LODE_ASSIGN_OR_RETURN(const std::vector<SafetensorsTensor> tensors,
                        ParseSafetensors(file.bytes(), path));
  const uint32_t file_index = builder_.AddFile(std::move(file));
  std::set<std::string_view> present;
  for (const SafetensorsTensor& tensor : tensors) {
    present.insert(tensor.name);
    if (shard == nullptr || shard->contains(tensor.name)) {
      LODE_RETURN_IF_ERROR(AddTensor(tensor, file_index, path));
    } else {
      LogDebug(
          fmt::format("{}: tensor {} is not in the index, left out", path, Quoted(tensor.name)));
    }
  }
  if (shard == nullptr) return OkStatus();
  for (const std::string_view tensor : *shard) {
    if (present.contains(tensor)) continue;
    return CorruptionError(fmt::format("{}: tensor {}: expected in this file by {}, found absent",
                                       path, Quoted(tensor), kIndexName));
  }
  return OkStatus();
}

Status FolderReader::AddTensor(const SafetensorsTensor& tensor, uint32_t file_index,
                               const std::string& path) {
  if (IsIgnoredTensor(tensor.name)) return OkStatus();
  std::optional<std::string> name = CanonicalTensorName(config_.architecture, tensor.name);
  if (!name) {
    LogDebug(fmt::format("{}: tensor {} is unknown, left out", path, Quoted(tensor.name)));
    return OkStatus();
  }
  if (*name == "output.weight") {
    if (config_.tied_embeddings) return OkStatus();  // a copy of the embeddings
    has_output_ = true;
  }
  const std::string where =
      fmt::format("{}: tensor {}: byte {}", path, Quoted(tensor.name), tensor.begin);
  const std::optional<DType> type = DTypeFromName(tensor.dtype);
  if (!type || (*type != DType::kF32 && *type != DType::kF16 && *type != DType::kBF16)) {
    return UnsupportedError(
        fmt::format("{}: expected dtype F32, F16 or BF16, found {}", where, tensor.dtype));
  }
  Shape shape;
  if (tensor.shape.empty() || tensor.shape.size() > Shape::kMaxDims) {
    return CorruptionError(fmt::format("{}: expected 1 to {} dimensions, found {}", where,
                                       Shape::kMaxDims, tensor.shape.size()));
  }
  for (const int64_t dim : tensor.shape) shape.dims[shape.num_dims++] = dim;
  const Result<uint64_t> bytes = TensorBytes(*type, shape);
  if (!bytes.ok()) return bytes.status().WithContext(where);
  return builder_.AddTensor(std::move(*name), *type, shape, file_index, tensor.begin);
}

// Without this check a model whose output matrix is missing would silently use its embeddings.
Status FolderReader::CheckOutput() const {
  if (config_.tied_embeddings || has_output_) return OkStatus();
  return NotFoundError(folder_ +
                       ": expected tensor 'lm_head.weight', since tie_word_embeddings is "
                       "false, found none");
}

}  // namespace

Result<std::unique_ptr<WeightSource>> OpenHuggingFace(const std::string& folder) {
  return FolderReader(folder).Read();
}

}  // namespace lode
