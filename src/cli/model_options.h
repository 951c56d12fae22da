// SPDX-License-Identifier: Apache-2.0
// The options of every verb that loads a model, and how a model is named.
#ifndef LODE_CLI_MODEL_OPTIONS_H_
#define LODE_CLI_MODEL_OPTIONS_H_

#include <cstdint>
#include <memory>
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
  std::string summaries = "mean";
  std::string page_scores = "codes";
  int64_t csa_hash_dim = SparseOptions{}.hash_dim;
  int64_t csa_seed = 0;
  int64_t csa_top_k = SparseOptions{}.top_k;
  float csa_max_unread = static_cast<float>(SparseOptions{}.max_unread);
  int64_t csa_scan_tokens = SparseOptions{}.scan_tokens;
  int64_t audit_interval = 256;
  int64_t hca_window = SparseOptions{}.window;
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
};

// Loads the engine. With --verbose, and when a quota lowers the number of threads, says why that
// many threads are used.
Result<std::unique_ptr<Engine>> LoadEngine(Console& console, const ModelOptions& options);

}  // namespace lode::cli

#endif  // LODE_CLI_MODEL_OPTIONS_H_
