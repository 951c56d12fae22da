// SPDX-License-Identifier: Apache-2.0
// KV tiles of int8, int6 and int4 codes: a whole tile is encoded once and never changed.
//
//   key tile     scale and centre per component:
//                8 bits: uint8 scales [head_dim], int8 centres [head_dim] in units of 32 scales
//                6, 4 bits: f16 scales [head_dim], f16 centres [head_dim]
//                codes: matrix [head_dim, tokens]
//                key[t][d] = centre[d] + scale[d] * code
//   value tile   f16 scales [groups][tokens], of value_group components each, the last maybe fewer
//                codes: matrix [tokens, head_dim]
//                rotated value[t][d] = scale[d / value_group][t] * code
// (Codes: code_matrix.h.) Components of keys differ much more among each other than one component
// does from token to token: Qwen2 and 2.5 add a bias of up to 145 to a few of them. A scale and a
// centre per component make that harmless, and the scales of all but the largest components fine.
// Values are the other way round; rotated (rotation.h), no component of a token stands out.
//
// A scale in eight bits is (8 + code % 8) * 2^(code / 8 - 21): three bits of mantissa, 2^-18 to
// 15360. See docs/kv.md for the error of all this.
#ifndef LODE_KERNELS_KV_CODES_H_
#define LODE_KERNELS_KV_CODES_H_

#include <cstddef>
#include <cstdint>

#include "kernels/code_matrix.h"
#include "kernels/kv_tile.h"

namespace lode::kernels {

// `bits` is 8, 6 or 4 everywhere.

// Bytes of a tile, a multiple of kKvTileAlignment.
int64_t KeyCodeBytes(int bits, const KvTileShape& shape);
int64_t ValueCodeBytes(int bits, const KvTileShape& shape);

// Encode a full tile from its f32 form (shapes: kv_tile.h). The error is at most half a step. NaN
// becomes 0, and magnitudes that f16 cannot hold the largest that it can.
void EncodeKeyCodes(int bits, const KvTileShape& shape, const float* keys, std::byte* tile);
void EncodeValueCodes(int bits, const KvTileShape& shape, const float* values, int64_t stride,
                      std::byte* tile);

// Decode to f32.
void DecodeKeyCodes(int bits, const KvTileShape& shape, const std::byte* tile, float* keys);
void DecodeValueCodes(int bits, const KvTileShape& shape, const std::byte* tile, float* values,
                      int64_t stride);

// The parts of a tile for attention_codes.h.
CodeMatrix KeyCodes(int bits, const KvTileShape& shape, const std::byte* tile);
CodeMatrix ValueCodes(int bits, const KvTileShape& shape, const std::byte* tile);

// scales[d] = max(scales[d], scale of component d), [head_dim].
void RaiseToKeyScales(int bits, const KvTileShape& shape, const std::byte* tile, float* scales);

// ratio[d] = scale[d] * inverse[d] in 1/2^15, as far as 16 bits reach; shift[d] = centre[d] *
// inverse[d], [head_dim].
void KeyRatios(int bits, const KvTileShape& shape, const std::byte* tile, const float* inverse,
               int16_t* ratio, float* shift);

// The scales of one group of components, [tokens].
void ValueScales(const KvTileShape& shape, const std::byte* tile, int64_t group, float* scales);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_KV_CODES_H_
