// SPDX-License-Identifier: Apache-2.0
// The list of attention implementations. A new one is a row here, a line in CMakeLists.txt and a
// section in docs/attention.md; tests/conformance/attention_test picks it up by itself.
#include <array>

#include "attention/attention.h"
#include "attention/eager.h"
#include "attention/flash.h"

namespace lode {
namespace {

struct Entry {
  std::string_view name;
  std::unique_ptr<Attention> (*create)();
};

constexpr std::array<Entry, 2> kEntries = {{
    {"eager", CreateEagerAttention},
    {"flash", CreateFlashAttention},
}};

struct Alias {
  std::string_view alias;
  std::string_view name;
};

// Names that configurations of other engines use for the same computation.
constexpr std::array<Alias, 2> kAliases = {{{"sdpa", "flash"}, {"flash_attention_2", "flash"}}};

}  // namespace

std::vector<std::string> AttentionNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kEntries) names.emplace_back(entry.name);
  return names;
}

Result<std::unique_ptr<Attention>> CreateAttention(std::string_view name) {
  std::string_view resolved = name;
  for (const Alias& alias : kAliases) {
    if (alias.alias == name) resolved = alias.name;
  }
  std::string known;
  for (const Entry& entry : kEntries) {
    if (entry.name == resolved) return entry.create();
    known += known.empty() ? "" : ", ";
    known += entry.name;
  }
  for (const Alias& alias : kAliases) {
    known += ", " + std::string(alias.alias) + " (= " + std::string(alias.name) + ")";
  }
  return InvalidArgumentError("unknown attention implementation \"" + std::string(name) +
                              "\", expected one of " + known);
}

}  // namespace lode
