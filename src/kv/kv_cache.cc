// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_cache.h"

#include <algorithm>
#include <string>

#include "kv/kv_layout.h"
#include "kv/open_tiles.h"
#include "kv/paged_kv_cache.h"

namespace lode {
namespace {

Status CheckOptions(const KvCacheOptions& options) {
  const auto refuse = [](std::string_view what, int64_t found, std::string_view expected) {
    return InvalidArgumentError("KV cache: " + std::string(what) + " is " + std::to_string(found) +
                                ", expected " + std::string(expected));
  };
  if (options.num_layers <= 0) return refuse("num_layers", options.num_layers, "at least 1");
  if (options.num_kv_heads <= 0) return refuse("num_kv_heads", options.num_kv_heads, "at least 1");
  if (options.head_dim <= 0 || options.head_dim % kernels::kHeadDimStep != 0 ||
      options.head_dim > kernels::kMaxHeadDim) {
    return refuse("head_dim", options.head_dim,
                  "a multiple of " + std::to_string(kernels::kHeadDimStep) + " up to " +
                      std::to_string(kernels::kMaxHeadDim));
  }
  if (options.max_tokens <= 0 || options.max_tokens > int64_t{1} << 50) {
    return refuse("max_tokens", options.max_tokens, "1 to 2^50");
  }
  if (!BlockPlan::IsBlockSize(options.block_size)) {
    return refuse("block size", options.block_size, "8, 16, 32, 64 or 128 tokens");
  }
  if (options.value_group <= 0 || options.value_group % kernels::kHeadDimStep != 0) {
    return refuse("the group of values that share a scale", options.value_group,
                  "a multiple of " + std::to_string(kernels::kHeadDimStep));
  }
  if (options.int4_fallback_threshold < 0) {
    return refuse("the threshold of int4", options.int4_fallback_threshold, "0 or more");
  }
  if (options.memory_bytes < 0) {
    return refuse("the budget in bytes", options.memory_bytes, "0 or more");
  }
  return OkStatus();
}

int64_t OpenBytes(const KvCacheOptions& options) {
  return OpenTiles::BytesFor(options.num_layers, options.num_kv_heads, options.head_dim,
                             options.dtypes);
}

}  // namespace

Result<std::unique_ptr<KvCache>> KvCache::Create(const KvCacheOptions& options) {
  LODE_RETURN_IF_ERROR(CheckOptions(options));
  auto layout = std::make_unique<const KvLayout>(options);
  const int64_t least = OpenBytes(options) + layout->ranges().back().page_bytes;
  if (options.memory_bytes > 0 && options.memory_bytes < least) {
    return InvalidArgumentError("KV cache: a budget of " + std::to_string(options.memory_bytes) +
                                " bytes is too small, expected at least " + std::to_string(least) +
                                " for the open tiles of a sequence and one block of " +
                                std::to_string(options.block_size) + " tokens");
  }
  const int64_t budget = options.memory_bytes > 0
                             ? options.memory_bytes
                             : layout->PagesBytes(layout->NumPages(options.max_tokens));
  LODE_ASSIGN_OR_RETURN(std::unique_ptr<PageStore> store,
                        PageStore::Create(*layout, budget, options.prefix_hash_bits));
  return std::unique_ptr<KvCache>(
      std::make_unique<PagedKvCache>(options, std::move(layout), std::move(store)));
}

int64_t KvCache::BytesFor(const KvCacheOptions& options, int64_t num_tokens) {
  const KvLayout layout(options);
  return layout.PagesBytes(layout.NumPages(num_tokens)) + OpenBytes(options);
}

double KvCache::BytesPerToken(const KvCacheOptions& options) {
  const KvLayout layout(options);
  return static_cast<double>(layout.ranges().back().page_bytes) /
         static_cast<double>(options.block_size);
}

}  // namespace lode
