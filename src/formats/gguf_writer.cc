// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf_writer.h"

#include <cerrno>
#include <cstring>
#include <fstream>

namespace lode {
namespace {

template <class T>
void Append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void AppendText(std::string& out, std::string_view text) {
  Append<uint64_t>(out, text.size());
  out += text;
}

template <class T>
void AppendArray(std::string& out, GgufType type, std::span<const T> values) {
  Append(out, static_cast<uint32_t>(type));
  Append<uint64_t>(out, values.size());
  for (const T& value : values) {
    if constexpr (std::is_same_v<T, std::string>) {
      AppendText(out, value);
    } else {
      Append(out, value);
    }
  }
}

void Pad(std::string& out, uint64_t alignment) {
  out.resize((out.size() + alignment - 1) / alignment * alignment);
}

}  // namespace

void GgufWriter::StartPair(std::string_view key, GgufType type) {
  ++num_pairs_;
  AppendText(pairs_, key);
  Append(pairs_, static_cast<uint32_t>(type));
}

void GgufWriter::AddUint32(std::string_view key, uint32_t value) {
  StartPair(key, GgufType::kUint32);
  Append(pairs_, value);
}

void GgufWriter::AddInt32(std::string_view key, int32_t value) {
  StartPair(key, GgufType::kInt32);
  Append(pairs_, value);
}

void GgufWriter::AddUint64(std::string_view key, uint64_t value) {
  StartPair(key, GgufType::kUint64);
  Append(pairs_, value);
}

void GgufWriter::AddFloat32(std::string_view key, float value) {
  StartPair(key, GgufType::kFloat32);
  Append(pairs_, value);
}

void GgufWriter::AddBool(std::string_view key, bool value) {
  StartPair(key, GgufType::kBool);
  Append<uint8_t>(pairs_, value ? 1 : 0);
}

void GgufWriter::AddString(std::string_view key, std::string_view value) {
  StartPair(key, GgufType::kString);
  AppendText(pairs_, value);
}

void GgufWriter::AddStrings(std::string_view key, std::span<const std::string> values) {
  StartPair(key, GgufType::kArray);
  AppendArray(pairs_, GgufType::kString, values);
}

void GgufWriter::AddInt32s(std::string_view key, std::span<const int32_t> values) {
  StartPair(key, GgufType::kArray);
  AppendArray(pairs_, GgufType::kInt32, values);
}

void GgufWriter::AddFloat32s(std::string_view key, std::span<const float> values) {
  StartPair(key, GgufType::kArray);
  AppendArray(pairs_, GgufType::kFloat32, values);
}

void GgufWriter::AddRaw(std::string_view key, uint32_t type_id, std::string_view value_bytes) {
  StartPair(key, static_cast<GgufType>(type_id));
  pairs_ += value_bytes;
}

void GgufWriter::AddTensor(std::string_view name, DType type, const Shape& shape,
                           std::span<const std::byte> data) {
  ++num_tensors_;
  Pad(data_, alignment_);
  AppendText(infos_, name);
  Append(infos_, static_cast<uint32_t>(shape.num_dims));
  for (int i = shape.num_dims - 1; i >= 0; --i) Append(infos_, shape.dims[i]);
  Append(infos_, static_cast<uint32_t>(type));
  Append<uint64_t>(infos_, data_.size());
  data_.append(reinterpret_cast<const char*>(data.data()), data.size());
}

void GgufWriter::AddZeroTensor(std::string_view name, DType type, const Shape& shape) {
  const TensorView view{type, shape, nullptr};
  const std::vector<std::byte> zeros(static_cast<size_t>(view.bytes()));
  AddTensor(name, type, shape, zeros);
}

std::string GgufWriter::Serialize() const {
  std::string out = "GGUF";
  Append(out, version_);
  Append(out, num_tensors_);
  Append(out, num_pairs_);
  out += pairs_;
  out += infos_;
  Pad(out, alignment_);
  out += data_;
  return out;
}

Status GgufWriter::WriteTo(const std::string& path) const {
  std::ofstream file(path, std::ios::binary);
  const std::string bytes = Serialize();
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (file.fail()) return IoError(path + ": " + std::strerror(errno));
  return OkStatus();
}

}  // namespace lode
