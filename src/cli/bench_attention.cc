// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_attention.h"

#include <algorithm>
#include <cstdlib>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <memory>
#include <optional>
#include <utility>

#include "base/topology.h"
#include "cli/bench_report.h"
#include "cli/interrupt.h"
#include "cli/text_input.h"
#include "engine/calibrate.h"

namespace lode::cli {
namespace {

constexpr int64_t kMultiple = kernels::kKvTileTokens;
constexpr int64_t kTilingStep = 1024 * kMultiple;

// Counts the time spent in an attention.
class TimedAttention final : public Attention {
 public:
  explicit TimedAttention(std::unique_ptr<Attention> attention)
      : attention_(std::move(attention)) {}

  void Forward(const AttentionInputs& inputs, const KvCache& cache, ThreadPool& pool, float* out,
               int64_t out_stride) override {
    const Stopwatch stopwatch;
    attention_->Forward(inputs, cache, pool, out, out_stride);
    seconds_ += stopwatch.Seconds();
  }
  void Truncate(SequenceId sequence, int64_t length) override {
    attention_->Truncate(sequence, length);
  }
  bool WantsFeedForward() const override { return attention_->WantsFeedForward(); }
  void AddFeedForward(const FeedForwardRows& rows) override { attention_->AddFeedForward(rows); }
  AttentionCounters counters() const override { return attention_->counters(); }
  double seconds() const { return seconds_; }

 private:
  const std::unique_ptr<Attention> attention_;
  double seconds_ = 0.0;
};

// A round of one attention, or what of it there was time for. All per token.
struct Sample {
  int64_t tokens = 0;
  double seconds = 0.0;
  double attention_seconds = 0.0;  // of these
};

// What an attention says of itself. What it does not say is missing.
struct Reported {
  std::optional<double> select_seconds, attend_seconds, bytes;  // per token
  std::optional<double> keys_share;  // of the keys it attends to, those it reads
};

// One attention at one depth.
struct AttentionRow {
  std::string attention;
  int64_t depth = 0;
  int64_t real_tokens = 0;
  std::vector<Sample> samples;  // one per round that was begun
  // What the first token behind this context took longer than the others: to build an index.
  double index_seconds = 0.0;
  int64_t resident_bytes = 0;  // of the process if there were only this attention
  Reported reported;
  double ratio = 1.0;          // of its time to the first attention's, median over the rounds
  double limit_seconds = 0.0;  // per token; 0: not known

  int64_t num_tokens() const {
    int64_t tokens = 0;
    for (const Sample& sample : samples) tokens += sample.tokens;
    return tokens;
  }
  double total_seconds() const {
    double seconds = 0.0;
    for (const Sample& s : samples) seconds += s.seconds * static_cast<double>(s.tokens);
    return seconds;
  }
  std::vector<double> Each(double (*value)(const Sample&)) const {
    std::vector<double> values;
    values.reserve(samples.size());
    for (const Sample& sample : samples) values.push_back(value(sample));
    return values;
  }
  std::vector<double> Seconds() const {
    return Each([](const Sample& s) { return s.seconds; });
  }
  double MedianSeconds() const { return Median(Seconds()); }
  double AttentionSeconds() const {
    return Median(Each([](const Sample& s) { return s.attention_seconds; }));
  }
  double WeightSeconds() const {
    return Median(Each([](const Sample& s) { return s.seconds - s.attention_seconds; }));
  }
};

Reported ReadCounters(const AttentionCounters& counters, int64_t num_tokens) {
  Reported reported;
  const double tokens = static_cast<double>(num_tokens);
  const auto per_token = [&](double sum) {
    return sum > 0.0 ? std::optional(sum / tokens) : std::nullopt;
  };
  reported.bytes = per_token(static_cast<double>(counters.bytes_read));
  reported.select_seconds = per_token(counters.select_seconds);
  reported.attend_seconds = per_token(counters.attend_seconds);
  if (counters.keys > 0) {
    reported.keys_share =
        static_cast<double>(counters.keys_read) / static_cast<double>(counters.keys);
  }
  return reported;
}

// Gives memory that is free back to the system, so that what is resident is in use.
void ReturnFreeMemory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

// The rows of one engine, depth by depth.
class AttentionBench {
 public:
  AttentionBench(Console& console, Engine& engine, const AttentionBenchOptions& options,
                 std::vector<TokenId> text)
      : console_(console), engine_(engine), options_(options), text_(std::move(text)) {}

  Result<std::vector<AttentionRow>> Run() {
    std::vector<AttentionRow> rows;
    for (const int64_t depth : options_.depths) {
      Result<std::vector<AttentionRow>> measured = RunAt(depth);
      engine_.UseAttention(nullptr);  // those of this depth are gone
      if (!measured.ok()) return measured.status();
      for (AttentionRow& row : *measured) rows.push_back(std::move(row));
    }
    return rows;
  }

 private:
  // One that takes part, with its row.
  struct Entrant {
    std::unique_ptr<TimedAttention> attention;
    AttentionRow row;
    AttentionCounters first_token;  // what was counted by its end
  };

  Result<std::vector<AttentionRow>> RunAt(int64_t depth) {
    LODE_RETURN_IF_ERROR(Fill(depth));
    ReturnFreeMemory();
    const int64_t resident = ReadResidentMemory().current_bytes;
    std::vector<Entrant> entrants;
    for (const std::string& name : options_.attentions) {
      LODE_ASSIGN_OR_RETURN(Entrant entrant, Begin(name, depth));
      entrant.row.resident_bytes += resident;
      entrants.push_back(std::move(entrant));
    }
    ProgressBar bar(console_, "measuring @ " + FormatCount(depth), "rounds");
    for (int64_t round = 0; round < options_.rounds; ++round) {
      for (Entrant& entrant : entrants) LODE_RETURN_IF_ERROR(TakeTurn(entrant));
      bar.Update(round + 1, options_.rounds);
    }
    bar.Finish();
    std::vector<AttentionRow> rows;
    for (Entrant& entrant : entrants) {
      AttentionRow& row = entrant.row;
      row.index_seconds = std::max(0.0, row.index_seconds - row.AttentionSeconds());
      row.reported =
          ReadCounters(entrant.attention->counters() - entrant.first_token, row.num_tokens());
      row.ratio = RatioTo(entrants.front().row, row);
      rows.push_back(row);
    }
    return rows;
  }

  // Leaves `depth` tokens in the cache, of which the first are really prefilled.
  Status Fill(int64_t depth) {
    const int64_t real = std::min(depth, options_.tile_from);
    real_tokens_ = engine_.Truncate(std::min(real_tokens_, real));
    ProgressBar bar(console_, "prefill", "tokens");
    while (real_tokens_ < real) {
      const int64_t count = std::min(engine_.options().prefill_chunk, real - real_tokens_);
      const auto from = text_.begin() + real_tokens_;
      LODE_RETURN_IF_ERROR(engine_.Append({from, from + count}));
      real_tokens_ += count;
      bar.Update(real_tokens_, real);
      if (interrupt_.interrupted()) return CancelledError("interrupted");
    }
    bar.Finish();
    ProgressBar tiling(console_, "repeating", "tokens");
    for (int64_t length = real; length < depth;) {
      length = std::min(length + kTilingStep, depth);
      LODE_RETURN_IF_ERROR(engine_.TileTo(length, real));
      tiling.Update(length, depth);
      if (interrupt_.interrupted()) return CancelledError("interrupted");
    }
    tiling.Finish();
    return OkStatus();
  }

  Result<Entrant> Begin(const std::string& name, int64_t depth) {
    Entrant entrant;
    LODE_ASSIGN_OR_RETURN(std::unique_ptr<Attention> attention, engine_.MakeAttention(name));
    entrant.attention = std::make_unique<TimedAttention>(std::move(attention));
    entrant.row.attention = name;
    entrant.row.depth = depth;
    entrant.row.real_tokens = real_tokens_;
    engine_.UseAttention(entrant.attention.get());
    const int64_t before = ReadResidentMemory().current_bytes;
    LODE_RETURN_IF_ERROR(engine_.Append({TokenAt(depth)}));
    entrant.row.resident_bytes = ReadResidentMemory().current_bytes - before;
    entrant.row.index_seconds = entrant.attention->seconds();
    entrant.first_token = entrant.attention->counters();
    LODE_RETURN_IF_ERROR(ReturnTo(depth));
    return entrant;
  }

  // A round of decode, one token at least, and back to the depth. Nothing when the row's time is
  // over.
  Status TakeTurn(Entrant& entrant) {
    AttentionRow& row = entrant.row;
    const double spent = row.total_seconds();
    const auto is_over = [&](double seconds) {
      return options_.seconds_max > 0.0 && seconds >= options_.seconds_max;
    };
    if (!row.samples.empty() && is_over(spent)) return OkStatus();
    engine_.UseAttention(entrant.attention.get());
    const double attention_before = entrant.attention->seconds();
    const Stopwatch stopwatch;
    Sample sample;
    while (sample.tokens < options_.tokens &&
           (sample.tokens == 0 || !is_over(spent + stopwatch.Seconds()))) {
      LODE_RETURN_IF_ERROR(engine_.Append({TokenAt(row.depth + sample.tokens)}));
      ++sample.tokens;
      if (interrupt_.interrupted()) return CancelledError("interrupted");
    }
    const double tokens = static_cast<double>(sample.tokens);
    sample.seconds = stopwatch.Seconds() / tokens;
    sample.attention_seconds = (entrant.attention->seconds() - attention_before) / tokens;
    row.samples.push_back(sample);
    return ReturnTo(row.depth);
  }

  Status ReturnTo(int64_t depth) {
    const int64_t length = engine_.Truncate(depth);
    if (length == depth) return OkStatus();
    return InternalError("the cache was cut to " + std::to_string(depth) + " tokens and has " +
                         std::to_string(length));
  }

  // The text goes on as it was repeated.
  TokenId TokenAt(int64_t position) const {
    return text_[static_cast<size_t>(position % real_tokens_)];
  }

  static double RatioTo(const AttentionRow& first, const AttentionRow& row) {
    const std::vector<double> theirs = first.Seconds();
    std::vector<double> ratios = row.Seconds();
    ratios.resize(std::min(ratios.size(), theirs.size()));
    for (size_t i = 0; i < ratios.size(); ++i) ratios[i] /= theirs[i];
    return Median(ratios);
  }

  Console& console_;
  Engine& engine_;
  const AttentionBenchOptions& options_;
  const std::vector<TokenId> text_;  // [tile_from]
  int64_t real_tokens_ = 0;          // of those in the cache
  const InterruptGuard interrupt_;
};

// The least time per token for what the row reads, 0 when that is not known.
double LimitSeconds(const MachineRates& machine, const Engine& engine, const AttentionRow& row) {
  if (row.reported.bytes) {
    const double weights = static_cast<double>(engine.model().weight_bytes());
    return std::max(LeastSeconds(machine, engine, false, 1, 0),
                    (weights + *row.reported.bytes) / machine.bytes_per_second);
  }
  if (row.reported.keys_share.value_or(1.0) < 1.0) return 0.0;
  return LeastSeconds(machine, engine, false, 1, row.depth);
}

// Weights and what the attention reads besides.
std::optional<double> BytesPerToken(const Engine& engine, const AttentionRow& row) {
  if (!row.reported.bytes) return std::nullopt;
  return static_cast<double>(engine.model().weight_bytes()) + *row.reported.bytes;
}

std::string AsJson(const Engine& engine, const std::vector<AttentionRow>& rows,
                   const std::string& context, const MachineRates* machine) {
  JsonWriter json;
  const auto optional = [&](std::string_view key, std::optional<double> value, double unit) {
    if (value) {
      json.Field(key, *value * unit);
    } else {
      json.Key(key).Null();
    }
  };
  json.BeginArray();
  for (const AttentionRow& row : rows) {
    const std::vector<double> seconds = row.Seconds();
    json.BeginObject();
    AddRunFields(engine, json);
    json.Field("attention", row.attention).Field("n_depth", row.depth);
    json.Field("n_prefilled", row.real_tokens).Field("context", context);
    json.Field("n_gen", row.num_tokens());
    json.Field("median_ms_per_token", 1e3 * Median(seconds));
    json.Field("stddev_ms_per_token", 1e3 * Deviation(seconds));
    json.Field("weights_ms_per_token", 1e3 * row.WeightSeconds());
    json.Field("attention_ms_per_token", 1e3 * row.AttentionSeconds());
    optional("select_ms_per_token", row.reported.select_seconds, 1e3);
    optional("attend_ms_per_token", row.reported.attend_seconds, 1e3);
    optional("bytes_per_token", BytesPerToken(engine, row), 1.0);
    optional("share_of_keys_read", row.reported.keys_share, 1.0);
    json.Field("index_seconds", row.index_seconds).Field("resident_bytes", row.resident_bytes);
    json.Field("ratio_to_first", row.ratio);
    if (machine != nullptr) {
      AddMachineFields(*machine, json);
      const bool known = row.limit_seconds > 0.0;
      const std::optional<double> limit = known ? std::optional(row.limit_seconds) : std::nullopt;
      optional("limit_ms_per_token", limit, 1e3);
      optional("share_of_limit", limit, 1.0 / row.MedianSeconds());
    }
    json.Key("samples_ms_per_token").BeginArray();
    for (const double s : seconds) json.Value(1e3 * s);
    json.EndArray().Key("samples_n_gen").BeginArray();
    for (const Sample& sample : row.samples) json.Value(sample.tokens);
    json.EndArray().EndObject();
  }
  return json.EndArray().text() + "\n";
}

std::string Cell(std::optional<double> value, double unit, int decimals,
                 std::string_view suffix = "") {
  return value ? FormatFixed(*value * unit, decimals) + std::string(suffix) : "-";
}

BenchTable Table(const Engine& engine, const std::vector<AttentionRow>& rows,
                 const AttentionBenchOptions& options) {
  BenchTable table = {{"kv", "attention", "depth", "prefilled", "ms/token", "min", "max", "weights",
                       "attention", "select", "attend", "keys read", "MB/token", "index s",
                       "RSS MiB", "to " + options.attentions.front(), "tokens"}};
  if (options.machine) table[0].insert(table[0].end(), {"limit ms", "share"});
  for (const AttentionRow& row : rows) {
    const std::vector<double> seconds = row.Seconds();
    const int64_t asked = options.tokens * options.rounds, taken = row.num_tokens();
    std::vector<std::string> cells = {
        std::string(KvDTypesName(engine.options().kv_dtypes)),
        row.attention,
        std::to_string(row.depth),
        std::to_string(row.real_tokens),
        FormatFixed(1e3 * Median(seconds), 2),
        FormatFixed(1e3 * std::ranges::min(seconds), 2),
        FormatFixed(1e3 * std::ranges::max(seconds), 2),
        FormatFixed(1e3 * row.WeightSeconds(), 2),
        FormatFixed(1e3 * row.AttentionSeconds(), 2),
        Cell(row.reported.select_seconds, 1e3, 2),
        Cell(row.reported.attend_seconds, 1e3, 2),
        Cell(row.reported.keys_share, 1e2, 1, " %"),
        Cell(BytesPerToken(engine, row), 1e-6, 1),
        FormatFixed(row.index_seconds, 2),
        FormatFixed(static_cast<double>(row.resident_bytes) / (1 << 20), 0),
        FormatFixed(row.ratio, 3),
        std::to_string(taken) + (taken < asked ? " of " + std::to_string(asked) : "")};
    if (options.machine) {
      const bool known = row.limit_seconds > 0.0;
      cells.push_back(known ? FormatFixed(1e3 * row.limit_seconds, 2) : "-");
      cells.push_back(known ? FormatFixed(100.0 * row.limit_seconds / Median(seconds), 0) + " %"
                            : "-");
    }
    table.push_back(std::move(cells));
  }
  return table;
}

// The comparison that text 1 makes at a million tokens, with what was measured here at the deepest
// context; empty when nothing was that it compares.
std::string ClaimsTable(const Engine& engine, const std::vector<AttentionRow>& rows) {
  struct Claim {
    const char* name;
    const char* milliseconds;
    const char* attention;
    bool is_f16;  // only with this type of cache the same thing
  };
  static constexpr Claim kClaims[] = {{"native", "2,840", "eager", true},
                                      {"paged, exact", "1,920", "flash", false},
                                      {"FlashAttention-3", "1,450", "flash", false},
                                      {"CSA + HCA", "89", "csa_hca", false}};
  const int64_t depth = std::ranges::max(rows, {}, &AttentionRow::depth).depth;
  const std::string kv(KvDTypesName(engine.options().kv_dtypes));
  BenchTable table = {{"text 1 claims, at 1M", "ms/token", "here", "depth", "ms/token"}};
  for (const Claim& claim : kClaims) {
    if (claim.is_f16 && kv != "f16") continue;
    const auto row = std::ranges::find_if(rows, [&](const AttentionRow& r) {
      return r.depth == depth && r.attention == claim.attention;
    });
    if (row == rows.end()) continue;
    table.push_back({claim.name, claim.milliseconds, row->attention + ", " + kv,
                     std::to_string(depth), FormatFixed(1e3 * row->MedianSeconds(), 2)});
  }
  return table.size() == 1 ? "" : "\n" + FormatMarkdown(table, {0, 2});
}

Status CheckOptions(const AttentionBenchOptions& options) {
  for (const std::string& name : options.attentions) {
    LODE_RETURN_IF_ERROR(CheckAttentionName(name));
  }
  const auto check = [](const char* what, int64_t tokens) {
    if (tokens > 0 && tokens % kMultiple == 0) return OkStatus();
    return InvalidArgumentError(
        std::string(what) + ": expected a positive multiple of " + std::to_string(kMultiple) +
        " tokens in a comparison of attentions, found " + std::to_string(tokens));
  };
  for (const int64_t depth : options.depths) LODE_RETURN_IF_ERROR(check("-d", depth));
  return check("--tile-from", options.tile_from);
}

// The first tile_from tokens of the text, which is repeated as often as it takes.
Result<std::vector<TokenId>> Tokenize(const Tokenizer& tokenizer, const std::string& text,
                                      int64_t tile_from) {
  const std::vector<TokenId> encoded = tokenizer.Encode(text);
  if (encoded.empty()) return InvalidArgumentError("-f: the text has no tokens");
  std::vector<TokenId> tokens;
  if (tokenizer.adds_bos()) tokens.push_back(tokenizer.bos());
  for (size_t i = 0; static_cast<int64_t>(tokens.size()) < tile_from; ++i) {
    tokens.push_back(encoded[i % encoded.size()]);
  }
  return tokens;
}

// Says what the cache was filled with.
std::string DescribeContext(const AttentionBenchOptions& options) {
  return "up to " + FormatCount(options.tile_from) + " tokens of " +
         (options.file.empty() ? std::string("the built-in text") : options.file) +
         " prefilled (flash); beyond them the same keys and values repeated, keys re-rotated to "
         "their new positions";
}

}  // namespace

Status RunBenchAttention(Console& console, AttentionBenchOptions options) {
  LODE_RETURN_IF_ERROR(CheckOptions(options));
  std::string text(BuiltInCalibrationText());
  if (!options.file.empty()) {
    LODE_ASSIGN_OR_RETURN(text, ReadText(options.file));
  }
  if (text.empty()) return InvalidArgumentError("-f " + options.file + ": the text is empty");
  const int64_t deepest = std::ranges::max(options.depths);
  options.model.context = std::max(options.model.context, deepest + options.tokens);
  options.tile_from = std::min(options.tile_from, deepest);
  options.model.attention = "flash";
  // One token in hundreds is audited, and few are timed here.
  options.model.sparse.audit_interval = 0;
  LODE_ASSIGN_OR_RETURN(const auto engine, LoadEngine(console, options.model));
  LODE_ASSIGN_OR_RETURN(std::vector<TokenId> tokens,
                        Tokenize(engine->tokenizer(), text, options.tile_from));
  AttentionBench bench(console, *engine, options, std::move(tokens));
  LODE_ASSIGN_OR_RETURN(std::vector<AttentionRow> rows, bench.Run());
  MachineRates machine;
  if (options.machine) {
    machine = MeasureMachine(engine->options().num_threads);
    for (AttentionRow& row : rows) row.limit_seconds = LimitSeconds(machine, *engine, row);
    console.Err(DescribeMachine(machine) + "\n");
  }
  const std::string context = DescribeContext(options);
  if (options.format == "json") {
    return console.Out(AsJson(*engine, rows, context, options.machine ? &machine : nullptr));
  }
  const BenchTable table = Table(*engine, rows, options);
  if (options.format == "csv") {
    console.Err("contexts: " + context + "\n");
    return console.Out(FormatCsv(table));
  }
  return console.Out(FormatMarkdown(table, {0, 1}) + "\n" + engine->model().config().name + ", " +
                     std::to_string(engine->options().num_threads) +
                     " threads. Contexts: " + context + ".\n" + ClaimsTable(*engine, rows));
}

}  // namespace lode::cli
