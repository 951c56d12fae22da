// SPDX-License-Identifier: Apache-2.0
// Decoders of every stored type to f32, bit for bit equal to the `gguf` Python package
// (tests/data/dequantize).
#ifndef LODE_KERNELS_DEQUANTIZE_H_
#define LODE_KERNELS_DEQUANTIZE_H_

#include <cstddef>
#include <cstdint>

#include "tensor/block_formats.h"
#include "tensor/dtype.h"

namespace lode::kernels {

float HalfToFloat(Half h);
Half FloatToHalf(float f);  // round to nearest even
inline float Bf16ToFloat(uint16_t b) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(b) << 16);
}

// Decodes `elements` (a multiple of the block) from src into out. src needs no alignment.
void Dequantize(DType type, const std::byte* src, int64_t elements, float* out);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_DEQUANTIZE_H_
