// SPDX-License-Identifier: Apache-2.0
// What this machine can do at best, and the least time a step of a model could take on it. No
// program can be faster than the bytes it must read and the products it must compute; the share of
// that limit tells how much room is left.
#ifndef LODE_CLI_MACHINE_LIMITS_H_
#define LODE_CLI_MACHINE_LIMITS_H_

#include <cstdint>
#include <string>

#include "engine/engine.h"

namespace lode::cli {

struct MachineRates {
  int num_threads = 1;
  double bytes_per_second = 0.0;  // read from memory, all threads
  double f32_per_second = 0.0;    // f32 operations (a multiply-add is two)
  double int8_per_second = 0.0;
};

// Measures for about a second, all threads at once.
MachineRates MeasureMachine(int num_threads);
std::string DescribeMachine(const MachineRates& machine);

// Least seconds for `tokens` tokens after `depth` cached ones: the larger of
// - memory: packed weights and the layers' keys and values, once for a prefill, once per token in a
//   decode;
// - arithmetic: two operations per weight and token, four per key element, query head and token, at
//   the rate of the activations' type (int8: for attention too, so the limit is a true one).
double LeastSeconds(const MachineRates& machine, const Engine& engine, bool is_prefill,
                    int64_t tokens, int64_t depth);

}  // namespace lode::cli

#endif  // LODE_CLI_MACHINE_LIMITS_H_
