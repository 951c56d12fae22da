// SPDX-License-Identifier: Apache-2.0
#include "cli/verify_report.h"

#include <algorithm>
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

std::string TasksText(const NeedleReport& report) {
  Table table = {{"task", "prompts", kExactAttention}};
  for (const std::string& attention : report.attentions) {
    table[0].push_back(attention);
    table[0].emplace_back("same answer");
  }
  std::vector<NeedleScore> scores = report.ByTask();
  scores.push_back(report.Total());
  for (const NeedleScore& score : scores) {
    table.push_back({score.task, FormatCount(score.samples), Percent(score.exact)});
    for (size_t i = 0; i < report.attentions.size(); ++i) {
      table.back().push_back(Percent(score.scores[i]));
      table.back().push_back(FormatCount(score.identical[i]) + " of " + FormatCount(score.samples));
    }
  }
  int64_t longest = 0;
  for (const NeedleSample& sample : report.samples) {
    longest = std::max(longest, sample.prompt_tokens);
  }
  return Section("Answers to questions about prompts of up to " + FormatCount(longest) +
                     " tokens: what they hold of what they should",
                 table);
}

void ScoreJson(const NeedleReport& report, const NeedleScore& score, JsonWriter& json) {
  json.BeginObject().Field("task", score.task).Field("samples", score.samples);
  json.Field("reference_score", score.exact).Key("attentions").BeginArray();
  for (size_t i = 0; i < report.attentions.size(); ++i) {
    json.BeginObject().Field("attention", report.attentions[i]);
    json.Field("score", score.scores[i]).Field("identical_answers", score.identical[i]);
    json.EndObject();
  }
  json.EndArray().EndObject();
}

void AnswerJson(const std::string& attention, const NeedleAnswer& answer, JsonWriter& json) {
  json.BeginObject().Field("attention", attention).Field("score", answer.score);
  json.Field("text", answer.text).EndObject();
}

void TasksJson(const NeedleReport& report, JsonWriter& json) {
  json.Key("tasks").BeginObject().Field("reference", kExactAttention).Key("scores").BeginArray();
  for (const NeedleScore& score : report.ByTask()) ScoreJson(report, score, json);
  json.EndArray().Key("total");
  ScoreJson(report, report.Total(), json);
  json.Key("samples").BeginArray();
  for (const NeedleSample& sample : report.samples) {
    json.BeginObject().Field("task", sample.task).Field("prompt_tokens", sample.prompt_tokens);
    json.Field("question_tokens", sample.question_tokens).Key("references").BeginArray();
    for (const std::string& reference : sample.references) json.Value(reference);
    json.EndArray().Key("answers").BeginArray();
    AnswerJson(kExactAttention, sample.exact, json);
    for (size_t i = 0; i < sample.answers.size(); ++i) {
      AnswerJson(report.attentions[i], sample.answers[i], json);
    }
    json.EndArray().EndObject();
  }
  json.EndArray().EndObject();
}

}  // namespace

std::string VerifyReport::AsText() const {
  std::vector<std::string> sections;
  if (fidelity) sections.push_back(FidelityText(*fidelity));
  if (tasks) sections.push_back(TasksText(*tasks));
  std::string text;
  for (const std::string& section : sections) text += (text.empty() ? "" : "\n") + section;
  return text;
}

std::string VerifyReport::AsJson() const {
  JsonWriter json;
  json.BeginObject().Field("model", model).Field("kv_cache_dtype", kv_dtype);
  json.Field("context", context);
  if (fidelity) FidelityJson(*fidelity, json);
  if (tasks) TasksJson(*tasks, json);
  return json.EndObject().text() + "\n";
}

}  // namespace lode::cli
