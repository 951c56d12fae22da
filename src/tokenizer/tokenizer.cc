// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/tokenizer.h"

#include "tokenizer/tokenizer_spec.h"
#include "tokenizer/unicode.h"

namespace lode {

Result<std::unique_ptr<Tokenizer>> Tokenizer::Load(const WeightSource& source) {
  if (source.kind() == FileKind::kGguf) {
    LODE_ASSIGN_OR_RETURN(const TokenizerSpec spec, SpecFromGguf(source.metadata()));
    return BuildTokenizer(spec);
  }
  LODE_ASSIGN_OR_RETURN(const TokenizerSpec spec,
                        SpecFromHuggingFace(source.path(), source.side_file("tokenizer.json"),
                                            source.side_file("tokenizer_config.json"),
                                            source.side_file("generation_config.json")));
  return BuildTokenizer(spec);
}

std::string Detokenizer::Push(TokenId id) {
  std::string bytes = tokenizer_.TokenBytes(id);
  if (at_start_ && !bytes.empty()) {
    if (tokenizer_.strips_leading_space() && bytes[0] == ' ') bytes.erase(0, 1);
    at_start_ = false;
  }
  pending_ += bytes;
  const size_t complete = pending_.size() - IncompleteUtf8Tail(pending_);
  std::string text = ReplaceIllFormed(std::string_view(pending_).substr(0, complete));
  pending_.erase(0, complete);
  return text;
}

std::string Detokenizer::Finish() {
  std::string text = ReplaceIllFormed(pending_);
  pending_.clear();
  return text;
}

}  // namespace lode
