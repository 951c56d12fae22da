// SPDX-License-Identifier: Apache-2.0
// `lode tokenize`: text to token ids and pieces, exactly as a prompt would be.
#include <string>
#include <vector>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/text_input.h"
#include "formats/weight_source.h"
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

}  // namespace

Status RunTokenize(Console& console, const ArgList& list) {
  std::string model;
  TextOptions text;
  bool as_json = false, only_ids = false, only_count = false, no_bos = false, parse_special = false;
  Args args("tokenize", "-m MODEL [-p TEXT | -f FILE] [OPTIONS]",
            "Shows the tokens a text becomes, one per line: id and piece. Without -p and -f the "
            "text is read from standard input.",
            "  lode tokenize -m MODEL -p 'Hello, world'\n"
            "  lode tokenize -m MODEL -f book.txt --count\n"
            "  lode tokenize -m MODEL --special -p '<|im_start|>user' --json\n");
  args.Text("-m, --model", "MODEL", &model, "A file, a folder, or a name fetched by `lode pull`.");
  text.AddTo(args);
  args.Flag("--special", &parse_special,
            "Read names such as <|im_end|> in the text as control tokens.");
  args.Flag("--no-bos", &no_bos, "Add no begin or end token.");
  args.Flag("--ids", &only_ids, "Print only ids.");
  args.Flag("--count", &only_count, "Print only the number of tokens.");
  args.Flag("--json", &as_json, "Print JSON.");
  LODE_ASSIGN_OR_RETURN(const bool proceed, args.Parse(list, console));
  if (!proceed) return OkStatus();

  LODE_ASSIGN_OR_RETURN(const std::string path, ResolveModel(model));
  LODE_ASSIGN_OR_RETURN(const auto source, OpenWeights(path));
  LODE_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(*source));
  LODE_ASSIGN_OR_RETURN(const TextInput input, ReadTextInput(console, args, text));
  if (input.prompt && input.file) return InvalidArgumentError("-p and -f: expected only one");
  if (!input.prompt && !input.file) {
    return WithHint(InvalidArgumentError("no text to tokenize"), "give -p TEXT, -f FILE or a pipe");
  }
  EncodeOptions options;
  options.add_special = !no_bos;
  options.parse_special = parse_special;
  const std::vector<TokenId> ids =
      tokenizer->Encode(input.prompt ? *input.prompt : *input.file, options);
  if (only_count) return console.Out(std::to_string(ids.size()) + "\n");
  return console.Out(as_json ? AsJson(*tokenizer, ids) : AsText(*tokenizer, ids, only_ids));
}

}  // namespace lode::cli
