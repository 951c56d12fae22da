// SPDX-License-Identifier: Apache-2.0
// ChatTemplate over the minijinja library. A template that does not compile is kept with its error:
// the model is usable without chat, and whoever renders is told the construct and the line.
#include "tokenizer/chat_template.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <ctime>
#include <optional>
#include <utility>

#include "tokenizer/builtin_templates.h"
#include "tokenizer/minijinja/lode_minijinja.h"
#include "tokenizer/unicode.h"

namespace lode {
namespace {

LodeView View(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// Takes over a text of the library.
std::string Take(const LodeText& text) {
  std::string result(reinterpret_cast<const char*>(text.data), text.size);
  lode_jinja_free_text(text);
  return result;
}

size_t StrftimeNow(const char* format, size_t format_size, char* buffer, size_t capacity) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return std::strftime(buffer, capacity, std::string(format, format_size).c_str(), &local);
}

Status ToStatus(int32_t code, std::string message) {
  switch (code) {
    case kLodeJinjaOk:
      return OkStatus();
    case kLodeJinjaRaised:
      return InvalidArgumentError(std::move(message));
    case kLodeJinjaUnsupported:
      return UnsupportedError("chat template: " + message);
    case kLodeJinjaLimit:
      return ResourceExhaustedError("chat template: " + message);
    case kLodeJinjaFailed:
      return InvalidArgumentError("chat template: " + message);
    default:
      return InternalError("chat template: " + message);
  }
}

// `text` as a JSON string. Ill-formed bytes become U+FFFD: JSON cannot carry them.
std::string Quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : ReplaceIllFormed(text)) {
    if (c == '"' || c == '\\') {
      result += {'\\', c};
    } else if (static_cast<uint8_t>(c) < 0x20) {
      result += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      result += c;
    }
  }
  return result + '"';
}

// Checks that `json` is one JSON value of the wanted type.
Status CheckJson(std::string_view what, std::string_view json, simdjson::dom::element_type wanted,
                 std::string_view wanted_name) {
  simdjson::dom::parser parser;
  simdjson::dom::element parsed;
  const auto error = parser.parse(json.data(), json.size()).get(parsed);
  if (error != simdjson::SUCCESS) {
    return InvalidArgumentError(fmt::format("{}: {}", what, simdjson::error_message(error)));
  }
  if (parsed.type() != wanted) {
    return InvalidArgumentError(fmt::format("{}: expected a JSON {}", what, wanted_name));
  }
  return OkStatus();
}

// The template's variables as one JSON object.
Result<std::string> Variables(const std::vector<ChatMessage>& messages,
                              const ChatRenderOptions& options) {
  using simdjson::dom::element_type;
  std::string json = "{";
  if (!options.extra_json.empty()) {
    LODE_RETURN_IF_ERROR(
        CheckJson("template variables", options.extra_json, element_type::OBJECT, "object"));
    const size_t open = options.extra_json.find('{');
    const size_t close = options.extra_json.rfind('}');
    const std::string inside = options.extra_json.substr(open + 1, close - open - 1);
    if (inside.find_first_not_of(" \t\r\n") != std::string::npos) json += inside + ",";
  }
  // After the caller's variables, so that these win over members of the same name.
  json += "\"messages\":[";
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (i > 0) json += ',';
    if (message.json.empty()) {
      json += fmt::format("{{\"role\":{},\"content\":{}}}", Quoted(message.role),
                          Quoted(message.content));
      continue;
    }
    LODE_RETURN_IF_ERROR(
        CheckJson(fmt::format("messages[{}]", i), message.json, element_type::OBJECT, "object"));
    json += message.json;
  }
  json += "],\"tools\":";
  if (options.tools_json.empty()) {
    json += "null";
  } else {
    LODE_RETURN_IF_ERROR(CheckJson("tools", options.tools_json, element_type::ARRAY, "array"));
    json += options.tools_json;
  }
  json += fmt::format(",\"documents\":null,\"add_generation_prompt\":{}}}",
                      options.add_generation_prompt);
  return json;
}

class JinjaTemplate final : public ChatTemplate {
 public:
  JinjaTemplate(std::string source, std::string_view bos, std::string_view eos)
      : source_(std::move(source)) {
    const LodeText compiled =
        lode_jinja_compile(View(source_), View(bos), View(eos), StrftimeNow, &handle_);
    const int32_t code = compiled.code;
    compile_status_ = ToStatus(code, Take(compiled));
  }
  ~JinjaTemplate() override { lode_jinja_free(handle_); }
  JinjaTemplate(const JinjaTemplate&) = delete;
  JinjaTemplate& operator=(const JinjaTemplate&) = delete;

  Result<std::string> Render(const std::vector<ChatMessage>& messages,
                             const ChatRenderOptions& options) const override {
    return RenderMarked(messages, options, {}, nullptr);
  }

  Result<RenderedPrompt> RenderPrompt(const Tokenizer& tokenizer,
                                      const std::vector<ChatMessage>& messages,
                                      const ChatRenderOptions& options) const override {
    RenderedPrompt prompt;
    LODE_ASSIGN_OR_RETURN(prompt.text, RenderMarked(messages, options, tokenizer.control_texts(),
                                                    &prompt.placeholders));
    return prompt;
  }

  std::string_view source() const override { return source_; }

 private:
  Result<std::string> RenderMarked(const std::vector<ChatMessage>& messages,
                                   const ChatRenderOptions& options,
                                   const std::vector<std::string_view>& controls,
                                   std::vector<Placeholder>* marks) const {
    LODE_RETURN_IF_ERROR(compile_status_);
    LODE_ASSIGN_OR_RETURN(const std::string variables, Variables(messages, options));
    std::vector<LodeView> control_views;
    control_views.reserve(controls.size());
    for (const std::string_view control : controls) control_views.push_back(View(control));
    LodeText pairs{};
    const LodeText output = lode_jinja_render(handle_, View(variables), control_views.data(),
                                              control_views.size(), &pairs);
    const std::string pair_text = Take(pairs);
    const int32_t code = output.code;
    std::string text = Take(output);
    if (code != kLodeJinjaOk) return ToStatus(code, std::move(text));
    if (marks != nullptr) *marks = ParsePairs(pair_text);
    return text;
  }

  // "mark, original, mark, original ...", one character each.
  static std::vector<Placeholder> ParsePairs(std::string_view text) {
    std::vector<Placeholder> marks;
    const auto next = [&text] {
      const size_t length = Utf8Length(text);
      std::string character(text.substr(0, length));
      text.remove_prefix(length);
      return character;
    };
    while (!text.empty()) {
      std::string mark = next();
      marks.push_back({std::move(mark), next()});
    }
    return marks;
  }

  std::string source_;
  Status compile_status_;
  void* handle_ = nullptr;
};

// tokenizer_config.json's "chat_template": a string, or a list of named ones of which "default".
Result<std::string> TemplateOfConfig(std::string_view origin, std::string_view config) {
  if (config.empty()) return std::string();
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  const auto error = parser.parse(config.data(), config.size()).get(root);
  if (error != simdjson::SUCCESS) {
    return CorruptionError(
        fmt::format("{}: tokenizer_config.json: {}", origin, simdjson::error_message(error)));
  }
  std::string_view text;
  if (root["chat_template"].get(text) == simdjson::SUCCESS) return std::string(text);
  simdjson::dom::array named;
  if (root["chat_template"].get(named) != simdjson::SUCCESS) return std::string();
  for (const simdjson::dom::element entry : named) {
    std::string_view name;
    if (entry["name"].get(name) == simdjson::SUCCESS && name == "default" &&
        entry["template"].get(text) == simdjson::SUCCESS) {
      return std::string(text);
    }
  }
  return std::string();
}

Result<std::string> FindTemplate(const WeightSource& source) {
  if (source.kind() == FileKind::kGguf) {
    return source.metadata().GetStringOr("tokenizer.chat_template", "");
  }
  if (const std::string_view file = source.side_file("chat_template.jinja"); !file.empty()) {
    return std::string(file);
  }
  return TemplateOfConfig(source.path(), source.side_file("tokenizer_config.json"));
}

}  // namespace

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Load(const WeightSource& source,
                                                         const Tokenizer& tokenizer) {
  LODE_ASSIGN_OR_RETURN(std::string text, FindTemplate(source));
  if (text.empty()) {
    LODE_ASSIGN_OR_RETURN(const std::string architecture,
                          source.metadata().GetStringOr("general.architecture", ""));
    text = BuiltinTemplate(architecture, tokenizer);
    if (text.empty()) {
      return NotFoundError(fmt::format(
          "{}: the model has no chat template and there is no built-in one for architecture "
          "\"{}\"; give it plain text instead of a conversation, or use a chat-tuned file",
          source.path(), architecture));
    }
  }
  return FromSource(std::move(text), tokenizer.TokenBytes(tokenizer.bos(), /*show_special=*/true),
                    tokenizer.TokenBytes(tokenizer.eos(), /*show_special=*/true));
}

Result<std::vector<TokenId>> ChatTemplate::RenderTokens(const Tokenizer& tokenizer,
                                                        const std::vector<ChatMessage>& messages,
                                                        const ChatRenderOptions& options) const {
  LODE_ASSIGN_OR_RETURN(const RenderedPrompt prompt, RenderPrompt(tokenizer, messages, options));
  return tokenizer.Encode(prompt.text, prompt.encode_options());
}

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::FromSource(std::string jinja, std::string bos,
                                                               std::string eos) {
  return std::unique_ptr<ChatTemplate>(new JinjaTemplate(std::move(jinja), bos, eos));
}

}  // namespace lode
