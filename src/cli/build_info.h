// SPDX-License-Identifier: Apache-2.0
// Which build this is: what `lode --version` prints and benchmarks record.
#ifndef LODE_CLI_BUILD_INFO_H_
#define LODE_CLI_BUILD_INFO_H_

namespace lode::cli {

const char* BuildVersion();  // "0.1.0"
// Of git, abbreviated; "unknown" outside a repository.
const char* BuildCommit();
const char* BuildType();  // "Release"

}  // namespace lode::cli

#endif  // LODE_CLI_BUILD_INFO_H_
