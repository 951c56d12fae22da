// SPDX-License-Identifier: Apache-2.0
// `lode bench`: speed of prefill and decode at chosen depths of the cache, as llama-bench states
// it, and with --machine what this machine could do at best.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/random.h"
#include "cli/bench_attention.h"
#include "cli/bench_report.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/machine_limits.h"
#include "cli/model_options.h"

namespace lode::cli {
namespace {

struct BenchOptions {
  ModelOptions model;
  std::vector<int64_t> prefill = {512}, decode = {128}, depths = {0};
  int64_t repeats = 5;
  std::string format = "md";
  bool machine = false;
  // Only of a comparison of attentions.
  std::string file;
  int64_t tile_from = 4096;
  float max_seconds = 0.0f;
};

// One row: `tokens` tokens at `depth`, all at once (prefill) or one by one (decode).
struct BenchResult {
  bool is_prefill = true;
  int64_t tokens = 0;
  int64_t depth = 0;
  std::vector<double> seconds;  // per repeat
  double limit_seconds = 0.0;   // 0: not measured

  double Rate(double time) const { return static_cast<double>(tokens) / time; }
  double MillisecondsPerToken(double time) const {
    return 1e3 * time / static_cast<double>(tokens);
  }
  double Slowest() const { return *std::max_element(seconds.begin(), seconds.end()); }
  double Fastest() const { return *std::min_element(seconds.begin(), seconds.end()); }
  std::string Name() const {
    return (is_prefill ? "pp" : "tg") + std::to_string(tokens) +
           (depth > 0 ? " @ d" + std::to_string(depth) : "");
  }
};

std::vector<TokenId> RandomTokens(int64_t count, int64_t vocab_size) {
  Random random(1);
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  for (TokenId& id : tokens) {
    id = static_cast<TokenId>(random.NextU64() % static_cast<uint64_t>(vocab_size));
  }
  return tokens;
}

// Runs the row's work once and returns its time. The cache's depth is set up before.
Result<double> TimeOnce(Engine& engine, const BenchResult& row) {
  LODE_RETURN_IF_ERROR(engine.FillSynthetic(row.depth));
  const std::vector<TokenId> tokens = RandomTokens(row.tokens, engine.model().config().vocab_size);
  const Stopwatch stopwatch;
  if (row.is_prefill) {
    LODE_RETURN_IF_ERROR(engine.Append(tokens));
  } else {
    for (const TokenId id : tokens) LODE_RETURN_IF_ERROR(engine.Append({id}));
  }
  return stopwatch.Seconds();
}

std::vector<BenchResult> Rows(const BenchOptions& options) {
  std::vector<BenchResult> rows;
  for (const int64_t depth : options.depths) {
    for (const int64_t tokens : options.prefill) {
      if (tokens > 0) rows.push_back({true, tokens, depth, {}, 0.0});
    }
    for (const int64_t tokens : options.decode) {
      if (tokens > 0) rows.push_back({false, tokens, depth, {}, 0.0});
    }
  }
  return rows;
}

Status Measure(Console& console, Engine& engine, int64_t repeats, std::vector<BenchResult>& rows) {
  const InterruptGuard interrupt;
  // Weights and code into the caches, buffers to their size.
  LODE_RETURN_IF_ERROR(
      TimeOnce(engine, {true, std::min<int64_t>(rows.front().tokens, 32), 0, {}, 0.0}).status());
  ProgressBar bar(console, "measuring", "runs");
  int64_t done = 0;
  const int64_t total = repeats * static_cast<int64_t>(rows.size());
  for (BenchResult& row : rows) {
    for (int64_t i = 0; i < repeats; ++i) {
      LODE_ASSIGN_OR_RETURN(const double seconds, TimeOnce(engine, row));
      row.seconds.push_back(seconds);
      bar.Update(++done, total);
      if (interrupt.interrupted()) return CancelledError("interrupted");
    }
  }
  bar.Finish();
  return OkStatus();
}

std::string AsJson(const Engine& engine, const std::vector<BenchResult>& rows,
                   const MachineRates* machine) {
  JsonWriter json;
  json.BeginArray();
  for (const BenchResult& row : rows) {
    json.BeginObject();
    AddRunFields(engine, json);
    json.Field("attention", engine.options().attention);
    json.Field("n_prompt", row.is_prefill ? row.tokens : 0);
    json.Field("n_gen", row.is_prefill ? 0 : row.tokens).Field("n_depth", row.depth);
    json.Field("avg_ns", 1e9 * Mean(row.seconds)).Field("stddev_ns", 1e9 * Deviation(row.seconds));
    json.Field("median_ns", 1e9 * Median(row.seconds)).Field("avg_ts", row.Rate(Mean(row.seconds)));
    json.Field("median_ts", row.Rate(Median(row.seconds))).Field("min_ts", row.Rate(row.Slowest()));
    json.Field("max_ts", row.Rate(row.Fastest()));
    if (machine != nullptr) {
      AddMachineFields(*machine, json);
      json.Field("limit_ms_per_token", row.MillisecondsPerToken(row.limit_seconds));
      json.Field("share_of_limit", row.limit_seconds / Median(row.seconds));
    }
    json.Key("samples_ns").BeginArray();
    for (const double seconds : row.seconds) json.Value(1e9 * seconds);
    json.EndArray().EndObject();
  }
  return json.EndArray().text() + "\n";
}

// The table as rows of cells, the same for md and csv.
BenchTable Table(const Engine& engine, const std::vector<BenchResult>& rows, bool machine) {
  BenchTable table = {{"model", "threads", "kv", "test", "tokens/s", "min", "max", "ms/token"}};
  if (machine) table[0].insert(table[0].end(), {"limit ms", "share"});
  for (const BenchResult& row : rows) {
    const double median = Median(row.seconds);
    std::vector<std::string> cells = {engine.model().config().name,
                                      std::to_string(engine.options().num_threads),
                                      std::string(KvDTypesName(engine.options().kv_dtypes)),
                                      row.Name(),
                                      FormatFixed(row.Rate(median), 2),
                                      FormatFixed(row.Rate(row.Slowest()), 2),
                                      FormatFixed(row.Rate(row.Fastest()), 2),
                                      FormatFixed(row.MillisecondsPerToken(median), 3)};
    if (machine) {
      cells.push_back(FormatFixed(row.MillisecondsPerToken(row.limit_seconds), 3));
      cells.push_back(FormatFixed(100.0 * row.limit_seconds / median, 0) + " %");
    }
    table.push_back(std::move(cells));
  }
  return table;
}

// The names of a comma-separated list.
std::vector<std::string> SplitNames(const std::string& list) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    names.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

void AddMeasurementOptions(Args& args, BenchOptions& options) {
  args.Group("Measurement");
  args.Ints("-p, --n-prompt", "LIST", &options.prefill, {.min = 0, .max = 1 << 24},
            "Prompt lengths; 0: none.");
  args.Ints(
      "-n, --n-gen", "LIST", &options.decode, {.min = 0, .max = 1 << 24},
      "Numbers of generated tokens; 0: none. Comparing attentions: one number, 16 if not given.");
  args.Ints("-d, --n-depth", "LIST", &options.depths, {.min = 0, .max = 1 << 24},
            "Tokens in the cache before. Comparing attentions: multiples of 32, 8K if not given.");
  args.Int("-r, --repetitions", "N", &options.repeats, {.min = 1, .max = 1000}, "Repeats.");
  args.Text("-o, --output", "FORMAT", &options.format, "md, csv or json.");
  args.Flag("--machine", &options.machine,
            "Measure this machine's memory bandwidth and arithmetic first, and print the least "
            "time per token they allow and its share of the time taken.");
  args.Group("Comparison of attentions");
  args.Text("-f, --file", "FILE", &options.file,
            "The text that is prefilled; without it a built-in one. Shorter ones are repeated.");
  args.Int("--tile-from", "N", &options.tile_from, {.min = 1, .max = 1 << 24},
           "Tokens that are prefilled and, in deeper contexts, repeated.");
  args.Real("--max-seconds", "X", &options.max_seconds,
            "Time for an attention at a depth, after its first token; 0: what the repeats take.");
}

// Decode only, with fewer tokens where nothing else was asked for.
Status RunComparison(Console& console, const Args& args, const BenchOptions& options) {
  AttentionBenchOptions compare = {
      .model = options.model,
      .attentions = SplitNames(options.model.attention.empty() ? "flash" : options.model.attention),
      .depths = {8192},
      .rounds = options.repeats,
      .tile_from = options.tile_from,
      .seconds_max = options.max_seconds,
      .file = options.file,
      .format = options.format,
      .machine = options.machine};
  if (args.Given("--n-depth")) compare.depths = options.depths;
  if (args.Given("--n-prompt") && std::ranges::max(options.prefill) > 0) {
    return InvalidArgumentError("-p: a comparison of attentions measures decode only, expected 0");
  }
  if (args.Given("--n-gen")) {
    if (options.decode.size() != 1 || options.decode[0] == 0) {
      return InvalidArgumentError("-n: expected one positive number in a comparison of attentions");
    }
    compare.tokens = options.decode[0];
  }
  return RunBenchAttention(console, std::move(compare));
}

}  // namespace

Status RunBench(Console& console, const ArgList& list) {
  if (!list.empty() && list.front() == "kv") {
    return RunBenchKv(console, ArgList(list.begin() + 1, list.end()));
  }
  BenchOptions options;
  Args args("bench", "-m MODEL [OPTIONS]",
            "Times prefill (pp: a prompt of P tokens) and decode (tg: N tokens one by one) with D "
            "tokens in the cache already. The cache is filled with made-up keys and values, since "
            "the cost does not depend on them. Figures are medians over the repeats. Several names "
            "in --attention, or a -f FILE: decode of these attentions over the same contexts, in "
            "turns. There the cache is filled by a real prefill, which in deeper contexts is "
            "repeated with keys re-rotated to their new positions.",
            "  lode bench -m MODEL\n"
            "  lode bench -m MODEL -p 512 -n 32 -d 0,8K,32K --kv-cache-dtype int8 --machine\n"
            "  lode bench -m MODEL -p 0 -n 128 -r 3 -o json > result.json\n"
            "  lode bench -m MODEL --attention flash,csa_hca -d 8K,32K,1M --max-seconds 60\n"
            "  lode bench kv                             the cache alone, without a model\n");
  options.model.AddTo(args);
  AddMeasurementOptions(args, options);
  LODE_ASSIGN_OR_RETURN(const bool proceed, args.Parse(list, console));
  if (!proceed) return OkStatus();
  LODE_RETURN_IF_ERROR(CheckBenchFormat(options.format));
  // Written so that NaN is refused.
  if (!(options.max_seconds >= 0.0f)) {
    return InvalidArgumentError("--max-seconds: expected 0 or more");
  }
  if (options.model.attention.find(',') != std::string::npos || args.Given("--file") ||
      args.Given("--tile-from") || args.Given("--max-seconds")) {
    return RunComparison(console, args, options);
  }
  std::vector<BenchResult> rows = Rows(options);
  if (rows.empty()) return InvalidArgumentError("nothing to measure: -p and -n are both 0");
  for (const BenchResult& row : rows) {
    options.model.context = std::max(options.model.context, row.depth + row.tokens);
  }
  LODE_ASSIGN_OR_RETURN(const auto engine, LoadEngine(console, options.model));
  LODE_RETURN_IF_ERROR(Measure(console, *engine, options.repeats, rows));
  MachineRates machine;
  if (options.machine) {
    machine = MeasureMachine(engine->options().num_threads);
    for (BenchResult& row : rows) {
      row.limit_seconds = LeastSeconds(machine, *engine, row.is_prefill, row.tokens, row.depth);
    }
    console.Err(DescribeMachine(machine) + "\n");
  }
  if (options.format == "json") {
    return console.Out(AsJson(*engine, rows, options.machine ? &machine : nullptr));
  }
  const BenchTable table = Table(*engine, rows, options.machine);
  return console.Out(options.format == "md" ? FormatMarkdown(table, {0, 2, 3}) : FormatCsv(table));
}

}  // namespace lode::cli
