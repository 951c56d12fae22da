// SPDX-License-Identifier: Apache-2.0
// `flash`: exact attention tile by tile with online softmax. See docs/attention.md.
#ifndef LODE_ATTENTION_FLASH_H_
#define LODE_ATTENTION_FLASH_H_

#include <memory>

#include "attention/attention.h"

namespace lode {

std::unique_ptr<Attention> CreateFlashAttention();

}  // namespace lode

#endif  // LODE_ATTENTION_FLASH_H_
