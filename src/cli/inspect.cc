// SPDX-License-Identifier: Apache-2.0
// `lode inspect`: what a model file holds, from its headers and vocabulary. Text from the file is
// printed as JSON strings, so a hostile file cannot send control sequences to the terminal.
#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "formats/weight_source.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace lode::cli {
namespace {

constexpr size_t kShownItems = 4;        // of a long array
constexpr size_t kShownCharacters = 72;  // of a long string

struct TypeTotal {
  int64_t tensors = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;
};

struct Summary {
  std::string architecture, name, tokenizer;
  int64_t vocab_size = 0;
  int64_t context_length = 0;
  bool has_chat_template = false;
  int64_t parameters = 0;
  std::map<std::string_view, TypeTotal> types;
};

// What the metadata says; "" or 0 where it says nothing usable.
Summary Summarise(const WeightSource& source) {
  const Metadata& metadata = source.metadata();
  const auto text = [&](std::string_view key) {
    return metadata.GetStringOr(key, "").ok() ? *metadata.GetStringOr(key, "") : std::string();
  };
  Summary summary;
  summary.architecture = text("general.architecture");
  summary.name = text("general.name");
  if (const auto tokenizer = Tokenizer::Load(source); tokenizer.ok()) {
    summary.tokenizer = (*tokenizer)->kind();
    summary.vocab_size = (*tokenizer)->vocab_size();
    summary.has_chat_template = ChatTemplate::Load(source, **tokenizer).ok();
  } else {
    summary.tokenizer = "not usable: " + tokenizer.status().message();
  }
  const auto context =
      metadata.GetIntOr(summary.architecture + ".context_length", 0, int64_t{1} << 40, 0);
  if (context.ok()) summary.context_length = *context;
  for (const StoredTensor& tensor : source.tensors()) {
    TypeTotal& total = summary.types[Traits(tensor.view.type).name];
    total.tensors += 1;
    total.parameters += tensor.view.shape.elements();
    total.bytes += tensor.view.bytes();
    summary.parameters += tensor.view.shape.elements();
  }
  return summary;
}

std::string ShapeText(const Shape& shape) {
  std::string out = "[";
  for (int i = 0; i < shape.num_dims; ++i) {
    out += (i == 0 ? "" : ", ") + std::to_string(shape.dims[i]);
  }
  return out + "]";
}

// Shows one metadata value; the overloads are the types of MetadataValue.
struct ValueText {
  std::string operator()(bool x) const { return x ? "true" : "false"; }
  std::string operator()(int64_t x) const { return std::to_string(x); }
  std::string operator()(uint64_t x) const { return std::to_string(x); }
  std::string operator()(double x) const { return JsonNumber(x); }
  std::string operator()(std::string_view x) const {
    if (x.size() <= kShownCharacters) return JsonQuote(x);
    size_t cut = kShownCharacters;
    while (cut > 0 && (static_cast<uint8_t>(x[cut]) & 0xc0) == 0x80) --cut;  // whole characters
    return JsonQuote(x.substr(0, cut)) + "... (" + FormatCount(static_cast<int64_t>(x.size())) +
           " bytes)";
  }
  template <class T>
  std::string operator()(const std::vector<T>& items) const {
    std::string out = "[";
    for (size_t i = 0; i < std::min(items.size(), kShownItems); ++i) {
      out += (i == 0 ? "" : ", ") + (*this)(items[i]);
    }
    if (items.size() <= kShownItems) return out + "]";
    return out + ", ...] (" + FormatCount(static_cast<int64_t>(items.size())) + " values)";
  }
};

// The same as JSON: short arrays whole, long ones as their length and first values.
struct ValueJson {
  JsonWriter& json;
  template <class T>
  void operator()(const T& x) const {
    json.Value(x);
  }
  template <class T>
  void operator()(const std::vector<T>& items) const {
    constexpr size_t kWholeArray = 64;
    const bool whole = items.size() <= kWholeArray;
    if (!whole) json.BeginObject().Field("length", items.size()).Key("first");
    json.BeginArray();
    for (size_t i = 0; i < (whole ? items.size() : kShownItems); ++i) json.Value(items[i]);
    json.EndArray();
    if (!whole) json.EndObject();
  }
};

std::string AsJson(const WeightSource& source, const Summary& summary) {
  JsonWriter json;
  json.BeginObject().Field("path", source.path());
  json.Field("format", source.kind() == FileKind::kGguf ? "gguf" : "huggingface");
  json.Key("files").BeginArray();
  for (const MappedFile& file : source.files()) json.Value(file.path());
  json.EndArray();
  json.Field("architecture", summary.architecture).Field("name", summary.name);
  json.Field("parameters", summary.parameters).Field("tensor_bytes", source.tensor_bytes());
  json.Field("context_length", summary.context_length).Field("tokenizer", summary.tokenizer);
  json.Field("vocab_size", summary.vocab_size);
  json.Field("chat_template", summary.has_chat_template);
  json.Key("types").BeginObject();
  for (const auto& [name, total] : summary.types) {
    json.Key(name).BeginObject().Field("tensors", total.tensors);
    json.Field("parameters", total.parameters).Field("bytes", total.bytes).EndObject();
  }
  json.EndObject().Key("metadata").BeginObject();
  for (const auto& [key, value] : source.metadata().values()) {
    json.Key(key);
    std::visit(ValueJson{json}, value);
  }
  json.EndObject().Key("tensors").BeginArray();
  for (const StoredTensor& tensor : source.tensors()) {
    json.BeginObject().Field("name", tensor.name);
    json.Field("type", Traits(tensor.view.type).name).Key("shape").BeginArray();
    for (int i = 0; i < tensor.view.shape.num_dims; ++i) json.Value(tensor.view.shape.dims[i]);
    json.EndArray().Field("file", tensor.file_index).Field("offset", tensor.file_offset);
    json.Field("bytes", tensor.view.bytes()).EndObject();
  }
  return json.EndArray().EndObject().text() + "\n";
}

std::string AsText(const Console& console, const WeightSource& source, const Summary& summary,
                   bool only_summary) {
  const auto heading = [&](const std::string& text) {
    return "\n" + console.StyleOut(Style::kBold, text) + "\n";
  };
  const auto row = [](std::string name, const std::string& value) {
    name.resize(16, ' ');
    return name + value + "\n";
  };
  const bool is_gguf = source.kind() == FileKind::kGguf;
  std::string out = row("file", source.path());
  out += row("format", (is_gguf ? "GGUF, " : "Hugging Face folder, ") +
                           std::to_string(source.files().size()) +
                           (source.files().size() == 1 ? " file" : " files"));
  out += row("architecture", ValueText()(std::string_view(summary.architecture)));
  out += row("name", ValueText()(std::string_view(summary.name)));
  out += row("parameters", FormatCount(summary.parameters));
  out += row("tensor bytes", FormatBytes(static_cast<int64_t>(source.tensor_bytes())));
  out += row("context length", FormatCount(summary.context_length));
  out += row("tokenizer", ValueText()(std::string_view(summary.tokenizer)) + ", " +
                              FormatCount(summary.vocab_size) + " tokens");
  out += row("chat template", summary.has_chat_template ? "yes" : "no");

  std::vector<std::vector<std::string>> rows = {{"type", "tensors", "parameters", "bytes"}};
  for (const auto& [name, total] : summary.types) {
    rows.push_back({std::string(name), FormatCount(total.tensors), FormatCount(total.parameters),
                    FormatBytes(total.bytes)});
  }
  out += heading("Types") + FormatTable(rows);
  if (only_summary) return out;

  out += heading("Metadata");
  for (const auto& [key, value] : source.metadata().values()) {
    out += JsonQuote(key).substr(1, JsonQuote(key).size() - 2) + " = " +
           std::visit(ValueText(), value) + "\n";
  }
  rows = {{"tensor", "type", "shape", "bytes"}};
  for (const StoredTensor& tensor : source.tensors()) {
    const std::string name = JsonQuote(tensor.name);
    rows.push_back({name.substr(1, name.size() - 2), std::string(Traits(tensor.view.type).name),
                    ShapeText(tensor.view.shape), FormatBytes(tensor.view.bytes())});
  }
  return out + heading("Tensors") + FormatTable(rows);
}

}  // namespace

Status RunInspect(Console& console, const ArgList& list) {
  if (std::find(list.begin(), list.end(), "--kv") != list.end()) {
    return RunInspectKv(console, list);
  }
  std::string model;
  bool as_json = false, only_summary = false;
  Args args("inspect", "FILE [OPTIONS]",
            "Shows what a model file holds: architecture, size, types, metadata and tensors. The "
            "weights are not read, so it is quick for any size.",
            "  lode inspect model.gguf\n"
            "  lode inspect model-00001-of-00003.gguf    all parts of a split file\n"
            "  lode inspect hugging_face_folder/ --summary\n"
            "  lode inspect model.gguf --json | jq '.types'\n"
            "  lode inspect --kv -m MODEL -f FILE        what the cache does in a run\n");
  args.Positional("FILE", &model, true,
                  "A .gguf file, a Hugging Face folder, or a name that `lode pull` has fetched.");
  args.Flag("--summary", &only_summary, "Leave out metadata and tensors.");
  args.Flag("--json", &as_json, "Print JSON.");
  LODE_ASSIGN_OR_RETURN(const bool proceed, args.Parse(list, console));
  if (!proceed) return OkStatus();

  LODE_ASSIGN_OR_RETURN(const std::string path, ResolveModel(model));
  LODE_ASSIGN_OR_RETURN(const auto source, OpenWeights(path));
  const Summary summary = Summarise(*source);
  return console.Out(as_json ? AsJson(*source, summary)
                             : AsText(console, *source, summary, only_summary));
}

}  // namespace lode::cli
