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
    {KvDType::kF32, "f32", F32KeyBlockBytes, F32ValueBlockBytes, F32StoreKeys, F32StoreValues,
     F32DecodeKeys, F32DecodeValues},
    {KvDType::kF16, "f16", F16KeyBlockBytes, F16ValueBlockBytes, F16StoreKeys, F16StoreValues,
     F16DecodeKeys, F16DecodeValues},
    {KvDType::kInt8, "int8", Int8KeyBlockBytes, Int8ValueBlockBytes, Int8StoreKeys, Int8StoreValues,
     Int8DecodeKeys, Int8DecodeValues},
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
