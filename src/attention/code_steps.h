// SPDX-License-Identifier: Apache-2.0
// Softmax steps in integers (kernels/attention_codes.h) for one query tile: up to kCodeStepKeys
// keys of tiles that hold codes, wherever these tiles lie.
#ifndef LODE_ATTENTION_CODE_STEPS_H_
#define LODE_ATTENTION_CODE_STEPS_H_

#include <array>
#include <cstdint>

#include "attention/flash_tile.h"
#include "kernels/attention_codes.h"
#include "kv/kv_cache.h"

namespace lode {

// The tiles of a step, in order of their positions.
struct CodeTiles {
  int64_t keys() const { return begin[count]; }
  // False, and nothing changes, when the step is full or the tile has no codes.
  bool Add(const KvTile& added, int64_t first_position);
  void Clear() { count = 0; }

  KvTile tile[kernels::kCodeStepTiles];
  int64_t position[kernels::kCodeStepTiles];
  int64_t begin[kernels::kCodeStepTiles + 1] = {};  // first key of tile i among those of the step
  int64_t count = 0;
};

// Whether a tile can be multiplied in integers.
bool HasCodes(const KvTile& tile);

// Works in `scratch`, where queries and the scores of the step at hand lie.
class CodeSteps {
 public:
  // queries [rows, head_dim] times `factor` are the rows; `scales` [head_dim] the largest key
  // scales of all tiles to come. `values` is the shape of these tiles' values.
  CodeSteps(const float* queries, int64_t rows, const float* scales, float factor,
            const KvTileShape& values, FlashScratch& scratch);

  // Multiplies the rows with the keys of a step. While that goes on its values are asked for.
  void Multiply(const CodeTiles& tiles);
  // After Multiply: takes the step into the state; row r attends to keys [scratch.begin[r],
  // scratch.end[r]). Meanwhile the keys of `next` are asked for. Outputs are rotated.
  void Attend(const CodeTiles& tiles, const CodeTiles& next, const kernels::SoftmaxState& state);
  // After Multiply: the scores, [rows] of row stride `stride`.
  void Scores(const CodeTiles& tiles, float* out, int64_t stride);
  // Takes a step with these scores into the state (kernels::SoftmaxScores).
  void AttendScored(const CodeTiles& tiles, const float* scores,
                    const kernels::SoftmaxState& state);

 private:
  void MultiplyTile(const CodeTiles& tiles, int64_t i);
  void SetStep(const CodeTiles& tiles);
  void LoadValueScales(const CodeTiles& tiles, int64_t group);
  void AddValues(const CodeTiles& tiles, const CodeTiles& next, int64_t group,
                 const kernels::SoftmaxState& state);

  const int64_t rows_, head_dim_, num_groups_, group_cols_;
  kernels::CodeStep step_ = {};
  kernels::NormalQueries queries_;
  int16_t* codes_;
  int32_t* scores_;
  int32_t* products_;
  float* offsets_;
  float* channels_;  // inverse of the largest scale, shift: [2][head_dim]
  int16_t* ratio_;   // of the tile at hand, [head_dim]
  float* value_scales_;
  std::array<float, kernels::kMaxHeadDim / kernels::kHeadDimStep> units_ = {};
};

}  // namespace lode

#endif  // LODE_ATTENTION_CODE_STEPS_H_
