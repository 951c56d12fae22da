// SPDX-License-Identifier: Apache-2.0
#include "cli/answer.h"

#include <utility>

#include "base/json.h"
#include "base/topology.h"
#include "cli/interrupt.h"

namespace lode::cli {
namespace {

double Rate(int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
}

double DecodeRate(const GenerateResult& result) {
  // The first token comes from the prefill's logits.
  return Rate(static_cast<int64_t>(result.token_ids.size()) - 1, result.decode_seconds);
}

// Of the keys that queries attend to, the share that was read.
double KeysReadShare(const GenerateResult& result) {
  const AttentionCounters& counters = result.attention;
  return static_cast<double>(counters.keys_read) / static_cast<double>(counters.keys);
}

// Mean share of softmax mass in summaries, over the queries that left keys out.
double UnreadShare(const GenerateResult& result) {
  return result.attention.unread_share / result.attention.rows;
}

void LogprobsJson(const Engine& engine, const GenerateResult& result, JsonWriter& json) {
  json.Key("logprobs").BeginArray();
  for (size_t i = 0; i < result.logprobs.size(); ++i) {
    const TokenLogprobs& logprobs = result.logprobs[i];
    json.BeginObject().Field("id", result.token_ids[i]);
    json.Field("text", engine.tokenizer().TokenBytes(result.token_ids[i], true));
    json.Field("logprob", static_cast<double>(logprobs.chosen)).Key("top").BeginArray();
    for (const auto& [id, logprob] : logprobs.top) {
      json.BeginObject().Field("id", id).Field("text", engine.tokenizer().TokenBytes(id, true));
      json.Field("logprob", static_cast<double>(logprob)).EndObject();
    }
    json.EndArray().EndObject();
  }
  json.EndArray();
}

}  // namespace

Result<GenerateResult> StreamAnswer(Console& console, Engine& engine, GenerateRequest request,
                                    bool show_text) {
  const InterruptGuard interrupt;
  ProgressBar bar(console, "reading the prompt", "tokens");
  Status output;
  request.on_prefill = [&](int64_t done, int64_t total) {
    if (done == total) {
      bar.Finish();
    } else {
      bar.Update(done, total);
    }
    return !interrupt.interrupted();
  };
  request.keep_going = [&] { return !interrupt.interrupted(); };
  request.on_text = [&](std::string_view text) {
    if (show_text) output = console.Out(text);
    return output.ok() && !interrupt.interrupted();
  };
  auto result = engine.Generate(request);
  bar.Finish();
  if (!output.ok()) return output;
  return result;
}

std::string DescribeTimings(const GenerateResult& result) {
  // What an interrupted prefill did not reach is no part of its speed.
  const int64_t reached = result.cached_tokens + result.prefilled_tokens;
  std::string out = "prompt ";
  if (reached < result.prompt_tokens) out += FormatCount(reached) + " of ";
  out += FormatCount(result.prompt_tokens) + " tokens";
  if (result.cached_tokens > 0) out += " (" + FormatCount(result.cached_tokens) + " cached)";
  out += ", " + FormatFixed(result.prefill_seconds, 2) + " s, " +
         FormatFixed(Rate(result.prefilled_tokens, result.prefill_seconds), 1) + " tokens/s";
  out += "; answer " + FormatCount(static_cast<int64_t>(result.token_ids.size())) + " tokens, " +
         FormatFixed(result.decode_seconds, 2) + " s";
  if (result.token_ids.size() > 1) out += ", " + FormatFixed(DecodeRate(result), 1) + " tokens/s";
  if (result.attention.rows > 0) {
    out += "; read " + FormatFixed(100 * KeysReadShare(result), 1) +
           " % of the keys, summaries carry " + FormatFixed(100 * UnreadShare(result), 1) +
           " % of the attention where keys were left out";
  }
  const AuditCounters& audits = result.attention.audits;
  if (audits.rows > 0) {
    out += "; audits: " + FormatFixed(100 * audits.missed_mass / audits.rows, 1) +
           " % left out, recall " + FormatFixed(100 * audits.recall / audits.rows, 1) +
           " %, output error " + FormatFixed(100 * audits.output_error / audits.rows, 1) + " %";
  }
  if (result.finish_reason == FinishReason::kLength) out += "; ended by the limit of tokens";
  if (result.finish_reason == FinishReason::kCancelled) out += "; interrupted";
  return out;
}

std::string FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "";
}

std::string AnswerJson(const Engine& engine, const GenerateResult& result, uint64_t seed) {
  JsonWriter json;
  json.BeginObject().Field("text", result.text);
  json.Field("finish_reason", FinishReasonName(result.finish_reason));
  json.Field("prompt_tokens", result.prompt_tokens).Field("cached_tokens", result.cached_tokens);
  json.Field("prefilled_tokens", result.prefilled_tokens);
  json.Field("completion_tokens", result.token_ids.size());
  json.Field("prefill_seconds", result.prefill_seconds);
  json.Field("prefill_tokens_per_second", Rate(result.prefilled_tokens, result.prefill_seconds));
  json.Field("decode_seconds", result.decode_seconds);
  json.Field("decode_tokens_per_second", DecodeRate(result)).Field("seed", seed);
  if (result.attention.rows > 0) {
    json.Field("keys_read_share", KeysReadShare(result));
    json.Field("unread_mass_share", UnreadShare(result));
  }
  const AuditCounters& audits = result.attention.audits;
  if (audits.rows > 0) {
    json.Key("audits").BeginObject().Field("query_rows", audits.rows);
    json.Field("missed_mass_share", audits.missed_mass / audits.rows);
    json.Field("recall_256", audits.recall / audits.rows);
    json.Field("output_error", audits.output_error / audits.rows).EndObject();
  }
  json.Field("resident_bytes", ReadResidentMemory().current_bytes);
  json.Key("token_ids").BeginArray();
  for (const TokenId id : result.token_ids) json.Value(id);
  json.EndArray();
  if (!result.logprobs.empty()) LogprobsJson(engine, result, json);
  return json.EndObject().text();
}

}  // namespace lode::cli
