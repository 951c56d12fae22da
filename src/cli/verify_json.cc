// SPDX-License-Identifier: Apache-2.0
// VerifyReport as JSON.
#include <string>
#include <vector>

#include "base/json.h"
#include "cli/verify_claims.h"
#include "cli/verify_report.h"

namespace lode::cli {
namespace {

void MemoryJson(const MemoryAudit& audit, JsonWriter& json) {
  const MemoryPlan& plan = audit.plan;
  json.Key("memory").BeginObject().Field("tokens", audit.tokens);
  json.Key("planned").BeginObject().Field("weight_bytes", plan.weight_bytes);
  json.Field("kv_bytes", plan.kv_bytes).Field("activation_bytes", plan.activation_bytes);
  json.Field("tokenizer_bytes", plan.tokenizer_bytes).Field("program_bytes", plan.program_bytes);
  json.Field("mapped_bytes", plan.mapped_bytes).Field("total_bytes", plan.total_bytes());
  json.EndObject().Key("counted").BeginObject().Field("weight_bytes", audit.weight_bytes);
  json.Field("kv_bytes", audit.kv_bytes).Field("kv_metadata_bytes", audit.kv_metadata_bytes);
  json.EndObject().Key("resident").BeginObject();
  json.Field("before_load_bytes", audit.before_load_bytes);
  json.Field("loaded_bytes", audit.loaded_bytes).Field("prompt_bytes", audit.prompt_bytes);
  json.EndObject().Field("plan_error", audit.plan_error()).Key("attentions").BeginArray();
  for (const MemoryAudit::Growth& growth : audit.attentions) {
    json.BeginObject().Field("attention", growth.attention);
    json.Field("index_bytes", growth.index_bytes);
    json.Field("grown_bytes", growth.resident_bytes).EndObject();
  }
  json.EndArray();
  if (audit.index_graph) {
    const IndexGraph& graph = *audit.index_graph;
    json.Key("index_graph").BeginObject().Field("buckets", graph.buckets);
    json.Field("summaries", graph.summaries).Field("bucket_map_bytes", graph.bucket_map_bytes);
    json.Field("summary_pointer_bytes", graph.summary_pointer_bytes);
    json.Field("sparse_key_bytes", graph.sparse_key_bytes);
    json.Field("summary_token_bytes", graph.summary_token_bytes);
    json.Field("total_bytes", graph.total_bytes()).EndObject();
  }
  json.EndObject();
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
    json.Field("keys_read_share", row.KeysReadShare());
    if (row.counters.bytes_read > 0) json.Field("bytes_share_of_f16", row.bytes_share);
    json.Field("unread_mass_share", row.UnreadShare());
    if (row.audited()) {
      json.Field("audited_rows", row.counters.audits.rows);
      json.Field("missed_mass_share", row.MissedMass()).Field("recall_256", row.Recall());
    }
    if (row.has_code_recall()) json.Field("recall_256_of_1024_by_codes", row.CodeRecall());
    json.EndObject();
  }
  json.EndArray().EndObject();
}

void ErrorsJson(const OutputErrors& errors, JsonWriter& json) {
  json.BeginObject().Field("outputs", errors.outputs);
  json.Field("mean_cosine", errors.mean_cosine).Field("min_cosine", errors.min_cosine);
  json.Field("mean_relative_error", errors.mean_error);
  json.Field("max_relative_error", errors.max_error).EndObject();
}

void OutputsJson(const OutputAuditReport& report, JsonWriter& json) {
  json.Key("outputs").BeginObject().Field("reference", kExactAttention);
  json.Field("prompt_tokens", report.prompt_tokens).Field("steps", report.steps);
  json.Key("rows").BeginArray();
  for (const OutputAuditReport::Row& row : report.rows) {
    json.BeginObject().Field("attention", row.attention).Key("all");
    ErrorsJson(row.all, json);
    json.Key("layers").BeginArray();
    for (const OutputErrors& layer : row.layers) ErrorsJson(layer, json);
    json.EndArray().EndObject();
  }
  json.EndArray().EndObject();
}

void SimilarityJson(const SimilarityRow& row, bool has_buckets, JsonWriter& json) {
  json.Field("similar_shared_by_codes", row.shared_by_codes);
  json.Field("similar_shared_exact", row.shared_exact);
  json.Field("unrelated_shared_by_codes", row.unrelated_by_codes);
  json.Field("unrelated_shared_exact", row.unrelated_exact);
  json.Field("recall_by_codes", row.recall);
  if (has_buckets) {
    json.Field("variant_buckets", row.variant_buckets);
    json.Field("one_bucket_share", row.one_bucket).Field("recall_by_buckets", row.bucket_recall);
  }
  json.EndObject();
}

void SentencesJson(const SimilarityReport& report, JsonWriter& json) {
  json.Key("sentences").BeginObject().Field("context_tokens", report.context_tokens);
  json.Field("variants", report.variants).Field("unrelated", report.unrelated);
  json.Field("neighbours", report.neighbours).Field("buckets", report.buckets);
  json.Key("all").BeginObject();
  SimilarityJson(report.all, report.buckets > 0, json);
  json.Key("layers").BeginArray();
  for (const SimilarityRow& row : report.layers) {
    json.BeginObject().Field("layer", row.layer);
    SimilarityJson(row, report.buckets > 0, json);
  }
  json.EndArray().EndObject();
}

void SummariesJson(const SummaryTextReport& report, JsonWriter& json) {
  json.Key("summary_texts").BeginObject().Field("passage_tokens", report.passage_tokens);
  json.Field("answer_tokens", report.answer_tokens);
  json.Field("beginnings_cosine", report.beginnings_cosine).Key("beginnings").BeginArray();
  for (const std::string& beginning : report.beginnings) json.Value(beginning);
  json.EndArray().Key("rows").BeginArray();
  for (const SummaryTextRow& row : report.rows) {
    json.BeginObject().Field("attention", row.attention).Field("own_cosine", row.own);
    json.Field("others_cosine", row.others).Field("nearest_is_own", row.nearest);
    json.Key("answers").BeginArray();
    for (const std::string& answer : row.answers) json.Value(answer);
    json.EndArray().EndObject();
  }
  json.EndArray().EndObject();
}

void ClaimsJson(const std::vector<ClaimRow>& claims, JsonWriter& json) {
  json.Key("claims").BeginArray();
  for (const ClaimRow& row : claims) {
    json.BeginObject().Field("figure", row.name).Field("attention", row.attention);
    json.Field("claimed", row.claimed).Field("measured", row.measured).EndObject();
  }
  json.EndArray();
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

std::string VerifyReport::AsJson() const {
  JsonWriter json;
  json.BeginObject().Field("model", model).Field("kv_cache_dtype", kv_dtype);
  json.Field("context", context);
  if (memory) MemoryJson(*memory, json);
  if (fidelity) FidelityJson(*fidelity, json);
  if (outputs) OutputsJson(*outputs, json);
  if (sentences) SentencesJson(*sentences, json);
  if (summaries) SummariesJson(*summaries, json);
  const std::vector<ClaimRow> claims = ClaimsOfTextOne(*this);
  if (!claims.empty()) ClaimsJson(claims, json);
  if (tasks) TasksJson(*tasks, json);
  return json.EndObject().text() + "\n";
}

}  // namespace lode::cli
