// SPDX-License-Identifier: Apache-2.0
// ChatTemplate: a model's own Jinja template, rendered by minijinja with fuel and output limits.
// Only text made by the template is parsed for control tokens; what users wrote stays text: Render
// returns pieces.
#ifndef LODE_TOKENIZER_CHAT_TEMPLATE_H_
#define LODE_TOKENIZER_CHAT_TEMPLATE_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "formats/weight_source.h"
#include "tokenizer/tokenizer.h"

namespace lode {

struct ChatMessage {
  std::string role = {};  // "system", "user", "assistant", "tool"
  std::string content = {};
  // When not empty: the whole message as a JSON object (tool calls, parts); wins over the above.
  std::string json = {};
};

struct ChatRenderOptions {
  bool add_generation_prompt = true;
  std::string tools_json;  // JSON array or empty
  std::string
      extra_json;  // JSON object of further template variables ("enable_thinking"), or empty
};

// A prompt as text, and what must not become a control token in it.
struct RenderedPrompt {
  std::string text;
  std::vector<Placeholder> placeholders;

  // How it becomes ids; refers to this object.
  EncodeOptions encode_options() const {
    return {.add_special = false, .parse_special = true, .placeholders = placeholders};
  }
};

class ChatTemplate {
 public:
  // The template of the file or folder; else the family's own built-in one (gemma3); else NotFound
  // with a hint. Never a silent ChatML.
  static Result<std::unique_ptr<ChatTemplate>> Load(const WeightSource& source,
                                                    const Tokenizer& tokenizer);
  static Result<std::unique_ptr<ChatTemplate>> FromSource(std::string jinja, std::string bos,
                                                          std::string eos);
  virtual ~ChatTemplate() = default;

  // The prompt as text. InvalidArgument carries the template's own raise_exception message;
  // Unsupported names the construct and line.
  virtual Result<std::string> Render(const std::vector<ChatMessage>& messages,
                                     const ChatRenderOptions& options) const = 0;
  // The prompt as text to be encoded with its own options: control tokens only where the template
  // wrote them, never where a message's content did. Errors: those of Render.
  virtual Result<RenderedPrompt> RenderPrompt(const Tokenizer& tokenizer,
                                              const std::vector<ChatMessage>& messages,
                                              const ChatRenderOptions& options) const = 0;
  // The same as ids.
  Result<std::vector<TokenId>> RenderTokens(const Tokenizer& tokenizer,
                                            const std::vector<ChatMessage>& messages,
                                            const ChatRenderOptions& options) const;
  virtual std::string_view source() const = 0;  // the Jinja text
};

}  // namespace lode

#endif  // LODE_TOKENIZER_CHAT_TEMPLATE_H_
