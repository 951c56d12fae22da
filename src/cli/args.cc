// SPDX-License-Identifier: Apache-2.0
#include "cli/args.h"

#include <algorithm>
#include <charconv>

namespace lode::cli {
namespace {

// "-m, --model" -> {"-m", "--model"}
std::vector<std::string> SplitNames(std::string_view names) {
  std::vector<std::string> out;
  while (!names.empty()) {
    const size_t comma = std::min(names.find(", "), names.size());
    out.emplace_back(names.substr(0, comma));
    names.remove_prefix(std::min(names.size(), comma + 2));
  }
  return out;
}

std::vector<std::string_view> SplitCommas(std::string_view text) {
  std::vector<std::string_view> out;
  while (true) {
    const size_t comma = text.find(',');
    out.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return out;
    text.remove_prefix(comma + 1);
  }
}

// Option names are compared with underscores as dashes; a value after = stays as it is.
std::string Normalised(std::string_view name) {
  std::string out(name);
  if (out.starts_with("--")) std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

// A word that must be an option: "-x", "--x", but not "-" (stdin) nor a negative number.
bool LooksLikeOption(std::string_view word) {
  if (word.size() < 2 || word[0] != '-') return false;
  return !(word[1] >= '0' && word[1] <= '9') && word[1] != '.';
}

// help wrapped at `width` columns, continuation lines indented.
std::string Wrap(std::string_view text, size_t indent, size_t width) {
  std::string out;
  size_t column = indent;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (column > indent && column + 1 + end > width) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += text.substr(0, end);
    column += end;
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return out;
}

}  // namespace

Args::Args(std::string verb, std::string usage, std::string summary, std::string examples)
    : verb_(std::move(verb)),
      usage_(std::move(usage)),
      summary_(std::move(summary)),
      examples_(std::move(examples)) {}

Args::Option& Args::Add(std::string_view names, std::string_view meta, std::string_view help,
                        std::string default_text, std::function<Status(std::string_view)> set) {
  Option option;
  option.names = SplitNames(names);
  option.meta = meta;
  option.help = help;
  option.default_text = std::move(default_text);
  option.group = groups_.size() - 1;
  option.set = std::move(set);
  options_.push_back(std::move(option));
  return options_.back();
}

void Args::Flag(std::string_view names, bool* target, std::string_view help) {
  Add(names, "", help, "", [target](std::string_view) {
    *target = true;
    return OkStatus();
  });
}

void Args::Text(std::string_view names, std::string_view meta, std::string* target,
                std::string_view help) {
  Add(names, meta, help, *target, [target](std::string_view text) {
    *target = text;
    return OkStatus();
  });
}

void Args::Texts(std::string_view names, std::string_view meta, std::vector<std::string>* target,
                 std::string_view help) {
  Add(names, meta, help, "", [target](std::string_view text) {
    target->emplace_back(text);
    return OkStatus();
  });
}

void Args::Int(std::string_view names, std::string_view meta, int64_t* target, IntRange range,
               std::string_view help) {
  Add(names, meta, help, std::to_string(*target), [target, range](std::string_view text) -> Status {
    LODE_ASSIGN_OR_RETURN(*target, ParseInteger(text, range));
    return OkStatus();
  });
}

void Args::Ints(std::string_view names, std::string_view meta, std::vector<int64_t>* target,
                IntRange range, std::string_view help) {
  std::string default_text;
  for (const int64_t x : *target) {
    default_text += (default_text.empty() ? "" : ",") + std::to_string(x);
  }
  Add(names, meta, help, default_text, [target, range](std::string_view text) -> Status {
    target->clear();
    for (const std::string_view item : SplitCommas(text)) {
      LODE_ASSIGN_OR_RETURN(const int64_t value, ParseInteger(item, range));
      target->push_back(value);
    }
    return OkStatus();
  });
}

void Args::Real(std::string_view names, std::string_view meta, float* target,
                std::string_view help) {
  char buffer[48];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), *target);
  Add(names, meta, help, std::string(buffer, end.ptr), [target](std::string_view text) -> Status {
    LODE_ASSIGN_OR_RETURN(*target, ParseReal(text));
    return OkStatus();
  });
}

void Args::Custom(std::string_view names, std::string_view meta, std::string_view help,
                  std::function<Status(std::string_view)> set, std::string default_text) {
  Add(names, meta, help, std::move(default_text), std::move(set));
}

void Args::Positional(std::string_view meta, std::string* target, bool required,
                      std::string_view help) {
  words_.push_back({std::string(meta), target, required, std::string(help)});
}

void Args::Group(std::string heading) {
  groups_.push_back(std::move(heading));
}

Args::Option* Args::FindOption(std::string_view name) {
  for (Option& option : options_) {
    if (std::find(option.names.begin(), option.names.end(), name) != option.names.end()) {
      return &option;
    }
  }
  return nullptr;
}

bool Args::Given(std::string_view name) const {
  const Option* option = const_cast<Args*>(this)->FindOption(name);
  LODE_CHECK(option != nullptr);
  return option->given;
}

Status Args::UnknownOption(std::string_view name) const {
  std::vector<std::string> known = {"--help"};
  for (const Option& option : options_) {
    known.insert(known.end(), option.names.begin(), option.names.end());
  }
  std::erase_if(known, [](const std::string& x) { return x.size() == 2; });  // "-m": too like all
  const std::string nearest = NearestName(name, known);
  return WithHint(InvalidArgumentError("unknown option " + std::string(name)),
                  nearest.empty() ? "`lode " + verb_ + " --help` lists the options"
                                  : "did you mean " + nearest + "?");
}

Status Args::ParseOption(const ArgList& list, size_t* at) {
  const std::string& word = list[*at];
  ++*at;
  const size_t equals = word.starts_with("--") ? word.find('=') : std::string::npos;
  const std::string name = Normalised(word.substr(0, equals));
  Option* option = FindOption(name);
  if (option == nullptr) return UnknownOption(name);
  option->given = true;
  std::string value;
  if (option->meta.empty()) {
    if (equals != std::string::npos) {
      return InvalidArgumentError(name + ": expected no value, found '" + word.substr(equals + 1) +
                                  "'");
    }
  } else if (equals != std::string::npos) {
    value = word.substr(equals + 1);
  } else if (*at < list.size()) {
    value = list[*at];
    // A forgotten value would swallow the next option and fail somewhere else.
    if (LooksLikeOption(value) && FindOption(Normalised(value)) != nullptr) {
      return InvalidArgumentError(name + ": expected " + option->meta + ", found the option " +
                                  value + " (write " + name + "=" + value +
                                  " if that is the value)");
    }
    ++*at;
  } else {
    return InvalidArgumentError(name + ": expected " + option->meta + ", found nothing");
  }
  return option->set(value).WithContext(name);
}

Result<bool> Args::Parse(const ArgList& list, Console& console) {
  std::vector<std::string> words;
  bool options_end = false;
  for (size_t at = 0; at < list.size();) {
    const std::string& word = list[at];
    if (!options_end && (word == "--help" || word == "-h")) {
      LODE_RETURN_IF_ERROR(console.Out(Help(console)));
      return false;
    }
    if (!options_end && word == "--") {
      options_end = true;
      ++at;
    } else if (!options_end && LooksLikeOption(word)) {
      LODE_RETURN_IF_ERROR(ParseOption(list, &at));
    } else {
      words.push_back(word);
      ++at;
    }
  }
  LODE_RETURN_IF_ERROR(CheckWords(words));
  return true;
}

Status Args::CheckWords(const std::vector<std::string>& words) {
  for (size_t i = 0; i < words_.size(); ++i) {
    if (i < words.size()) {
      *words_[i].target = words[i];
    } else if (words_[i].required) {
      return WithHint(InvalidArgumentError("missing " + words_[i].meta),
                      "usage: lode " + verb_ + " " + usage_);
    }
  }
  if (words.size() > words_.size()) {
    return WithHint(InvalidArgumentError("unexpected argument '" + words[words_.size()] + "'"),
                    "usage: lode " + verb_ + " " + usage_);
  }
  return OkStatus();
}

std::string Args::Help(const Console& console) const {
  constexpr size_t kHelpColumn = 30, kWidth = 100;
  const auto line = [](const std::string& left, const std::string& help) {
    std::string out = "  " + left;
    if (out.size() + 2 > kHelpColumn) {
      out += "\n" + std::string(kHelpColumn, ' ');
    } else {
      out.resize(kHelpColumn, ' ');
    }
    return out + Wrap(help, kHelpColumn, kWidth) + "\n";
  };
  const auto heading = [&](const std::string& text) {
    return "\n" + console.StyleOut(Style::kBold, text) + "\n";
  };
  std::string out =
      "Usage: lode " + verb_ + " " + usage_ + "\n\n" + Wrap(summary_, 0, kWidth) + "\n";
  out += heading("Examples") + examples_;
  if (!words_.empty()) {
    out += heading("Arguments");
    for (const Word& word : words_) out += line(word.meta, word.help);
  }
  for (size_t group = 0; group < groups_.size(); ++group) {
    std::string lines;
    for (const Option& option : options_) {
      if (option.group != group) continue;
      std::string left;
      for (const std::string& name : option.names) left += (left.empty() ? "" : ", ") + name;
      if (!option.meta.empty()) left += " " + option.meta;
      const std::string& value = option.default_text;
      lines += line(left, option.help + (value.empty() ? "" : " (default: " + value + ")"));
    }
    if (!lines.empty()) out += heading(groups_[group]) + lines;
  }
  return out + line("-h, --help", "Show this text.");
}

}  // namespace lode::cli
