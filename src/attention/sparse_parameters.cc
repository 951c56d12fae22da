// SPDX-License-Identifier: Apache-2.0
#include "attention/sparse_parameters.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/parse_number.h"
#include "retrieval/sign_codes.h"

namespace lode {
namespace {

using Scores = SparseOptions::Scores;

constexpr int64_t kMostTokens = int64_t{1} << 40;
// Names of Scores, in its order.
constexpr std::string_view kScores[] = {"codes", "means", "exact", "hamming", "buckets"};
// Names of Summary, in its order.
constexpr std::string_view kSummaries[] = {"mean", "ffn", "none"};

bool SetTokens(const SparseValue& value, int64_t least, int64_t& target) {
  const int64_t* number = std::get_if<int64_t>(&value);
  if (number == nullptr || *number < least || *number > kMostTokens) return false;
  target = *number;
  return true;
}

bool SetShare(const SparseValue& value, double& target) {
  double share = -1.0;
  if (const double* number = std::get_if<double>(&value)) share = *number;
  if (const int64_t* number = std::get_if<int64_t>(&value)) share = static_cast<double>(*number);
  if (!(share >= 0.0 && share <= 1.0)) return false;  // written so that NaN is refused
  target = share;
  return true;
}

bool SetScores(const SparseValue& value, SparseOptions& options) {
  const std::string_view* word = std::get_if<std::string_view>(&value);
  if (word == nullptr) return false;
  const auto* const found = std::ranges::find(kScores, *word);
  if (found == std::end(kScores)) return false;
  options.scores = static_cast<Scores>(found - std::begin(kScores));
  return true;
}

bool SetHashDim(const SparseValue& value, SparseOptions& options) {
  const int64_t* bits = std::get_if<int64_t>(&value);
  if (bits == nullptr || !SignCodes::IsNumBits(*bits)) return false;
  options.hash_dim = *bits;
  return true;
}

bool SetSeed(const SparseValue& value, SparseOptions& options) {
  const int64_t* seed = std::get_if<int64_t>(&value);
  if (seed == nullptr || *seed < 0) return false;
  options.seed = static_cast<uint64_t>(*seed);
  return true;
}

bool SetUseHca(const SparseValue& value, SparseOptions& options) {
  const bool* use = std::get_if<bool>(&value);
  if (use != nullptr && !*use) options.summary = SparseOptions::Summary::kNone;
  return use != nullptr;
}

bool SetSummary(const SparseValue& value, SparseOptions& options) {
  const std::string_view* word = std::get_if<std::string_view>(&value);
  if (word == nullptr) return false;
  const auto* const found = std::ranges::find(kSummaries, *word);
  if (found == std::end(kSummaries)) return false;
  options.summary = static_cast<SparseOptions::Summary>(found - std::begin(kSummaries));
  return true;
}

constexpr SparseParameter kParameters[] = {
    {"csa_top_k", "N", "an integer from 0 to 2^40",
     "keys read exactly besides the newest and the first, at least.",
     [](const SparseOptions& options) -> SparseValue { return options.top_k; },
     [](const SparseValue& value, SparseOptions& options) {
       return SetTokens(value, 0, options.top_k);
     }},
    {"csa_max_error", "X", "a share from 0 to 1",
     "read every page (32 keys) with a larger share of the attention than this / "
     "sqrt(number of pages); 0: only what the other limits ask for.",
     [](const SparseOptions& options) -> SparseValue { return options.max_error; },
     [](const SparseValue& value, SparseOptions& options) {
       return SetShare(value, options.max_error);
     }},
    {"csa_max_unread", "X", "a share from 0 to 1",
     "read more until summaries carry no more than this share of the attention; 0: no such limit.",
     [](const SparseOptions& options) -> SparseValue { return options.max_unread; },
     [](const SparseValue& value, SparseOptions& options) {
       return SetShare(value, options.max_unread);
     }},
    {"csa_oversample", "N", "an integer from 1 to 2^40",
     "give N times as many pages as would be read their true scores, and choose among these; 1: "
     "estimates decide.",
     [](const SparseOptions& options) -> SparseValue { return options.oversample; },
     [](const SparseValue& value, SparseOptions& options) {
       return SetTokens(value, 1, options.oversample);
     }},
    {"csa_index", "KIND", "codes, means, exact, hamming or buckets",
     "what ranks keys: codes, or to compare with means, exact (slow), hamming or buckets (both by "
     "random sign bits).",
     [](const SparseOptions& options) -> SparseValue {
       return kScores[static_cast<size_t>(options.scores)];
     },
     SetScores},
    {"csa_hash_dim", "N", "32, 64 or 128", "by hamming or buckets: bits of a key, 32, 64 or 128.",
     [](const SparseOptions& options) -> SparseValue { return options.hash_dim; }, SetHashDim,
     true},
    {"csa_seed", "N", "an integer of at least 0",
     "by hamming or buckets: seed of the random matrix; 0: taken from the model.",
     [](const SparseOptions& options) -> SparseValue {
       return static_cast<int64_t>(options.seed & uint64_t{std::numeric_limits<int64_t>::max()});
     },
     SetSeed, true},
    {"hca_window", "N", "an integer from 1 to 2^40", "newest tokens that are always read.",
     [](const SparseOptions& options) -> SparseValue { return options.window; },
     [](const SparseValue& value, SparseOptions& options) {
       return SetTokens(value, 1, options.window);
     },
     true},
    {"hca_summary", "KIND", "mean, ffn or none",
     "what stands for keys that are not read: mean, none, or for index_graph ffn.",
     [](const SparseOptions& options) -> SparseValue {
       return kSummaries[static_cast<size_t>(options.summary)];
     },
     SetSummary, true},
    {"hca_summary_ratio", "X", "a share above 0 and up to 1",
     "look at the codes of this share of the pages only, those whose means have the largest scores "
     "(index_graph: see this share of the summaries).",
     [](const SparseOptions& options) -> SparseValue { return options.summary_ratio; },
     [](const SparseValue& value, SparseOptions& options) {
       double ratio = 0.0;
       if (!SetShare(value, ratio) || ratio <= 0.0) return false;
       options.summary_ratio = ratio;
       return true;
     },
     true},
    {"hca_update_interval", "N", "an integer from 1 to 2^40",
     "tokens leave the window N at a time, and get summaries.",
     [](const SparseOptions& options) -> SparseValue { return options.update_interval; },
     [](const SparseValue& value, SparseOptions& options) {
       return SetTokens(value, 1, options.update_interval);
     },
     true},
    {"use_hca", "BOOL", "true or false",
     "false: no summaries, as with --hca-summary none (the later of the two wins).",
     [](const SparseOptions& options) -> SparseValue {
       return options.summary != SparseOptions::Summary::kNone;
     },
     SetUseHca, true},
};

// A value of the same kind as `like`.
Result<SparseValue> ParseLike(const SparseValue& like, std::string_view text) {
  if (std::holds_alternative<int64_t>(like)) {
    LODE_ASSIGN_OR_RETURN(const int64_t number, ParseInteger(text, {}));
    return SparseValue(number);
  }
  if (std::holds_alternative<double>(like)) {
    LODE_ASSIGN_OR_RETURN(const float number, ParseReal(text));
    return SparseValue(double{number});
  }
  if (std::holds_alternative<bool>(like) && (text == "true" || text == "false")) {
    return SparseValue(text == "true");
  }
  return SparseValue(text);
}

}  // namespace

std::span<const SparseParameter> SparseParameters() {
  return kParameters;
}

Status SetSparseParameter(const SparseParameter& parameter, std::string_view text,
                          SparseOptions& options) {
  const Result<SparseValue> parsed = ParseLike(parameter.get(options), text);
  if (parsed.ok() && parameter.set(*parsed, options)) return OkStatus();
  return InvalidArgumentError("expected " + std::string(parameter.expected) + ", found '" +
                              std::string(text) + "'");
}

Status SetSparseParameters(std::string_view list, bool (*accepts)(const SparseParameter&),
                           SparseOptions& options) {
  for (size_t begin = 0; begin <= list.size();) {
    const std::string_view item = list.substr(begin, list.find(':', begin) - begin);
    begin += item.size() + 1;
    const std::string_view name = item.substr(0, item.find('='));
    const auto* const found = std::ranges::find(kParameters, name, &SparseParameter::name);
    if (found == std::end(kParameters) || !accepts(*found) || name.size() == item.size()) {
      std::string known;
      for (const SparseParameter& parameter : kParameters) {
        if (!accepts(parameter)) continue;
        known += (known.empty() ? "" : ", ") + std::string(parameter.name);
      }
      return InvalidArgumentError("expected NAME=VALUE with one of " + known + ", found '" +
                                  std::string(item) + "'");
    }
    LODE_RETURN_IF_ERROR(SetSparseParameter(*found, item.substr(name.size() + 1), options)
                             .WithContext(std::string(name)));
  }
  return OkStatus();
}

}  // namespace lode
