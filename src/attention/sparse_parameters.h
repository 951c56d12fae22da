// SPDX-License-Identifier: Apache-2.0
// SparseParameters: what a user or a model's configuration may set of csa_hca and index_graph
// (SparseOptions), one table for command-line options and configuration keys.
#ifndef LODE_ATTENTION_SPARSE_PARAMETERS_H_
#define LODE_ATTENTION_SPARSE_PARAMETERS_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

#include "attention/attention.h"
#include "base/status.h"

namespace lode {

// A number, a word, or true or false, as it was written.
using SparseValue = std::variant<int64_t, double, std::string_view, bool>;

struct SparseParameter {
  std::string_view name;      // the key in a configuration; --csa-top-k is csa_top_k
  std::string_view meta;      // of the value, for help: "N"
  std::string_view expected;  // of a value, for messages: "an integer of at least 0"
  std::string_view help;
  // The value in `options`; which of the kinds it is depends on the parameter alone.
  SparseValue (*get)(const SparseOptions& options);
  // False: the value is not what is expected, and `options` are as they were.
  bool (*set)(const SparseValue& value, SparseOptions& options);
  bool in_index_graph = false;  // whether that looks at it too
};

std::span<const SparseParameter> SparseParameters();

// Sets a parameter to what `text` spells. InvalidArgument says what was expected and found.
Status SetSparseParameter(const SparseParameter& parameter, std::string_view text,
                          SparseOptions& options);
// Sets those of a list, at least one, as "csa_top_k=1024:hca_summary=none". InvalidArgument, also
// for a name that is none or that `accepts` refuses, and `options` may be changed in part.
Status SetSparseParameters(std::string_view list, bool (*accepts)(const SparseParameter&),
                           SparseOptions& options);

}  // namespace lode

#endif  // LODE_ATTENTION_SPARSE_PARAMETERS_H_
