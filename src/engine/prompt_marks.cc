// SPDX-License-Identifier: Apache-2.0
#include "engine/prompt_marks.h"

#include <cstdint>
#include <string>
#include <utility>

namespace lode {
namespace {

constexpr std::string_view kBorder = "<hca-sep>";
constexpr std::string_view kFine = "<hca-fine>";
constexpr std::string_view kBeginning = "<hca-";  // of both

struct Mark {
  size_t offset = 0;  // in the text without marks
  bool fine = false;  // else a border
};

// Appends `text` without its marks to `clean`.
std::vector<Mark> TakeOutMarks(std::string_view text, std::string& clean) {
  std::vector<Mark> marks;
  while (true) {
    const size_t at = text.find(kBeginning);
    clean += text.substr(0, at);
    if (at == std::string_view::npos) return marks;
    text.remove_prefix(at);
    const bool fine = text.starts_with(kFine);
    if (fine || text.starts_with(kBorder)) {
      marks.push_back({.offset = clean.size(), .fine = fine});
      text.remove_prefix(fine ? kFine.size() : kBorder.size());
    } else {
      clean += kBeginning;
      text.remove_prefix(kBeginning.size());
    }
  }
}

// From marks, in order, to ranges.
class Ranges {
 public:
  void Fine(int64_t position) {
    if (fine_since_ < 0) fine_since_ = position;
  }
  void Border(int64_t position) {
    const int64_t begin = fine_since_ >= 0 ? fine_since_ : position;
    fine_since_ = -1;
    const bool known = !ranges_.empty() && ranges_.back().end == position;
    if (position > 0 && !known) ranges_.push_back({.begin = begin, .end = position});
  }
  std::vector<TokenRange> Finish(int64_t length) && {
    if (fine_since_ >= 0 && fine_since_ < length) {
      ranges_.push_back({.begin = fine_since_, .end = length});
    }
    return std::move(ranges_);
  }

 private:
  std::vector<TokenRange> ranges_;
  int64_t fine_since_ = -1;  // -1: summaries are allowed
};

}  // namespace

MarkedPrompt EncodeMarked(const Tokenizer& tokenizer, std::string_view text,
                          const EncodeOptions& options) {
  std::string clean;
  const std::vector<Mark> marks = TakeOutMarks(text, clean);
  MarkedPrompt prompt;
  EncodeOptions part_options = options;
  size_t done = 0;
  const auto encode_to = [&](size_t end) {
    part_options.more_follows = options.more_follows || end < clean.size();
    const std::vector<TokenId> ids =
        tokenizer.Encode(std::string_view(clean).substr(done, end - done), part_options);
    prompt.tokens.insert(prompt.tokens.end(), ids.begin(), ids.end());
    const bool after_token = !ids.empty() && tokenizer.IsControl(ids.back());
    part_options.before = after_token ? Before::kToken : Before::kText;
    done = end;
  };
  Ranges ranges;
  for (const Mark& mark : marks) {
    if (mark.offset > done) encode_to(mark.offset);
    const auto position = static_cast<int64_t>(prompt.tokens.size());
    mark.fine ? ranges.Fine(position) : ranges.Border(position);
  }
  if (done < clean.size() || clean.empty()) encode_to(clean.size());
  prompt.exact = std::move(ranges).Finish(static_cast<int64_t>(prompt.tokens.size()));
  return prompt;
}

MarkedPrompt EncodePrompt(const Engine& engine, std::string_view text,
                          const EncodeOptions& options) {
  const EngineOptions& of = engine.options();
  for (const std::string& attention : {of.attention, of.prefill_attention}) {
    if (NeedsCalibration(attention)) return EncodeMarked(engine.tokenizer(), text, options);
  }
  return {.tokens = engine.tokenizer().Encode(text, options), .exact = {}};
}

}  // namespace lode
