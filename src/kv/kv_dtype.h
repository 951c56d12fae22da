// SPDX-License-Identifier: Apache-2.0
// KvDType: the element types that keys and values may have in the cache, and their names.
#ifndef LODE_KV_KV_DTYPE_H_
#define LODE_KV_KV_DTYPE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace lode {

// kF32 is for verification (it adds no error of its own), kF16 the default; the integer types trade
// error for memory and are faster (docs/kv.md).
enum class KvDType : uint8_t { kF32, kF16, kBf16, kInt8, kInt6, kInt4 };
std::string_view KvDTypeName(KvDType dtype);          // "f32", "f16", "bf16", "int8", ...
Result<KvDType> ParseKvDType(std::string_view name);  // InvalidArgument lists the known names

// The types of keys and of values. One type alone stands for both.
struct KvDTypes {
  constexpr KvDTypes(KvDType both)
      : key(both), value(both) {}  // NOLINT(google-explicit-constructor)
  constexpr KvDTypes(KvDType key_type, KvDType value_type) : key(key_type), value(value_type) {}
  bool operator==(const KvDTypes&) const = default;

  KvDType key;
  KvDType value;
};
std::string KvDTypesName(KvDTypes dtypes);  // "int8", or "int8,f16" where they differ
// "TYPE" or "KEYTYPE,VALUETYPE". InvalidArgument lists the known names.
Result<KvDTypes> ParseKvDTypes(std::string_view text);

}  // namespace lode

#endif  // LODE_KV_KV_DTYPE_H_
