// SPDX-License-Identifier: Apache-2.0
// The `lode` program: a table of verbs, and the one place where a Status becomes a message and an
// exit code.
#include <csignal>
#include <string>
#include <vector>

#include "cli/build_info.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/exit_code.h"

namespace lode::cli {
namespace {

struct Command {
  const char* name;
  const char* summary;
  Status (*run)(Console& console, const ArgList& list);
};

constexpr Command kCommands[] = {
    {"run", "Answer a prompt, or chat", RunRun},
    {"pull", "Fetch a model by name", RunPull},
    {"plan", "Show the memory a model will take", RunPlan},
    {"inspect", "Show what a model file holds", RunInspect},
    {"tokenize", "Show the tokens of a text", RunTokenize},
    {"eval", "Measure how well a model predicts a text", RunEval},
    {"calibrate", "Fit the key codes of csa_hca to a model", RunCalibrate},
    {"verify", "Measure what sparse attention loses against exact attention", RunVerify},
    {"bench", "Measure speed at depth, against the machine's limits", RunBench},
};

constexpr char kExamples[] =
    "  lode pull qwen2.5-coder-0.5b                     fetch a small model\n"
    "  lode run -m qwen2.5-coder-0.5b -p 'Say hello'    one answer\n"
    "  lode run -m qwen2.5-coder-0.5b                   chat\n"
    "  lode run -m MODEL -f notes.txt -p 'What is the deadline?'\n";

std::string Help(const Console& console) {
  std::string out =
      "lode runs open language models with very long contexts on ordinary CPUs.\n\n"
      "Usage: lode COMMAND [OPTIONS]\n\n" +
      console.StyleOut(Style::kBold, "Commands") + "\n";
  for (const Command& command : kCommands) {
    std::string name = std::string("  ") + command.name;
    name.resize(14, ' ');
    out += name + command.summary + "\n";
  }
  return out + "\n" + console.StyleOut(Style::kBold, "Examples") + "\n" + kExamples +
         "\n`lode COMMAND --help` explains a command; `lode --version` names this build.\n";
}

Status Dispatch(Console& console, const ArgList& words) {
  if (words.empty()) {
    console.Err(Help(console));
    return InvalidArgumentError("missing COMMAND");
  }
  const std::string& verb = words.front();
  ArgList rest(words.begin() + 1, words.end());
  if (verb == "--help" || verb == "-h" || verb == "help") {
    if (verb != "help" || rest.empty()) return console.Out(Help(console));
    return Dispatch(console, {rest.front(), "--help"});
  }
  if (verb == "--version" || verb == "version") {
    return console.Out(std::string("lode ") + BuildVersion() + " (" + BuildCommit() + ", " +
                       BuildType() + ")\n");
  }
  std::vector<std::string> names = {"help", "version"};
  for (const Command& command : kCommands) {
    if (verb == command.name) return command.run(console, rest);
    names.push_back(command.name);
  }
  const std::string nearest = NearestName(verb, names);
  return WithHint(InvalidArgumentError("unknown command '" + verb + "'"),
                  nearest.empty() ? "`lode --help` lists the commands"
                                  : "did you mean `lode " + nearest + "`?");
}

}  // namespace
}  // namespace lode::cli

int main(int argc, char** argv) {
  using namespace lode::cli;
  // A parent may have left SIGPIPE ignored; `lode ... | head` shall end quietly all the same.
  std::signal(SIGPIPE, SIG_DFL);
  Console console;
  const lode::Status status = Dispatch(console, ArgList(argv + 1, argv + argc));
  if (!status.ok()) {
    console.Err("lode: " + console.StyleErr(Style::kRed, "error:") + " " + status.message() + "\n");
  }
  return ExitCode(status.code());
}
