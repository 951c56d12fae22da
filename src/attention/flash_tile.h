// SPDX-License-Identifier: Apache-2.0
// One query tile of flash attention against one range of keys.
//
// A query tile is some tokens of a call times the query heads that share a KV head: row = token *
// group + head. Each KV tile is decoded once for all rows. Tiles that have integer codes are
// multiplied in integers (kernels/attention_codes.h), the others in f32
// (kernels/attention_tile.h).
#ifndef LODE_ATTENTION_FLASH_TILE_H_
#define LODE_ATTENTION_FLASH_TILE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "kernels/attention_tile.h"

namespace lode {

// A growing array whose start is aligned for the kernels. Contents do not survive growth.
class AlignedBuffer {
 public:
  template <class T>
  T* Reserve(int64_t count) {
    return static_cast<T*>(ReserveBytes(count * int64_t{sizeof(T)}));
  }

 private:
  void* ReserveBytes(int64_t bytes);
  std::vector<char> storage_;
};

// A tile of a sequence, and the position of its first token.
struct PlacedTile {
  KvTile tile;
  int64_t position = 0;
};

// Working memory of one thread.
struct FlashScratch {
  // Steps in f32.
  AlignedBuffer scaled_queries;  // [rows, head_dim]
  AlignedBuffer float_scores;
  AlignedBuffer decoded;  // keys or values of a chunk
  // Steps in integers (kernels/attention_codes.h).
  AlignedBuffer queries;          // [rows, head_dim]
  AlignedBuffer rounded_queries;  // the same in 16 bits
  AlignedBuffer codes;            // queries in 16 bits, [rows, kCodeRowStride]
  AlignedBuffer scores;           // [rows, kCodeStepKeys]
  AlignedBuffer offsets;          // [rows, kCodeStepTiles]
  AlignedBuffer weights;          // in 16 bits, [groups, rows, kCodeRowStride]
  AlignedBuffer channels;         // of keys, [2, head_dim]
  AlignedBuffer ratio;            // of keys, [head_dim]
  AlignedBuffer value_scales;     // [groups, kCodeStepKeys]
  AlignedBuffer products;         // [rows, head_dim]
  AlignedBuffer per_row;          // [3, padded_rows]
  AlignedBuffer key_scales;       // largest of all tiles, [head_dim]

  std::vector<PlacedTile> tiles;  // of the keys at hand
  AlignedBuffer state;            // a softmax state that need not outlive its task
  std::vector<int32_t> begin;     // [rows] first key of the tile that the row attends to
  std::vector<int32_t> end;
};

// The sizes that all tiles of a call share.
struct FlashShape {
  FlashShape(const AttentionInputs& inputs, const KvCacheOptions& options);

  int64_t rows() const { return tile_tokens * group; }
  // The state of one tile inside a buffer of state_floats floats.
  kernels::SoftmaxState StateIn(float* buffer) const;

  int64_t head_dim;
  int64_t output_cols;  // head_dim, padded for the kernels
  int64_t group;        // query heads per KV head
  KvTileShape values;   // how the components of values are grouped
  bool rotated;  // states hold outputs rotated (kernels/rotation.h), as values with codes are
  int64_t tile_tokens;  // of a full tile
  int64_t padded_rows;  // rows(), padded for the kernels
  int64_t state_floats;
};

// Tokens [first_token, first_token + num_tokens) of the call, one KV head's group.
struct QueryTile {
  int32_t kv_head = 0;
  int64_t first_token = 0;
  int64_t num_tokens = 0;
};

// The queries of a tile times `factor`, [rows, head_dim], in `buffer`.
float* ScaleQueries(const AttentionInputs& inputs, const FlashShape& shape, const QueryTile& tile,
                    float factor, AlignedBuffer& buffer);

// First key that `token` of the call attends to.
int64_t FirstKey(const AttentionInputs& inputs, int64_t token);

// Neighbouring positions [begin, end), at least one, begin a multiple of kernels::kKvTileTokens.
struct KeyRun {
  int64_t begin = 0;
  int64_t end = 0;
};

// Sets `state` to the softmax state of a query tile over the keys of some runs that it attends to.
// Runs ascend and do not touch; the last query sees the last key.
void AttendRuns(const AttentionInputs& inputs, const KvCache& cache, const FlashShape& shape,
                const QueryTile& tile, std::span<const KeyRun> runs, FlashScratch& scratch,
                kernels::SoftmaxState& state);

// AttendRuns over the keys at positions [begin, end). `begin` is a multiple of
// kernels::kKvTileTokens.
void AttendRange(const AttentionInputs& inputs, const KvCache& cache, const FlashShape& shape,
                 const QueryTile& tile, int64_t begin, int64_t end, FlashScratch& scratch,
                 kernels::SoftmaxState& state);

// Sets `state`, whose rows are set, to that of no keys.
void ClearState(const FlashShape& shape, kernels::SoftmaxState& state);

// Merges the states that a tile has for several sets of keys, in order, and writes the output of
// its tokens and heads.
void WriteMerged(const FlashShape& shape, const QueryTile& tile,
                 std::span<const kernels::SoftmaxState> states, float* out, int64_t out_stride);

}  // namespace lode

#endif  // LODE_ATTENTION_FLASH_TILE_H_
