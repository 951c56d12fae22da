// SPDX-License-Identifier: Apache-2.0
// How the work is cut. A task takes one query tile (flash_tile.h) through a range of keys. With
// many query tiles (prefill) the range is all keys. With few (decode), keys are cut at multiples of
// kSplitKeys, each range yields a partial softmax state, and the states are merged in the order of
// the ranges. How the work is cut depends on the shapes only, so the result does not depend on the
// number of threads.
#include "attention/flash.h"

#include <algorithm>
#include <vector>

#include "attention/flash_tile.h"
#include "base/check.h"

namespace lode {
namespace {

constexpr int64_t kSplitKeys = 512;
// With at least this many query tiles, there is work for every thread without cutting keys.
constexpr int64_t kManyTasks = 16;

static_assert(kSplitKeys % kernels::kKvTileTokens == 0);

class FlashAttention final : public Attention {
 public:
  void Forward(const AttentionInputs& inputs, const KvCache& cache, ThreadPool& pool, float* out,
               int64_t out_stride) override {
    if (inputs.num_tokens <= 0) return;
    LODE_CHECK(inputs.first_position + inputs.num_tokens <= cache.Length(inputs.sequence));
    const FlashShape shape(inputs, cache.options());
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
        FlashScratch& scratch = scratch_[static_cast<size_t>(worker)];
        const QueryTile tile = tile_at(index);
        kernels::SoftmaxState state =
            shape.StateIn(scratch.state.Reserve<float>(shape.state_floats));
        AttendRange(inputs, cache, shape, tile, 0, last, scratch, state);
        WriteMerged(shape, tile, {&state, 1}, out, out_stride);
      });
      return;
    }
    float* partials = partials_.Reserve<float>(num_tiles * num_splits * shape.state_floats);
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
      states.reserve(static_cast<size_t>(num_splits));
      for (int64_t split = 0; split < num_splits; ++split) states.push_back(partial(index, split));
      WriteMerged(shape, tile_at(index), states, out, out_stride);
    });
  }

 private:
  std::vector<FlashScratch> scratch_;  // one per worker
  AlignedBuffer partials_;             // softmax states of key ranges
};

}  // namespace

std::unique_ptr<Attention> CreateFlashAttention() {
  return std::make_unique<FlashAttention>();
}

}  // namespace lode
