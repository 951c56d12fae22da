// SPDX-License-Identifier: Apache-2.0
// How the cache's counters are shown, by their Prometheus names where they have one.
#ifndef LODE_CLI_KV_REPORT_H_
#define LODE_CLI_KV_REPORT_H_

#include <string>

#include "base/json.h"
#include "kv/kv_stats.h"

namespace lode::cli {

std::string KvStatsText(const KvCacheStats& stats);
// Writes one object.
void KvStatsJson(const KvCacheStats& stats, JsonWriter& json);

}  // namespace lode::cli

#endif  // LODE_CLI_KV_REPORT_H_
