// SPDX-License-Identifier: Apache-2.0
#include "attention/flash_tile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <utility>

#include "attention/code_steps.h"
#include "base/check.h"
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

using PlacedTiles = std::span<const PlacedTile>;

// What the walk over keys needs.
struct Walk {
  const AttentionInputs& inputs;
  const FlashShape& shape;
  const QueryTile& query_tile;
  FlashScratch& scratch;
  kernels::SoftmaxState& state;
  PlacedTiles tiles;  // all keys
};

// Neighbouring keys that stand side by side in a step: num_keys from `position` on.
struct StepPart {
  int64_t position;
  int64_t num_keys;
};

// Sets scratch.begin and end: which keys of a step each row attends to. Parts ascend.
void FindKeysOfRows(const Walk& walk, std::span<const StepPart> parts) {
  const int64_t group = walk.shape.group;
  for (int64_t t = 0; t < walk.query_tile.num_tokens; ++t) {
    const int64_t token = walk.query_tile.first_token + t;
    const int64_t first = FirstKey(walk.inputs, token);
    const int64_t last = walk.inputs.first_position + token + 1;
    int64_t begin = 0, end = 0;
    for (const StepPart& part : parts) {
      begin += std::clamp(first - part.position, int64_t{0}, part.num_keys);
      end += std::clamp(last - part.position, int64_t{0}, part.num_keys);
    }
    std::fill_n(walk.scratch.begin.begin() + t * group, group, static_cast<int32_t>(begin));
    std::fill_n(walk.scratch.end.begin() + t * group, group, static_cast<int32_t>(end));
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

  // Takes tiles without codes off the front of `rest`, up to kStepKeys keys.
  void Step(PlacedTiles& rest) {
    const int64_t head_dim = walk_.shape.head_dim;
    const int64_t rows = walk_.state.rows;
    std::array<PlacedTiles, kStepKeys / kChunk> chunks;
    std::array<StepPart, kStepKeys / kChunk> parts;
    size_t num_chunks = 0;
    // A chunk that is not full is the last: keys of a step stand without gaps.
    while (num_chunks < chunks.size() &&
           (num_chunks == 0 || parts[num_chunks - 1].num_keys == kChunk)) {
      const PlacedTiles chunk = TakeChunk(rest);
      if (chunk.empty()) break;
      int64_t keys = 0;
      for (const auto& [tile, position] : chunk) {
        tile.key_codec->decode_keys(tile.keys, tile.shape, decoded_ + keys);
        keys += tile.shape.tokens;
      }
      float* scores = scores_ + static_cast<int64_t>(num_chunks) * kChunk;
      kernels::MultiplyTile(queries_, head_dim, decoded_, rows, head_dim, kChunk, false, scores,
                            kStepKeys);
      parts[num_chunks] = {chunk.front().position, keys};
      chunks[num_chunks++] = chunk;
    }
    FindKeysOfRows(walk_, {parts.data(), num_chunks});
    kernels::SoftmaxTile(scores_, kStepKeys, static_cast<int64_t>(num_chunks) * kChunk,
                         walk_.scratch.begin.data(), walk_.scratch.end.data(), walk_.state);
    for (size_t c = 0; c < num_chunks; ++c) {
      const int64_t stride = walk_.shape.output_cols;
      int64_t keys = 0;
      for (const auto& [tile, position] : chunks[c]) {
        tile.value_codec->decode_values(tile.values, tile.shape, decoded_ + keys * stride, stride);
        keys += tile.shape.tokens;
      }
      kernels::MultiplyTile(scores_ + static_cast<int64_t>(c) * kChunk, kStepKeys, decoded_, rows,
                            keys, stride, true, walk_.state.output, walk_.state.output_stride);
    }
  }

 private:
  // The neighbouring tiles without codes at the front of `rest` that fit in kChunk columns.
  static PlacedTiles TakeChunk(PlacedTiles& rest) {
    size_t count = 0;
    for (int64_t keys = 0; count < rest.size(); ++count) {
      const auto& [tile, position] = rest[count];
      if (position != rest.front().position + keys || HasCodes(tile)) break;
      keys += tile.shape.tokens;
      if (keys > kChunk) break;
    }
    const PlacedTiles chunk = rest.first(count);
    rest = rest.subspan(count);
    return chunk;
  }

  const Walk& walk_;
  const float* const queries_;
  float* const scores_;
  float* const decoded_;
};

// Takes tiles with codes in steps.
class CodeWalk {
 public:
  explicit CodeWalk(const Walk& walk)
      : walk_(walk), steps_(MakeSteps(walk, LargestKeyScales(walk))) {}

  // Takes tiles with codes off the front of `rest`, up to kCodeStepKeys keys, and finds those of
  // the step after it.
  void Step(PlacedTiles& rest) {
    if (next_.count == 0) TakeTiles(rest, next_);  // the first step, or after one in f32
    std::swap(tiles_, next_);
    TakeTiles(rest, next_);
    steps_.Multiply(tiles_);
    std::array<StepPart, kernels::kCodeStepTiles> parts;
    for (int64_t i = 0; i < tiles_.count; ++i) {
      parts[static_cast<size_t>(i)] = {tiles_.position[i], tiles_.tile[i].shape.tokens};
    }
    FindKeysOfRows(walk_, {parts.data(), static_cast<size_t>(tiles_.count)});
    steps_.Attend(tiles_, next_, walk_.state);
  }
  // Whether tiles were found that are still to be taken.
  bool is_ahead() const { return next_.count > 0; }

 private:
  static void TakeTiles(PlacedTiles& rest, CodeTiles& tiles) {
    tiles.Clear();
    while (!rest.empty() && tiles.Add(rest.front().tile, rest.front().position)) {
      rest = rest.subspan(1);
    }
  }

  static float* LargestKeyScales(const Walk& walk) {
    float* scales = walk.scratch.key_scales.Reserve<float>(walk.shape.head_dim);
    std::fill_n(scales, walk.shape.head_dim, 0.0f);
    for (const auto& [tile, position] : walk.tiles) {
      if (!HasCodes(tile)) continue;
      kernels::RaiseToKeyScales(tile.key_codec->code_bits, tile.shape, tile.keys, scales);
    }
    return scales;
  }

  static CodeSteps MakeSteps(const Walk& walk, const float* scales) {
    const float* queries =
        ScaleQueries(walk.inputs, walk.shape, walk.query_tile, 1.0f, walk.scratch.queries);
    return {queries,
            walk.state.rows,
            scales,
            walk.inputs.scale * std::numbers::log2e_v<float>,
            walk.shape.values,
            walk.scratch};
  }

  const Walk& walk_;
  CodeSteps steps_;
  CodeTiles tiles_;  // of the step
  CodeTiles next_;   // of the step after it
};

// Takes all keys into the state: tiles that have codes in integers, others in f32.
void WalkKeys(Walk& walk) {
  std::optional<FloatSteps> float_steps;
  std::optional<CodeWalk> code_steps;
  bool is_first = true;
  bool is_rotated = walk.shape.rotated;
  const auto rotate_if = [&](bool wanted) {
    if (is_rotated == wanted) return;
    kernels::Rotate(walk.state.output, walk.state.rows, walk.shape.head_dim,
                    walk.state.output_stride);
    is_rotated = wanted;
  };
  PlacedTiles rest = walk.tiles;
  while (!rest.empty() || (code_steps && code_steps->is_ahead())) {
    const bool codes = (code_steps && code_steps->is_ahead()) || HasCodes(rest.front().tile);
    if (!is_first) rotate_if(codes);
    is_rotated = codes;  // at first the output is 0, in both forms
    is_first = false;
    if (codes) {
      if (!code_steps) code_steps.emplace(walk);
      code_steps->Step(rest);
    } else {
      if (!float_steps) float_steps.emplace(walk);
      float_steps->Step(rest);
    }
  }
  rotate_if(walk.shape.rotated);
}

// Sets scratch.tiles to those of some runs. Asks for the first lines of their keys, which hold the
// scales that CodeWalk wants of all of them before it starts.
void FindTiles(const AttentionInputs& inputs, const KvCache& cache, int32_t kv_head,
               std::span<const KeyRun> runs, FlashScratch& scratch) {
  scratch.tiles.clear();
  for (const KeyRun& run : runs) {
    for (int64_t key = run.begin; key < run.end;) {
      const KvTile tile =
          cache.Tile(inputs.sequence, inputs.layer, kv_head, cache.plan().TileOf(key));
      __builtin_prefetch(tile.keys, 0, 2);
      scratch.tiles.push_back({.tile = tile, .position = key});
      key += tile.shape.tokens;
    }
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
      group(inputs.num_heads / options.num_kv_heads),
      values{.head_dim = options.head_dim,
             .value_group = std::min<int64_t>(options.value_group, options.head_dim)},
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
  ClearState(shape, state);
  scratch.begin.resize(static_cast<size_t>(shape.rows()));
  scratch.end.resize(static_cast<size_t>(shape.rows()));
  FindTiles(inputs, cache, tile.kv_head, runs, scratch);
  Walk walk = {.inputs = inputs,
               .shape = shape,
               .query_tile = tile,
               .scratch = scratch,
               .state = state,
               .tiles = scratch.tiles};
  WalkKeys(walk);
}

void ClearState(const FlashShape& shape, kernels::SoftmaxState& state) {
  std::fill_n(state.max, shape.padded_rows, -std::numeric_limits<float>::infinity());
  std::fill_n(state.sum, shape.padded_rows, 0.0f);
  std::fill_n(state.output, state.rows * state.output_stride, 0.0f);
}

void AttendRange(const AttentionInputs& inputs, const KvCache& cache, const FlashShape& shape,
                 const QueryTile& tile, int64_t begin, int64_t end, FlashScratch& scratch,
                 kernels::SoftmaxState& state) {
  LODE_DCHECK(begin % kChunk == 0);
  const KeyRun run = {
      .begin = std::max(begin, FirstKey(inputs, tile.first_token) / kChunk * kChunk),
      .end = std::min(end, inputs.first_position + tile.first_token + tile.num_tokens)};
  const std::span<const KeyRun> runs(&run, run.begin < run.end ? 1 : 0);
  AttendRuns(inputs, cache, shape, tile, runs, scratch, state);
}

void WriteMerged(const FlashShape& shape, const QueryTile& tile,
                 std::span<const kernels::SoftmaxState> states, float* out, int64_t out_stride) {
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
    if (shape.rotated) kernels::Rotate(merged.data(), 1, shape.head_dim, shape.head_dim);
    const int64_t token = tile.first_token + row / shape.group;
    const int64_t head = tile.kv_head * shape.group + row % shape.group;
    float* out_row = out + token * out_stride + head * shape.head_dim;
    for (int64_t d = 0; d < shape.head_dim; ++d) {
      out_row[d] = merged[static_cast<size_t>(d)] / sum;
    }
  }
}

}  // namespace lode
