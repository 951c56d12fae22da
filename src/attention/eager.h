// SPDX-License-Identifier: Apache-2.0
// `eager`: attention as in the textbook, in double. The truth that the others are tested against.
#ifndef LODE_ATTENTION_EAGER_H_
#define LODE_ATTENTION_EAGER_H_

#include <memory>

#include "attention/attention.h"

namespace lode {

std::unique_ptr<Attention> CreateEagerAttention();

}  // namespace lode

#endif  // LODE_ATTENTION_EAGER_H_
