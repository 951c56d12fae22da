// SPDX-License-Identifier: Apache-2.0
// For tests of KvCache: texts whose keys and values name every token before them, so that a page of
// another text is found out wherever it turns up.
#ifndef LODE_KV_KV_CACHE_TEST_SUPPORT_H_
#define LODE_KV_KV_CACHE_TEST_SUPPORT_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "kv/kv_cache.h"

namespace lode {

inline std::unique_ptr<KvCache> CreateKvCache(const KvCacheOptions& options) {
  Result<std::unique_ptr<KvCache>> cache = KvCache::Create(options);
  EXPECT_TRUE(cache.ok()) << cache.status().ToString();
  return std::move(cache).value();
}

using Text = std::vector<int32_t>;

// A number for every beginning of a text.
inline std::vector<uint64_t> Beginnings(const Text& text) {
  std::vector<uint64_t> hashes;
  uint64_t hash = 1469598103934665603u;
  for (const int32_t token : text) {
    hash = (hash ^ static_cast<uint64_t>(token)) * 1099511628211u;
    hash ^= hash >> 29;
    hashes.push_back(hash);
  }
  return hashes;
}

// Exact in f16 and f32.
inline float TextMark(uint64_t beginning, int32_t layer, int64_t head, int64_t component) {
  const uint64_t place = static_cast<uint64_t>(layer * 131 + head * 17 + component);
  return static_cast<float>((beginning + place * 2654435761u) >> 7 & 1023);
}

// Stores keys and values that name the beginnings of `contents`, up to its end, and publishes them
// as those of `text`.
inline Status GrowTo(KvCache& cache, SequenceId sequence, const Text& text, const Text& contents) {
  const int64_t first = cache.Length(sequence);
  const int64_t n = static_cast<int64_t>(text.size()) - first;
  LODE_RETURN_IF_ERROR(cache.Extend(sequence, n));
  const std::vector<uint64_t> beginnings = Beginnings(contents);
  const int64_t heads = cache.options().num_kv_heads, head_dim = cache.options().head_dim;
  std::vector<float> k(static_cast<size_t>(n * heads * head_dim)), v(k.size());
  for (int32_t layer = 0; layer < cache.options().num_layers; ++layer) {
    for (size_t i = 0; i < k.size(); ++i) {
      const auto token = first + static_cast<int64_t>(i) / (heads * head_dim);
      k[i] =
          TextMark(beginnings[static_cast<size_t>(token)], layer,
                   static_cast<int64_t>(i) / head_dim % heads, static_cast<int64_t>(i) % head_dim);
      v[i] = -k[i];
    }
    cache.Store(layer, sequence, first, n, k.data(), v.data());
  }
  cache.Publish(sequence, first, std::span(text).subspan(static_cast<size_t>(first)));
  return OkStatus();
}

// Stores the keys and values of text[first, size) and publishes the tokens.
inline Status GrowTo(KvCache& cache, SequenceId sequence, const Text& text) {
  return GrowTo(cache, sequence, text, text);
}

// Whether the sequence holds this text's keys and values at a position.
inline bool HoldsAt(const KvCache& cache, SequenceId sequence, int64_t position,
                    uint64_t beginning) {
  const int64_t head_dim = cache.options().head_dim;
  const int64_t index = cache.plan().TileOf(position);
  const int64_t slot = position - cache.plan().FirstPositionOfTile(index);
  std::vector<float> decoded(static_cast<size_t>(head_dim * kernels::kKvTileTokens));
  for (int32_t layer = 0; layer < cache.options().num_layers; ++layer) {
    for (int32_t head = 0; head < cache.options().num_kv_heads; ++head) {
      const KvTile tile = cache.Tile(sequence, layer, head, index);
      tile.key_codec->decode_keys(tile.keys, tile.shape, decoded.data());
      for (int64_t d = 0; d < head_dim; ++d) {
        const float key = decoded[static_cast<size_t>(d * kernels::kKvTileTokens + slot)];
        if (key != TextMark(beginning, layer, head, d)) return false;
      }
      tile.value_codec->decode_values(tile.values, tile.shape, decoded.data(), head_dim);
      for (int64_t d = 0; d < head_dim; ++d) {
        const float value = decoded[static_cast<size_t>(slot * head_dim + d)];
        if (value != -TextMark(beginning, layer, head, d)) return false;
      }
    }
  }
  return true;
}

// At all positions.
inline bool Holds(const KvCache& cache, SequenceId sequence, const Text& text) {
  if (cache.Length(sequence) != static_cast<int64_t>(text.size())) return false;
  const std::vector<uint64_t> beginnings = Beginnings(text);
  for (size_t p = 0; p < text.size(); ++p) {
    if (!HoldsAt(cache, sequence, static_cast<int64_t>(p), beginnings[p])) return false;
  }
  return true;
}

#define EXPECT_WHOLE(cache)                         \
  do {                                              \
    const Status whole_ = (cache).CheckIntegrity(); \
    EXPECT_TRUE(whole_.ok()) << whole_.ToString();  \
  } while (false)

}  // namespace lode

#endif  // LODE_KV_KV_CACHE_TEST_SUPPORT_H_
