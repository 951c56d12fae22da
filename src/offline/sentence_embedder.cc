// SPDX-License-Identifier: Apache-2.0
#include "offline/sentence_embedder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "base/mapped_file.h"
#include "formats/safetensors.h"
#include "kernels/dequantize.h"
#include "tensor/dtype.h"
#include "tokenizer/tokenizer_spec.h"

namespace lode {
namespace {

constexpr int kMaxDepth = 2;

struct Files {
  std::vector<std::string> matrices, tokenizers;
};

Result<Files> FindFiles(const std::string& folder) {
  Files files;
  std::error_code error;
  std::filesystem::recursive_directory_iterator it(folder, error);
  for (const std::filesystem::recursive_directory_iterator end; !error && it != end;
       it.increment(error)) {
    if (it.depth() >= kMaxDepth) it.disable_recursion_pending();
    const std::filesystem::path& path = it->path();
    if (path.extension() == ".safetensors") files.matrices.push_back(path.string());
    if (path.extension() == ".json" &&
        path.filename().string().find("tokenizer") != std::string::npos) {
      files.tokenizers.push_back(path.string());
    }
  }
  if (error == std::errc::no_such_file_or_directory) {
    return NotFoundError(fmt::format("{}: {}", folder, error.message()));
  }
  if (error) return IoError(fmt::format("{}: {}", folder, error.message()));
  if (files.matrices.size() == 1 && files.tokenizers.size() == 1) return files;
  return NotFoundError(
      fmt::format("{}: expected one .safetensors file and one .json file with 'tokenizer' in its "
                  "name, here or up to {} levels below, found {} and {}",
                  folder, kMaxDepth, files.matrices.size(), files.tokenizers.size()));
}

}  // namespace

Result<std::unique_ptr<SentenceEmbedder>> SentenceEmbedder::Open(const std::string& folder) {
  LODE_ASSIGN_OR_RETURN(const Files files, FindFiles(folder));
  std::unique_ptr<SentenceEmbedder> embedder(new SentenceEmbedder());

  const std::string& json_path = files.tokenizers[0];
  LODE_ASSIGN_OR_RETURN(const MappedFile json, MappedFile::Open(json_path));
  const std::string_view text(reinterpret_cast<const char*>(json.bytes().data()),
                              json.bytes().size());
  LODE_ASSIGN_OR_RETURN(const TokenizerSpec spec, SpecFromHuggingFace(json_path, text, "", ""));
  LODE_ASSIGN_OR_RETURN(embedder->tokenizer_, BuildTokenizer(spec));

  const std::string& path = files.matrices[0];
  LODE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  LODE_ASSIGN_OR_RETURN(const std::vector<SafetensorsTensor> tensors,
                        ParseSafetensors(file.bytes(), path));
  if (tensors.size() != 1 || tensors[0].shape.size() != 2 || tensors[0].shape[0] < 1 ||
      tensors[0].shape[1] < 1) {
    return UnsupportedError(
        fmt::format("{}: expected one matrix [vocabulary, dim], found {} tensors, the first of {} "
                    "dimensions",
                    path, tensors.size(), tensors.empty() ? 0 : tensors[0].shape.size()));
  }
  const SafetensorsTensor& tensor = tensors[0];
  const std::optional<DType> type = DTypeFromName(tensor.dtype);
  if (type != DType::kF32 && type != DType::kF16 && type != DType::kBF16) {
    return UnsupportedError(fmt::format("{}: tensor {}: expected dtype F32, F16 or BF16, found {}",
                                        path, tensor.name, tensor.dtype));
  }
  embedder->dim_ = tensor.shape[1];
  const int64_t elements = tensor.shape[0] * tensor.shape[1];  // the parser has checked the bytes
  embedder->vectors_.resize(static_cast<size_t>(elements));
  kernels::Dequantize(*type, file.bytes().data() + tensor.begin, elements,
                      embedder->vectors_.data());
  for (int64_t i = 0; i < elements; ++i) {
    if (std::isfinite(embedder->vectors_[static_cast<size_t>(i)])) continue;
    return CorruptionError(fmt::format("{}: tensor {}: row {}: expected finite numbers, found {}",
                                       path, tensor.name, i / embedder->dim_,
                                       embedder->vectors_[static_cast<size_t>(i)]));
  }
  return embedder;
}

std::vector<float> SentenceEmbedder::Embed(std::string_view text) const {
  const std::vector<TokenId> tokens = tokenizer_->Encode(text, {.add_special = false});
  const int64_t vocabulary = std::ssize(vectors_) / dim_;
  std::vector<float> sum(static_cast<size_t>(dim_), 0.0f);
  for (const TokenId token : tokens) {
    const int64_t row = std::min<int64_t>(token, vocabulary - 1);
    const float* vector = &vectors_[static_cast<size_t>(row * dim_)];
    for (size_t d = 0; d < sum.size(); ++d) sum[d] += vector[d];
  }
  for (float& x : sum) x /= static_cast<float>(std::max<size_t>(tokens.size(), 1));
  return sum;
}

double Cosine(std::span<const float> a, std::span<const float> b) {
  double dot = 0.0, squares_a = 0.0, squares_b = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    dot += double{a[i]} * b[i];
    squares_a += double{a[i]} * a[i];
    squares_b += double{b[i]} * b[i];
  }
  return squares_a > 0.0 && squares_b > 0.0 ? dot / std::sqrt(squares_a * squares_b) : 0.0;
}

}  // namespace lode
