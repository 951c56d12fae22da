// SPDX-License-Identifier: Apache-2.0
// Test tool: lode_render_template TEMPLATE.jinja BOS EOS < jobs > results. A job is a line of JSON
// texts separated by tabs: true or false for the generation prompt, tools or null, further
// variables, then one object per message. A result is "ok" or "error", the length in bytes, a
// newline, and the text.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "tokenizer/chat_template.h"

namespace {

std::vector<std::string> Fields(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream in(line);
  for (std::string field; std::getline(in, field, '\t');) fields.push_back(field);
  return fields;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: lode_render_template TEMPLATE.jinja BOS EOS < jobs\n";
    return 2;
  }
  std::ifstream file(argv[1], std::ios::binary);
  const std::string source((std::istreambuf_iterator<char>(file)), {});
  const auto chat = lode::ChatTemplate::FromSource(source, argv[2], argv[3]);
  for (std::string line; std::getline(std::cin, line);) {
    const std::vector<std::string> fields = Fields(line);
    if (fields.size() < 3) {
      std::cerr << "a job has at least three fields\n";
      return 2;
    }
    lode::ChatRenderOptions options;
    options.add_generation_prompt = fields[0] == "true";
    options.tools_json = fields[1] == "null" ? "" : fields[1];
    options.extra_json = fields[2];
    std::vector<lode::ChatMessage> messages;
    for (size_t i = 3; i < fields.size(); ++i) messages.push_back({"", "", fields[i]});
    const auto text = chat.value()->Render(messages, options);
    const std::string body = text.ok() ? *text : text.status().ToString();
    std::printf("%s %zu\n%s\n", text.ok() ? "ok" : "error", body.size(), body.c_str());
  }
  return 0;
}
