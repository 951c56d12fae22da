// SPDX-License-Identifier: Apache-2.0
// What the benchmarks of a model share: statistics of repeats, and their tables and JSON.
#ifndef LODE_CLI_BENCH_REPORT_H_
#define LODE_CLI_BENCH_REPORT_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "cli/machine_limits.h"
#include "engine/engine.h"

namespace lode::cli {

// Of one number at least.
double Median(std::vector<double> samples);
double Mean(const std::vector<double>& samples);
double Deviation(const std::vector<double>& samples);  // of the sample; 0 for a single number

// Rows of cells, the first of them the heading.
using BenchTable = std::vector<std::vector<std::string>>;

// text_columns, counted from 0, are aligned to the left, the others to the right.
std::string FormatMarkdown(const BenchTable& table, const std::vector<size_t>& text_columns);
std::string FormatCsv(const BenchTable& table);

// InvalidArgument unless it is md, csv or json.
Status CheckBenchFormat(std::string_view format);

// Fields of every row: the build, the CPU, the model, threads, types of the cache.
void AddRunFields(const Engine& engine, JsonWriter& json);
void AddMachineFields(const MachineRates& machine, JsonWriter& json);

}  // namespace lode::cli

#endif  // LODE_CLI_BENCH_REPORT_H_
