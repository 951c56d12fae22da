// SPDX-License-Identifier: Apache-2.0
// The words that needles are made of. No word is part of another one, so that finding one in an
// answer means that it was answered.
#ifndef LODE_OFFLINE_NEEDLE_WORDS_H_
#define LODE_OFFLINE_NEEDLE_WORDS_H_

#include <span>
#include <string_view>

namespace lode {

std::span<const std::string_view> NeedleAdjectives();
std::span<const std::string_view> NeedleNouns();

}  // namespace lode

#endif  // LODE_OFFLINE_NEEDLE_WORDS_H_
