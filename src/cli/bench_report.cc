// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_report.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/topology.h"
#include "cli/build_info.h"

namespace lode::cli {

double Median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t half = samples.size() / 2;
  return samples.size() % 2 == 1 ? samples[half] : (samples[half - 1] + samples[half]) / 2;
}

double Mean(const std::vector<double>& samples) {
  return std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
}

double Deviation(const std::vector<double>& samples) {
  if (samples.size() < 2) return 0.0;
  const double mean = Mean(samples);
  double sum = 0.0;
  for (const double x : samples) sum += (x - mean) * (x - mean);
  return std::sqrt(sum / static_cast<double>(samples.size() - 1));
}

std::string FormatMarkdown(const BenchTable& table, const std::vector<size_t>& text_columns) {
  std::string out;
  for (size_t i = 0; i < table.size(); ++i) {
    out += "|";
    for (const std::string& cell : table[i]) out += " " + cell + " |";
    out += "\n";
    if (i > 0) continue;
    out += "|";
    for (size_t column = 0; column < table[0].size(); ++column) {
      const bool is_text = std::ranges::find(text_columns, column) != text_columns.end();
      out += is_text ? " --- |" : " ---: |";
    }
    out += "\n";
  }
  return out;
}

std::string FormatCsv(const BenchTable& table) {
  std::string out;
  for (const auto& row : table) {
    for (size_t i = 0; i < row.size(); ++i) {
      std::string cell = row[i];
      for (size_t at = 0; (at = cell.find('"', at)) != std::string::npos; at += 2) {
        cell.insert(at, 1, '"');
      }
      out += (i == 0 ? "\"" : ",\"") + cell + "\"";
    }
    out += "\n";
  }
  return out;
}

Status CheckBenchFormat(std::string_view format) {
  if (format == "md" || format == "csv" || format == "json") return OkStatus();
  return InvalidArgumentError("-o: expected md, csv or json, found '" + std::string(format) + "'");
}

void AddRunFields(const Engine& engine, JsonWriter& json) {
  json.Field("build_version", BuildVersion()).Field("build_commit", BuildCommit());
  json.Field("cpu_info", CpuName()).Field("model_filename", engine.options().model_path);
  json.Field("model_type", engine.model().config().name);
  json.Field("model_bytes", engine.model().weight_bytes());
  json.Field("n_threads", engine.options().num_threads);
  json.Field("kv_cache_dtype", KvDTypesName(engine.options().kv_dtypes));
}

void AddMachineFields(const MachineRates& machine, JsonWriter& json) {
  json.Field("bytes_per_second", machine.bytes_per_second);
  json.Field("f32_operations_per_second", machine.f32_per_second);
  json.Field("int8_operations_per_second", machine.int8_per_second);
}

}  // namespace lode::cli
