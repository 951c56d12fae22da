// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/builtin_templates.h"

namespace lode {
namespace {

// The turn format of Gemma 2 and 3: a system message goes before the first user message, roles
// alternate, "assistant" is called "model".
constexpr std::string_view kGemma = R"({{ bos_token }}
{%- set system = "" %}
{%- set turns = messages %}
{%- if messages and messages[0].role == "system" %}
  {%- if messages[0].content is string %}
    {%- set system = messages[0].content + "\n\n" %}
  {%- else %}
    {%- set system = messages[0].content[0].text + "\n\n" %}
  {%- endif %}
  {%- set turns = messages[1:] %}
{%- endif %}
{%- for message in turns %}
  {%- if (message.role == "user") != (loop.index0 % 2 == 0) %}
    {{- raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
  {%- endif %}
  {{- "<start_of_turn>" + ("model" if message.role == "assistant" else message.role) + "\n" }}
  {{- system if loop.first else "" }}
  {%- if message.content is string %}
    {{- message.content | trim }}
  {%- else %}
    {%- for part in message.content %}
      {%- if part.type != "text" %}
        {{- raise_exception("Only text content is supported, not " + part.type) }}
      {%- endif %}
      {{- part.text | trim }}
    {%- endfor %}
  {%- endif %}
  {{- "<end_of_turn>\n" }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- "<start_of_turn>model\n" }}
{%- endif %})";

}  // namespace

std::string BuiltinTemplate(std::string_view architecture, const Tokenizer& tokenizer) {
  const bool gemma =
      architecture == "gemma" || architecture == "gemma2" || architecture == "gemma3";
  if (gemma && tokenizer.Find("<start_of_turn>") >= 0 && tokenizer.Find("<end_of_turn>") >= 0) {
    return std::string(kGemma);
  }
  return "";
}

}  // namespace lode
