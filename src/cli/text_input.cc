// SPDX-License-Identifier: Apache-2.0
#include "cli/text_input.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace lode::cli {

void TextOptions::AddTo(Args& args) {
  args.Text("-p, --prompt", "TEXT", &prompt, "The text itself.");
  args.Text("-f, --file", "PATH", &file, "A file with the text; - is standard input.");
}

Result<std::string> ReadText(const std::string& path) {
  const bool is_stdin = path == "-";
  const int fd = is_stdin ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const std::string name = is_stdin ? "standard input" : path;
  if (fd < 0) {
    const std::string message = name + ": " + std::strerror(errno);
    return errno == ENOENT ? NotFoundError(message) : IoError(message);
  }
  std::string text;
  std::string buffer(1 << 16, '\0');
  Status status;
  while (true) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got == 0) break;
    if (got > 0) {
      text.append(buffer, 0, static_cast<size_t>(got));
    } else if (errno != EINTR) {
      status = IoError(name + ": " + std::strerror(errno));
      break;
    }
  }
  if (!is_stdin) ::close(fd);
  if (!status.ok()) return status;
  return text;
}

Result<TextInput> ReadTextInput(const Console& console, const Args& args,
                                const TextOptions& options) {
  TextInput input;
  const bool has_prompt = args.Given("--prompt"), has_file = args.Given("--file");
  if (has_prompt) input.prompt = options.prompt;
  if (has_file || (!has_prompt && !console.stdin_is_terminal())) {
    LODE_ASSIGN_OR_RETURN(input.file, ReadText(has_file ? options.file : "-"));
  }
  return input;
}

}  // namespace lode::cli
