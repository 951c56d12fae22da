// SPDX-License-Identifier: Apache-2.0
// The options of every verb that loads a model, and how a model is named.
#ifndef LODE_CLI_MODEL_OPTIONS_H_
#define LODE_CLI_MODEL_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "base/status.h"
#include "cli/args.h"
#include "cli/console.h"
#include "engine/engine.h"

namespace lode::cli {

// The path of a model named by the user: an existing path as it is, else a name of the catalogue
// that is in the cache. NotFound says what was looked for and what to do.
Result<std::string> ResolveModel(const std::string& name);

struct ModelOptions {
  std::string model;
  int64_t threads = 0;
  int64_t context = 0;
  std::string kv_dtype = "f16";
  std::string attention;
  std::string prefill_attention;
  std::string calibration;
  SparseOptions sparse = {.audit_interval = 256};
  std::set<std::string, std::less<>> sparse_given;  // parameters on the command line
  std::string activations = "int8";
  float rope_factor = 0.0f;
  int64_t block_size = BlockPlan::kDefaultBlockSize;
  int64_t kv_memory_bytes = 0;
  float memory_utilization = 0.0f;
  int64_t kv_value_group = kernels::kDefaultValueGroup;
  int64_t int4_fallback_threshold = 24'576;
  int64_t defragment_seconds = 300;
  std::string log_level = "warning";
  bool verbose = false;

  // Declares -m, --threads, --context, --kv-cache-dtype, --attention, --activations ...
  void AddTo(Args& args);
  // Finds the model and checks every value.
  Result<EngineOptions> Resolve() const;

 private:
  void AddSparse(Args& args);
};

// Loads the engine. With --verbose, and when a quota lowers the number of threads, says why that
// many threads are used.
Result<std::unique_ptr<Engine>> LoadEngine(Console& console, const ModelOptions& options);

}  // namespace lode::cli

#endif  // LODE_CLI_MODEL_OPTIONS_H_
