// SPDX-License-Identifier: Apache-2.0
// The options of every verb that loads a model, and how a model is named.
#ifndef LODE_CLI_MODEL_OPTIONS_H_
#define LODE_CLI_MODEL_OPTIONS_H_

#include <string>

#include "base/status.h"

namespace lode::cli {

// The path of a model named by the user: an existing path as it is, else a name of the catalogue
// that is in the cache. NotFound says what was looked for and what to do.
Result<std::string> ResolveModel(const std::string& name);

}  // namespace lode::cli

#endif  // LODE_CLI_MODEL_OPTIONS_H_
