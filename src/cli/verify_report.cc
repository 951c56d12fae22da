// SPDX-License-Identifier: Apache-2.0
#include "cli/verify_report.h"

#include <algorithm>
#include <vector>

#include "cli/console.h"
#include "cli/verify_claims.h"

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

std::string Section(const std::string& heading, const Table& table) {
  return heading + "\n" + FormatTable(table);
}

std::string MemoryText(const MemoryAudit& audit) {
  const MemoryPlan& plan = audit.plan;
  Table table = {
      {"part", "planned", "counted", "resident"},
      {"weights, repacked", FormatBytes(plan.weight_bytes), FormatBytes(audit.weight_bytes), ""},
      {"keys and values", FormatBytes(plan.kv_bytes),
       FormatBytes(audit.kv_bytes + audit.kv_metadata_bytes), ""},
      {"activations", FormatBytes(plan.activation_bytes), "", ""},
      {"tokenizer", FormatBytes(plan.tokenizer_bytes), "", ""},
      {"program, mapped parts of the file", FormatBytes(plan.program_bytes + plan.mapped_bytes), "",
       FormatBytes(audit.before_load_bytes)},
      {"model loaded", "", "", FormatBytes(audit.loaded_bytes)},
      {"prompt in the cache", FormatBytes(plan.total_bytes()), "",
       FormatBytes(audit.prompt_bytes)}};
  for (const MemoryAudit::Growth& growth : audit.attentions) {
    table.push_back({growth.attention + ", its index", "", FormatBytes(growth.index_bytes),
                     "+ " + FormatBytes(growth.resident_bytes)});
  }
  return Section("Memory with " + FormatCount(audit.tokens) + " tokens: the plan is off by " +
                     FormatFixed(100 * audit.plan_error(), 1) + " %",
                 table);
}

std::string IndexGraphText(const IndexGraph& graph, int64_t tokens) {
  const auto row = [&](const std::string& part, const std::string& type, int64_t bytes) {
    return std::vector<std::string>{part, type, FormatBytes(bytes)};
  };
  return Section("Index graph as text 1 lays it out, for " + FormatCount(tokens) +
                     " tokens: " + FormatCount(graph.buckets) + " buckets, " +
                     FormatCount(graph.summaries) + " summaries",
                 {{"part", "type", "bytes"},
                  row("bucket map, per layer and KV head", "u16", graph.bucket_map_bytes),
                  row("summary pointers", "i32", graph.summary_pointer_bytes),
                  row("sparse keys, three per bucket", "f16", graph.sparse_key_bytes),
                  row("summary tokens, keys and values", "f16", graph.summary_token_bytes),
                  row("in all", "", graph.total_bytes())});
}

std::string FidelityText(const FidelityReport& report) {
  Table table = {{"attention", "prompt", "KL, mean", "KL, max", "same top-1", "perplexity",
                  "keys read", "bytes, of f16", "in summaries", "missed mass", "recall@256",
                  "by codes, of 1,024"}};
  for (const FidelityRow& row : report.rows) {
    table.push_back({row.attention,
                     row.sparse_prefill == 0 ? "exact" : "last " + FormatCount(row.sparse_prefill),
                     Significant(row.mean_kl), Significant(row.max_kl), Percent(row.same_top1),
                     "x " + FormatFixed(row.perplexity_ratio, 4), Percent(row.KeysReadShare()),
                     row.counters.bytes_read > 0 ? Percent(row.bytes_share) : "-",
                     Percent(row.UnreadShare()), row.audited() ? Percent(row.MissedMass()) : "-",
                     row.audited() ? Percent(row.Recall()) : "-",
                     row.has_code_recall() ? Percent(row.CodeRecall()) : "-"});
  }
  return Section("Next-token distributions against " + std::string(kExactAttention) + ": " +
                     FormatCount(report.steps) + " steps behind " +
                     FormatCount(report.prompt_tokens) + " tokens, perplexity " +
                     FormatFixed(report.exact_perplexity, 3),
                 table);
}

std::string OutputsText(const OutputAuditReport& report) {
  Table table = {{"attention", "layer", "cosine, mean", "least", "error, mean", "largest"}};
  const auto add = [&](const std::string& attention, const std::string& layer,
                       const OutputErrors& errors) {
    table.push_back({attention, layer, FormatFixed(errors.mean_cosine, 5),
                     FormatFixed(errors.min_cosine, 4), Percent(errors.mean_error),
                     Percent(errors.max_error)});
  };
  for (const OutputAuditReport::Row& row : report.rows) {
    for (size_t layer = 0; layer < row.layers.size(); ++layer) {
      add(row.attention, std::to_string(layer), row.layers[layer]);
    }
    add(row.attention, "all", row.all);
  }
  return Section("Outputs of each layer against " + std::string(kExactAttention) +
                     ", from the same inputs: " + FormatCount(report.steps) + " steps behind " +
                     FormatCount(report.prompt_tokens) + " tokens",
                 table);
}

std::string SentencesText(const SimilarityReport& report) {
  Table table = {{"layer", "similar, codes", "exact", "unrelated, codes", "exact", "recall"}};
  const auto add = [&](const std::string& layer, const SimilarityRow& row) {
    table.push_back({layer, Percent(row.shared_by_codes), Percent(row.shared_exact),
                     Percent(row.unrelated_by_codes), Percent(row.unrelated_exact),
                     Percent(row.recall)});
  };
  for (const SimilarityRow& row : report.layers) add(std::to_string(row.layer), row);
  add("all", report.all);
  std::string text =
      Section("Neighbours that two sentences share, of " + FormatCount(report.neighbours) +
                  " keys out of " + FormatCount(report.context_tokens) + ": " +
                  FormatCount(report.variants) + " variants of one sentence, " +
                  FormatCount(report.unrelated) + " unrelated",
              table);
  if (report.buckets == 0) return text;
  text += "By text 1's buckets the queries of the variants fall in " +
          FormatFixed(report.all.variant_buckets, 1) + " of " + FormatCount(report.buckets) + ", " +
          Percent(report.all.one_bucket) + " of them in the same one; " +
          Percent(report.all.bucket_recall) +
          " of the exact neighbours are among the keys that these keep.\n";
  if (BucketsFindNothing(report)) {
    text +=
        "That is next to nothing: what this attention gets right comes from window, sinks and "
        "summaries.\n";
  }
  return text;
}

std::string SummariesText(const SummaryTextReport& report) {
  Table table = {{"answer by", "its passage", "others", "its own is the nearest"}};
  for (const SummaryTextRow& row : report.rows) {
    table.push_back(
        {row.attention, FormatFixed(row.own, 3), FormatFixed(row.others, 3),
         FormatCount(row.nearest) + " of " + FormatCount(std::ssize(report.beginnings))});
  }
  return Section("Passages of " + FormatCount(report.passage_tokens) + " tokens, of which " +
                     FormatCount(report.answer_tokens) +
                     " are repeated: cosines of sentence embeddings (of two passages " +
                     FormatFixed(report.beginnings_cosine, 3) + ")",
                 table);
}

std::string ClaimsText(const std::vector<ClaimRow>& claims) {
  Table table = {{"figure", "attention", "text 1", "here"}};
  for (const ClaimRow& row : claims) {
    const auto format = [&](double value) {
      return row.is_share ? Percent(value) : FormatFixed(value, 2);
    };
    table.push_back({row.text, row.attention, format(row.claimed), format(row.measured)});
  }
  return Section("What text 1 claims, beside this run", table);
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

}  // namespace

std::string VerifyReport::AsText() const {
  std::vector<std::string> sections;
  if (memory) sections.push_back(MemoryText(*memory));
  if (memory && memory->index_graph) {
    sections.push_back(IndexGraphText(*memory->index_graph, memory->tokens));
  }
  if (fidelity) sections.push_back(FidelityText(*fidelity));
  if (outputs) sections.push_back(OutputsText(*outputs));
  if (sentences) sections.push_back(SentencesText(*sentences));
  if (summaries) sections.push_back(SummariesText(*summaries));
  const std::vector<ClaimRow> claims = ClaimsOfTextOne(*this);
  if (!claims.empty()) sections.push_back(ClaimsText(claims));
  if (tasks) sections.push_back(TasksText(*tasks));
  std::string text;
  for (const std::string& section : sections) text += (text.empty() ? "" : "\n") + section;
  return text;
}

}  // namespace lode::cli
