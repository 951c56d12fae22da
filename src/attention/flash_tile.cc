// SPDX-License-Identifier: Apache-2.0
#include "attention/flash_tile.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numbers>
#include <optional>
#include <utility>

#include "base/check.h"
#include "kernels/attention_codes.h"
#include "kernels/kv_codes.h"
#include "kernels/rotation.h"

namespace lode {
namespace {

constexpr int64_t kChunk = kernels::kKvTileTokens;
// Query rows of a full query tile: decoding a KV tile is paid once for so many rows.
constexpr int64_t kTileRows = 64;
// Keys between two steps of the softmax in f32: amortises the rescaling of the output.
constexpr int64_t kStepKeys = 4 * kChunk;
constexpr int64_t kAlignment = 64;  // bytes

static_assert(kChunk % kernels::kTileColumnStep == 0);

// Asks for the lines of a tile ahead of its use: the hardware's own prefetchers stop at the end of
// a page, which a tile reaches before they are up to speed.
void Prefetch(const std::byte* tile, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += kAlignment) __builtin_prefetch(tile + i, 0, 2);
}

// What the walk over keys needs.
struct Walk {
  const AttentionInputs& inputs;
  const KvCache& cache;
  const FlashShape& shape;
  const QueryTile& query_tile;
  FlashScratch& scratch;
  kernels::SoftmaxState& state;
  std::span<const KeyRun> runs;  // all keys
  int64_t end = 0;               // of the run that is walked now

  // The KV tile that holds position `key`.
  KvTile Tile(int64_t key) const {
    return cache.Tile(inputs.sequence, inputs.layer, query_tile.kv_head, cache.plan().TileOf(key));
  }
};

// Whether a tile can be multiplied in integers.
bool HasCodes(const KvTile& tile) {
  return tile.key_codec->code_bits != 0 && tile.value_codec->code_bits != 0;
}

kernels::CodeMatrix KeyCodesOf(const KvTile& tile) {
  return kernels::KeyCodes(tile.key_codec->code_bits, tile.shape, tile.keys);
}
kernels::CodeMatrix ValueCodesOf(const KvTile& tile) {
  return kernels::ValueCodes(tile.value_codec->code_bits, tile.shape, tile.values);
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

  // Takes tiles without codes from `key` on, up to kStepKeys keys; returns the first key not taken.
  int64_t Step(int64_t key) {
    const int64_t head_dim = walk_.shape.head_dim;
    const int64_t rows = walk_.state.rows;
    int64_t chunk_keys = kChunk;
    int64_t num_chunks = 0;
    while (num_chunks * kChunk < kStepKeys && chunk_keys == kChunk) {
      chunk_keys = FindChunk(key + num_chunks * kChunk);
      if (chunk_keys == 0) break;
      for (const KvTile& tile : tiles_) {
        tile.key_codec->decode_keys(tile.keys, tile.shape, decoded_ + Column(tile));
      }
      kernels::MultiplyTile(queries_, head_dim, decoded_, rows, head_dim, kChunk, false,
                            scores_ + num_chunks * kChunk, kStepKeys);
      ++num_chunks;
    }
    const int64_t num_keys = num_chunks * kChunk - (chunk_keys == 0 ? 0 : kChunk - chunk_keys);
    FindKeysOfRows(walk_, key, num_keys);
    kernels::SoftmaxTile(scores_, kStepKeys, num_chunks * kChunk, walk_.scratch.begin.data(),
                         walk_.scratch.end.data(), walk_.state);
    for (int64_t c = 0; c < num_chunks; ++c) {
      const int64_t keys = FindChunk(key + c * kChunk);
      const int64_t stride = walk_.shape.output_cols;
      for (const KvTile& tile : tiles_) {
        tile.value_codec->decode_values(tile.values, tile.shape, decoded_ + Column(tile) * stride,
                                        stride);
      }
      kernels::MultiplyTile(scores_ + c * kChunk, kStepKeys, decoded_, rows, keys, stride, true,
                            walk_.state.output, walk_.state.output_stride);
    }
    return key + num_keys;
  }

 private:
  // Sets tiles_ to the tiles without codes from `key` on that fit in kChunk columns; returns how
  // many keys they hold.
  int64_t FindChunk(int64_t key) {
    tiles_.clear();
    int64_t keys = 0;
    while (keys < kChunk && key + keys < walk_.end) {
      const KvTile tile = walk_.Tile(key + keys);
      if (HasCodes(tile) || keys + tile.shape.tokens > kChunk) break;
      tiles_.push_back(tile);
      keys += tile.shape.tokens;
    }
    return keys;
  }
  // Where a tile of tiles_ starts in its chunk.
  int64_t Column(const KvTile& tile) const {
    int64_t column = 0;
    for (const KvTile* t = tiles_.data(); t != &tile; ++t) column += t->shape.tokens;
    return column;
  }

  const Walk& walk_;
  const float* const queries_;
  float* const scores_;
  float* const decoded_;
  std::vector<KvTile> tiles_;
};

// Softmax steps in integers (kernels/attention_codes.h). While the keys of a step are multiplied
// its values are asked for, and while these are, the keys of the next step: in time, and no more at
// once than the L1 cache holds.
class CodeSteps {
 public:
  explicit CodeSteps(const Walk& walk, int64_t key)
      : walk_(walk),
        head_dim_(walk.shape.head_dim),
        rows_(walk.state.rows),
        num_groups_(walk.Tile(key).shape.value_groups()) {
    FlashScratch& scratch = walk.scratch;
    codes_ = scratch.codes.Reserve<int16_t>(rows_ * kernels::kCodeRowStride);
    scores_ = scratch.scores.Reserve<int32_t>(rows_ * kernels::kCodeStepKeys);
    products_ = scratch.products.Reserve<int32_t>(rows_ * head_dim_);
    offsets_ = scratch.offsets.Reserve<float>(rows_ * kernels::kCodeStepTiles);
    channels_ = scratch.channels.Reserve<float>(3 * head_dim_);
    value_scales_ = scratch.value_scales.Reserve<float>(num_groups_ * kernels::kCodeStepKeys);
    float* per_row = scratch.per_row.Reserve<float>(3 * walk.shape.padded_rows);
    step_ = {
        .offsets = offsets_,
        .factors = per_row,
        .begin = scratch.begin.data(),
        .end = scratch.end.data(),
        .num_groups = num_groups_,
        .value_scales = value_scales_,
        .weights = scratch.weights.Reserve<int16_t>(num_groups_ * rows_ * kernels::kCodeRowStride),
        .keep = per_row + walk.shape.padded_rows,
        .gain = per_row + 2 * walk.shape.padded_rows};
    NormalizeQueries(per_row);
  }

  // Takes tiles with codes from `key` on, up to kCodeStepKeys keys; returns the first key not
  // taken.
  int64_t Step(int64_t key) {
    if (next_.count == 0) FindTiles(key, next_);  // the first step, or after one in f32
    std::swap(tiles_, next_);
    FindTiles(key + tiles_.keys(), next_);
    for (int64_t i = 0; i < tiles_.count; ++i) MultiplyKeys(i);
    step_.num_keys = tiles_.keys();
    step_.num_tiles = tiles_.count;
    step_.tile_begin = tiles_.begin;
    FindKeysOfRows(walk_, key, tiles_.keys());
    for (int64_t g = 0; g < num_groups_; ++g) LoadValueScales(g);
    kernels::SoftmaxCodes(scores_, step_, walk_.state);
    for (int64_t g = 0; g < num_groups_; ++g) AddValues(g);
    return key + tiles_.keys();
  }

 private:
  // The tiles of a step.
  struct Tiles {
    int64_t keys() const { return begin[count]; }

    KvTile tile[kernels::kCodeStepTiles];
    int64_t begin[kernels::kCodeStepTiles + 1] = {};
    int64_t count = 0;
  };

  void FindTiles(int64_t key, Tiles& tiles) const {
    tiles.count = 0;
    while (key + tiles.keys() < walk_.end && tiles.count < kernels::kCodeStepTiles) {
      const KvTile tile = walk_.Tile(key + tiles.keys());
      const int64_t keys = tiles.keys() + tile.shape.tokens;
      if (!HasCodes(tile) || keys > kernels::kCodeStepKeys) return;
      tiles.tile[tiles.count++] = tile;
      tiles.begin[tiles.count] = keys;
    }
  }

  void NormalizeQueries(float* factors) {
    float* scales = channels_;
    std::fill_n(scales, head_dim_, 0.0f);
    for (const KeyRun& run : walk_.runs) {
      for (int64_t key = run.begin; key < run.end;) {
        const KvTile tile = walk_.Tile(key);
        if (HasCodes(tile)) {
          kernels::RaiseToKeyScales(tile.key_codec->code_bits, tile.shape, tile.keys, scales);
        }
        key += tile.shape.tokens;
      }
    }
    normal_ =
        ScaleQueries(walk_.inputs, walk_.shape, walk_.query_tile, 1.0f, walk_.scratch.queries);
    kernels::NormalizeQueries(normal_, rows_, head_dim_, scales,
                              walk_.inputs.scale * std::numbers::log2e_v<float>, normal_, factors);
    for (int64_t d = 0; d < head_dim_; ++d) scales[d] = 1.0f / scales[d];
  }

  // Scores of tile i, and what its centre adds to them.
  void MultiplyKeys(int64_t i) {
    const KvTile& tile = tiles_.tile[i];
    float* ratio = channels_ + head_dim_;
    float* shift = ratio + head_dim_;
    kernels::KeyRatios(tile.key_codec->code_bits, tile.shape, tile.keys, channels_, ratio, shift);
    kernels::TileQueries(normal_, rows_, head_dim_, ratio, shift, codes_, offsets_ + i,
                         kernels::kCodeStepTiles);
    kernels::CodeProduct product = {.a = codes_,
                                    .rows = rows_,
                                    .b = KeyCodesOf(tile),
                                    .num_cols = tile.shape.tokens,
                                    .c = scores_ + tiles_.begin[i],
                                    .c_stride = kernels::kCodeStepKeys};
    product.ahead = ValueCodesOf(tile).codes;
    Prefetch(tile.values, product.ahead - tile.values);
    kernels::MultiplyCodes(product);
  }

  // The scales of the step's values, made as large as weights may be.
  void LoadValueScales(int64_t group) {
    float* scales = value_scales_ + group * kernels::kCodeStepKeys;
    for (int64_t i = 0; i < tiles_.count; ++i) {
      kernels::ValueScales(tiles_.tile[i].shape, tiles_.tile[i].values, group,
                           scales + tiles_.begin[i]);
    }
    units_[static_cast<size_t>(group)] = kernels::NormalizeValueScales(scales, tiles_.keys());
  }

  void AddValues(int64_t group) {
    const int16_t* weights = step_.weights + group * rows_ * kernels::kCodeRowStride;
    const int64_t first_col = group * tiles_.tile[0].shape.value_group;
    const int64_t num_cols = std::min(head_dim_ - first_col, tiles_.tile[0].shape.value_group);
    kernels::CodeProduct product = {.rows = rows_,
                                    .first_col = first_col,
                                    .num_cols = num_cols,
                                    .c = products_,
                                    .c_stride = head_dim_};
    for (int64_t i = 0; i < tiles_.count; ++i) {
      product.a = weights + tiles_.begin[i];
      product.b = ValueCodesOf(tiles_.tile[i]);
      product.accumulate = i > 0;
      product.ahead = nullptr;
      if (i < next_.count) {
        const kernels::CodeMatrix keys = KeyCodesOf(next_.tile[i]);
        // Each group asks for its share.
        product.ahead = keys.codes + kernels::CodeMatrixBytes(keys.bits, keys.pairs, keys.cols) *
                                         first_col / head_dim_;
        if (group == 0) Prefetch(next_.tile[i].keys, keys.codes - next_.tile[i].keys);
      }
      kernels::MultiplyCodes(product);
    }
    kernels::AddProducts(products_, head_dim_, step_, units_[static_cast<size_t>(group)], first_col,
                         num_cols, walk_.state);
  }

  const Walk& walk_;
  const int64_t head_dim_;
  const int64_t rows_;
  const int64_t num_groups_;
  Tiles tiles_;  // of the step
  Tiles next_;   // of the step after it
  kernels::CodeStep step_ = {};
  float* normal_;
  int16_t* codes_;
  int32_t* scores_;
  int32_t* products_;
  float* offsets_;
  float* channels_;  // inverse of the largest scale, ratio, shift: [3][head_dim]
  float* value_scales_;
  std::array<float, kernels::kMaxHeadDim / kernels::kHeadDimStep> units_ = {};
};

// Takes the keys of all runs into the state: tiles that have codes in integers, others in f32.
void WalkKeys(Walk& walk) {
  std::optional<FloatSteps> float_steps;
  std::optional<CodeSteps> code_steps;
  bool is_first = true;
  bool is_rotated = walk.shape.rotated;
  const auto rotate_if = [&](bool wanted) {
    if (is_rotated == wanted) return;
    kernels::Rotate(walk.state.output, walk.state.rows, walk.shape.head_dim,
                    walk.state.output_stride);
    is_rotated = wanted;
  };
  for (const KeyRun& run : walk.runs) {
    walk.end = run.end;
    for (int64_t key = run.begin; key < run.end;) {
      const bool codes = HasCodes(walk.Tile(key));
      if (!is_first) rotate_if(codes);
      is_rotated = codes;  // at first the output is 0, in both forms
      is_first = false;
      if (codes) {
        if (!code_steps) code_steps.emplace(walk, key);
        key = code_steps->Step(key);
      } else {
        if (!float_steps) float_steps.emplace(walk);
        key = float_steps->Step(key);
      }
    }
  }
  rotate_if(walk.shape.rotated);
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
      group(inputs.num_heads / options.num_kv_heads),
      rotated(CodecFor(options.dtypes.value).code_bits != 0) {
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

int64_t FirstKey(const AttentionInputs& inputs, int64_t token) {
  if (inputs.sliding_window <= 0) return 0;
  return std::max(int64_t{0}, inputs.first_position + token + 1 - inputs.sliding_window);
}

void AttendRuns(const AttentionInputs& inputs, const KvCache& cache, const FlashShape& shape,
                const QueryTile& tile, std::span<const KeyRun> runs, FlashScratch& scratch,
                kernels::SoftmaxState& state) {
  state.rows = tile.num_tokens * shape.group;
  std::fill_n(state.max, shape.padded_rows, -std::numeric_limits<float>::infinity());
  std::fill_n(state.sum, shape.padded_rows, 0.0f);
  std::fill_n(state.output, state.rows * state.output_stride, 0.0f);
  scratch.begin.resize(static_cast<size_t>(shape.rows()));
  scratch.end.resize(static_cast<size_t>(shape.rows()));
  Walk walk = {.inputs = inputs,
               .cache = cache,
               .shape = shape,
               .query_tile = tile,
               .scratch = scratch,
               .state = state,
               .runs = runs};
  WalkKeys(walk);
}

void AttendRange(const AttentionInputs& inputs, const KvCache& cache, const FlashShape& shape,
                 const QueryTile& tile, int64_t begin, int64_t end, FlashScratch& scratch,
                 kernels::SoftmaxState& state) {
  LODE_DCHECK(begin % kChunk == 0);
  const KeyRun run = {
      .begin = std::max(begin, FirstKey(inputs, tile.first_token) / kChunk * kChunk),
      .end = std::min(end, inputs.first_position + tile.first_token + tile.num_tokens)};
  AttendRuns(inputs, cache, shape, tile, {&run, 1}, scratch, state);
}

}  // namespace lode
