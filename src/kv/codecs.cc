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
     .key_block_bytes = F32KeyBlockBytes,
     .value_block_bytes = F32ValueBlockBytes,
     .store_keys = F32StoreKeys,
     .store_values = F32StoreValues,
     .decode_keys = F32DecodeKeys,
     .decode_values = F32DecodeValues},
    {.dtype = KvDType::kF16,
     .name = "f16",
     .key_block_bytes = F16KeyBlockBytes,
     .value_block_bytes = F16ValueBlockBytes,
     .store_keys = F16StoreKeys,
     .store_values = F16StoreValues,
     .decode_keys = F16DecodeKeys,
     .decode_values = F16DecodeValues},
    {.dtype = KvDType::kInt8,
     .name = "int8",
     .key_block_bytes = Int8KeyBlockBytes,
     .value_block_bytes = Int8ValueBlockBytes,
     .store_keys = Int8StoreKeys,
     .store_values = Int8StoreValues,
     .decode_keys = Int8DecodeKeys,
     .decode_values = Int8DecodeValues,
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

}  // namespace lode
