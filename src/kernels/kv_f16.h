// SPDX-License-Identifier: Apache-2.0
// KV tiles of IEEE half precision: 2 bytes per component, rounded to nearest even.
#ifndef LODE_KERNELS_KV_F16_H_
#define LODE_KERNELS_KV_F16_H_

#include <cstddef>
#include <cstdint>

#include "kernels/kv_tile.h"

namespace lode::kernels {

// Bytes of a tile, a multiple of kKvTileAlignment.
int64_t F16KeyTileBytes(const KvTileShape& shape);
int64_t F16ValueTileBytes(const KvTileShape& shape);

// Encodes num_slots rows of head_dim floats (row stride `stride` floats) into the slots from
// first_slot on. The other slots keep their contents. NaN becomes 0, and magnitudes that the type
// cannot hold become the largest that it can: a tile never holds a NaN or an infinity.
void F16StoreKeys(std::byte* tile, const KvTileShape& shape, int64_t first_slot, int64_t num_slots,
                  const float* rows, int64_t stride);
void F16StoreValues(std::byte* tile, const KvTileShape& shape, int64_t first_slot,
                    int64_t num_slots, const float* rows, int64_t stride);

// Decodes a whole tile to f32 (shapes: kv_tile.h). Slots never stored decode to what the memory
// held: finite numbers where it was zero.
void F16DecodeKeys(const std::byte* tile, const KvTileShape& shape, float* out);
void F16DecodeValues(const std::byte* tile, const KvTileShape& shape, float* out, int64_t stride);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_KV_F16_H_
