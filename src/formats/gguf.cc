// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "formats/quoted.h"
#include "formats/tensor_layout.h"

namespace lode {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place");

// Limits far above every published model, so that a hostile header cannot cost time or memory.
constexpr uint64_t kMaxPairs = 65'536;
constexpr uint64_t kMaxTensors = 1 << 20;
constexpr uint64_t kMaxKeyBytes = 65'535;
constexpr uint64_t kMaxTensorNameBytes = 1024;
constexpr uint64_t kMaxArrayElements = 1 << 24;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMinAlignment = 8;
constexpr uint64_t kMaxAlignment = 65'536;
// The least a pair (key length, type, value) and a tensor info can take.
constexpr uint64_t kMinPairBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;

constexpr std::string_view kTypeNames[] = {"UINT8",  "INT8",    "UINT16", "INT16",  "UINT32",
                                           "INT32",  "FLOAT32", "BOOL",   "STRING", "ARRAY",
                                           "UINT64", "INT64",   "FLOAT64"};

// Bytes an element takes at least.
uint64_t MinBytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    default:
      return 8;
  }
}

// Tensor types of the format that lodestone does not read, so that the message can name them.
struct OtherTensorType {
  uint32_t id = {};
  std::string_view name;
};
constexpr OtherTensorType kOtherTensorTypes[] = {
    {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
    {21, "IQ3_S"}, {22, "IQ2_S"}, {25, "I16"},     {27, "I64"},    {28, "F64"},     {29, "IQ1_M"},
    {34, "TQ1_0"}, {35, "TQ2_0"}, {39, "MXFP4"},   {40, "NVFP4"},  {41, "Q1_0"}};

class Parser {
 public:
  Parser(std::span<const std::byte> file, const std::string& origin)
      : file_(file), origin_(origin) {
    header_.metadata = Metadata(origin);
  }

  Result<GgufHeader> Parse() {
    LODE_RETURN_IF_ERROR(ReadPreamble());
    LODE_RETURN_IF_ERROR(ReadPairs());
    LODE_RETURN_IF_ERROR(ReadTensorInfos());
    LODE_RETURN_IF_ERROR(PlaceTensors());
    return std::move(header_);
  }

 private:
  uint64_t remaining() const { return file_.size() - position_; }

  // "model.gguf: tensor 'output.weight': byte 1234: what".
  std::string At(uint64_t offset, std::string_view what) const {
    if (subject_kind_.empty()) return fmt::format("{}: byte {}: {}", origin_, offset, what);
    return fmt::format("{}: {} {}: byte {}: {}", origin_, subject_kind_, Quoted(subject_), offset,
                       what);
  }
  Status Corrupt(uint64_t offset, std::string_view what) const {
    return CorruptionError(At(offset, what));
  }
  Status Unsupported(uint64_t offset, std::string_view what) const {
    return UnsupportedError(At(offset, what));
  }
  // Names the key or tensor that is being read, for messages.
  void SetSubject(std::string_view kind, std::string_view name) {
    subject_kind_ = kind;
    subject_ = name;
  }

  // Reads a plain value; `what` names it when the file ends before.
  template <class T>
  Status Read(std::string_view what, T* out) {
    if (remaining() < sizeof(T)) {
      return Corrupt(position_,
                     fmt::format("expected {} bytes of {}, found the file's end after {}",
                                 sizeof(T), what, remaining()));
    }
    std::memcpy(out, file_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return OkStatus();
  }

  Status ReadText(std::string_view what, uint64_t max_bytes, std::string_view* out) {
    const uint64_t start = position_;
    uint64_t length = {};
    LODE_RETURN_IF_ERROR(Read(what, &length));
    if (length > max_bytes || length > remaining()) {
      return Corrupt(start, fmt::format("expected {} of at most {} bytes, found length {}", what,
                                        std::min(max_bytes, remaining()), length));
    }
    *out = {reinterpret_cast<const char*>(file_.data() + position_), length};
    position_ += length;
    return OkStatus();
  }

  // A count of things that take at least `min_bytes` each.
  Status ReadCount(std::string_view what, uint64_t max, uint64_t min_bytes, uint64_t* out) {
    const uint64_t start = position_;
    LODE_RETURN_IF_ERROR(Read(what, out));
    const uint64_t fit = remaining() / min_bytes;
    if (*out <= std::min(max, fit)) return OkStatus();
    return Corrupt(start,
                   fmt::format("expected {} of at most {} ({}), found {}", what, std::min(max, fit),
                               fit < max ? "the bytes that remain" : "the limit", *out));
  }

  Status ReadPreamble();
  Status ReadPairs();
  Status ReadPair();
  Status ReadValue(GgufType type, MetadataValue* out);
  Status ReadArray(MetadataValue* out);
  Status ReadElements(GgufType type, uint64_t count, MetadataValue* out);
  template <class T>
  Status ReadNumber(MetadataValue* out);
  template <class T>
  Status ReadNumbers(uint64_t count, MetadataValue* out);
  Status ReadStrings(uint64_t count, MetadataValue* out);
  Status ReadBool(bool* out);
  Status ReadBools(uint64_t count, MetadataValue* out);
  Status TakeAlignment(uint64_t offset, GgufType type, const MetadataValue& value);
  Status ReadTensorInfos();
  Status ReadTensorInfo();
  Status ReadShape(Shape* out);
  Status ReadTensorType(DType* out);
  Status CheckUniqueNames();
  Status PlaceTensor(uint64_t data_begin, GgufTensor* tensor, uint64_t* bytes);
  Status PlaceTensors();

  std::span<const std::byte> file_;
  const std::string& origin_;
  uint64_t position_ = 0;
  std::string_view subject_kind_;
  std::string_view subject_;
  uint64_t num_pairs_ = 0;
  uint64_t num_tensors_ = 0;
  GgufHeader header_;
};

Status Parser::ReadPreamble() {
  char magic[4] = {};
  LODE_RETURN_IF_ERROR(Read("the magic", &magic));
  if (std::memcmp(magic, "GGUF", 4) != 0) {
    return Corrupt(0, fmt::format("expected a GGUF file (magic 'GGUF'), found {}",
                                  Quoted({magic, sizeof(magic)})));
  }
  LODE_RETURN_IF_ERROR(Read("the version", &header_.version));
  const uint32_t swapped = __builtin_bswap32(header_.version);
  if (header_.version > 0xffff && swapped <= 0xffff) {
    return Unsupported(4, fmt::format("expected a little-endian file, found a big-endian file, "
                                      "which is not supported (version {} byte-swapped)",
                                      swapped));
  }
  if (header_.version != 2 && header_.version != 3) {
    return Unsupported(4, fmt::format("expected GGUF version 2 or 3, found {}", header_.version));
  }
  LODE_RETURN_IF_ERROR(ReadCount("a tensor count", kMaxTensors, kMinTensorBytes, &num_tensors_));
  return ReadCount("a key-value count", kMaxPairs, kMinPairBytes, &num_pairs_);
}

Status Parser::ReadPairs() {
  header_.alignment = kDefaultAlignment;
  for (uint64_t i = 0; i < num_pairs_; ++i) {
    SetSubject({}, {});
    LODE_RETURN_IF_ERROR(ReadPair());
  }
  return OkStatus();
}

Status Parser::ReadPair() {
  const uint64_t start = position_;
  std::string_view key;
  LODE_RETURN_IF_ERROR(ReadText("a key", kMaxKeyBytes, &key));
  SetSubject("key", key);
  if (header_.metadata.Has(key)) return Corrupt(start, "expected once, found twice");
  const uint64_t type_offset = position_;
  uint32_t type_id = {};
  LODE_RETURN_IF_ERROR(Read("a value type", &type_id));
  const auto type = static_cast<GgufType>(type_id);
  MetadataValue value;
  LODE_RETURN_IF_ERROR(type == GgufType::kArray ? ReadArray(&value) : ReadValue(type, &value));
  if (key == "general.alignment") {
    LODE_RETURN_IF_ERROR(TakeAlignment(type_offset, type, value));
  }
  return header_.metadata.Add(std::string(key), std::move(value));
}

template <class T>
Status Parser::ReadNumber(MetadataValue* out) {
  T number = {};
  LODE_RETURN_IF_ERROR(Read("a value", &number));
  if constexpr (std::is_floating_point_v<T>) {
    *out = static_cast<double>(number);
  } else if (std::in_range<int64_t>(number)) {
    *out = static_cast<int64_t>(number);
  } else {
    *out = static_cast<uint64_t>(number);
  }
  return OkStatus();
}

Status Parser::ReadBool(bool* out) {
  uint8_t byte = {};
  LODE_RETURN_IF_ERROR(Read("a bool", &byte));
  if (byte > 1)
    return Corrupt(position_ - 1, fmt::format("expected a bool of 0 or 1, found {}", byte));
  *out = byte == 1;
  return OkStatus();
}

Status Parser::ReadValue(GgufType type, MetadataValue* out) {
  switch (type) {
    case GgufType::kUint8:
      return ReadNumber<uint8_t>(out);
    case GgufType::kInt8:
      return ReadNumber<int8_t>(out);
    case GgufType::kUint16:
      return ReadNumber<uint16_t>(out);
    case GgufType::kInt16:
      return ReadNumber<int16_t>(out);
    case GgufType::kUint32:
      return ReadNumber<uint32_t>(out);
    case GgufType::kInt32:
      return ReadNumber<int32_t>(out);
    case GgufType::kUint64:
      return ReadNumber<uint64_t>(out);
    case GgufType::kInt64:
      return ReadNumber<int64_t>(out);
    case GgufType::kFloat32:
      return ReadNumber<float>(out);
    case GgufType::kFloat64:
      return ReadNumber<double>(out);
    case GgufType::kBool:
      return ReadBool(&out->emplace<bool>());
    case GgufType::kString:
      return ReadText("a string", remaining(), &out->emplace<std::string_view>());
    case GgufType::kArray:
      break;
  }
  return Corrupt(position_ - 4, fmt::format("expected a value type of 0 to 12, found {}",
                                            static_cast<uint32_t>(type)));
}

Status Parser::ReadArray(MetadataValue* out) {
  const uint64_t start = position_;
  uint32_t type_id = {};
  LODE_RETURN_IF_ERROR(Read("an element type", &type_id));
  const auto type = static_cast<GgufType>(type_id);
  if (type == GgufType::kArray) {
    return Unsupported(start, "expected an array of plain values, found an array of arrays");
  }
  if (type_id >= std::size(kTypeNames)) {
    return Corrupt(start, fmt::format("expected an element type of 0 to 12, found {}", type_id));
  }
  uint64_t count = {};
  LODE_RETURN_IF_ERROR(ReadCount("an array length", kMaxArrayElements, MinBytes(type), &count));
  return ReadElements(type, count, out);
}

Status Parser::ReadElements(GgufType type, uint64_t count, MetadataValue* out) {
  switch (type) {
    case GgufType::kUint8:
      return ReadNumbers<uint8_t>(count, out);
    case GgufType::kInt8:
      return ReadNumbers<int8_t>(count, out);
    case GgufType::kUint16:
      return ReadNumbers<uint16_t>(count, out);
    case GgufType::kInt16:
      return ReadNumbers<int16_t>(count, out);
    case GgufType::kUint32:
      return ReadNumbers<uint32_t>(count, out);
    case GgufType::kInt32:
      return ReadNumbers<int32_t>(count, out);
    case GgufType::kUint64:
      return ReadNumbers<uint64_t>(count, out);
    case GgufType::kInt64:
      return ReadNumbers<int64_t>(count, out);
    case GgufType::kFloat32:
      return ReadNumbers<float>(count, out);
    case GgufType::kFloat64:
      return ReadNumbers<double>(count, out);
    case GgufType::kBool:
      return ReadBools(count, out);
    default:
      return ReadStrings(count, out);
  }
}

template <class T>
Status Parser::ReadNumbers(uint64_t count, MetadataValue* out) {
  using Wide = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;
  auto& numbers = out->emplace<std::vector<Wide>>(count);
  for (Wide& number : numbers) {
    T stored = {};
    LODE_RETURN_IF_ERROR(Read("an array element", &stored));
    if constexpr (std::is_integral_v<T>) {
      if (!std::in_range<int64_t>(stored)) {
        return Unsupported(position_ - sizeof(T),
                           fmt::format("expected array elements below 2^63, found {}", stored));
      }
    }
    number = static_cast<Wide>(stored);
  }
  return OkStatus();
}

Status Parser::ReadBools(uint64_t count, MetadataValue* out) {
  auto& integers = out->emplace<std::vector<int64_t>>(count);
  for (int64_t& integer : integers) {
    bool value = {};
    LODE_RETURN_IF_ERROR(ReadBool(&value));
    integer = value ? 1 : 0;
  }
  return OkStatus();
}

Status Parser::ReadStrings(uint64_t count, MetadataValue* out) {
  auto& strings = out->emplace<std::vector<std::string_view>>();
  strings.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    LODE_RETURN_IF_ERROR(ReadText("a string", remaining(), &strings.emplace_back()));
  }
  return OkStatus();
}

Status Parser::TakeAlignment(uint64_t offset, GgufType type, const MetadataValue& value) {
  if (type != GgufType::kUint32) {
    return Corrupt(offset, fmt::format("expected type UINT32, found {}",
                                       kTypeNames[static_cast<uint32_t>(type)]));
  }
  const auto alignment = static_cast<uint64_t>(std::get<int64_t>(value));
  if (!std::has_single_bit(alignment) || alignment < kMinAlignment || alignment > kMaxAlignment) {
    return Corrupt(offset, fmt::format("expected a power of two from {} to {}, found {}",
                                       kMinAlignment, kMaxAlignment, alignment));
  }
  header_.alignment = alignment;
  return OkStatus();
}

Status Parser::ReadTensorInfos() {
  header_.tensors.reserve(num_tensors_);
  for (uint64_t i = 0; i < num_tensors_; ++i) {
    SetSubject({}, {});
    LODE_RETURN_IF_ERROR(ReadTensorInfo());
  }
  return OkStatus();
}

Status Parser::ReadTensorInfo() {
  GgufTensor tensor;
  tensor.info_offset = position_;
  LODE_RETURN_IF_ERROR(ReadText("a tensor name", kMaxTensorNameBytes, &tensor.name));
  SetSubject("tensor", tensor.name);
  LODE_RETURN_IF_ERROR(ReadShape(&tensor.shape));
  LODE_RETURN_IF_ERROR(ReadTensorType(&tensor.type));
  LODE_RETURN_IF_ERROR(Read("a data offset", &tensor.file_offset));
  header_.tensors.push_back(tensor);
  return OkStatus();
}

Status Parser::ReadShape(Shape* out) {
  const uint64_t start = position_;
  uint32_t num_dims = {};
  LODE_RETURN_IF_ERROR(Read("a number of dimensions", &num_dims));
  if (num_dims < 1 || num_dims > Shape::kMaxDims) {
    return Corrupt(start,
                   fmt::format("expected 1 to {} dimensions, found {}", Shape::kMaxDims, num_dims));
  }
  out->num_dims = static_cast<int>(num_dims);
  for (int i = out->num_dims - 1; i >= 0; --i) {
    uint64_t dim = {};
    LODE_RETURN_IF_ERROR(Read("a dimension", &dim));
    if (dim < 1 || !std::in_range<int64_t>(dim)) {
      return Corrupt(position_ - sizeof(dim),
                     fmt::format("expected a dimension from 1 to 2^63 - 1, found {}", dim));
    }
    out->dims[i] = static_cast<int64_t>(dim);
  }
  return OkStatus();
}

Status Parser::ReadTensorType(DType* out) {
  const uint64_t start = position_;
  uint32_t id = {};
  LODE_RETURN_IF_ERROR(Read("a tensor type", &id));
  if (const std::optional<DType> type = DTypeFromGgufId(id)) {
    *out = *type;
    return OkStatus();
  }
  for (const OtherTensorType& other : kOtherTensorTypes) {
    if (other.id != id) continue;
    return Unsupported(start,
                       fmt::format("tensor type {} (id {}) is not supported", other.name, id));
  }
  return Corrupt(start, fmt::format("expected a tensor type id of the format, found {}", id));
}

// Turns data offsets into file offsets, having checked that names are unique and the bytes there.
Status Parser::PlaceTensors() {
  LODE_RETURN_IF_ERROR(CheckUniqueNames());
  const uint64_t data_begin =
      (position_ + header_.alignment - 1) / header_.alignment * header_.alignment;
  std::vector<TensorExtent> extents;
  extents.reserve(header_.tensors.size());
  for (GgufTensor& tensor : header_.tensors) {
    SetSubject("tensor", tensor.name);
    uint64_t bytes = 0;
    LODE_RETURN_IF_ERROR(PlaceTensor(data_begin, &tensor, &bytes));
    extents.push_back({tensor.name, tensor.file_offset, tensor.file_offset + bytes});
  }
  return CheckNoOverlap(extents).WithContext(origin_);
}

Status Parser::CheckUniqueNames() {
  std::vector<const GgufTensor*> by_name;
  by_name.reserve(header_.tensors.size());
  for (const GgufTensor& tensor : header_.tensors) by_name.push_back(&tensor);
  std::sort(by_name.begin(), by_name.end(), [](const GgufTensor* a, const GgufTensor* b) {
    return std::tie(a->name, a->info_offset) < std::tie(b->name, b->info_offset);
  });
  for (size_t i = 1; i < by_name.size(); ++i) {
    if (by_name[i]->name != by_name[i - 1]->name) continue;
    SetSubject("tensor", by_name[i]->name);
    return Corrupt(by_name[i]->info_offset,
                   fmt::format("expected a name of its own, found the name "
                               "already used at byte {}",
                               by_name[i - 1]->info_offset));
  }
  return OkStatus();
}

Status Parser::PlaceTensor(uint64_t data_begin, GgufTensor* tensor, uint64_t* bytes) {
  Result<uint64_t> size = TensorBytes(tensor->type, tensor->shape);
  if (!size.ok()) return Corrupt(tensor->info_offset, size.status().message());
  *bytes = *size;
  const uint64_t offset = tensor->file_offset;  // still relative to the data section
  if (offset % header_.alignment != 0) {
    return Corrupt(tensor->info_offset,
                   fmt::format("expected a data offset that is a multiple of {}, "
                               "found {}",
                               header_.alignment, offset));
  }
  const uint64_t available = file_.size() > data_begin ? file_.size() - data_begin : 0;
  if (offset > available || *bytes > available - offset) {
    return Corrupt(
        tensor->info_offset,
        fmt::format("expected {} bytes at offset {} of the data section, found a section "
                    "of {} bytes (is the file cut short?)",
                    *bytes, offset, available));
  }
  tensor->file_offset = data_begin + offset;
  return OkStatus();
}

}  // namespace

Result<GgufHeader> ParseGguf(std::span<const std::byte> file, const std::string& origin) {
  return Parser(file, origin).Parse();
}

}  // namespace lode
