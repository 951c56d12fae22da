// SPDX-License-Identifier: Apache-2.0
// The published expressions (tokenizer.json of each family), with `\s` spelled out: Hugging Face's
// engine (Oniguruma) takes Unicode White_Space, PCRE2 would add U+180E.
//
// JIT code for single-character repeats keeps no state per character, so the default 32 KiB JIT
// stack suffices for any length; should it ever not, PCRE2's interpreter (heap, no recursion) takes
// over. The thread's own stack is not used in proportion to the text.
#include "tokenizer/pretokenize.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <cstdint>
#include <string>
#include <utility>

#include "base/check.h"
#include "tokenizer/unicode.h"

namespace lode {
namespace {

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepSeekDigits = R"(\p{N}{1,3})";
constexpr std::string_view kDeepSeekCjk = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
constexpr std::string_view kDeepSeekWords =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Family {
  std::string_view name;
  std::vector<std::string_view> expressions;
};

const std::vector<Family>& Families() {
  static const std::vector<Family> families = {
      {"gpt-2", {kGpt2}},
      {"qwen2", {kQwen2}},
      {"llama-bpe", {kLlama3}},
      {"deepseek-v3", {kDeepSeekDigits, kDeepSeekCjk, kDeepSeekWords}},
  };
  return families;
}

// Other names for the same expressions.
std::string_view CanonicalName(std::string_view name) {
  if (name == "gpt2") return "gpt-2";
  if (name == "llama3" || name == "llama-v3") return "llama-bpe";
  return name;
}

// Replaces \s and \S by Unicode's White_Space.
std::string WithUnicodeSpace(std::string_view expression) {
  constexpr std::string_view kSpace =
      R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
  std::string result;
  bool in_class = false;
  for (size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (c == '\\' && i + 1 < expression.size()) {
      const char escaped = expression[++i];
      if (escaped == 's') {
        result += in_class ? std::string(kSpace) : fmt::format("[{}]", kSpace);
      } else if (escaped == 'S') {
        result += fmt::format("[^{}]", kSpace);  // occurs outside of classes only
      } else {
        result += {'\\', escaped};
      }
      continue;
    }
    if (c == '[' && !in_class) {
      in_class = true;
    } else if (c == ']') {
      in_class = false;
    }
    result += c;
  }
  return result;
}

struct CodeFree {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchDataFree {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
using Code = std::unique_ptr<pcre2_code, CodeFree>;
using MatchData = std::unique_ptr<pcre2_match_data, MatchDataFree>;

Result<Code> Compile(std::string_view expression) {
  const std::string pattern = WithUnicodeSpace(expression);
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                          PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
  if (code == nullptr) {
    return InternalError(fmt::format(
        "pre-tokenizer expression refused by PCRE2 (error {} at {}): {}", error, offset, pattern));
  }
  // Without JIT support (an unusual build of PCRE2) the interpreter gives the same matches, slower.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

class RegexPreTokenizer final : public PreTokenizer {
 public:
  explicit RegexPreTokenizer(std::vector<Code> codes) : codes_(std::move(codes)) {}

  void Split(std::string_view text, FunctionRef<void(std::string_view)> word) const override {
    const MatchData match(pcre2_match_data_create(1, nullptr));
    LODE_CHECK(match != nullptr);
    ForEachUtf8Run(text, [&](std::string_view run, bool well_formed) {
      if (well_formed) {
        SplitBy(0, run, match.get(), word);
      } else {
        word(run);
      }
    });
  }

 private:
  // Cuts `text` by expression `level` and hands each part to the next one. At most as deep as there
  // are expressions (three).
  void SplitBy(size_t level, std::string_view text, pcre2_match_data* match,
               FunctionRef<void(std::string_view)> word) const {
    if (level == codes_.size()) {
      word(text);
      return;
    }
    size_t done = 0;
    while (done < text.size()) {
      size_t begin = text.size();
      size_t end = text.size();
      Match(codes_[level].get(), text, done, match, &begin, &end);
      if (begin > done) SplitBy(level + 1, text.substr(done, begin - done), match, word);
      if (end > begin) SplitBy(level + 1, text.substr(begin, end - begin), match, word);
      done = end;
    }
  }

  // The first match at or after `start`; leaves begin and end when there is none.
  static void Match(const pcre2_code* code, std::string_view text, size_t start,
                    pcre2_match_data* match, size_t* begin, size_t* end) {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    int found = pcre2_match(code, subject, text.size(), start, PCRE2_NO_UTF_CHECK, match, nullptr);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      found = pcre2_match(code, subject, text.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                          match, nullptr);
    }
    if (found == PCRE2_ERROR_NOMATCH) return;
    // The expressions are ours and need neither backtracking nor memory in proportion to the text.
    LODE_CHECK(found >= 0);
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(match);
    *begin = offsets[0];
    *end = offsets[1];
  }

  std::vector<Code> codes_;
};

}  // namespace

Result<std::unique_ptr<PreTokenizer>> PreTokenizer::Create(std::string_view name) {
  std::string known;
  for (const Family& family : Families()) {
    known += known.empty() ? "" : ", ";
    known += family.name;
    if (family.name != CanonicalName(name)) continue;
    std::vector<Code> codes;
    for (const std::string_view expression : family.expressions) {
      LODE_ASSIGN_OR_RETURN(Code code, Compile(expression));
      codes.push_back(std::move(code));
    }
    return std::unique_ptr<PreTokenizer>(new RegexPreTokenizer(std::move(codes)));
  }
  return UnsupportedError(
      fmt::format("pre-tokenizer \"{}\" is not supported (known: {})", name, known));
}

std::string_view PreTokenizerName(const std::vector<std::string_view>& expressions,
                                  bool byte_level_regex) {
  if (byte_level_regex) return expressions.empty() ? "gpt-2" : "";
  for (const Family& family : Families()) {
    if (family.expressions == expressions) return family.name;
  }
  return "";
}

}  // namespace lode
