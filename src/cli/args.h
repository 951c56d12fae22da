// SPDX-License-Identifier: Apache-2.0
// Args: the options of one verb, how they are read and how `--help` explains them.
//
// An option is declared once with its target variable; the variable's value at that moment is the
// default that help shows. `--name value`, `--name=value`, `-n value`; dashes and underscores are
// the same; the last of repeated options wins (lists collect); `--` ends the options. Integers may
// end in k (1000), K (1024), m or M. Numbers never depend on the locale. Written here rather than
// taken from a library because all that a library would add is parsing: help that teaches, nearest
// names and Status errors are the larger part.
#ifndef LODE_CLI_ARGS_H_
#define LODE_CLI_ARGS_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/parse_number.h"
#include "base/status.h"
#include "cli/console.h"

namespace lode::cli {

using ArgList = std::vector<std::string>;

class Args {
 public:
  // verb: "run". usage: what follows "lode run". summary: complete sentences. examples: lines of
  // commands with comments. All are shown by --help.
  Args(std::string verb, std::string usage, std::string summary, std::string examples);

  // names: "-m, --model". meta names the value in help ("PATH"). Targets must outlive Parse.
  void Flag(std::string_view names, bool* target, std::string_view help);
  void Text(std::string_view names, std::string_view meta, std::string* target,
            std::string_view help);
  void Texts(std::string_view names, std::string_view meta, std::vector<std::string>* target,
             std::string_view help);
  void Int(std::string_view names, std::string_view meta, int64_t* target, IntRange range,
           std::string_view help);
  // Comma separated.
  void Ints(std::string_view names, std::string_view meta, std::vector<int64_t>* target,
            IntRange range, std::string_view help);
  void Real(std::string_view names, std::string_view meta, float* target, std::string_view help);
  // An option whose value `set` checks and stores; default_text is shown by help.
  void Custom(std::string_view names, std::string_view meta, std::string_view help,
              std::function<Status(std::string_view)> set, std::string default_text = "");
  // The n-th word that is no option. Required ones come before others.
  void Positional(std::string_view meta, std::string* target, bool required, std::string_view help);
  // Options declared from here on are listed under this heading.
  void Group(std::string heading);

  // Fills the targets. False: --help was asked for and printed. InvalidArgument names the option,
  // what was expected and the nearest known name.
  Result<bool> Parse(const ArgList& list, Console& console);
  // Whether the option was on the command line.
  bool Given(std::string_view name) const;
  std::string Help(const Console& console) const;

 private:
  struct Option {
    std::vector<std::string> names;
    std::string meta;  // empty: a flag
    std::string help;
    std::string default_text;
    size_t group = 0;
    std::function<Status(std::string_view)> set;
    bool given = false;
  };
  struct Word {
    std::string meta;
    std::string* target;
    bool required;
    std::string help;
  };

  Option& Add(std::string_view names, std::string_view meta, std::string_view help,
              std::string default_text, std::function<Status(std::string_view)> set);
  Option* FindOption(std::string_view name);
  Status UnknownOption(std::string_view name) const;
  // Reads the option at list[*at] and its value, and moves *at behind them.
  Status ParseOption(const ArgList& list, size_t* at);
  Status CheckWords(const std::vector<std::string>& words);

  std::string verb_, usage_, summary_, examples_;
  std::vector<std::string> groups_ = {"Options"};
  std::vector<Option> options_;
  std::vector<Word> words_;
};

}  // namespace lode::cli

#endif  // LODE_CLI_ARGS_H_
