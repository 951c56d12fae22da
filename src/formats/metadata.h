// SPDX-License-Identifier: Apache-2.0
// Metadata: typed key-value pairs of a model, with the keys of the GGUF specification whatever the
// file format was
// ("general.architecture", "qwen2.block_count", "tokenizer.ggml.tokens", ...).
#ifndef LODE_FORMATS_METADATA_H_
#define LODE_FORMATS_METADATA_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"

namespace lode {

// Integers are widened to 64 bits, floats to double. Arrays of integers and floats likewise;
// strings are views into the file's mapping (262,144 tokens must not become 262,144 allocations),
// valid as long as the WeightSource.
using MetadataValue =
    std::variant<bool, int64_t, uint64_t, double, std::string_view, std::vector<int64_t>,
                 std::vector<double>, std::vector<std::string_view>>;

// What is stored, for messages: "integer 513", "string '513'", "array of 3 strings".
std::string DescribeValue(const MetadataValue& value);

class Metadata {
 public:
  // `origin` names the file in error messages.
  explicit Metadata(std::string origin = "") : origin_(std::move(origin)) {}

  const std::string& origin() const { return origin_; }
  // Adds a pair. Error: Corruption when the key exists already.
  Status Add(std::string key, MetadataValue value);
  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  const MetadataValue* Find(std::string_view key) const;
  const std::map<std::string, MetadataValue, std::less<>>& values() const { return values_; }

  // Typed reads. NotFound when the key is absent; Corruption naming the key, the type found and the
  // range wanted when the value has another type or is outside [min, max]. A number stored as a
  // string or a float is not an integer.
  Result<int64_t> GetInt(std::string_view key, int64_t min, int64_t max) const;
  Result<double> GetFloat(std::string_view key) const;  // must be finite; integers are accepted
  Result<bool> GetBool(std::string_view key) const;
  Result<std::string_view> GetString(std::string_view key) const;
  Result<const std::vector<std::string_view>*> GetStrings(std::string_view key) const;
  Result<const std::vector<int64_t>*> GetInts(std::string_view key) const;
  Result<const std::vector<double>*> GetFloats(std::string_view key) const;
  // The same with a default for an absent key; a present but ill-typed value is still an error.
  Result<int64_t> GetIntOr(std::string_view key, int64_t min, int64_t max, int64_t fallback) const;
  Result<double> GetFloatOr(std::string_view key, double fallback) const;
  Result<bool> GetBoolOr(std::string_view key, bool fallback) const;
  Result<std::string> GetStringOr(std::string_view key, std::string_view fallback) const;

 private:
  std::string origin_;
  std::map<std::string, MetadataValue, std::less<>> values_;
};

}  // namespace lode

#endif  // LODE_FORMATS_METADATA_H_
