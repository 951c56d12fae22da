// SPDX-License-Identifier: Apache-2.0
#include "attention/flash_tile.h"

#include <algorithm>
#include <limits>
#include <numbers>

#include "base/check.h"
#include "kernels/attention_tile_int16.h"
#include "kv/codec.h"

namespace lode {
namespace {

constexpr int64_t kBlockTokens = KvCache::kBlockTokens;
// Query rows of a full tile: decoding a block is paid once for so many rows.
constexpr int64_t kTileRows = 64;
// Keys between two steps of the softmax in f32: amortises the rescaling of the output.
constexpr int64_t kTileKeys = 128;
constexpr int64_t kAlignment = 64;  // bytes

static_assert(kTileKeys % kBlockTokens == 0);
static_assert(kBlockTokens % kernels::kTileColumnStep == 0);

// Asks for the lines of a block ahead of its use: the hardware's own prefetchers stop at the end of
// a page, which a block reaches before they are up to speed.
void Prefetch(const std::byte* block, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += kAlignment) __builtin_prefetch(block + i, 0, 2);
}

// What the walks over keys need.
struct Walk {
  const AttentionInputs& inputs;
  const KvCache& cache;
  const FlashShape& shape;
  const QueryTile& tile;
  const KvCodec& codec;
  std::span<const BlockId> page_table;
  const float* queries;  // [rows, head_dim], times scale * log2(e) for f32
  FlashScratch& scratch;
  kernels::SoftmaxState& state;

  const std::byte* KeyBlock(int64_t key) const {
    return cache.KeyBlock(inputs.layer, tile.kv_head, Block(key));
  }
  const std::byte* ValueBlock(int64_t key) const {
    return cache.ValueBlock(inputs.layer, tile.kv_head, Block(key));
  }
  void PrefetchKeys(int64_t key, int64_t end) const {
    if (key < end) Prefetch(KeyBlock(key), codec.key_block_bytes(shape.head_dim));
  }
  void PrefetchValues(int64_t key, int64_t end) const {
    if (key < end) Prefetch(ValueBlock(key), codec.value_block_bytes(shape.head_dim));
  }

 private:
  BlockId Block(int64_t key) const { return page_table[static_cast<size_t>(key / kBlockTokens)]; }
};

// The tile's queries times `factor`, [rows, head_dim].
float* ScaleQueries(const AttentionInputs& inputs, const FlashShape& shape, const QueryTile& tile,
                    float factor, FlashScratch& scratch) {
  const int64_t row_floats = shape.group * shape.head_dim;  // of one token
  float* queries = scratch.queries.Reserve<float>(shape.rows() * shape.head_dim);
  for (int64_t t = 0; t < tile.num_tokens; ++t) {
    const float* q =
        inputs.q + (tile.first_token + t) * inputs.q_stride + tile.kv_head * row_floats;
    for (int64_t i = 0; i < row_floats; ++i) queries[t * row_floats + i] = q[i] * factor;
  }
  return queries;
}

// Sets scratch.begin and end: the part of keys [key, key + num_keys) that each row attends to.
void FindKeysOfRows(const Walk& walk, int64_t key, int64_t num_keys) {
  const int64_t group = walk.shape.group;
  for (int64_t t = 0; t < walk.tile.num_tokens; ++t) {
    const int64_t token = walk.tile.first_token + t;
    const int64_t first = std::clamp(FirstKey(walk.inputs, token) - key, int64_t{0}, num_keys);
    const int64_t last =
        std::clamp(walk.inputs.first_position + token + 1 - key, int64_t{0}, num_keys);
    std::fill_n(walk.scratch.begin.begin() + t * group, group, static_cast<int32_t>(first));
    std::fill_n(walk.scratch.end.begin() + t * group, group, static_cast<int32_t>(last));
  }
}

void WalkInFloat(const Walk& walk, int64_t begin, int64_t end) {
  const int64_t head_dim = walk.shape.head_dim;
  const int64_t output_cols = walk.shape.output_cols;
  const int64_t rows = walk.state.rows;
  float* scores = walk.scratch.scores.Reserve<float>(rows * kTileKeys);
  float* block = walk.scratch.block.Reserve<float>(kBlockTokens * output_cols);
  for (int64_t key = begin; key < end; key += kTileKeys) {
    const int64_t num_blocks = (std::min(kTileKeys, end - key) + kBlockTokens - 1) / kBlockTokens;
    for (int64_t b = 0; b < num_blocks; ++b) {
      walk.codec.decode_keys(walk.KeyBlock(key + b * kBlockTokens), head_dim, block);
      kernels::MultiplyTile(walk.queries, head_dim, block, rows, head_dim, kBlockTokens, false,
                            scores + b * kBlockTokens, kTileKeys);
    }
    FindKeysOfRows(walk, key, num_blocks * kBlockTokens);
    kernels::SoftmaxTile(scores, kTileKeys, num_blocks * kBlockTokens, walk.scratch.begin.data(),
                         walk.scratch.end.data(), walk.state);
    for (int64_t b = 0; b < num_blocks; ++b) {
      walk.codec.decode_values(walk.ValueBlock(key + b * kBlockTokens), head_dim, block,
                               output_cols);
      kernels::MultiplyTile(scores + b * kBlockTokens, kTileKeys, block, rows, kBlockTokens,
                            output_cols, true, walk.state.output, walk.state.output_stride);
    }
  }
}

void WalkInIntegers(const Walk& walk, int64_t begin, int64_t end) {
  const int64_t head_dim = walk.shape.head_dim;
  const int64_t output_cols = walk.shape.output_cols;
  const int64_t rows = walk.state.rows;
  const int64_t padded_rows = walk.shape.padded_rows;
  FlashScratch& scratch = walk.scratch;
  const int64_t sums = kernels::KeySums(head_dim);
  const int64_t score_stride = sums * kBlockTokens;
  const float scale = walk.inputs.scale * std::numbers::log2e_v<float>;

  auto* codes = scratch.codes.Reserve<int16_t>(rows * head_dim);
  auto* scores = scratch.scores.Reserve<int32_t>(rows * score_stride);
  auto* block = scratch.block.Reserve<int16_t>(kBlockTokens * output_cols);
  auto* products = scratch.products.Reserve<int32_t>(rows * output_cols);
  auto* weights = scratch.weights.Reserve<int16_t>(rows * kBlockTokens);
  float* per_row = scratch.per_row.Reserve<float>(4 * padded_rows);
  float* factors = per_row;
  float* centre_scores = per_row + padded_rows;
  float* key_scales = scratch.scales.Reserve<float>(2 * kBlockTokens + head_dim);
  float* value_log2_scales = key_scales + kBlockTokens;
  float* centre = value_log2_scales + kBlockTokens;
  const kernels::Int16Block step = {.sums = sums,
                                    .key_scales = key_scales,
                                    .value_log2_scales = value_log2_scales,
                                    .query_factors = factors,
                                    .centre_scores = centre_scores,
                                    .begin = scratch.begin.data(),
                                    .end = scratch.end.data(),
                                    .weights = weights,
                                    .keep = per_row + 2 * padded_rows,
                                    .gain = per_row + 3 * padded_rows};
  kernels::QuantizeQueries(walk.queries, rows, head_dim, scale, codes, factors);
  for (int64_t key = begin; key < end; key += kBlockTokens) {
    walk.codec.unpack_keys(walk.KeyBlock(key), head_dim, block, key_scales, centre);
    walk.PrefetchKeys(key + kBlockTokens, end);
    kernels::CentreScores(walk.queries, rows, head_dim, centre, scale, centre_scores);
    for (int64_t s = 0; s < sums; ++s) {
      const int64_t first = s * kernels::kKeySumDim;
      kernels::MultiplyTileInt16(codes + first, head_dim, block + first * kBlockTokens, rows,
                                 std::min(kernels::kKeySumDim, head_dim - first) / 2, kBlockTokens,
                                 scores + s * kBlockTokens, score_stride);
    }
    walk.codec.unpack_values(walk.ValueBlock(key), head_dim, output_cols, block, value_log2_scales);
    FindKeysOfRows(walk, key, kBlockTokens);
    kernels::SoftmaxInt16Block(scores, step, walk.state);
    kernels::MultiplyTileInt16(weights, kBlockTokens, block, rows, kBlockTokens / 2, output_cols,
                               products, output_cols);
    kernels::AddInt16Block(products, step, walk.state);
  }
}

}  // namespace

void* AlignedBuffer::ReserveBytes(int64_t bytes) {
  const auto needed = static_cast<size_t>(bytes + kAlignment);
  if (storage_.size() < needed) storage_ = std::vector<char>(needed);
  const auto address = reinterpret_cast<uintptr_t>(storage_.data());
  return storage_.data() + (kAlignment - address % kAlignment) % kAlignment;
}

FlashShape::FlashShape(const AttentionInputs& inputs, const KvCacheOptions& options)
    : head_dim(options.head_dim),
      output_cols(kernels::PadTileColumns(head_dim)),
      group(inputs.num_heads / options.num_kv_heads) {
  LODE_CHECK(group >= 1 && group * options.num_kv_heads == inputs.num_heads);
  tile_tokens = std::min(std::max(int64_t{1}, kTileRows / group), inputs.num_tokens);
  constexpr int64_t kStep = kAlignment / int64_t{sizeof(float)};
  padded_rows = (rows() + kStep - 1) / kStep * kStep;
  state_floats = padded_rows * (output_cols + 2);
}

kernels::SoftmaxState FlashShape::StateIn(float* buffer) const {
  return {.max = buffer + padded_rows * output_cols,
          .sum = buffer + padded_rows * (output_cols + 1),
          .output = buffer,
          .rows = rows(),
          .output_cols = output_cols,
          .output_stride = output_cols};
}

int64_t FirstKey(const AttentionInputs& inputs, int64_t token) {
  if (inputs.sliding_window <= 0) return 0;
  return std::max(int64_t{0}, inputs.first_position + token + 1 - inputs.sliding_window);
}

void AttendRange(const AttentionInputs& inputs, const KvCache& cache, const FlashShape& shape,
                 const QueryTile& tile, int64_t begin, int64_t end, FlashScratch& scratch,
                 kernels::SoftmaxState& state) {
  LODE_DCHECK(begin % kBlockTokens == 0);
  state.rows = tile.num_tokens * shape.group;
  std::fill_n(state.max, shape.padded_rows, -std::numeric_limits<float>::infinity());
  std::fill_n(state.sum, shape.padded_rows, 0.0f);
  std::fill_n(state.output, state.rows * state.output_stride, 0.0f);
  scratch.begin.resize(static_cast<size_t>(shape.rows()));
  scratch.end.resize(static_cast<size_t>(shape.rows()));

  const KvCodec& codec = CodecFor(cache.options().dtype);
  const bool integers = codec.unpack_keys != nullptr;
  const float factor = integers ? 1.0f : inputs.scale * std::numbers::log2e_v<float>;
  const Walk walk = {.inputs = inputs,
                     .cache = cache,
                     .shape = shape,
                     .tile = tile,
                     .codec = codec,
                     .page_table = cache.page_table(inputs.sequence),
                     .queries = ScaleQueries(inputs, shape, tile, factor, scratch),
                     .scratch = scratch,
                     .state = state};
  begin = std::max(begin, FirstKey(inputs, tile.first_token) / kBlockTokens * kBlockTokens);
  end = std::min(end, inputs.first_position + tile.first_token + tile.num_tokens);
  if (integers) {
    WalkInIntegers(walk, begin, end);
  } else {
    WalkInFloat(walk, begin, end);
  }
}

}  // namespace lode
