// SPDX-License-Identifier: Apache-2.0
#include "cli/model_options.h"

#include <filesystem>
#include <vector>

#include "cli/catalogue.h"
#include "cli/console.h"

namespace lode::cli {

Result<std::string> ResolveModel(const std::string& name) {
  if (name.empty()) {
    return WithHint(InvalidArgumentError("no model given"),
                    "-m PATH or -m NAME; `lode pull` lists names that can be fetched");
  }
  std::error_code ignored;
  if (std::filesystem::exists(name, ignored)) return name;
  if (const CatalogueEntry* entry = FindInCatalogue(name)) {
    const std::string path = CachePath(*entry);
    if (std::filesystem::exists(path, ignored)) return path;
    return WithHint(NotFoundError(name + ": not fetched yet (looked for " + path + ")"),
                    "`lode pull " + name + "` fetches it");
  }
  std::vector<std::string> names;
  for (const CatalogueEntry& entry : Catalogue()) names.push_back(entry.name);
  const std::string nearest = NearestName(name, names);
  return WithHint(
      NotFoundError(name + ": no such file or folder, and no such name in the catalogue"),
      nearest.empty() ? "`lode pull` lists the catalogue" : "did you mean " + nearest + "?");
}

}  // namespace lode::cli
