// SPDX-License-Identifier: Apache-2.0
#include "cli/verify_report.h"

#include <vector>

#include "base/json.h"
#include "cli/console.h"

namespace lode::cli {
namespace {

using Table = std::vector<std::vector<std::string>>;

std::string Percent(double share) {
  return FormatFixed(100 * share, 1) + " %";
}

// Three significant digits for what spans orders of magnitude, whatever the locale.
std::string Significant(double value) {
  int decimals = 3;
  for (double scale = 1.0; decimals < 9 && value != 0 && value < scale; scale /= 10) ++decimals;
  return FormatFixed(value, decimals);
}

double KeysReadShare(const AttentionCounters& counters) {
  return counters.keys == 0
             ? 1.0
             : static_cast<double>(counters.keys_read) / static_cast<double>(counters.keys);
}

double UnreadShare(const AttentionCounters& counters) {
  return counters.rows == 0 ? 0.0 : counters.unread_share / counters.rows;
}

std::string Section(const std::string& heading, const Table& table) {
  return heading + "\n" + FormatTable(table);
}

std::string FidelityText(const FidelityReport& report) {
  Table table = {{"attention", "prompt", "KL, mean", "KL, max", "same top-1", "perplexity",
                  "keys read", "in summaries"}};
  for (const FidelityRow& row : report.rows) {
    table.push_back({row.attention,
                     row.sparse_prefill == 0 ? "exact" : "last " + FormatCount(row.sparse_prefill),
                     Significant(row.mean_kl), Significant(row.max_kl), Percent(row.same_top1),
                     "x " + FormatFixed(row.perplexity_ratio, 4),
                     Percent(KeysReadShare(row.counters)), Percent(UnreadShare(row.counters))});
  }
  return Section("Next-token distributions against " + std::string(kExactAttention) + ": " +
                     FormatCount(report.steps) + " steps behind " +
                     FormatCount(report.prompt_tokens) + " tokens, perplexity " +
                     FormatFixed(report.exact_perplexity, 3),
                 table);
}

void FidelityJson(const FidelityReport& report, JsonWriter& json) {
  json.Key("fidelity").BeginObject().Field("reference", kExactAttention);
  json.Field("prompt_tokens", report.prompt_tokens).Field("steps", report.steps);
  json.Field("reference_perplexity", report.exact_perplexity).Key("rows").BeginArray();
  for (const FidelityRow& row : report.rows) {
    json.BeginObject().Field("attention", row.attention);
    json.Field("sparse_prefill_tokens", row.sparse_prefill);
    json.Field("mean_kl", row.mean_kl).Field("max_kl", row.max_kl);
    json.Field("same_top1", row.same_top1).Field("perplexity_ratio", row.perplexity_ratio);
    json.Field("keys_read_share", KeysReadShare(row.counters));
    json.Field("unread_mass_share", UnreadShare(row.counters)).EndObject();
  }
  json.EndArray().EndObject();
}

}  // namespace

std::string VerifyReport::AsText() const {
  std::vector<std::string> sections;
  if (fidelity) sections.push_back(FidelityText(*fidelity));
  std::string text;
  for (const std::string& section : sections) text += (text.empty() ? "" : "\n") + section;
  return text;
}

std::string VerifyReport::AsJson() const {
  JsonWriter json;
  json.BeginObject().Field("model", model).Field("kv_cache_dtype", kv_dtype);
  json.Field("context", context);
  if (fidelity) FidelityJson(*fidelity, json);
  return json.EndObject().text() + "\n";
}

}  // namespace lode::cli
