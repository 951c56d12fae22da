// SPDX-License-Identifier: Apache-2.0
#include "cli/prompt.h"

#include <vector>

namespace lode::cli {

std::string JoinInput(const TextInput& input) {
  if (!input.file) return *input.prompt;
  if (!input.prompt) return *input.file;
  return *input.file + (input.file->ends_with('\n') ? "\n" : "\n\n") + *input.prompt;
}

Result<RenderedPrompt> RenderUserMessage(const ChatTemplate& chat_template,
                                         const Tokenizer& tokenizer, const std::string& system,
                                         const std::string& text) {
  std::vector<ChatMessage> messages;
  if (!system.empty()) messages.push_back({"system", system, ""});
  messages.push_back({"user", text, ""});
  return chat_template.RenderPrompt(tokenizer, messages, {});
}

}  // namespace lode::cli
