// SPDX-License-Identifier: Apache-2.0
// FlatJson: a small JSON object as typed key-value pairs. {"a": {"b": [1, 2]}} becomes the key
// "a.b". Configuration files are read this way so that they share Metadata's typed reads and their
// messages.
#ifndef LODE_FORMATS_FLAT_JSON_H_
#define LODE_FORMATS_FLAT_JSON_H_

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "formats/metadata.h"

namespace lode {

struct FlatJson {
  // Arrays of numbers or of strings are kept; bools in arrays count as numbers, and arrays that mix
  // kinds or hold objects are left out, as are nulls.
  Metadata values;
  std::set<std::string, std::less<>> nulls;           // keys that are present, but null
  std::vector<std::unique_ptr<std::string>> strings;  // what the string_views in `values` point to

  // Whether there is an object of this name: any key that begins with "name.".
  bool HasObject(std::string_view name) const;
};

// Parses a JSON object of at most 1 MB, nested at most 32 deep. Corruption names the origin and the
// reason: not JSON, not an object, a key given twice.
Result<FlatJson> ParseFlatJson(std::string_view text, const std::string& origin);

}  // namespace lode

#endif  // LODE_FORMATS_FLAT_JSON_H_
