// SPDX-License-Identifier: Apache-2.0
#include "cli/model_options.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <variant>
#include <vector>

#include "attention/sparse_parameters.h"
#include "base/log.h"
#include "base/topology.h"
#include "cli/catalogue.h"

namespace lode::cli {

Result<std::string> ResolveModel(const std::string& name) {
  if (name.empty()) {
    return WithHint(InvalidArgumentError("no model given"),
                    "-m PATH or -m NAME; `lode pull` lists names that can be fetched");
  }
  std::error_code ignored;
  if (std::filesystem::exists(name, ignored)) return name;
  if (const CatalogueEntry* entry = FindInCatalogue(name)) {
    const std::string path = CachePath(*entry);
    if (std::filesystem::exists(path, ignored)) return path;
    return WithHint(NotFoundError(name + ": not fetched yet (looked for " + path + ")"),
                    "`lode pull " + name + "` fetches it");
  }
  // `lode pull NAME --url ...` keeps the file under its own name.
  if (name.find('/') == std::string::npos) {
    const std::string path = CacheFolder() + "/" + name;
    if (std::filesystem::exists(path, ignored)) return path;
  }
  std::vector<std::string> names;
  for (const CatalogueEntry& entry : Catalogue()) names.push_back(entry.name);
  const std::string nearest = NearestName(name, names);
  return WithHint(
      NotFoundError(name + ": no such file or folder, and no such name in the catalogue"),
      nearest.empty() ? "`lode pull` lists the catalogue" : "did you mean " + nearest + "?");
}

void ModelOptions::AddTo(Args& args) {
  args.Text("-m, --model", "MODEL", &model, "A file, a folder, or a name fetched by `lode pull`.");
  args.Int("-t, --threads", "N", &threads, {.min = 0, .max = 1024},
           "Threads; 0: as many CPUs as affinity and the control group's quota allow.");
  args.Int("-c, --context, --max-model-len", "N", &context, {.min = 0, .max = int64_t{1} << 30},
           "Tokens of context; 0: as many as the model was trained for.");
  args.Text("--kv-cache-dtype", "TYPE", &kv_dtype,
            "How keys and values are stored: f32, f16, bf16, int8, int6, int4, two as int8,int4, "
            "or auto.");
  args.Text("--attention", "NAME", &attention,
            "flash (exact), csa_hca (reads a share of a long context, summaries stand for the "
            "rest), eager (slow, the reference), or to compare with mla_rff (random features "
            "instead of softmax) and index_graph (text 1's scheme, drops most keys); default: as "
            "the model's configuration says, else flash.");
  args.Text("--prefill-attention", "NAME", &prefill_attention,
            "Another one for the prompt; default: the same.");
  AddSparse(args);
  args.Text(
      "--calibration", "FILE", &calibration,
      "csa_hca: made by `lode calibrate`; default: one of the program's own, else made at first "
      "use.");
  args.Text("--activations", "TYPE", &activations,
            "Inputs of matrix products: int8, or f32 (slower, exact).");
  args.Real("--rope-interpolation-factor", "X", &rope_factor,
            "Stretch positions by this factor; 0: as the model says.");
  args.Int("--block-size", "N", &block_size, {},
           "Tokens of a block of the cache: 8, 16, 32, 64 or 128. Texts begin with smaller ones.");
  args.Int("--kv-cache-memory-bytes", "N", &kv_memory_bytes, {.min = 0},
           "Memory for keys and values, of this prompt and of earlier ones; 0: what a full context "
           "takes.");
  args.Real("--memory-utilization, --gpu-memory-utilization", "X", &memory_utilization,
            "Instead: the share of the available memory that model and cache may take, up to 1.");
  args.Int("--kv-cache-quant-group-size", "N", &kv_value_group, {},
           "Components of a value that share a scale in int8, int6 and int4: a multiple of 8, or "
           "all of a head's if it has fewer.");
  args.Int("--hca-int4-fallback-threshold", "N", &int4_fallback_threshold,
           {.min = 0, .max = int64_t{1} << 50},
           "Where int4 is asked for, tokens from this position on are stored in int6; 0: never.");
  args.Int("--hca-defrag-interval", "SECONDS", &defragment_seconds, {.min = 0, .max = 1 << 30},
           "Time between two passes that put the cache's blocks in order; 0: never.");
  args.Text("--log-level", "LEVEL", &log_level,
            "debug (with the cache's counters after each answer), info, warning or error.");
  args.Flag("-v, --verbose", &verbose, "Say more on standard error: as --log-level info.");
}

namespace {

// A value as Args shows it.
struct AsText {
  std::string operator()(int64_t number) const { return std::to_string(number); }
  std::string operator()(double number) const {
    char buffer[48];
    return {buffer, std::to_chars(buffer, buffer + sizeof(buffer), number).ptr};
  }
  std::string operator()(std::string_view word) const { return std::string(word); }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
};

// Names of log levels, least important first, as LogLevel counts them.
constexpr std::string_view kLogLevels[] = {"debug", "info", "warning", "error"};

}  // namespace

void ModelOptions::AddSparse(Args& args) {
  for (const SparseParameter& parameter : SparseParameters()) {
    std::string option = "--" + std::string(parameter.name);
    std::ranges::replace(option, '_', '-');
    const SparseValue value = parameter.get(sparse);
    args.Custom(
        option, parameter.meta, "csa_hca: " + std::string(parameter.help),
        [this, &parameter](std::string_view text) -> Status {
          LODE_RETURN_IF_ERROR(SetSparseParameter(parameter, text, sparse));
          sparse_given.emplace(parameter.name);
          return OkStatus();
        },
        std::visit(AsText(), value));
  }
  args.Int("--audit-interval", "N", &sparse.audit_interval, {.min = 0, .max = int64_t{1} << 40},
           "csa_hca: every N tokens one head is compared with exact attention; 0: never.");
}

Result<EngineOptions> ModelOptions::Resolve() const {
  EngineOptions options;
  LODE_ASSIGN_OR_RETURN(options.model_path, ResolveModel(model));
  options.choose_kv_dtypes = kv_dtype == "auto";
  if (!options.choose_kv_dtypes) {
    LODE_ASSIGN_OR_RETURN(options.kv_dtypes, ParseKvDTypes(kv_dtype));
  }
  if (activations != "int8" && activations != "f32") {
    return InvalidArgumentError("--activations: expected int8 or f32, found '" + activations + "'");
  }
  options.activations =
      activations == "int8" ? kernels::ActivationType::kInt8 : kernels::ActivationType::kF32;
  if (std::ranges::find(kLogLevels, log_level) == std::end(kLogLevels)) {
    return InvalidArgumentError("--log-level: expected debug, info, warning or error, found '" +
                                log_level + "'");
  }
  LODE_RETURN_IF_ERROR(BlockPlan::Create(block_size).status().WithContext("--block-size"));
  // Written so that NaN is refused.
  if (!(memory_utilization >= 0.0f && memory_utilization <= 1.0f)) {
    return InvalidArgumentError("--memory-utilization: expected a share up to 1, found " +
                                std::to_string(memory_utilization));
  }
  if (memory_utilization > 0.0f && kv_memory_bytes > 0) {
    return InvalidArgumentError(
        "--memory-utilization and --kv-cache-memory-bytes: expected only one");
  }
  options.sparse = sparse;
  options.sparse_given = sparse_given;
  options.calibration_path = calibration;
  options.calibration_folder = CacheFolder() + "/calibrations";
  options.block_size = block_size;
  options.kv_memory_bytes = kv_memory_bytes;
  options.memory_utilization = memory_utilization;
  options.kv_value_group = kv_value_group;
  options.int4_fallback_threshold = int4_fallback_threshold;
  options.defragment_seconds = defragment_seconds;
  options.num_threads = static_cast<int32_t>(threads);
  options.context_len = context;
  options.attention = attention;
  options.prefill_attention = prefill_attention;
  options.rope_linear_factor = rope_factor;
  return options;
}

Result<std::unique_ptr<Engine>> LoadEngine(Console& console, const ModelOptions& options) {
  LODE_ASSIGN_OR_RETURN(const EngineOptions engine_options, options.Resolve());
  const auto level = std::ranges::find(kLogLevels, options.log_level) - std::begin(kLogLevels);
  SetLogLevel(
      std::min(static_cast<LogLevel>(level), options.verbose ? LogLevel::kInfo : LogLevel::kError));
  if (engine_options.num_threads == 0) {
    const ThreadBudget budget = UsableThreads();
    // The engine itself says so at the info level.
    if (!options.verbose && budget.limited_by_quota) console.Err(budget.reason + "\n");
  }
  const Stopwatch stopwatch;
  auto engine = Engine::Load(engine_options);
  if (engine.ok() && !(*engine)->kv_choice_reason().empty()) {
    console.Err((*engine)->kv_choice_reason() + "\n");
  }
  if (engine.ok() && options.verbose) {
    console.Err("loaded " + engine_options.model_path + " in " +
                FormatFixed(stopwatch.Seconds(), 2) + " s\n");
  }
  return engine;
}

}  // namespace lode::cli
