// SPDX-License-Identifier: Apache-2.0
#include "attention/eager.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/kv_tile.h"

namespace lode {
namespace {

// Keys and values of one KV head at positions [begin, end), decoded: [end - begin][head_dim].
struct Rows {
  std::vector<float> keys;
  std::vector<float> values;
};

Rows DecodeRows(const AttentionInputs& inputs, const KvCache& cache, int32_t kv_head, int64_t begin,
                int64_t end) {
  const BlockPlan& plan = cache.plan();
  const int64_t head_dim = cache.options().head_dim;
  std::vector<float> keys(static_cast<size_t>(head_dim * kernels::kKvTileTokens));
  std::vector<float> values(static_cast<size_t>(head_dim * kernels::kKvTileTokens));
  Rows rows;
  for (int64_t index = plan.TileOf(begin); index < plan.NumTiles(end); ++index) {
    const KvTile tile = cache.Tile(inputs.sequence, inputs.layer, kv_head, index);
    tile.key_codec->decode_keys(tile.keys, tile.shape, keys.data());
    tile.value_codec->decode_values(tile.values, tile.shape, values.data(), head_dim);
    const int64_t first = plan.FirstPositionOfTile(index);
    for (int64_t position = std::max(first, begin);
         position < std::min(first + tile.shape.tokens, end); ++position) {
      const int64_t slot = position - first;
      for (int64_t d = 0; d < head_dim; ++d) {
        rows.keys.push_back(keys[static_cast<size_t>(d * kernels::kKvTileTokens + slot)]);
        rows.values.push_back(values[static_cast<size_t>(slot * head_dim + d)]);
      }
    }
  }
  return rows;
}

// One query against keys and values [num_keys, head_dim].
void Attend(const float* query, double scale, const float* keys, const float* values,
            int64_t num_keys, int64_t head_dim, float* out) {
  std::vector<double> weights(static_cast<size_t>(num_keys));
  for (int64_t j = 0; j < num_keys; ++j) {
    double score = 0;
    for (int64_t d = 0; d < head_dim; ++d) score += double{query[d]} * keys[j * head_dim + d];
    weights[static_cast<size_t>(j)] = score * scale;
  }
  const double max = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - max);
  for (int64_t d = 0; d < head_dim; ++d) {
    double mean = 0;
    for (int64_t j = 0; j < num_keys; ++j) {
      mean += weights[static_cast<size_t>(j)] * values[j * head_dim + d];
    }
    out[d] = static_cast<float>(mean / sum);
  }
}

class EagerAttention final : public Attention {
 public:
  void Forward(const AttentionInputs& inputs, const KvCache& cache, ThreadPool& pool, float* out,
               int64_t out_stride) override {
    const int64_t head_dim = cache.options().head_dim;
    const int64_t group = inputs.num_heads / cache.options().num_kv_heads;
    LODE_CHECK(group * cache.options().num_kv_heads == inputs.num_heads);
    const int64_t end = inputs.first_position + inputs.num_tokens;
    LODE_CHECK(end <= cache.Length(inputs.sequence));
    const int64_t first =
        inputs.sliding_window > 0
            ? std::max(int64_t{0}, inputs.first_position + 1 - inputs.sliding_window)
            : 0;
    for (int32_t kv_head = 0; kv_head < cache.options().num_kv_heads; ++kv_head) {
      const Rows rows = DecodeRows(inputs, cache, kv_head, first, end);
      pool.ParallelFor(inputs.num_tokens * group, [&](int64_t task, int) {
        const int64_t token = task / group;
        const int64_t head = kv_head * group + task % group;
        const int64_t position = inputs.first_position + token;
        const int64_t begin =
            inputs.sliding_window > 0 ? std::max(first, position + 1 - inputs.sliding_window) : 0;
        const int64_t offset = (begin - first) * head_dim;
        Attend(inputs.q + token * inputs.q_stride + head * head_dim, inputs.scale,
               rows.keys.data() + offset, rows.values.data() + offset, position + 1 - begin,
               head_dim, out + token * out_stride + head * head_dim);
      });
    }
  }
};

}  // namespace

std::unique_ptr<Attention> CreateEagerAttention() {
  return std::make_unique<EagerAttention>();
}

}  // namespace lode
