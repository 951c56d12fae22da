// SPDX-License-Identifier: Apache-2.0
// From what the user gave to the prompt the model reads: shared by `lode run`, which answers it,
// and `lode tokenize --chat`, which shows it, so that the two cannot differ.
#ifndef LODE_CLI_PROMPT_H_
#define LODE_CLI_PROMPT_H_

#include <string>

#include "base/status.h"
#include "cli/text_input.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace lode::cli {

// The text of a file and a question about it: the file first, so that a next question about it
// finds it in the cache. At least one of the two must be there.
std::string JoinInput(const TextInput& input);

// A conversation of one user message, behind a system message unless `system` is empty. Errors:
// those of ChatTemplate::RenderPrompt.
Result<RenderedPrompt> RenderUserMessage(const ChatTemplate& chat_template,
                                         const Tokenizer& tokenizer, const std::string& system,
                                         const std::string& text);

}  // namespace lode::cli

#endif  // LODE_CLI_PROMPT_H_
