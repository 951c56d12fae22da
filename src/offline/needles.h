// SPDX-License-Identifier: Apache-2.0
// Needles: prompts whose answers are known because they were put there, after the rules of RULER.
//
// A prompt has two parts: a context (instructions and a haystack that hides the needles), and a
// question with the beginning of its answer. Equal seeds give equal prompts on every machine. Of
// RULER's task set these are the ones that need no data but a text; wordings and counts are RULER's
// (github.com/NVIDIA/RULER, scripts/data/synthetic), its word lists are replaced by our own:
//   niah_single_1  one number in repeated noise sentences     niah_single_2  in the user's text
//   niah_multikey_1  one of four keys    niah_multivalue  four values of one key
//   niah_multiquery  four keys at once   vt  a chain of five variables
//   cwe  the ten words that a list repeats most often
// Reading a context sparsely cannot help cwe: its answer is everywhere.
#ifndef LODE_OFFLINE_NEEDLES_H_
#define LODE_OFFLINE_NEEDLES_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace lode {

struct NeedlePrompt {
  std::string context;                  // ends where the question begins
  std::string question;                 // what a user asks behind the context
  std::string answer_prefix;            // what the answer begins with
  std::vector<std::string> references;  // what the answer should hold
  int64_t answer_tokens = 0;            // that the answer may take
};

struct NeedleSpec {
  std::string task;
  uint64_t seed = 0;
  int64_t max_tokens = 0;     // prompt and answer together
  std::string_view haystack;  // the user's text, repeated where it is too short; no words: noise
  // Tokens of the whole prompt as the model will read it.
  std::function<int64_t(const NeedlePrompt& prompt)> count_tokens;
};

// The names of all tasks, in the order above.
std::span<const std::string_view> NeedleTasks();

// The longest prompt that fits. InvalidArgument: an unknown task (lists the known ones); max_tokens
// too small for the needles alone (says how many they need). Cost: some twenty calls of
// count_tokens.
Result<NeedlePrompt> MakeNeedlePrompt(const NeedleSpec& spec);

// The share of references that occur in the answer, whatever the case of their letters.
double ScoreAnswer(std::string_view answer, std::span<const std::string> references);

}  // namespace lode

#endif  // LODE_OFFLINE_NEEDLES_H_
