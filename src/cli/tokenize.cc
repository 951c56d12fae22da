// SPDX-License-Identifier: Apache-2.0
// `lode tokenize`: text to token ids and pieces, exactly as a prompt would be.
#include <string>
#include <vector>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/prompt.h"
#include "cli/text_input.h"
#include "formats/weight_source.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace lode::cli {
namespace {

std::string AsText(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, bool only_ids) {
  std::string out;
  for (const TokenId id : ids) {
    std::string line = std::to_string(id);
    if (!only_ids) {
      line.resize(std::max<size_t>(line.size(), 7), ' ');
      line += " " + JsonQuote(tokenizer.TokenBytes(id, true));
    }
    out += line + "\n";
  }
  return out;
}

std::string AsJson(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  JsonWriter json;
  json.BeginObject().Field("tokenizer", tokenizer.kind()).Field("count", ids.size());
  json.Key("tokens").BeginArray();
  for (const TokenId id : ids) {
    json.BeginObject().Field("id", id).Field("text", tokenizer.TokenBytes(id, true));
    json.Field("control", tokenizer.IsControl(id)).EndObject();
  }
  return json.EndArray().EndObject().text() + "\n";
}

struct TokenizeOptions {
  std::string model, system;
  TextOptions text;
  bool chat = false, parse_special = false, no_bos = false;
  bool as_json = false, only_ids = false, only_count = false;

  void AddTo(Args& args);
  Status Check() const;
};

void TokenizeOptions::AddTo(Args& args) {
  args.Text("-m, --model", "MODEL", &model, "A file, a folder, or a name fetched by `lode pull`.");
  text.AddTo(args);
  args.Flag("--chat", &chat,
            "The text is a user's message: the tokens of the prompt that the model's chat template "
            "makes of it, as `lode run` feeds them.");
  args.Text("--system", "TEXT", &system, "With --chat: a system message before the user's.");
  args.Flag("--special", &parse_special,
            "Read names such as <|im_end|> in the text as control tokens.");
  args.Flag("--no-bos", &no_bos, "Add no begin or end token.");
  args.Flag("--ids", &only_ids, "Print only ids.");
  args.Flag("--count", &only_count, "Print only the number of tokens.");
  args.Flag("--json", &as_json, "Print JSON.");
}

Status TokenizeOptions::Check() const {
  if (!chat && !system.empty()) return InvalidArgumentError("--system needs --chat");
  if (chat && (parse_special || no_bos)) {
    return InvalidArgumentError(std::string(parse_special ? "--special" : "--no-bos") +
                                " and --chat: expected only one; the template says which control "
                                "tokens there are");
  }
  return OkStatus();
}

Result<std::vector<TokenId>> Encode(const WeightSource& source, const Tokenizer& tokenizer,
                                    const TokenizeOptions& options, const std::string& text) {
  if (!options.chat) {
    return tokenizer.Encode(
        text, {.add_special = !options.no_bos, .parse_special = options.parse_special});
  }
  LODE_ASSIGN_OR_RETURN(const auto chat_template, ChatTemplate::Load(source, tokenizer));
  LODE_ASSIGN_OR_RETURN(const RenderedPrompt prompt,
                        RenderUserMessage(*chat_template, tokenizer, options.system, text));
  return tokenizer.Encode(prompt.text, prompt.encode_options());
}

}  // namespace

Status RunTokenize(Console& console, const ArgList& list) {
  TokenizeOptions options;
  Args args("tokenize", "-m MODEL [-p TEXT | -f FILE] [OPTIONS]",
            "Shows the tokens a text becomes, one per line: id and piece. Without -p and -f the "
            "text is read from standard input; with both the file comes first.",
            "  lode tokenize -m MODEL -p 'Hello, world'\n"
            "  lode tokenize -m MODEL -f book.txt --count\n"
            "  lode tokenize -m MODEL --chat -p 'Who are you?'      the whole prompt\n"
            "  lode tokenize -m MODEL --special -p '<|im_start|>user' --json\n");
  options.AddTo(args);
  LODE_ASSIGN_OR_RETURN(const bool proceed, args.Parse(list, console));
  if (!proceed) return OkStatus();
  LODE_RETURN_IF_ERROR(options.Check());

  LODE_ASSIGN_OR_RETURN(const std::string path, ResolveModel(options.model));
  LODE_ASSIGN_OR_RETURN(const auto source, OpenWeights(path));
  LODE_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(*source));
  LODE_ASSIGN_OR_RETURN(const TextInput input, ReadTextInput(console, args, options.text));
  if (!input.prompt && !input.file) {
    return WithHint(InvalidArgumentError("no text to tokenize"), "give -p TEXT, -f FILE or a pipe");
  }
  LODE_ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                        Encode(*source, *tokenizer, options, JoinInput(input)));
  if (options.only_count) return console.Out(std::to_string(ids.size()) + "\n");
  return console.Out(options.as_json ? AsJson(*tokenizer, ids)
                                     : AsText(*tokenizer, ids, options.only_ids));
}

}  // namespace lode::cli
