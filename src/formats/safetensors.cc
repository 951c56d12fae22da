// SPDX-License-Identifier: Apache-2.0
#include "formats/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "formats/quoted.h"
#include "formats/tensor_layout.h"

namespace lode {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as the reference implementation
constexpr size_t kMaxHeaderDepth = 8;              // the format needs 3
constexpr size_t kMaxIndexBytes = 64 << 20;

struct StoredType {
  std::string_view name;
  uint64_t bits;
};
constexpr StoredType kTypes[] = {{"BOOL", 8},    {"U8", 8},      {"I8", 8},      {"F8_E5M2", 8},
                                 {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},    {"U16", 16},
                                 {"F16", 16},    {"BF16", 16},   {"I32", 32},    {"U32", 32},
                                 {"F32", 32},    {"F64", 64},    {"I64", 64},    {"U64", 64},
                                 {"C64", 64},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}};

// Parses JSON that lies at the start of `readable`: in place when the parser's padding can be read
// behind it, else from a copy.
simdjson::error_code ParseJson(std::string_view text, size_t readable, size_t max_depth,
                               simdjson::dom::parser& parser, simdjson::dom::element& root) {
  if (const auto error = parser.allocate(text.size(), max_depth)) return error;
  const bool copy = readable < text.size() + simdjson::SIMDJSON_PADDING;
  return parser.parse(text.data(), text.size(), copy).get(root);
}

class HeaderParser {
 public:
  HeaderParser(std::span<const std::byte> file, const std::string& origin)
      : file_(file), origin_(origin) {}

  Result<std::vector<SafetensorsTensor>> Parse() {
    LODE_RETURN_IF_ERROR(ReadLength());
    LODE_RETURN_IF_ERROR(ReadHeader());
    LODE_RETURN_IF_ERROR(CheckUniqueNames());
    LODE_RETURN_IF_ERROR(CheckCoverage());
    return std::move(tensors_);
  }

 private:
  Status Corrupt(std::string_view what) const {
    return CorruptionError(fmt::format("{}: {}", origin_, what));
  }
  Status Corrupt(const SafetensorsTensor& tensor, std::string_view what) const {
    return CorruptionError(fmt::format("{}: tensor {}: {}", origin_, Quoted(tensor.name), what));
  }
  uint64_t data_bytes() const { return file_.size() - data_begin_; }

  Status ReadLength();
  Status ReadHeader();
  Status ReadTensor(std::string_view name, simdjson::dom::element value);
  Status ReadShape(simdjson::dom::object object, SafetensorsTensor& tensor) const;
  Status ReadOffsets(simdjson::dom::object object, SafetensorsTensor& tensor) const;
  Status CheckSize(const SafetensorsTensor& tensor) const;
  Status CheckUniqueNames() const;
  Status CheckCoverage() const;

  std::span<const std::byte> file_;
  const std::string& origin_;
  uint64_t data_begin_ = 0;
  std::vector<SafetensorsTensor> tensors_;
};

Status HeaderParser::ReadLength() {
  if (file_.size() < kLengthBytes) {
    return Corrupt(
        fmt::format("byte 0: expected 8 bytes of header length, found a file of {}", file_.size()));
  }
  uint64_t length = 0;
  std::memcpy(&length, file_.data(), sizeof(length));
  const uint64_t limit = std::min(kMaxHeaderBytes, file_.size() - kLengthBytes);
  if (length > limit) {
    return Corrupt(
        fmt::format("byte 0: expected a header length of at most {}, found {}", limit, length));
  }
  data_begin_ = kLengthBytes + length;
  return OkStatus();
}

Status HeaderParser::ReadHeader() {
  const std::string_view text(reinterpret_cast<const char*>(file_.data()) + kLengthBytes,
                              data_begin_ - kLengthBytes);
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  if (const auto error =
          ParseJson(text, file_.size() - kLengthBytes, kMaxHeaderDepth, parser, root)) {
    return Corrupt(fmt::format("byte 8: expected a JSON header nested at most {} deep, found: {}",
                               kMaxHeaderDepth, simdjson::error_message(error)));
  }
  simdjson::dom::object object;
  if (root.get(object)) return Corrupt("byte 8: expected a JSON object as header");
  for (const auto [name, value] : object) {
    if (name == "__metadata__") continue;
    LODE_RETURN_IF_ERROR(ReadTensor(name, value));
  }
  return OkStatus();
}

Status HeaderParser::ReadTensor(std::string_view name, simdjson::dom::element value) {
  SafetensorsTensor tensor{.name = std::string(name), .dtype = {}, .shape = {}};
  simdjson::dom::object object;
  std::string_view dtype;
  if (value.get(object)) return Corrupt(tensor, "expected an object, found another JSON value");
  if (object["dtype"].get(dtype)) return Corrupt(tensor, "expected a string 'dtype'");
  tensor.dtype = dtype;
  LODE_RETURN_IF_ERROR(ReadShape(object, tensor));
  LODE_RETURN_IF_ERROR(ReadOffsets(object, tensor));
  LODE_RETURN_IF_ERROR(CheckSize(tensor));
  tensors_.push_back(std::move(tensor));
  return OkStatus();
}

Status HeaderParser::ReadShape(simdjson::dom::object object, SafetensorsTensor& tensor) const {
  simdjson::dom::array array;
  if (object["shape"].get(array)) return Corrupt(tensor, "expected an array 'shape'");
  for (const simdjson::dom::element element : array) {
    int64_t dim = 0;
    if (element.get(dim) || dim < 0) {
      return Corrupt(tensor, fmt::format("expected dimensions from 0 to 2^63 - 1, found {}",
                                         Quoted(simdjson::minify(element))));
    }
    tensor.shape.push_back(dim);
  }
  return OkStatus();
}

Status HeaderParser::ReadOffsets(simdjson::dom::object object, SafetensorsTensor& tensor) const {
  simdjson::dom::array array;
  uint64_t begin = 0;
  uint64_t end = 0;
  if (object["data_offsets"].get(array) || array.size() != 2 || array.at(0).get(begin) ||
      array.at(1).get(end)) {
    return Corrupt(tensor, "expected 'data_offsets' of two numbers from 0");
  }
  if (begin > end) {
    return Corrupt(tensor,
                   fmt::format("expected data_offsets in order, found [{}, {}]", begin, end));
  }
  if (end > data_bytes()) {
    return Corrupt(tensor, fmt::format("expected data_offsets inside the {} bytes of data, found "
                                       "[{}, {}] (is the file cut short?)",
                                       data_bytes(), begin, end));
  }
  tensor.begin = data_begin_ + begin;
  tensor.end = data_begin_ + end;
  return OkStatus();
}

Status HeaderParser::CheckSize(const SafetensorsTensor& tensor) const {
  const auto* type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                  [&](const StoredType& t) { return t.name == tensor.dtype; });
  if (type == std::end(kTypes)) {
    return UnsupportedError(fmt::format("{}: tensor {}: unknown dtype {}", origin_,
                                        Quoted(tensor.name), Quoted(tensor.dtype)));
  }
  int64_t bits = static_cast<int64_t>(type->bits);
  for (const int64_t dim : tensor.shape) {
    if (!__builtin_mul_overflow(bits, dim, &bits)) continue;
    return Corrupt(tensor, fmt::format("expected a size below 2^63 bits, found shape [{}]",
                                       fmt::join(tensor.shape, ", ")));
  }
  const uint64_t found = tensor.end - tensor.begin;
  if (bits % 8 == 0 && static_cast<uint64_t>(bits / 8) == found) return OkStatus();
  return Corrupt(
      tensor, fmt::format("byte {}: expected {} bits for shape [{}] of {}, found {} bytes",
                          tensor.begin, bits, fmt::join(tensor.shape, ", "), tensor.dtype, found));
}

Status HeaderParser::CheckUniqueNames() const {
  std::vector<std::string_view> names;
  names.reserve(tensors_.size());
  for (const SafetensorsTensor& tensor : tensors_) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return OkStatus();
  return Corrupt(
      fmt::format("tensor {}: expected a name of its own, found the name twice", Quoted(*twice)));
}

// The data must be covered exactly: bytes that belong to no tensor could hide anything.
Status HeaderParser::CheckCoverage() const {
  std::vector<TensorExtent> extents;
  extents.reserve(tensors_.size());
  for (const SafetensorsTensor& t : tensors_) extents.push_back({t.name, t.begin, t.end});
  LODE_RETURN_IF_ERROR(CheckNoOverlap(extents).WithContext(origin_));
  uint64_t expected = data_begin_;
  for (const TensorExtent& extent : extents) {
    if (extent.begin != expected) {
      return Corrupt(fmt::format("tensor {}: expected data from byte {}, found a gap up to byte {}",
                                 Quoted(extent.name), expected, extent.begin));
    }
    expected = extent.end;
  }
  if (expected == file_.size()) return OkStatus();
  return Corrupt(
      fmt::format("byte {}: expected the end of the file after the last tensor, found {} "
                  "more bytes",
                  expected, file_.size() - expected));
}

}  // namespace

Result<std::vector<SafetensorsTensor>> ParseSafetensors(std::span<const std::byte> file,
                                                        const std::string& origin) {
  return HeaderParser(file, origin).Parse();
}

Result<std::map<std::string, std::string>> ParseSafetensorsIndex(std::string_view text,
                                                                 const std::string& origin) {
  if (text.size() > kMaxIndexBytes) {
    return CorruptionError(fmt::format("{}: expected an index of at most {} bytes, found {}",
                                       origin, kMaxIndexBytes, text.size()));
  }
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  if (const auto error = ParseJson(text, text.size(), kMaxHeaderDepth, parser, root)) {
    return CorruptionError(fmt::format("{}: expected JSON nested at most {} deep, found: {}",
                                       origin, kMaxHeaderDepth, simdjson::error_message(error)));
  }
  simdjson::dom::object weight_map;
  if (root["weight_map"].get(weight_map)) {
    return CorruptionError(origin + ": expected an object 'weight_map'");
  }
  std::map<std::string, std::string> files;
  for (const auto [name, value] : weight_map) {
    std::string_view file;
    if (value.get(file) || !file.ends_with(".safetensors") ||
        file.find_first_of(std::string_view("/\\\0", 3)) != std::string_view::npos) {
      return CorruptionError(
          fmt::format("{}: tensor {}: expected the name of a .safetensors file in the same folder, "
                      "found {}",
                      origin, Quoted(name), Quoted(simdjson::minify(value))));
    }
    if (!files.emplace(name, file).second) {
      return CorruptionError(fmt::format(
          "{}: tensor {}: expected once in 'weight_map', found twice", origin, Quoted(name)));
    }
  }
  return files;
}

}  // namespace lode
