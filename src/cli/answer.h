// SPDX-License-Identifier: Apache-2.0
// One answer on the terminal: prompt tokens in, text to stdout as it comes, progress and timings to
// stderr. Shared by `lode run` and its chat.
#ifndef LODE_CLI_ANSWER_H_
#define LODE_CLI_ANSWER_H_

#include <string>

#include "base/status.h"
#include "cli/console.h"
#include "engine/engine.h"

namespace lode::cli {

// Generates, streaming text to stdout when show_text. Ctrl+C ends the answer: finish_reason is then
// kCancelled and the text so far is in the result. Errors: the engine's; Io when stdout fails.
Result<GenerateResult> StreamAnswer(Console& console, Engine& engine, GenerateRequest request,
                                    bool show_text);

// "prompt 512 tokens (128 cached), 3.1 s, 124 tokens/s; answer 40 tokens, 1.0 s, 39.2 tokens/s".
std::string DescribeTimings(const GenerateResult& result);
// "stop", "length", "cancelled".
std::string FinishReasonName(FinishReason reason);
// The whole result as one JSON object.
std::string AnswerJson(const Engine& engine, const GenerateResult& result, uint64_t seed);

}  // namespace lode::cli

#endif  // LODE_CLI_ANSWER_H_
