// SPDX-License-Identifier: Apache-2.0
// Marks that a prompt may hold for attentions that let summaries stand for far tokens:
//
//   <hca-sep>   a border between two texts: no summary blurs both of them, and a <hca-fine> ends
//   <hca-fine>  from here to the next <hca-sep>, or to the end of the prompt, no summary stands for
//               anything
//
// Marks are no tokens. They are found in the whole prompt, so in what a chat template made too, and
// taken out; no token spans the place where one stood.
#ifndef LODE_ENGINE_PROMPT_MARKS_H_
#define LODE_ENGINE_PROMPT_MARKS_H_

#include <string_view>
#include <vector>

#include "attention/attention.h"
#include "engine/engine.h"
#include "tokenizer/tokenizer.h"

namespace lode {

// For GenerateRequest: its `prompt` and `exact`.
struct MarkedPrompt {
  std::vector<TokenId> tokens;
  std::vector<TokenRange> exact;
};

// A prompt for `engine`: without marks if its attention or its prefill attention heeds them; else
// they are text like any other.
MarkedPrompt EncodePrompt(const Engine& engine, std::string_view text,
                          const EncodeOptions& options = {});

// Takes the marks out and encodes what is between them.
MarkedPrompt EncodeMarked(const Tokenizer& tokenizer, std::string_view text,
                          const EncodeOptions& options);

}  // namespace lode

#endif  // LODE_ENGINE_PROMPT_MARKS_H_
