// SPDX-License-Identifier: Apache-2.0
// `lode bench --attention A,B,...`: several attentions over the same contexts, in one run.
//
// A context is filled once per depth and used by all: a real prefill, repeated as
// engine/tiled_context.h does. Then the attentions take turns, round by round, so that what the
// machine does meanwhile meets all of them and their ratios are fair.
#ifndef LODE_CLI_BENCH_ATTENTION_H_
#define LODE_CLI_BENCH_ATTENTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/console.h"
#include "cli/model_options.h"

namespace lode::cli {

struct AttentionBenchOptions {
  ModelOptions model;                   // its attention is not looked at
  std::vector<std::string> attentions;  // the others are compared with the first
  std::vector<int64_t> depths;          // multiples of 32
  int64_t tokens = 16;                  // decoded in a round
  int64_t rounds = 5;
  int64_t tile_from = 4096;  // real tokens, a multiple of 32
  double seconds_max = 0.0;  // of a row, after its first token; 0: no limit
  std::string file;          // of the text; empty: the built-in one
  std::string format = "md";
  bool machine = false;  // the machine's limits too
};

// InvalidArgument: an unknown attention, depths or tile_from that are no multiples of 32.
Status RunBenchAttention(Console& console, AttentionBenchOptions options);

}  // namespace lode::cli

#endif  // LODE_CLI_BENCH_ATTENTION_H_
