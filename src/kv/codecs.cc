// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <string>

#include "base/check.h"
#include "kernels/kv_f16.h"
#include "kernels/kv_f32.h"
#include "kernels/kv_int8.h"
#include "kv/codec.h"

namespace lode {
namespace {

using namespace kernels;  // NOLINT(google-build-using-namespace): the table below is all there is.

constexpr std::array<KvCodec, 3> kCodecs = {{
    {.dtype = KvDType::kF32,
     .name = "f32",
     .open_dtype = KvDType::kF32,
     .key_tile_bytes = F32KeyTileBytes,
     .value_tile_bytes = F32ValueTileBytes,
     .decode_keys = F32DecodeKeys,
     .decode_values = F32DecodeValues,
     .store_keys = F32StoreKeys,
     .store_values = F32StoreValues},
    {.dtype = KvDType::kF16,
     .name = "f16",
     .open_dtype = KvDType::kF16,
     .key_tile_bytes = F16KeyTileBytes,
     .value_tile_bytes = F16ValueTileBytes,
     .decode_keys = F16DecodeKeys,
     .decode_values = F16DecodeValues,
     .store_keys = F16StoreKeys,
     .store_values = F16StoreValues},
    {.dtype = KvDType::kInt8,
     .name = "int8",
     .open_dtype = KvDType::kF16,
     .key_tile_bytes = Int8KeyTileBytes,
     .value_tile_bytes = Int8ValueTileBytes,
     .decode_keys = Int8DecodeKeys,
     .decode_values = Int8DecodeValues,
     .seal_keys = Int8SealKeys,
     .seal_values = Int8SealValues,
     .unpack_keys = Int8UnpackKeys,
     .unpack_values = Int8UnpackValues},
}};

}  // namespace

std::span<const KvCodec> KvCodecs() {
  return kCodecs;
}

const KvCodec& CodecFor(KvDType dtype) {
  const auto index = static_cast<size_t>(dtype);
  LODE_CHECK(index < kCodecs.size() && kCodecs[index].dtype == dtype);
  return kCodecs[index];
}

std::string_view KvDTypeName(KvDType dtype) {
  return CodecFor(dtype).name;
}

Result<KvDType> ParseKvDType(std::string_view name) {
  std::string known;
  for (const KvCodec& codec : kCodecs) {
    if (codec.name == name) return codec.dtype;
    known += known.empty() ? "" : ", ";
    known += codec.name;
  }
  return InvalidArgumentError("unknown KV cache type \"" + std::string(name) +
                              "\", expected one of " + known);
}

std::string KvDTypesName(KvDTypes dtypes) {
  std::string name(KvDTypeName(dtypes.key));
  if (dtypes.value != dtypes.key) name.append(1, ',').append(KvDTypeName(dtypes.value));
  return name;
}

Result<KvDTypes> ParseKvDTypes(std::string_view text) {
  const size_t comma = text.find(',');
  LODE_ASSIGN_OR_RETURN(const KvDType key, ParseKvDType(text.substr(0, comma)));
  if (comma == std::string_view::npos) return KvDTypes(key);
  LODE_ASSIGN_OR_RETURN(const KvDType value, ParseKvDType(text.substr(comma + 1)));
  return KvDTypes(key, value);
}

}  // namespace lode
