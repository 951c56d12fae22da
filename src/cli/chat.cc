// SPDX-License-Identifier: Apache-2.0
#include "cli/chat.h"

#include <utility>

#include "base/topology.h"
#include "cli/answer.h"
#include "cli/line_editor.h"
#include "cli/sampling_options.h"
#include "cli/text_input.h"
#include "engine/prompt_marks.h"

namespace lode::cli {
namespace {

constexpr char kHelp[] =
    "  /read FILE         put a file before the next message\n"
    "  /set               show the settings\n"
    "  /set NAME VALUE    temperature, top_k, top_p, min_p, typical_p, repetition_penalty,\n"
    "                     presence_penalty, frequency_penalty, penalty_window, seed,\n"
    "                     max_tokens (0: no limit), system (TEXT; starts afresh)\n"
    "  /stats             context, memory and the speed of the last answer\n"
    "  /clear             forget the conversation\n"
    "  /exit              leave (so does Ctrl+D)\n"
    "  \\ at the end of a line goes on with the next one; \"\"\" begins and ends several lines.\n"
    "  Ctrl+C stops an answer; what was said so far stays in the conversation.\n";

const std::vector<std::string> kCommandNames = {"/read",  "/set",  "/stats",
                                                "/clear", "/exit", "/help"};

class ChatSession {
 public:
  ChatSession(Console& console, Engine& engine, const ChatTemplate& chat_template,
              ChatOptions options)
      : console_(console),
        engine_(engine),
        chat_template_(chat_template),
        options_(std::move(options)) {}

  Status Run();

 private:
  // One message, which may span lines. False at the end of input.
  bool ReadMessage(std::string* message);
  // False: leave.
  bool RunCommand(const std::string& line);
  Status Set(const std::string& name, const std::string& value);
  Status ReadFile(const std::string& path);
  void Clear();
  void ShowStats();
  // Answers and remembers. An error of the engine is shown; Io of stdout is returned.
  Status Answer(const std::string& message);

  void Say(const std::string& text) { console_.Err(console_.StyleErr(Style::kDim, text) + "\n"); }
  void ShowError(const Status& status) {
    if (status.ok()) return;
    console_.Err(console_.StyleErr(Style::kRed, "error:") + " " + status.message() + "\n");
  }

  Console& console_;
  Engine& engine_;
  const ChatTemplate& chat_template_;
  ChatOptions options_;
  LineEditor editor_;
  std::vector<ChatMessage> messages_;  // without the system message
  std::string attached_;               // by /read, for the next message
  std::string last_timings_;
};

Status ChatSession::Run() {
  const ModelConfig& config = engine_.model().config();
  Say((config.name.empty() ? config.architecture : config.name) + ", context " +
      FormatCount(engine_.options().context_len) + " tokens, " +
      DescribeSampling(options_.sampling) + ". /help explains, Ctrl+D leaves.");
  std::string message;
  while (ReadMessage(&message)) {
    if (message.empty()) continue;
    if (message.front() == '/' && message.find('\n') == std::string::npos) {
      if (!RunCommand(message)) break;
      continue;
    }
    LODE_RETURN_IF_ERROR(Answer(message));
  }
  return OkStatus();
}

bool ChatSession::ReadMessage(std::string* message) {
  constexpr std::string_view kQuotes = "\"\"\"";
  message->clear();
  bool quoted = false;
  for (bool first = true;; first = false) {
    std::string line;
    switch (editor_.Read(first ? ">>> " : "... ", &line)) {
      case LineEvent::kEnd:
        return false;
      case LineEvent::kInterrupt:
        message->clear();
        return true;
      case LineEvent::kLine:
        break;
    }
    if (first && line.starts_with(kQuotes)) {
      quoted = true;
      line.erase(0, kQuotes.size());
    }
    bool more = quoted;
    if (quoted && line.ends_with(kQuotes)) {
      line.resize(line.size() - kQuotes.size());
      more = false;
    } else if (!quoted && line.ends_with('\\')) {
      line.pop_back();
      more = true;
    }
    *message += line;
    if (!more) break;
    *message += '\n';
  }
  editor_.AddHistory(*message);
  return true;
}

bool ChatSession::RunCommand(const std::string& line) {
  const size_t blank = line.find(' ');
  const std::string name = line.substr(0, blank);
  std::string rest = blank == std::string::npos ? "" : line.substr(blank + 1);
  while (rest.ends_with(' ')) rest.pop_back();
  if (name == "/exit" || name == "/quit" || name == "/bye") return false;
  if (name == "/help" || name == "/?") {
    console_.Err(kHelp);
  } else if (name == "/clear") {
    Clear();
  } else if (name == "/stats") {
    ShowStats();
  } else if (name == "/read") {
    ShowError(ReadFile(rest));
  } else if (name == "/set") {
    const size_t space = rest.find(' ');
    ShowError(space == std::string::npos ? Set(rest, "")
                                         : Set(rest.substr(0, space), rest.substr(space + 1)));
  } else {
    const std::string nearest = NearestName(name, kCommandNames);
    ShowError(WithHint(InvalidArgumentError("unknown command " + name),
                       nearest.empty() ? "/help lists them" : "did you mean " + nearest + "?"));
  }
  return true;
}

Status ChatSession::Set(const std::string& name, const std::string& value) {
  if (name.empty()) {
    Say(DescribeSampling(options_.sampling) + "\nmax_tokens " +
        std::to_string(options_.max_tokens) + "\nsystem " +
        (options_.system.empty() ? "(none)" : options_.system));
    return OkStatus();
  }
  if (name == "system") {
    options_.system = value;
    Clear();
    return OkStatus();
  }
  if (name == "max_tokens") {
    LODE_ASSIGN_OR_RETURN(options_.max_tokens,
                          ParseInteger(value, {.min = 0, .max = int64_t{1} << 30}));
    return OkStatus();
  }
  SamplingParams changed = options_.sampling;
  LODE_RETURN_IF_ERROR(SetSamplingParam(name, value, changed).WithContext(name));
  LODE_RETURN_IF_ERROR(changed.Validate(engine_.model().config().vocab_size));
  options_.sampling = changed;
  return OkStatus();
}

Status ChatSession::ReadFile(const std::string& path) {
  if (path.empty()) return InvalidArgumentError("/read: expected a file");
  LODE_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  attached_ += text + (text.ends_with('\n') ? "\n" : "\n\n");
  const size_t tokens = EncodePrompt(engine_, text, {.add_special = false}).tokens.size();
  Say(path + ": " + FormatCount(static_cast<int64_t>(tokens)) +
      " tokens, go before your next message");
  return OkStatus();
}

void ChatSession::Clear() {
  messages_.clear();
  attached_.clear();
  engine_.ResetCache();
  Say("new conversation");
}

void ChatSession::ShowStats() {
  const ResidentMemory memory = ReadResidentMemory();
  Say("context " + FormatCount(engine_.cached_length()) + " of " +
      FormatCount(engine_.options().context_len) + " tokens, keys and values " +
      FormatBytes(engine_.cache().bytes_in_use()) + ", process " +
      FormatBytes(memory.current_bytes) + "\n" +
      (last_timings_.empty() ? "no answer yet" : last_timings_));
}

Status ChatSession::Answer(const std::string& message) {
  std::vector<ChatMessage> all;
  if (!options_.system.empty()) all.push_back({"system", options_.system, ""});
  all.insert(all.end(), messages_.begin(), messages_.end());
  const ChatMessage user = {"user", attached_ + message, ""};
  all.push_back(user);
  const auto rendered = chat_template_.RenderPrompt(engine_.tokenizer(), all, {});
  if (!rendered.ok()) {
    ShowError(rendered.status());
    return OkStatus();
  }
  MarkedPrompt prompt = EncodePrompt(engine_, rendered->text, rendered->encode_options());
  GenerateRequest request;
  request.prompt = std::move(prompt.tokens);
  request.exact = std::move(prompt.exact);
  request.max_tokens = options_.max_tokens;
  request.sampling = options_.sampling;
  request.stop = options_.stop;
  const auto result = StreamAnswer(console_, engine_, std::move(request), true);
  if (!result.ok()) {
    if (result.status().code() == StatusCode::kIo) return result.status();
    ShowError(WithHint(result.status(), "/clear forgets the conversation"));
    return OkStatus();
  }
  LODE_RETURN_IF_ERROR(console_.Out("\n"));
  last_timings_ = DescribeTimings(*result);
  if (!options_.quiet) Say(last_timings_);
  // An answer that was stopped before its first token leaves the question to be asked again.
  if (result->finish_reason == FinishReason::kCancelled && result->text.empty()) return OkStatus();
  messages_.push_back(user);
  messages_.push_back({"assistant", result->text, ""});
  attached_.clear();
  return OkStatus();
}

}  // namespace

Status Chat(Console& console, Engine& engine, const ChatOptions& options) {
  const auto chat_template = engine.chat_template();
  if (!chat_template.ok()) {
    return WithHint(chat_template.status(), "-p TEXT --no-chat continues a text");
  }
  return ChatSession(console, engine, **chat_template, options).Run();
}

}  // namespace lode::cli
