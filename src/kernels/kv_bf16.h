// SPDX-License-Identifier: Apache-2.0
// KV tiles of bfloat16: the upper half of an f32, rounded to nearest even.
#ifndef LODE_KERNELS_KV_BF16_H_
#define LODE_KERNELS_KV_BF16_H_

#include <cstddef>
#include <cstdint>

#include "kernels/kv_tile.h"

namespace lode::kernels {

// Bytes of a tile, a multiple of kKvTileAlignment.
int64_t Bf16KeyTileBytes(const KvTileShape& shape);
int64_t Bf16ValueTileBytes(const KvTileShape& shape);

// Encodes num_slots rows of head_dim floats (row stride `stride` floats) into the slots from
// first_slot on. The other slots keep their contents. NaN becomes 0, and magnitudes that the type
// cannot hold become the largest that it can: a tile never holds a NaN or an infinity.
void Bf16StoreKeys(std::byte* tile, const KvTileShape& shape, int64_t first_slot, int64_t num_slots,
                   const float* rows, int64_t stride);
void Bf16StoreValues(std::byte* tile, const KvTileShape& shape, int64_t first_slot,
                     int64_t num_slots, const float* rows, int64_t stride);

// Decodes a whole tile to f32 (shapes: kv_tile.h). Slots never stored decode to what the memory
// held: finite numbers where it was zero.
void Bf16DecodeKeys(const std::byte* tile, const KvTileShape& shape, float* out);
void Bf16DecodeValues(const std::byte* tile, const KvTileShape& shape, float* out, int64_t stride);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_KV_BF16_H_
