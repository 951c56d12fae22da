// SPDX-License-Identifier: Apache-2.0
// `lode bench kv`: what the cache's allocator costs, and what block sizes do.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/kv_bench.h"

namespace lode::cli {
namespace {

// A model that reads 32,000 tokens a second on one thread: faster than any.
constexpr double kWorkMicroseconds = 1000.0;

using Table = std::vector<std::vector<std::string>>;

struct Report {
  std::vector<AllocationResult> allocation;
  GrowthResult growth;
  std::vector<HourResult> hours;
  std::vector<BlockSizeResult> block_sizes;

  const BlockSizeResult& Named(const std::string& name) const {
    return *std::find_if(block_sizes.begin(), block_sizes.end(),
                         [&](const BlockSizeResult& b) { return b.name == name; });
  }
};

std::string Percent(double share) {
  return FormatFixed(100.0 * share, 2) + " %";
}

std::string AsText(const Report& report) {
  Table table = {{"threads", "work us", "Extend/s", "blocks/s", "refills", "pool waits",
                  "prefix waits", "p50 us", "p99 us", "p99.9 us", "max us"}};
  for (const AllocationResult& a : report.allocation) {
    table.push_back({std::to_string(a.threads), FormatFixed(a.work_us, 0),
                     FormatCount(static_cast<int64_t>(static_cast<double>(a.extends) / a.seconds)),
                     FormatCount(static_cast<int64_t>(static_cast<double>(a.blocks) / a.seconds)),
                     FormatCount(a.refills), Percent(a.pool_wait_share),
                     Percent(a.prefix_wait_share), FormatFixed(a.p50_us, 1),
                     FormatFixed(a.p99_us, 1), FormatFixed(a.p999_us, 1),
                     FormatFixed(a.max_us, 0)});
  }
  std::string out =
      "Allocation, one sequence per thread, with so much work after each call for 32 tokens. Waits "
      "are "
      "shares of all threads' time; the last columns are one call.\n" +
      FormatTable(table);
  const GrowthResult& g = report.growth;
  out += "\nGrowth of one sequence to " + FormatCount(g.tokens) +
         " tokens, four times what the cache was made for: p50 " + FormatFixed(g.p50_us, 2) +
         " us, p99.9 " + FormatFixed(g.p999_us, 1) + " us, max " + FormatFixed(g.max_us, 0) +
         " us per token.\n";

  table = {{"an hour, 64 sequences (simulated)", "sequences", "mean", "largest", "after a pass",
            "longest pass", "blocks moved"}};
  for (const HourResult& h : report.hours) {
    table.push_back({h.defragments ? "fragmentation, a pass every 300 s" : "fragmentation, no pass",
                     FormatCount(h.sequences), Percent(h.mean_fragmentation),
                     Percent(h.largest_fragmentation), h.defragments ? Percent(h.after_pass) : "-",
                     h.defragments ? FormatFixed(h.longest_pass_ms, 1) + " ms" : "-",
                     FormatCount(h.moved_blocks)});
  }
  out += "\n" + FormatTable(table);

  table = {{"blocks", "bytes/token", "overhead", "prompt tokens found", "TLB hits (simulated)",
            "lines per run"}};
  for (const BlockSizeResult& b : report.block_sizes) {
    table.push_back({b.name, FormatFixed(b.bytes_per_token, 1), Percent(b.wasted_share),
                     Percent(b.found_share), Percent(b.tlb_hit_rate), FormatFixed(b.line_runs, 1)});
  }
  out +=
      "\nOne layer, 64 sequences that grew side by side. Simulated TLB: 64 and 1,536 entries, "
      "least recently used, 4 KiB pages.\n" +
      FormatTable(table);

  const BlockSizeResult& adaptive = report.Named("adaptive 32");
  table = {
      {"text 2 claims", "claimed", "here"},
      {"hit rate, fixed 16 -> adaptive: TLB (simulated)", "78 % -> 92 %",
       Percent(report.Named("fixed 16").tlb_hit_rate) + " -> " + Percent(adaptive.tlb_hit_rate)},
      {"hit rate: prompt tokens found (simulated chats)", "71 % -> 92 %",
       Percent(report.Named("fixed 128").found_share) + " (fixed 128) -> " +
           Percent(adaptive.found_share)},
      {"miss rate: prompt tokens not found", "28.7 % -> 8.9 %",
       Percent(1.0 - report.Named("fixed 128").found_share) + " (fixed 128) -> " +
           Percent(1.0 - adaptive.found_share)},
      {"fragmentation after a pass", "< 5 %", Percent(report.hours.back().after_pass)},
      {"stall when the pool grows", "200 ms", FormatFixed(g.max_us / 1e3, 2) + " ms"}};
  return out + "\n" + FormatTable(table);
}

std::string AsJson(const Report& report) {
  JsonWriter json;
  json.BeginObject().Key("allocation").BeginArray();
  for (const AllocationResult& a : report.allocation) {
    json.BeginObject().Field("threads", a.threads).Field("work_us", a.work_us);
    json.Field("seconds", a.seconds);
    json.Field("extends", a.extends).Field("blocks", a.blocks).Field("refills", a.refills);
    json.Field("pool_wait_share", a.pool_wait_share);
    json.Field("prefix_wait_share", a.prefix_wait_share).Field("p50_us", a.p50_us);
    json.Field("p99_us", a.p99_us).Field("p999_us", a.p999_us).Field("max_us", a.max_us);
    json.EndObject();
  }
  const GrowthResult& g = report.growth;
  json.EndArray().Key("growth").BeginObject().Field("tokens", g.tokens);
  json.Field("p50_us", g.p50_us).Field("p999_us", g.p999_us).Field("max_us", g.max_us);
  json.EndObject().Key("simulated_hour").BeginArray();
  for (const HourResult& h : report.hours) {
    json.BeginObject().Field("defragments", h.defragments).Field("sequences", h.sequences);
    json.Field("mean_fragmentation", h.mean_fragmentation);
    json.Field("largest_fragmentation", h.largest_fragmentation);
    json.Field("after_pass", h.after_pass).Field("longest_pass_ms", h.longest_pass_ms);
    json.Field("moved_blocks", h.moved_blocks).EndObject();
  }
  json.EndArray().Key("block_sizes").BeginArray();
  for (const BlockSizeResult& b : report.block_sizes) {
    json.BeginObject().Field("blocks", b.name).Field("bytes_per_token", b.bytes_per_token);
    json.Field("overhead", b.wasted_share).Field("prompt_tokens_found", b.found_share);
    json.Field("simulated_tlb_hit_rate", b.tlb_hit_rate);
    json.Field("lines_per_run", b.line_runs).EndObject();
  }
  return json.EndArray().EndObject().text() + "\n";
}

}  // namespace

Status RunBenchKv(Console& console, const ArgList& list) {
  std::vector<int64_t> threads = {1, 2, 4, 8, 16, 32, 64};
  int64_t layers = 24, kv_heads = 2, head_dim = 64, tokens = 32'768;
  std::string dtype = "f16";
  float seconds = 1.0f;
  bool as_json = false;
  Args args("bench kv", "[OPTIONS]",
            "Measures the cache without a model: allocation under many threads, growth beyond the "
            "expected length, fragmentation over a simulated hour, and what block sizes cost. The "
            "default geometry is Qwen2.5-0.5B's.",
            "  lode bench kv\n"
            "  lode bench kv --threads 1,64 --seconds 5\n"
            "  lode bench kv --layers 28 --kv-heads 4 --head-dim 128 --json\n");
  args.Ints("-t, --threads", "LIST", &threads, {.min = 1, .max = 256}, "Numbers of threads.");
  args.Real("--seconds", "S", &seconds, "Time of each allocation measurement.");
  args.Int("--layers", "N", &layers, {.min = 1, .max = 1024}, "Layers.");
  args.Int("--kv-heads", "N", &kv_heads, {.min = 1, .max = 1024}, "KV heads.");
  args.Int("--head-dim", "N", &head_dim, {.min = 8, .max = 1024}, "Size of a head.");
  args.Int("-c, --context", "N", &tokens, {.min = 1024, .max = 1 << 20},
           "Tokens that the growing sequence's cache is made for.");
  args.Text("--kv-cache-dtype", "TYPE", &dtype, "How keys and values are stored.");
  args.Flag("--json", &as_json, "Print JSON.");
  LODE_ASSIGN_OR_RETURN(const bool proceed, args.Parse(list, console));
  if (!proceed) return OkStatus();
  if (!(seconds > 0.0f && seconds <= 600.0f)) {
    return InvalidArgumentError("--seconds: expected a time up to 600, found " +
                                std::to_string(seconds));
  }
  KvCacheOptions geometry = {.num_layers = static_cast<int32_t>(layers),
                             .num_kv_heads = static_cast<int32_t>(kv_heads),
                             .head_dim = static_cast<int32_t>(head_dim)};
  LODE_ASSIGN_OR_RETURN(geometry.dtypes, ParseKvDTypes(dtype));

  Report report;
  for (const int64_t count : threads) {
    for (const double work_us : {0.0, kWorkMicroseconds}) {
      LODE_ASSIGN_OR_RETURN(AllocationResult result,
                            MeasureAllocation(geometry, static_cast<int>(count), work_us, seconds));
      report.allocation.push_back(result);
    }
  }
  LODE_ASSIGN_OR_RETURN(report.growth, MeasureGrowth(geometry, tokens));
  for (const double interval : {0.0, 300.0}) {
    LODE_ASSIGN_OR_RETURN(HourResult hour, SimulateHour(interval));
    report.hours.push_back(hour);
  }
  LODE_ASSIGN_OR_RETURN(report.block_sizes, CompareBlockSizes(geometry));
  return console.Out(as_json ? AsJson(report) : AsText(report));
}

}  // namespace lode::cli
