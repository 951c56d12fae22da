// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <string>

#include "base/check.h"
#include "kernels/kv_bf16.h"
#include "kernels/kv_codes.h"
#include "kernels/kv_f16.h"
#include "kernels/kv_f32.h"
#include "kv/codec.h"

namespace lode {
namespace {

using namespace kernels;  // NOLINT(google-build-using-namespace): the table below is all there is.

// A type of codes as a row of the table.
template <int kBits>
constexpr KvCodec CodeType(KvDType dtype, std::string_view name) {
  return {
      .dtype = dtype,
      .name = name,
      .open_dtype = KvDType::kF16,
      .key_tile_bytes = [](const KvTileShape& shape) { return KeyCodeBytes(kBits, shape); },
      .value_tile_bytes = [](const KvTileShape& shape) { return ValueCodeBytes(kBits, shape); },
      .decode_keys = [](const std::byte* tile, const KvTileShape& shape,
                        float* out) { DecodeKeyCodes(kBits, shape, tile, out); },
      .decode_values = [](const std::byte* tile, const KvTileShape& shape, float* out,
                          int64_t stride) { DecodeValueCodes(kBits, shape, tile, out, stride); },
      .seal_keys = [](std::byte* tile, const KvTileShape& shape,
                      const float* keys) { EncodeKeyCodes(kBits, shape, keys, tile); },
      .seal_values = [](std::byte* tile, const KvTileShape& shape, const float* values,
                        int64_t stride) { EncodeValueCodes(kBits, shape, values, stride, tile); },
      .code_bits = kBits};
}

constexpr std::array<KvCodec, 6> kCodecs = {{
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
    {.dtype = KvDType::kBf16,
     .name = "bf16",
     .open_dtype = KvDType::kBf16,
     .key_tile_bytes = Bf16KeyTileBytes,
     .value_tile_bytes = Bf16ValueTileBytes,
     .decode_keys = Bf16DecodeKeys,
     .decode_values = Bf16DecodeValues,
     .store_keys = Bf16StoreKeys,
     .store_values = Bf16StoreValues},
    CodeType<8>(KvDType::kInt8, "int8"),
    CodeType<6>(KvDType::kInt6, "int6"),
    CodeType<4>(KvDType::kInt4, "int4"),
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
