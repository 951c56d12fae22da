// SPDX-License-Identifier: Apache-2.0
// One attention for steps of many tokens (prefill) and another for single ones (decode).
#ifndef LODE_ATTENTION_PHASED_H_
#define LODE_ATTENTION_PHASED_H_

#include <memory>

#include "attention/attention.h"

namespace lode {

std::unique_ptr<Attention> CreatePhasedAttention(std::unique_ptr<Attention> prefill,
                                                 std::unique_ptr<Attention> decode);

}  // namespace lode

#endif  // LODE_ATTENTION_PHASED_H_
