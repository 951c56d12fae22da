// SPDX-License-Identifier: Apache-2.0
#include "engine/configured_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <variant>

#include "attention/sparse_parameters.h"
#include "base/log.h"
#include "formats/quoted.h"

namespace lode {
namespace {

constexpr std::string_view kPrefix = "lode.";
constexpr std::string_view kAttention = "attention_implementation";
constexpr std::string_view kUseHca = "use_hca";
constexpr std::string_view kSummary = "hca_summary";

std::string Key(std::string_view name) {
  return std::string(kPrefix) + std::string(name);
}

// Nothing for what is neither a number nor a word nor a bool.
std::optional<SparseValue> ValueOf(const MetadataValue& value) {
  if (const auto* number = std::get_if<int64_t>(&value)) return *number;
  if (const auto* number = std::get_if<double>(&value)) return *number;
  if (const auto* word = std::get_if<std::string_view>(&value)) return *word;
  if (const auto* truth = std::get_if<bool>(&value)) return *truth;
  return std::nullopt;
}

}  // namespace

Result<std::string> AttentionOf(const WeightSource& source, const EngineOptions& options) {
  if (!options.attention.empty()) {
    LODE_RETURN_IF_ERROR(CheckAttentionName(options.attention));
    return options.attention;
  }
  LODE_ASSIGN_OR_RETURN(std::string name, source.metadata().GetStringOr(Key(kAttention), "flash"));
  LODE_RETURN_IF_ERROR(CheckAttentionName(name).WithContext(options.model_path));
  return name;
}

Result<SparseOptions> SparseOptionsOf(const WeightSource& source, const EngineOptions& options) {
  const Metadata& metadata = source.metadata();
  SparseOptions sparse = options.sparse;
  for (const SparseParameter& parameter : SparseParameters()) {
    const MetadataValue* found = metadata.Find(Key(parameter.name));
    if (options.sparse_given.contains(parameter.name)) {
      // Again, as use_hca and hca_summary set the same option: a flag for one wins over the other
      // in the configuration.
      parameter.set(parameter.get(options.sparse), sparse);
      continue;
    }
    if (found == nullptr) continue;
    if (parameter.name == kUseHca && options.sparse_given.contains(kSummary)) continue;
    const std::optional<SparseValue> value = ValueOf(*found);
    if (value && parameter.set(*value, sparse)) continue;
    return CorruptionError(fmt::format("{}: key {}: expected {}, found {}", metadata.origin(),
                                       Quoted(parameter.name), parameter.expected,
                                       DescribeValue(*found)));
  }
  return sparse;
}

void WarnOfUnknownSparseKeys(const Metadata& metadata) {
  for (const auto& [key, value] : metadata.values()) {
    if (!key.starts_with(Key("csa_")) && !key.starts_with(Key("hca_"))) continue;
    const std::string_view name = std::string_view(key).substr(kPrefix.size());
    if (std::ranges::find(SparseParameters(), name, &SparseParameter::name) !=
        SparseParameters().end()) {
      continue;
    }
    LogWarning(
        fmt::format("{}: key {}: not known, it changes nothing", metadata.origin(), Quoted(name)));
  }
}

}  // namespace lode
