// SPDX-License-Identifier: Apache-2.0
// What one thread of this machine can do at best, with the instructions the kernels use: the limits
// that `lode bench --machine` prints beside its results. Each function does a stated amount of work
// on the calling thread; the caller runs it on every thread at once and divides by the time.
#ifndef LODE_KERNELS_MACHINE_H_
#define LODE_KERNELS_MACHINE_H_

#include <cstddef>
#include <cstdint>

namespace lode::kernels {

// Reads data[0, n), n a multiple of 256, as four streams and returns a checksum of it (so that the
// reads happen). Use many times the size of the last cache, already touched, a part per thread.
uint64_t ReadBytes(const std::byte* data, int64_t n);

// Runs `rounds` rounds of independent fused multiply-adds (multiply and add where there are none)
// in registers; returns the number of f32 operations, two per lane.
double RunF32Operations(int64_t rounds);

// Runs `rounds` rounds of the int8 block products of the matrix kernels in registers (products
// summed in 16 bits, widened every eight steps; or four-way dot instructions); returns the number
// of 8-bit operations, two per product.
double RunInt8Operations(int64_t rounds);

}  // namespace lode::kernels

#endif  // LODE_KERNELS_MACHINE_H_
