// SPDX-License-Identifier: Apache-2.0
// The verbs of `lode`. Each reads its own arguments (what follows the verb), does its work and
// returns ok or the error that main prints; none exits the process. One file per verb, same name.
#ifndef LODE_CLI_COMMANDS_H_
#define LODE_CLI_COMMANDS_H_

#include "base/status.h"
#include "cli/args.h"
#include "cli/console.h"

namespace lode::cli {

Status RunBench(Console& console, const ArgList& list);
Status RunBenchKv(Console& console, const ArgList& list);  // bench kv
Status RunCalibrate(Console& console, const ArgList& list);
Status RunEval(Console& console, const ArgList& list);
Status RunInspect(Console& console, const ArgList& list);
Status RunInspectKv(Console& console, const ArgList& list);  // inspect --kv
Status RunPlan(Console& console, const ArgList& list);
Status RunPull(Console& console, const ArgList& list);
Status RunRun(Console& console, const ArgList& list);
Status RunTokenize(Console& console, const ArgList& list);
Status RunVerify(Console& console, const ArgList& list);

}  // namespace lode::cli

#endif  // LODE_CLI_COMMANDS_H_
