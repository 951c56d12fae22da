// SPDX-License-Identifier: Apache-2.0
#include "formats/metadata.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

#include "formats/quoted.h"

namespace lode {
namespace {

struct Describe {
  std::string operator()(bool v) const { return fmt::format("bool {}", v); }
  std::string operator()(int64_t v) const { return fmt::format("integer {}", v); }
  std::string operator()(uint64_t v) const { return fmt::format("integer {}", v); }
  std::string operator()(double v) const { return fmt::format("float {}", v); }
  std::string operator()(std::string_view v) const { return "string " + Quoted(v); }
  std::string operator()(const std::vector<int64_t>& v) const {
    return fmt::format("array of {} integers", v.size());
  }
  std::string operator()(const std::vector<double>& v) const {
    return fmt::format("array of {} floats", v.size());
  }
  std::string operator()(const std::vector<std::string_view>& v) const {
    return fmt::format("array of {} strings", v.size());
  }
};

std::string Where(const Metadata& metadata, std::string_view key) {
  return fmt::format("{}: key {}", metadata.origin(), Quoted(key));
}

Status Missing(const Metadata& metadata, std::string_view key) {
  return NotFoundError(Where(metadata, key) + ": expected, but absent");
}

Status WrongType(const Metadata& metadata, std::string_view key, std::string_view expected,
                 const MetadataValue& found) {
  return CorruptionError(fmt::format("{}: expected {}, found {}", Where(metadata, key), expected,
                                     DescribeValue(found)));
}

// The value of exactly type T. Numbers are not converted to each other.
template <class T>
Result<const T*> GetExactly(const Metadata& metadata, std::string_view key,
                            std::string_view expected) {
  const MetadataValue* value = metadata.Find(key);
  if (value == nullptr) return Missing(metadata, key);
  const T* typed = std::get_if<T>(value);
  if (typed == nullptr) return WrongType(metadata, key, expected, *value);
  return typed;
}

}  // namespace

std::string DescribeValue(const MetadataValue& value) {
  return std::visit(Describe(), value);
}

Status Metadata::Add(std::string key, MetadataValue value) {
  const auto [it, inserted] = values_.try_emplace(std::move(key), std::move(value));
  if (inserted) return OkStatus();
  return CorruptionError(Where(*this, it->first) + ": expected once, found twice");
}

const MetadataValue* Metadata::Find(std::string_view key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

Result<int64_t> Metadata::GetInt(std::string_view key, int64_t min, int64_t max) const {
  const MetadataValue* value = Find(key);
  if (value == nullptr) return Missing(*this, key);
  const int64_t* integer = std::get_if<int64_t>(value);
  if (integer != nullptr && *integer >= min && *integer <= max) return *integer;
  const std::string wanted = fmt::format("an integer from {} to {}", min, max);
  return WrongType(*this, key, wanted, *value);
}

Result<double> Metadata::GetFloat(std::string_view key) const {
  const MetadataValue* value = Find(key);
  if (value == nullptr) return Missing(*this, key);
  if (const auto* number = std::get_if<double>(value);
      number != nullptr && std::isfinite(*number)) {
    return *number;
  }
  if (const auto* number = std::get_if<int64_t>(value)) return static_cast<double>(*number);
  if (const auto* number = std::get_if<uint64_t>(value)) return static_cast<double>(*number);
  return WrongType(*this, key, "a finite number", *value);
}

Result<bool> Metadata::GetBool(std::string_view key) const {
  LODE_ASSIGN_OR_RETURN(const bool* value, GetExactly<bool>(*this, key, "a bool"));
  return *value;
}

Result<std::string_view> Metadata::GetString(std::string_view key) const {
  LODE_ASSIGN_OR_RETURN(const std::string_view* value,
                        GetExactly<std::string_view>(*this, key, "a string"));
  return *value;
}

Result<const std::vector<std::string_view>*> Metadata::GetStrings(std::string_view key) const {
  return GetExactly<std::vector<std::string_view>>(*this, key, "an array of strings");
}

Result<const std::vector<int64_t>*> Metadata::GetInts(std::string_view key) const {
  return GetExactly<std::vector<int64_t>>(*this, key, "an array of integers");
}

Result<const std::vector<double>*> Metadata::GetFloats(std::string_view key) const {
  return GetExactly<std::vector<double>>(*this, key, "an array of floats");
}

Result<int64_t> Metadata::GetIntOr(std::string_view key, int64_t min, int64_t max,
                                   int64_t fallback) const {
  if (!Has(key)) return fallback;
  return GetInt(key, min, max);
}

Result<double> Metadata::GetFloatOr(std::string_view key, double fallback) const {
  if (!Has(key)) return fallback;
  return GetFloat(key);
}

Result<bool> Metadata::GetBoolOr(std::string_view key, bool fallback) const {
  if (!Has(key)) return fallback;
  return GetBool(key);
}

Result<std::string> Metadata::GetStringOr(std::string_view key, std::string_view fallback) const {
  if (!Has(key)) return std::string(fallback);
  LODE_ASSIGN_OR_RETURN(const std::string_view value, GetString(key));
  return std::string(value);
}

}  // namespace lode
