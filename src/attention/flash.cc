// SPDX-License-Identifier: Apache-2.0
// How the work is cut. Queries that share a KV head form tiles of up to kTileRows rows (tokens x
// query heads of the group). A task walks a range of keys for one query tile, block by block: each
// block is decoded once for all rows. With many query tiles (prefill) a task walks all its keys.
// With few (decode), keys are cut into ranges of kSplitKeys as well, each range yields a partial
// softmax state, and the states are merged in the order of the ranges. How the work is cut depends
// on the shapes only, so the result does not depend on the number of threads.
#include "attention/flash.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "base/check.h"
#include "kernels/attention_tile.h"
#include "kv/codec.h"

namespace lode {
namespace {

constexpr int64_t kBlockTokens = KvCache::kBlockTokens;
constexpr int64_t kTileRows = 64;
// Keys between two steps of the softmax: amortises the rescaling of the output.
constexpr int64_t kTileKeys = 128;
constexpr int64_t kSplitKeys = 512;
// With at least this many query tiles, there is work for every thread without cutting keys.
constexpr int64_t kManyTasks = 16;
constexpr size_t kAlignment = 64;

static_assert(kTileKeys % kBlockTokens == 0 && kSplitKeys % kTileKeys == 0);
static_assert(kBlockTokens % kernels::kTileColumnStep == 0);

// A growing array of floats whose start is aligned for the kernels.
class Buffer {
 public:
  float* Reserve(int64_t floats) {
    constexpr size_t kSlack = kAlignment / sizeof(float);
    if (storage_.size() < static_cast<size_t>(floats) + kSlack) {
      storage_.resize(static_cast<size_t>(floats) + kSlack);
    }
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    return storage_.data() + (kAlignment - address % kAlignment) % kAlignment / sizeof(float);
  }

 private:
  std::vector<float> storage_;
};

// Working memory of one thread.
struct Scratch {
  Buffer queries;              // [rows, head_dim]
  Buffer scores;               // [rows, kTileKeys]
  Buffer block;                // one decoded block of keys or values
  Buffer state;                // a softmax state that need not outlive the task
  std::vector<int32_t> begin;  // [rows] first key of the tile that the row attends to
  std::vector<int32_t> end;
};

// The sizes that all tasks of a call share.
struct Shape {
  int64_t head_dim;
  int64_t output_cols;  // head_dim, padded for the kernels
  int64_t group;        // query heads per KV head
  int64_t tile_tokens;
  int64_t state_floats;  // of one tile's softmax state

  Shape(const AttentionInputs& inputs, const KvCacheOptions& options)
      : head_dim(options.head_dim),
        output_cols(kernels::PadTileColumns(head_dim)),
        group(inputs.num_heads / options.num_kv_heads),
        tile_tokens(std::min(std::max(int64_t{1}, kTileRows / group), inputs.num_tokens)),
        state_floats(StateRows() * (output_cols + 2)) {
    LODE_CHECK(group >= 1 && group * options.num_kv_heads == inputs.num_heads);
  }

  int64_t rows() const { return tile_tokens * group; }
  // Rounded up, so that every array of a state is aligned.
  int64_t StateRows() const {
    constexpr int64_t kStep = kAlignment / sizeof(float);
    return (rows() + kStep - 1) / kStep * kStep;
  }

  // The state of a tile inside a buffer of state_floats: output, max, sum.
  kernels::SoftmaxState StateIn(float* buffer) const {
    return {.max = buffer + StateRows() * output_cols,
            .sum = buffer + StateRows() * (output_cols + 1),
            .output = buffer,
            .rows = rows(),
            .output_cols = output_cols,
            .output_stride = output_cols};
  }
};

// One query tile: tokens [first_token, first_token + num_tokens) of one KV head's group.
struct QueryTile {
  int32_t kv_head;
  int64_t first_token;
  int64_t num_tokens;
};

class FlashAttention final : public Attention {
 public:
  void Forward(const AttentionInputs& inputs, const KvCache& cache, ThreadPool& pool, float* out,
               int64_t out_stride) override {
    if (inputs.num_tokens <= 0) return;
    LODE_CHECK(inputs.first_position + inputs.num_tokens <= cache.Length(inputs.sequence));
    const Shape shape(inputs, cache.options());
    if (scratch_.size() < static_cast<size_t>(pool.num_threads())) {
      scratch_.resize(static_cast<size_t>(pool.num_threads()));
    }
    const int64_t tiles_per_head = (inputs.num_tokens + shape.tile_tokens - 1) / shape.tile_tokens;
    const int64_t num_tiles = tiles_per_head * cache.options().num_kv_heads;
    const auto tile_at = [&](int64_t index) {
      const int64_t first_token = index % tiles_per_head * shape.tile_tokens;
      return QueryTile{.kv_head = static_cast<int32_t>(index / tiles_per_head),
                       .first_token = first_token,
                       .num_tokens = std::min(shape.tile_tokens, inputs.num_tokens - first_token)};
    };
    // Keys that any query of the call attends to, cut at multiples of kSplitKeys.
    const int64_t last = inputs.first_position + inputs.num_tokens;
    const int64_t first_split = FirstKey(inputs, 0) / kSplitKeys;
    const int64_t num_splits = (last + kSplitKeys - 1) / kSplitKeys - first_split;

    if (num_tiles >= kManyTasks || num_splits == 1) {
      pool.ParallelFor(num_tiles, [&](int64_t index, int worker) {
        Scratch& scratch = scratch_[static_cast<size_t>(worker)];
        const QueryTile tile = tile_at(index);
        kernels::SoftmaxState state = shape.StateIn(scratch.state.Reserve(shape.state_floats));
        AttendRange(inputs, cache, shape, tile, 0, last, scratch, state);
        WriteOut(shape, tile, {&state, 1}, out, out_stride);
      });
      return;
    }
    float* partials = partials_.Reserve(num_tiles * num_splits * shape.state_floats);
    const auto partial = [&](int64_t tile, int64_t split) {
      return shape.StateIn(partials + (tile * num_splits + split) * shape.state_floats);
    };
    pool.ParallelFor(num_tiles * num_splits, [&](int64_t index, int worker) {
      const int64_t split = index % num_splits;
      const int64_t begin = (first_split + split) * kSplitKeys;
      kernels::SoftmaxState state = partial(index / num_splits, split);
      AttendRange(inputs, cache, shape, tile_at(index / num_splits), begin, begin + kSplitKeys,
                  scratch_[static_cast<size_t>(worker)], state);
    });
    pool.ParallelFor(num_tiles, [&](int64_t index, int) {
      std::vector<kernels::SoftmaxState> states;
      for (int64_t split = 0; split < num_splits; ++split) states.push_back(partial(index, split));
      WriteOut(shape, tile_at(index), states, out, out_stride);
    });
  }

 private:
  // First key that `token` attends to.
  static int64_t FirstKey(const AttentionInputs& inputs, int64_t token) {
    if (inputs.sliding_window <= 0) return 0;
    return std::max(int64_t{0}, inputs.first_position + token + 1 - inputs.sliding_window);
  }

  // Softmax state of a query tile over the keys at positions [begin, end) that it attends to.
  static void AttendRange(const AttentionInputs& inputs, const KvCache& cache, const Shape& shape,
                          const QueryTile& tile, int64_t begin, int64_t end, Scratch& scratch,
                          kernels::SoftmaxState& state) {
    state.rows = tile.num_tokens * shape.group;
    std::fill_n(state.max, state.rows, -std::numeric_limits<float>::infinity());
    std::fill_n(state.sum, state.rows, 0.0f);
    std::fill_n(state.output, state.rows * state.output_stride, 0.0f);
    const float* queries = ScaleQueries(inputs, shape, tile, scratch);

    const KvCodec& codec = CodecFor(cache.options().dtype);
    const std::span<const BlockId> page_table = cache.page_table(inputs.sequence);
    float* scores = scratch.scores.Reserve(state.rows * kTileKeys);
    float* block = scratch.block.Reserve(kBlockTokens * shape.output_cols);
    begin = std::max(begin, FirstKey(inputs, tile.first_token) / kBlockTokens * kBlockTokens);
    end = std::min(end, inputs.first_position + tile.first_token + tile.num_tokens);
    for (int64_t key = begin; key < end; key += kTileKeys) {
      const int64_t num_blocks = (std::min(kTileKeys, end - key) + kBlockTokens - 1) / kBlockTokens;
      const BlockId* blocks = &page_table[static_cast<size_t>(key / kBlockTokens)];
      for (int64_t b = 0; b < num_blocks; ++b) {
        codec.decode_keys(cache.KeyBlock(inputs.layer, tile.kv_head, blocks[b]), shape.head_dim,
                          block);
        kernels::MultiplyTile(queries, shape.head_dim, block, state.rows, shape.head_dim,
                              kBlockTokens, false, scores + b * kBlockTokens, kTileKeys);
      }
      FindKeysOfRows(inputs, shape, tile, key, num_blocks * kBlockTokens, scratch);
      kernels::SoftmaxTile(scores, kTileKeys, num_blocks * kBlockTokens, scratch.begin.data(),
                           scratch.end.data(), state);
      for (int64_t b = 0; b < num_blocks; ++b) {
        codec.decode_values(cache.ValueBlock(inputs.layer, tile.kv_head, blocks[b]), shape.head_dim,
                            block, shape.output_cols);
        kernels::MultiplyTile(scores + b * kBlockTokens, kTileKeys, block, state.rows, kBlockTokens,
                              shape.output_cols, true, state.output, state.output_stride);
      }
    }
  }

  // The tile's queries times scale * log2(e), [rows, head_dim]; row = token * group + head.
  static const float* ScaleQueries(const AttentionInputs& inputs, const Shape& shape,
                                   const QueryTile& tile, Scratch& scratch) {
    const float factor = inputs.scale * std::numbers::log2e_v<float>;
    const int64_t row_floats = shape.group * shape.head_dim;  // of one token
    float* queries = scratch.queries.Reserve(shape.rows() * shape.head_dim);
    for (int64_t t = 0; t < tile.num_tokens; ++t) {
      const float* q =
          inputs.q + (tile.first_token + t) * inputs.q_stride + tile.kv_head * row_floats;
      for (int64_t i = 0; i < row_floats; ++i) queries[t * row_floats + i] = q[i] * factor;
    }
    return queries;
  }

  // Sets scratch.begin and end: the part of keys [key, key + num_keys) that each row attends to.
  static void FindKeysOfRows(const AttentionInputs& inputs, const Shape& shape,
                             const QueryTile& tile, int64_t key, int64_t num_keys,
                             Scratch& scratch) {
    scratch.begin.resize(static_cast<size_t>(shape.rows()));
    scratch.end.resize(static_cast<size_t>(shape.rows()));
    for (int64_t t = 0; t < tile.num_tokens; ++t) {
      const int64_t token = tile.first_token + t;
      const int64_t first = std::clamp(FirstKey(inputs, token) - key, int64_t{0}, num_keys);
      const int64_t last =
          std::clamp(inputs.first_position + token + 1 - key, int64_t{0}, num_keys);
      std::fill_n(scratch.begin.begin() + t * shape.group, shape.group,
                  static_cast<int32_t>(first));
      std::fill_n(scratch.end.begin() + t * shape.group, shape.group, static_cast<int32_t>(last));
    }
  }

  // Merges the states of consecutive key ranges, in order, and writes the attention output.
  static void WriteOut(const Shape& shape, const QueryTile& tile,
                       std::span<const kernels::SoftmaxState> states, float* out,
                       int64_t out_stride) {
    std::vector<float> merged(static_cast<size_t>(shape.head_dim));
    for (int64_t row = 0; row < tile.num_tokens * shape.group; ++row) {
      float max = -std::numeric_limits<float>::infinity();
      for (const auto& state : states) max = std::max(max, state.max[row]);
      float sum = 0;
      std::fill(merged.begin(), merged.end(), 0.0f);
      for (const auto& state : states) {
        const float factor = std::exp2(state.max[row] - max);
        const float* output = state.output + row * state.output_stride;
        sum += state.sum[row] * factor;
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          merged[static_cast<size_t>(d)] += output[d] * factor;
        }
      }
      const int64_t token = tile.first_token + row / shape.group;
      const int64_t head = tile.kv_head * shape.group + row % shape.group;
      float* out_row = out + token * out_stride + head * shape.head_dim;
      for (int64_t d = 0; d < shape.head_dim; ++d) {
        out_row[d] = merged[static_cast<size_t>(d)] / sum;
      }
    }
  }

  std::vector<Scratch> scratch_;  // one per worker
  Buffer partials_;               // softmax states of key ranges
};

}  // namespace

std::unique_ptr<Attention> CreateFlashAttention() {
  return std::make_unique<FlashAttention>();
}

}  // namespace lode
