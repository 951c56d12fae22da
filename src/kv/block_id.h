// SPDX-License-Identifier: Apache-2.0
// BlockId: where a block lies in its layer's pool, in units of 64 bytes. 32 bits reach 256 GiB.
#ifndef LODE_KV_BLOCK_ID_H_
#define LODE_KV_BLOCK_ID_H_

#include <cstdint>

namespace lode {

using BlockId = uint32_t;
inline constexpr int64_t kBlockIdUnit = 64;
// No pool hands this one out.
inline constexpr BlockId kNoBlock = 0xffffffff;

}  // namespace lode

#endif  // LODE_KV_BLOCK_ID_H_
