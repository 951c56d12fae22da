// SPDX-License-Identifier: Apache-2.0
#include "attention/flash_tile.h"

#include <algorithm>
#include <limits>
#include <numbers>
#include <optional>

#include "base/check.h"
#include "kernels/attention_tile_int16.h"

namespace lode {
namespace {

constexpr int64_t kChunk = kernels::kKvTileTokens;
// Query rows of a full query tile: decoding a KV tile is paid once for so many rows.
constexpr int64_t kTileRows = 64;
// Chunks between two steps of the softmax in f32: amortises the rescaling of the output.
constexpr int64_t kStepChunks = 4;
constexpr int64_t kStepKeys = kStepChunks * kChunk;
constexpr int64_t kAlignment = 64;  // bytes

static_assert(kChunk % kernels::kTileColumnStep == 0);

// Asks for the lines of a tile ahead of its use: the hardware's own prefetchers stop at the end of
// a page, which a tile reaches before they are up to speed.
void Prefetch(const std::byte* tile, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += kAlignment) __builtin_prefetch(tile + i, 0, 2);
}

// What the walk over keys needs. It goes in chunks of kChunk keys, which start at multiples of
// kChunk: one large KV tile each, or several small ones.
struct Walk {
  const AttentionInputs& inputs;
  const KvCache& cache;
  const FlashShape& shape;
  const QueryTile& query_tile;
  FlashScratch& scratch;
  kernels::SoftmaxState& state;
  int64_t end;  // of the keys

  // The KV tile that holds position `key`.
  KvTile Tile(int64_t key) const {
    return cache.Tile(inputs.sequence, inputs.layer, query_tile.kv_head, cache.plan().TileOf(key));
  }
  void PrefetchKeys(int64_t key) const {
    if (key >= end) return;
    const KvTile tile = Tile(key);
    Prefetch(tile.keys, tile.key_codec->key_tile_bytes(tile.shape));
  }
};

// Whether a chunk can be multiplied in integers.
bool HasCodes(const KvTile& tile) {
  return tile.shape.tokens == kChunk && tile.key_codec->unpack_keys != nullptr &&
         tile.value_codec->unpack_values != nullptr;
}

// The queries times `factor`, [rows, head_dim], in a buffer of scratch.
float* ScaleQueries(const AttentionInputs& inputs, const FlashShape& shape, const QueryTile& tile,
                    float factor, AlignedBuffer& buffer) {
  const int64_t row_floats = shape.group * shape.head_dim;  // of one token
  float* queries = buffer.Reserve<float>(shape.rows() * shape.head_dim);
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
  for (int64_t t = 0; t < walk.query_tile.num_tokens; ++t) {
    const int64_t token = walk.query_tile.first_token + t;
    const int64_t first = std::clamp(FirstKey(walk.inputs, token) - key, int64_t{0}, num_keys);
    const int64_t last =
        std::clamp(walk.inputs.first_position + token + 1 - key, int64_t{0}, num_keys);
    std::fill_n(walk.scratch.begin.begin() + t * group, group, static_cast<int32_t>(first));
    std::fill_n(walk.scratch.end.begin() + t * group, group, static_cast<int32_t>(last));
  }
}

// Decodes the keys of the chunk at `key` to [head_dim][kChunk], or its values to
// [keys][output_cols]. Returns how many keys there are; columns and rows beyond are not written.
int64_t DecodeChunk(const Walk& walk, int64_t key, bool keys, float* out) {
  const int64_t chunk_end = std::min(key + kChunk, walk.end);
  int64_t position = key;
  while (position < chunk_end) {
    const KvTile tile = walk.Tile(position);
    if (keys) {
      tile.key_codec->decode_keys(tile.keys, tile.shape, out + (position - key));
    } else {
      const int64_t stride = walk.shape.output_cols;
      tile.value_codec->decode_values(tile.values, tile.shape, out + (position - key) * stride,
                                      stride);
    }
    position += tile.shape.tokens;
  }
  return position - key;
}

// Softmax steps in f32.
class FloatSteps {
 public:
  explicit FloatSteps(const Walk& walk)
      : walk_(walk),
        queries_(ScaleQueries(walk.inputs, walk.shape, walk.query_tile,
                              walk.inputs.scale * std::numbers::log2e_v<float>,
                              walk.scratch.scaled_queries)),
        scores_(walk.scratch.float_scores.Reserve<float>(walk.state.rows * kStepKeys)),
        decoded_(walk.scratch.decoded.Reserve<float>(kChunk * walk.shape.output_cols)) {}

  // Takes `num_chunks` chunks from `key` on, at most kStepChunks.
  void Step(int64_t key, int64_t num_chunks) {
    const int64_t head_dim = walk_.shape.head_dim;
    const int64_t rows = walk_.state.rows;
    for (int64_t c = 0; c < num_chunks; ++c) {
      DecodeChunk(walk_, key + c * kChunk, true, decoded_);
      kernels::MultiplyTile(queries_, head_dim, decoded_, rows, head_dim, kChunk, false,
                            scores_ + c * kChunk, kStepKeys);
    }
    FindKeysOfRows(walk_, key, num_chunks * kChunk);
    kernels::SoftmaxTile(scores_, kStepKeys, num_chunks * kChunk, walk_.scratch.begin.data(),
                         walk_.scratch.end.data(), walk_.state);
    for (int64_t c = 0; c < num_chunks; ++c) {
      const int64_t keys = DecodeChunk(walk_, key + c * kChunk, false, decoded_);
      kernels::MultiplyTile(scores_ + c * kChunk, kStepKeys, decoded_, rows, keys,
                            walk_.shape.output_cols, true, walk_.state.output,
                            walk_.state.output_stride);
    }
  }

 private:
  const Walk& walk_;
  const float* const queries_;
  float* const scores_;
  float* const decoded_;
};

// Softmax steps in integers, one chunk each.
class IntegerSteps {
 public:
  explicit IntegerSteps(const Walk& walk)
      : walk_(walk),
        sums_(kernels::KeySums(walk.shape.head_dim)),
        scale_(walk.inputs.scale * std::numbers::log2e_v<float>),
        queries_(
            ScaleQueries(walk.inputs, walk.shape, walk.query_tile, 1.0f, walk.scratch.queries)),
        codes_(walk.scratch.codes.Reserve<int16_t>(walk.state.rows * walk.shape.head_dim)),
        scores_(walk.scratch.scores.Reserve<int32_t>(walk.state.rows * sums_ * kChunk)),
        tile_(walk.scratch.tile.Reserve<int16_t>(kChunk * walk.shape.output_cols)),
        products_(walk.scratch.products.Reserve<int32_t>(walk.state.rows * walk.shape.output_cols)),
        key_scales_(walk.scratch.scales.Reserve<float>(2 * kChunk + walk.shape.head_dim)),
        value_log2_scales_(key_scales_ + kChunk),
        centre_(value_log2_scales_ + kChunk) {
    const int64_t padded_rows = walk.shape.padded_rows;
    float* per_row = walk.scratch.per_row.Reserve<float>(4 * padded_rows);
    factors_ = per_row;
    centre_scores_ = per_row + padded_rows;
    step_ = {.sums = sums_,
             .key_scales = key_scales_,
             .value_log2_scales = value_log2_scales_,
             .query_factors = factors_,
             .centre_scores = centre_scores_,
             .begin = walk.scratch.begin.data(),
             .end = walk.scratch.end.data(),
             .weights = walk.scratch.weights.Reserve<int16_t>(walk.state.rows * kChunk),
             .keep = per_row + 2 * padded_rows,
             .gain = per_row + 3 * padded_rows};
    kernels::QuantizeQueries(queries_, walk.state.rows, walk.shape.head_dim, scale_, codes_,
                             factors_);
  }

  void Step(int64_t key, const KvTile& tile) {
    const int64_t head_dim = walk_.shape.head_dim;
    const int64_t output_cols = walk_.shape.output_cols;
    const int64_t rows = walk_.state.rows;
    tile.key_codec->unpack_keys(tile.keys, tile.shape, tile_, key_scales_, centre_);
    walk_.PrefetchKeys(key + kChunk);
    kernels::CentreScores(queries_, rows, head_dim, centre_, scale_, centre_scores_);
    for (int64_t s = 0; s < sums_; ++s) {
      const int64_t first = s * kernels::kKeySumDim;
      kernels::MultiplyTileInt16(codes_ + first, head_dim, tile_ + first * kChunk, rows,
                                 std::min(kernels::kKeySumDim, head_dim - first) / 2, kChunk,
                                 scores_ + s * kChunk, sums_ * kChunk);
    }
    tile.value_codec->unpack_values(tile.values, tile.shape, output_cols, tile_,
                                    value_log2_scales_);
    FindKeysOfRows(walk_, key, kChunk);
    kernels::SoftmaxInt16Block(scores_, step_, walk_.state);
    kernels::MultiplyTileInt16(step_.weights, kChunk, tile_, rows, kChunk / 2, output_cols,
                               products_, output_cols);
    kernels::AddInt16Block(products_, step_, walk_.state);
  }

 private:
  const Walk& walk_;
  const int64_t sums_;
  const float scale_;
  const float* const queries_;
  int16_t* const codes_;
  int32_t* const scores_;
  int16_t* const tile_;
  int32_t* const products_;
  float* const key_scales_;
  float* const value_log2_scales_;
  float* const centre_;
  float* factors_;
  float* centre_scores_;
  kernels::Int16Block step_;
};

// Takes the keys from `begin` on into the state: chunks that have codes in integers, runs of others
// in f32.
void WalkKeys(const Walk& walk, int64_t begin) {
  std::optional<FloatSteps> float_steps;
  std::optional<IntegerSteps> integer_steps;
  for (int64_t key = begin; key < walk.end;) {
    const KvTile tile = walk.Tile(key);
    if (HasCodes(tile)) {
      if (!integer_steps) integer_steps.emplace(walk);
      integer_steps->Step(key, tile);
      key += kChunk;
      continue;
    }
    int64_t chunks = 1;
    while (chunks < kStepChunks && key + chunks * kChunk < walk.end &&
           !HasCodes(walk.Tile(key + chunks * kChunk))) {
      ++chunks;
    }
    if (!float_steps) float_steps.emplace(walk);
    float_steps->Step(key, chunks);
    key += chunks * kChunk;
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
  LODE_DCHECK(begin % kChunk == 0);
  state.rows = tile.num_tokens * shape.group;
  std::fill_n(state.max, shape.padded_rows, -std::numeric_limits<float>::infinity());
  std::fill_n(state.sum, shape.padded_rows, 0.0f);
  std::fill_n(state.output, state.rows * state.output_stride, 0.0f);
  scratch.begin.resize(static_cast<size_t>(shape.rows()));
  scratch.end.resize(static_cast<size_t>(shape.rows()));

  const Walk walk = {
      .inputs = inputs,
      .cache = cache,
      .shape = shape,
      .query_tile = tile,
      .scratch = scratch,
      .state = state,
      .end = std::min(end, inputs.first_position + tile.first_token + tile.num_tokens)};
  WalkKeys(walk, std::max(begin, FirstKey(inputs, tile.first_token) / kChunk * kChunk));
}

}  // namespace lode
