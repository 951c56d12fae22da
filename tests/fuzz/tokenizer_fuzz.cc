// SPDX-License-Identifier: Apache-2.0
// Fuzzes what reads foreign text in tokenizer/: the first byte picks tokenizer.json, a chat
// template, or text to encode with a small vocabulary (run from the repository's root), whose ids
// must give the text back.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>

#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_spec.h"

namespace {

std::unique_ptr<lode::Tokenizer> SmallTokenizer() {
  std::ifstream file("tests/data/tokenizer/llama3.json", std::ios::binary);
  const std::string json((std::istreambuf_iterator<char>(file)), {});
  auto spec = lode::SpecFromHuggingFace("llama3.json", json, "", "");
  if (!spec.ok()) std::abort();
  return std::move(lode::BuildTokenizer(*spec)).value();
}

void FuzzJson(std::string_view json) {
  const auto spec = lode::SpecFromHuggingFace("fuzz", json, json, json);
  if (!spec.ok()) return;
  const auto tokenizer = lode::BuildTokenizer(*spec);
  if (tokenizer.ok()) (*tokenizer)->Decode((*tokenizer)->Encode("Hello <s> \xF0\x9F\x91\xA9"));
}

void FuzzTemplate(std::string_view source) {
  const auto chat = lode::ChatTemplate::FromSource(std::string(source), "<s>", "</s>");
  const auto text = (*chat)->Render({{"user", "Hello"}, {"assistant", "<b>"}}, {});
  if (!text.ok() && text.status().code() == lode::StatusCode::kInternal) std::abort();
}

void FuzzText(std::string_view text) {
  static const std::unique_ptr<lode::Tokenizer> tokenizer = SmallTokenizer();
  if (tokenizer->Decode(tokenizer->Encode(text, {.add_special = false})) != text) std::abort();
  lode::Detokenizer stream(*tokenizer);
  for (const lode::TokenId id : tokenizer->Encode(text)) stream.Push(id);
  stream.Finish();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      FuzzJson(text);
      break;
    case 1:
      FuzzTemplate(text);
      break;
    default:
      FuzzText(text);
  }
  return 0;
}
