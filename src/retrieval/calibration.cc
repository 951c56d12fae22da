// SPDX-License-Identifier: Apache-2.0
#include "retrieval/calibration.h"

#include <xxhash.h>

#include <cstring>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "kernels/dequantize.h"

namespace lode {
namespace {

constexpr std::string_view kMagic = "LODECALB";
constexpr uint32_t kVersion = 1;
// Beyond these a file is broken, not large.
constexpr uint32_t kMaxLayers = 4096;
constexpr uint32_t kMaxKvHeads = 4096;
constexpr uint32_t kMaxHeadDim = 1024;

template <class T>
void Put(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  template <class T>
  Status Read(T* out, size_t count, const char* what) {
    const size_t size = count * sizeof(T);
    if (bytes_.size() - offset_ < size) {
      return Broken(std::string(what) + " needs " + std::to_string(size) + " bytes, " +
                    std::to_string(bytes_.size() - offset_) + " are left");
    }
    std::memcpy(out, bytes_.data() + offset_, size);
    offset_ += size;
    return OkStatus();
  }
  Status Broken(const std::string& what) const {
    return CorruptionError(name_ + ": offset " + std::to_string(offset_) + ": " + what);
  }
  size_t left() const { return bytes_.size() - offset_; }

 private:
  const std::span<const std::byte> bytes_;
  const std::string& name_;
  size_t offset_ = 0;
};

Result<HeadProjection> ReadProjection(Reader& reader, int64_t head_dim) {
  const auto n = static_cast<size_t>(head_dim);
  std::vector<uint8_t> bits(n);
  std::vector<float> deviations(n), key_map(n * n);
  std::vector<Half> halves(n * n);
  LODE_RETURN_IF_ERROR(reader.Read(bits.data(), bits.size(), "bits"));
  LODE_RETURN_IF_ERROR(reader.Read(deviations.data(), deviations.size(), "deviations"));
  if (reader.left() / sizeof(Half) < halves.size()) return reader.Broken("the key map is cut off");
  LODE_RETURN_IF_ERROR(reader.Read(halves.data(), halves.size(), "key map"));
  for (size_t i = 0; i < halves.size(); ++i) key_map[i] = kernels::HalfToFloat(halves[i]);
  Result<HeadProjection> projection =
      HeadProjection::Create(head_dim, std::move(key_map), std::move(deviations), std::move(bits));
  if (!projection.ok()) return reader.Broken(projection.status().message());
  return projection;
}

}  // namespace

Calibration::Calibration(int64_t num_layers, int64_t num_kv_heads, int64_t head_dim,
                         const ModelFingerprint& fingerprint)
    : num_layers_(num_layers),
      num_kv_heads_(num_kv_heads),
      head_dim_(head_dim),
      fingerprint_(fingerprint),
      heads_(static_cast<size_t>(num_layers * num_kv_heads)) {}

size_t Calibration::Index(int64_t layer, int64_t kv_head) const {
  LODE_CHECK(layer >= 0 && layer < num_layers_ && kv_head >= 0 && kv_head < num_kv_heads_);
  return static_cast<size_t>(layer * num_kv_heads_ + kv_head);
}

const HeadProjection* Calibration::Find(int64_t layer, int64_t kv_head) const {
  const auto& head = heads_[Index(layer, kv_head)];
  return head ? &*head : nullptr;
}

void Calibration::Set(int64_t layer, int64_t kv_head, HeadProjection projection) {
  LODE_CHECK(projection.head_dim() == head_dim_);
  heads_[Index(layer, kv_head)] = std::move(projection);
}

std::string Calibration::Serialize() const {
  std::string out(kMagic);
  Put(out, kVersion);
  for (const int64_t size : {num_layers_, num_kv_heads_, head_dim_}) {
    Put(out, static_cast<uint32_t>(size));
  }
  Put(out, fingerprint_);
  for (const std::optional<HeadProjection>& head : heads_) {
    Put(out, static_cast<uint8_t>(head ? 1 : 0));
    if (!head) continue;
    for (const uint8_t bits : head->bits()) Put(out, bits);
    for (const float deviation : head->deviations()) Put(out, deviation);
    for (const float x : head->key_map()) Put(out, kernels::FloatToHalf(x));
  }
  Put(out, static_cast<uint64_t>(XXH3_64bits(out.data(), out.size())));
  return out;
}

Result<Calibration> Calibration::Parse(std::span<const std::byte> bytes, const std::string& name) {
  Reader reader(bytes, name);
  std::array<char, kMagic.size()> magic = {};
  LODE_RETURN_IF_ERROR(reader.Read(magic.data(), magic.size(), "the magic number"));
  if (std::string_view(magic.data(), magic.size()) != kMagic) {
    return CorruptionError(name + ": not a calibration file (no LODECALB at its start)");
  }
  uint32_t version = 0;
  std::array<uint32_t, 3> sizes = {};
  ModelFingerprint fingerprint = {};
  LODE_RETURN_IF_ERROR(reader.Read(&version, 1, "the version"));
  if (version != kVersion) {
    return UnsupportedError(name + ": calibration version " + std::to_string(version) +
                            ", expected " + std::to_string(kVersion));
  }
  LODE_RETURN_IF_ERROR(reader.Read(sizes.data(), sizes.size(), "the sizes"));
  const auto [num_layers, num_kv_heads, head_dim] = sizes;
  if (num_layers == 0 || num_layers > kMaxLayers || num_kv_heads == 0 ||
      num_kv_heads > kMaxKvHeads || head_dim == 0 || head_dim > kMaxHeadDim) {
    return reader.Broken("sizes out of range: " + std::to_string(num_layers) + " layers, " +
                         std::to_string(num_kv_heads) + " KV heads of " + std::to_string(head_dim));
  }
  LODE_RETURN_IF_ERROR(reader.Read(fingerprint.data(), fingerprint.size(), "the fingerprint"));
  // One byte per head at least.
  if (reader.left() < size_t{num_layers} * num_kv_heads + sizeof(uint64_t)) {
    return reader.Broken("the file is cut off");
  }
  uint64_t expected = 0;
  std::memcpy(&expected, bytes.data() + bytes.size() - sizeof(expected), sizeof(expected));
  if (XXH3_64bits(bytes.data(), bytes.size() - sizeof(expected)) != expected) {
    return CorruptionError(name + ": the checksum does not match: the file is damaged");
  }
  Calibration calibration(num_layers, num_kv_heads, head_dim, fingerprint);
  for (int64_t layer = 0; layer < calibration.num_layers(); ++layer) {
    for (int64_t head = 0; head < calibration.num_kv_heads(); ++head) {
      uint8_t present = 0;
      LODE_RETURN_IF_ERROR(reader.Read(&present, 1, "a head"));
      if (present > 1) return reader.Broken("expected 0 or 1, found " + std::to_string(present));
      if (present == 0) continue;
      LODE_ASSIGN_OR_RETURN(HeadProjection projection, ReadProjection(reader, head_dim));
      calibration.Set(layer, head, std::move(projection));
    }
  }
  if (reader.left() != sizeof(uint64_t)) {
    return reader.Broken(std::to_string(reader.left() - sizeof(uint64_t)) + " bytes too many");
  }
  return calibration;
}

}  // namespace lode
