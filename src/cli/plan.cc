// SPDX-License-Identifier: Apache-2.0
// `lode plan`: the memory a model will take, before it is loaded; says what would fit when it does
// not.
#include <algorithm>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/random.h"
#include "base/topology.h"
#include "cli/commands.h"
#include "cli/memory_plan.h"
#include "cli/model_options.h"

namespace lode::cli {
namespace {

constexpr KvDType kKvDTypes[] = {KvDType::kF16, KvDType::kInt8};

struct PlanReport {
  int64_t context = 0;
  int64_t trained_context = 0;
  KvDTypes kv_dtypes = KvDType::kF16;
  MemoryPlan plan;
  bool has_budget = false;  // of keys and values, set by the user
  MemoryBudget memory;
  std::vector<int64_t> largest_contexts;  // per kKvDTypes
  int64_t measured_bytes = 0;             // 0: not measured

  bool Fits() const { return plan.total_bytes() <= memory.available_bytes; }
  double Error() const {
    return static_cast<double>(plan.total_bytes() - measured_bytes) /
           static_cast<double>(measured_bytes);
  }
};

// Resident memory of this process after the model was loaded, its context filled and a largest
// prefill step run.
Result<int64_t> MeasureResident(Console& console, const ModelOptions& options) {
  LODE_ASSIGN_OR_RETURN(const auto engine, LoadEngine(console, options));
  const int64_t context = engine->options().context_len;
  const int64_t step = std::min(context, engine->options().prefill_chunk);
  // As many different tokens as a text of that length has: each reads its embedding row.
  Random random(1);
  for (int64_t distinct = DistinctTokens(context); distinct > 0; distinct -= step) {
    std::vector<TokenId> tokens(static_cast<size_t>(step));
    for (int64_t i = 0; i < step; ++i) {
      const uint64_t vocab_size = static_cast<uint64_t>(engine->model().config().vocab_size);
      tokens[i] = i < distinct ? static_cast<TokenId>(random.NextU64() % vocab_size) : 0;
    }
    LODE_RETURN_IF_ERROR(engine->FillSynthetic(context - step));
    LODE_RETURN_IF_ERROR(engine->Append(tokens));
  }
  return ReadResidentMemory().current_bytes;
}

// A budget that the user sets is filled by and by with the pages of earlier prompts.
Status ApplyBudget(const EngineOptions& options, PlanReport& report) {
  int64_t budget = options.kv_memory_bytes;
  if (options.memory_utilization > 0.0) {
    budget = static_cast<int64_t>(options.memory_utilization *
                                  static_cast<double>(report.memory.available_bytes)) -
             (report.plan.total_bytes() - report.plan.kv_bytes);
  }
  if (options.kv_memory_bytes == 0 && options.memory_utilization == 0.0) return OkStatus();
  if (budget < report.plan.kv_bytes) {
    return WithHint(
        ResourceExhaustedError("a context of " + FormatCount(report.context) + " tokens takes " +
                               FormatBytes(report.plan.kv_bytes) +
                               " of keys and values, the budget leaves " +
                               FormatBytes(std::max<int64_t>(0, budget))),
        "-c sets the context, --kv-cache-memory-bytes or --memory-utilization the budget");
  }
  report.plan.kv_bytes = budget;
  report.has_budget = true;
  return OkStatus();
}

std::string AsText(const PlanReport& report) {
  const MemoryPlan& plan = report.plan;
  std::vector<std::vector<std::string>> rows = {
      {"weights, repacked", FormatBytes(plan.weight_bytes)},
      {report.has_budget ? "keys and values, as the budget says"
                         : "keys and values, " + FormatCount(report.context) + " tokens in " +
                               std::string(KvDTypesName(report.kv_dtypes)),
       FormatBytes(plan.kv_bytes)},
      {"index of the attention", FormatBytes(plan.index_bytes)},
      {"activations", FormatBytes(plan.activation_bytes)},
      {"tokenizer", FormatBytes(plan.tokenizer_bytes)},
      {"program", FormatBytes(plan.program_bytes)},
      {"mapped parts of the file", FormatBytes(plan.mapped_bytes)},
      {"total", FormatBytes(plan.total_bytes())},
      {"available (" + report.memory.reason + ")", FormatBytes(report.memory.available_bytes)},
      {"file cache besides, if there is room", FormatBytes(plan.file_cache_bytes)}};
  for (size_t i = 0; i < std::size(kKvDTypes); ++i) {
    rows.push_back({"largest context in " + std::string(KvDTypeName(kKvDTypes[i])),
                    FormatCount(report.largest_contexts[i])});
  }
  if (report.measured_bytes > 0) {
    rows.push_back({"measured", FormatBytes(report.measured_bytes)});
    rows.push_back({"the plan is off by", FormatFixed(100 * report.Error(), 1) + " %"});
  }
  return FormatTable(rows);
}

std::string AsJson(const PlanReport& report) {
  const MemoryPlan& plan = report.plan;
  JsonWriter json;
  json.BeginObject().Field("context", report.context);
  json.Field("trained_context", report.trained_context);
  json.Field("kv_cache_dtype", KvDTypesName(report.kv_dtypes));
  json.Field("weight_bytes", plan.weight_bytes).Field("kv_bytes", plan.kv_bytes);
  json.Field("index_bytes", plan.index_bytes);
  json.Field("activation_bytes", plan.activation_bytes);
  json.Field("tokenizer_bytes", plan.tokenizer_bytes).Field("program_bytes", plan.program_bytes);
  json.Field("mapped_bytes", plan.mapped_bytes);
  json.Field("total_bytes", plan.total_bytes()).Field("file_cache_bytes", plan.file_cache_bytes);
  json.Field("available_bytes", report.memory.available_bytes).Field("fits", report.Fits());
  json.Key("largest_context").BeginObject();
  for (size_t i = 0; i < std::size(kKvDTypes); ++i) {
    json.Field(KvDTypeName(kKvDTypes[i]), report.largest_contexts[i]);
  }
  json.EndObject();
  if (report.measured_bytes > 0) {
    json.Field("measured_bytes", report.measured_bytes).Field("error", report.Error());
  }
  return json.EndObject().text() + "\n";
}

Status DoesNotFit(const PlanReport& report) {
  const Status status = ResourceExhaustedError(
      "a context of " + FormatCount(report.context) + " tokens needs " +
      FormatBytes(report.plan.total_bytes()) + ", available are " +
      FormatBytes(report.memory.available_bytes) + " " + report.memory.reason);
  std::string hint;
  for (size_t i = 0; i < std::size(kKvDTypes); ++i) {
    if (report.largest_contexts[i] == 0) continue;
    hint += (hint.empty() ? "it fits with -c " : ", or with -c ") +
            std::to_string(report.largest_contexts[i]) + " --kv-cache-dtype " +
            std::string(KvDTypeName(kKvDTypes[i]));
  }
  return WithHint(status,
                  hint.empty() ? "the weights alone do not fit; take a smaller model" : hint);
}

}  // namespace

Status RunPlan(Console& console, const ArgList& list) {
  ModelOptions options;
  bool as_json = false, measure = false;
  Args args("plan", "-m MODEL [-c N] [--kv-cache-dtype T] [OPTIONS]",
            "Shows the memory a model will take with a full context, before anything is loaded. If "
            "that is more than is available, ends with an error that says what would fit.",
            "  lode plan -m MODEL\n"
            "  lode plan -m MODEL -c 128K --kv-cache-dtype int8\n"
            "  lode plan -m MODEL -c 8K --measure          load it and compare\n");
  options.AddTo(args);
  args.Group("Output");
  args.Flag("--measure", &measure,
            "Load the model, fill the context and show the resident memory.");
  args.Flag("--json", &as_json, "Print JSON.");
  LODE_ASSIGN_OR_RETURN(const bool proceed, args.Parse(list, console));
  if (!proceed) return OkStatus();

  LODE_ASSIGN_OR_RETURN(const EngineOptions engine_options, options.Resolve());
  LODE_ASSIGN_OR_RETURN(auto source, OpenWeights(engine_options.model_path));
  PlanReport report;
  report.kv_dtypes = engine_options.kv_dtypes;
  report.memory = UsableMemory();
  LODE_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(*source));
  report.trained_context = config.context_length;
  report.context = options.context > 0 ? options.context : config.context_length;
  LODE_ASSIGN_OR_RETURN(report.plan, PlanMemory(*source, engine_options));
  LODE_RETURN_IF_ERROR(ApplyBudget(engine_options, report));
  for (const KvDType dtype : kKvDTypes) {
    EngineOptions other = engine_options;
    other.kv_dtypes = dtype;
    LODE_ASSIGN_OR_RETURN(const int64_t largest,
                          LargestContext(*source, other, report.memory.available_bytes));
    report.largest_contexts.push_back(largest);
  }
  if (measure && report.Fits()) {
    source.reset();  // the engine opens its own, and warns as below
    LODE_ASSIGN_OR_RETURN(report.measured_bytes, MeasureResident(console, options));
  } else {
    ModelLoadOptions load;
    load.context_len = report.context;
    load.rope_linear_factor = engine_options.rope_linear_factor;
    LODE_RETURN_IF_ERROR(ConfigureModel(*source, load).status());
  }
  LODE_RETURN_IF_ERROR(console.Out(as_json ? AsJson(report) : AsText(report)));
  return report.Fits() ? OkStatus() : DoesNotFit(report);
}

}  // namespace lode::cli
