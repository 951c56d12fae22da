// SPDX-License-Identifier: Apache-2.0
#include "cli/model_options.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/topology.h"
#include "cli/catalogue.h"
#include "retrieval/sign_codes.h"

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
            "rest), eager (slow, the reference), or mla_rff (to compare with: random features "
            "instead of softmax); default: as the model's configuration says, else flash.");
  args.Text("--prefill-attention", "NAME", &prefill_attention,
            "Another one for the prompt; default: the same.");
  args.Int("--csa-top-k", "N", &csa_top_k, {.min = 0, .max = int64_t{1} << 40},
           "csa_hca: keys read exactly besides the newest and the first, at least.");
  args.Real("--csa-max-unread", "X", &csa_max_unread,
            "csa_hca: read more, up to 8 times as many, until summaries carry no more than this "
            "share of the attention; 0: never.");
  args.Int("--csa-scan-tokens", "N", &csa_scan_tokens, {.min = 0, .max = int64_t{1} << 40},
           "csa_hca: tokens whose codes are looked at, in the most promising parts of the text; 0: "
           "all.");
  args.Int("--audit-interval", "N", &audit_interval, {.min = 0, .max = int64_t{1} << 40},
           "csa_hca: every N tokens one head is compared with exact attention; 0: never.");
  args.Int("--hca-window", "N", &hca_window, {.min = 1, .max = int64_t{1} << 40},
           "csa_hca: newest tokens that are always read.");
  args.Text("--hca-summary", "KIND", &summaries,
            "csa_hca: what stands for keys that are not read: mean, or none.");
  args.Text("--csa-index", "KIND", &page_scores,
            "csa_hca: what ranks keys: codes, or to compare with means, exact (slow), hamming or "
            "buckets (both by random sign bits).");
  args.Int("--csa-hash-dim", "N", &csa_hash_dim, {},
           "csa_hca by hamming or buckets: bits of a key, 32, 64 or 128.");
  args.Int("--csa-seed", "N", &csa_seed, {.min = 0},
           "csa_hca by hamming or buckets: seed of the random matrix; 0: taken from the model.");
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

// Names of SparseOptions::Scores, in its order.
constexpr std::string_view kPageScores[] = {"codes", "means", "exact", "hamming", "buckets"};
// Names of log levels, least important first, as LogLevel counts them.
constexpr std::string_view kLogLevels[] = {"debug", "info", "warning", "error"};

}  // namespace

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
  if (summaries != "mean" && summaries != "none") {
    return InvalidArgumentError("--hca-summary: expected mean or none, found '" + summaries + "'");
  }
  const auto kind = std::ranges::find(kPageScores, page_scores);
  if (kind == std::end(kPageScores)) {
    return InvalidArgumentError(
        "--csa-index: expected codes, means, exact, hamming or buckets, found '" + page_scores +
        "'");
  }
  if (!SignCodes::IsNumBits(csa_hash_dim)) {
    return InvalidArgumentError("--csa-hash-dim: expected 32, 64 or 128, found " +
                                std::to_string(csa_hash_dim));
  }
  // Written so that NaN is refused.
  if (!(csa_max_unread >= 0.0f && csa_max_unread <= 1.0f)) {
    return InvalidArgumentError("--csa-max-unread: expected a share from 0 to 1, found " +
                                std::to_string(csa_max_unread));
  }
  options.sparse = {.top_k = csa_top_k,
                    .max_unread = csa_max_unread,
                    .window = hca_window,
                    .summaries = summaries == "mean",
                    .scan_tokens = csa_scan_tokens,
                    .scores = static_cast<SparseOptions::Scores>(kind - std::begin(kPageScores)),
                    .hash_dim = csa_hash_dim,
                    .seed = static_cast<uint64_t>(csa_seed),
                    .audit_interval = audit_interval};
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
