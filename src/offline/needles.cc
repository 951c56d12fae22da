// SPDX-License-Identifier: Apache-2.0
#include "offline/needles.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/random.h"
#include "offline/needle_words.h"

namespace lode {
namespace {

constexpr std::string_view kNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";
constexpr int kDepths = 40;  // places where a needle may lie, from 0 to 100 % of the haystack
constexpr int64_t kMaxSize = int64_t{1} << 30;

constexpr std::array<std::string_view, 7> kTasks = {"niah_single_1",
                                                    "niah_single_2",
                                                    "niah_multikey_1",
                                                    "niah_multivalue",
                                                    "niah_multiquery",
                                                    "vt",
                                                    "cwe"};

// Draws that a prompt needs, from one stream.
class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  int64_t Below(int64_t n) {
    return static_cast<int64_t>(random_.NextUnit() * static_cast<double>(n));
  }
  // `count` different numbers below n, in the order drawn. Precondition: count <= n.
  std::vector<int64_t> Distinct(int64_t count, int64_t n) {
    std::set<int64_t> taken;
    std::vector<int64_t> numbers;
    while (static_cast<int64_t>(numbers.size()) < count) {
      const int64_t number = Below(n);
      if (taken.insert(number).second) numbers.push_back(number);
    }
    return numbers;
  }
  template <class T>
  void Shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1], items[static_cast<size_t>(Below(static_cast<int64_t>(i)))]);
    }
  }
  // Different pairs "adjective-noun".
  std::vector<std::string> Pairs(int64_t count) {
    const auto adjectives = NeedleAdjectives(), nouns = NeedleNouns();
    std::vector<std::string> pairs;
    for (const int64_t i : Distinct(count, MaxPairs())) {
      const auto at = static_cast<size_t>(i);
      pairs.push_back(
          fmt::format("{}-{}", adjectives[at / nouns.size()], nouns[at % nouns.size()]));
    }
    return pairs;
  }
  static int64_t MaxPairs() {
    return static_cast<int64_t>(NeedleAdjectives().size() * NeedleNouns().size());
  }

 private:
  Random random_;
};

// Sentences of the text's first num_words words; the text starts anew where it ends.
std::vector<std::string> SentencesOf(std::string_view text, int64_t num_words) {
  std::vector<std::string> sentences;
  std::string sentence;
  constexpr std::string_view kBlanks = " \t\r\n\f\v";
  size_t at = text.find_first_not_of(kBlanks);
  const size_t start = at;
  while (num_words > 0 && start != std::string_view::npos) {
    const size_t end = std::min(text.find_first_of(kBlanks, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    if (!sentence.empty()) sentence += ' ';
    sentence += word;
    // A quotation may end behind the full stop.
    const size_t stop = word.find_last_of(".!?");
    if (stop != std::string_view::npos && word.size() - stop <= 4) {
      sentences.push_back(std::exchange(sentence, ""));
    }
    at = text.find_first_not_of(kBlanks, end);
    if (at == std::string_view::npos) at = start;
    --num_words;
  }
  if (!sentence.empty()) sentences.push_back(std::move(sentence));
  return sentences;
}

// needles[i] stands before sentence number places[i], or at the end; places are put in order
// first.
std::string Hide(const std::vector<std::string>& sentences, const std::vector<std::string>& needles,
                 std::vector<int64_t> places, std::string_view separator) {
  std::sort(places.begin(), places.end());
  std::vector<std::string_view> pieces;
  size_t next = 0;
  for (size_t i = 0; i <= sentences.size(); ++i) {
    while (next < needles.size() &&
           (places[next] <= static_cast<int64_t>(i) || i == sentences.size())) {
      pieces.emplace_back(needles[next++]);
    }
    if (i < sentences.size()) pieces.emplace_back(sentences[i]);
  }
  return fmt::format("{}", fmt::join(pieces, separator));
}

struct NeedleCounts {
  bool noise;  // haystack: noise, or else the text
  int64_t keys, values, queries;
};

NeedlePrompt NumbersInHaystack(const NeedleSpec& spec, const NeedleCounts& counts, int64_t size) {
  Draw draw(spec.seed);
  const std::vector<std::string> keys = draw.Pairs(counts.keys);
  const std::vector<int64_t> numbers = draw.Distinct(counts.keys * counts.values, 9'000'000);
  NeedlePrompt prompt;
  prompt.answer_tokens = 128;
  std::vector<std::string> needles;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const size_t key = i / static_cast<size_t>(counts.values);
    const std::string number = std::to_string(1'000'000 + numbers[i]);
    needles.push_back(
        fmt::format("One of the special magic numbers for {} is: {}.", keys[key], number));
    if (static_cast<int64_t>(key) < counts.queries) prompt.references.push_back(number);
  }
  draw.Shuffle(needles);
  const auto num_needles = static_cast<int64_t>(needles.size());
  std::vector<std::string> sentences;
  std::vector<int64_t> places;
  const bool noise = counts.noise || SentencesOf(spec.haystack, 1).empty();
  if (noise) {
    sentences.assign(static_cast<size_t>(size), std::string(kNoise));
    places = draw.Distinct(num_needles, std::max(size + 1, num_needles));
  } else {
    sentences = SentencesOf(spec.haystack, size);
    for (const int64_t depth : draw.Distinct(num_needles, kDepths)) {
      places.push_back(static_cast<int64_t>(sentences.size()) * depth / (kDepths - 1));
    }
  }
  std::string asked = keys[0];
  for (int64_t i = 1; i < counts.queries; ++i) {
    asked += i + 1 == counts.queries ? ", and " : ", ";
    asked += keys[static_cast<size_t>(i)];
  }
  const bool one = counts.values * counts.queries == 1;
  prompt.context = fmt::format(
      "{} special magic {} hidden within the following text. Make sure to memorize it. I will quiz "
      "you about the {} afterwards.\n{}",
      one ? "A" : "Some", one ? "number is" : "numbers are", one ? "number" : "numbers",
      Hide(sentences, needles, std::move(places), noise ? "\n" : " "));
  prompt.question =
      fmt::format("\nWhat {} for {} mentioned in the provided text?",
                  one ? "is the special magic number" : "are all the special magic numbers", asked);
  prompt.answer_prefix =
      fmt::format(" The special magic {} for {} mentioned in the provided text {}",
                  one ? "number" : "numbers", asked, one ? "is" : "are");
  return prompt;
}

// A chain of variables in `size` lines of noise.
NeedlePrompt OneChain(Draw& draw, int64_t size) {
  constexpr int64_t kVariables = 5;
  NeedlePrompt prompt;
  prompt.answer_tokens = 30;
  const std::string value = std::to_string(10'000 + draw.Below(90'000));
  std::vector<std::string> lines;
  for (const int64_t number : draw.Distinct(kVariables, 26 * 26 * 26 * 26 * 26)) {
    std::string name;
    for (int64_t i = 0, rest = number; i < 5; ++i, rest /= 26) {
      name += static_cast<char>('A' + rest % 26);
    }
    lines.push_back(lines.empty()
                        ? fmt::format("VAR {} = {}", name, value)
                        : fmt::format("VAR {} = VAR {} ", name, prompt.references.back()));
    prompt.references.push_back(std::move(name));
  }
  const std::vector<std::string> noise(static_cast<size_t>(size), std::string(kNoise));
  prompt.context =
      "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n" +
      Hide(noise, lines, draw.Distinct(kVariables, std::max(size + 1, kVariables)), "\n");
  prompt.question = fmt::format(
      "\nQuestion: Find all variables that are assigned the value {} in the text above.", value);
  prompt.answer_prefix = fmt::format(
      " Answer: According to the chain(s) of variable assignment in the text above, {} variables "
      "are assigned the value {}, they are: ",
      kVariables, value);
  return prompt;
}

NeedlePrompt VariableTracking(const NeedleSpec& spec, int64_t size) {
  Draw draw(spec.seed);
  const NeedlePrompt example = OneChain(draw, 5);
  NeedlePrompt prompt = OneChain(draw, size);
  prompt.context =
      fmt::format("{}{}{}{}\n\n{}", example.context, example.question, example.answer_prefix,
                  fmt::join(example.references, " "), prompt.context);
  return prompt;
}

struct WordCounts {
  int64_t common, rare;  // how often words of each kind occur
};

// A list of ten common and `size` rare words.
NeedlePrompt OneWordList(Draw& draw, const WordCounts& counts, int64_t size) {
  constexpr int64_t kCommon = 10;
  std::vector<std::string> words;
  for (const auto& some : {NeedleAdjectives(), NeedleNouns()}) {
    words.insert(words.end(), some.begin(), some.end());
  }
  const int64_t num_words = std::min(kCommon + size, Draw::MaxPairs());
  if (num_words > static_cast<int64_t>(words.size())) words = draw.Pairs(num_words);
  draw.Shuffle(words);
  std::vector<std::string> list;
  for (int64_t i = 0; i < num_words; ++i) {
    const int64_t count = i < kCommon ? counts.common : counts.rare;
    list.insert(list.end(), static_cast<size_t>(count), words[static_cast<size_t>(i)]);
  }
  draw.Shuffle(list);
  NeedlePrompt prompt;
  prompt.answer_tokens = 120;
  prompt.references.assign(words.begin(), words.begin() + kCommon);
  prompt.context =
      "Below is a numbered list of words. In these words, some appear more often than others. "
      "Memorize the ones that appear most often.\n";
  for (size_t i = 0; i < list.size(); ++i) {
    prompt.context += fmt::format("{}{}. {}", i == 0 ? "" : " ", i + 1, list[i]);
  }
  prompt.question = "\nQuestion: What are the 10 most common words in the above list?";
  prompt.answer_prefix = " Answer: The top 10 words that appear most often in the list are:";
  return prompt;
}

NeedlePrompt CommonWords(const NeedleSpec& spec, int64_t size) {
  const bool is_short = spec.max_tokens < 4096;
  Draw draw(spec.seed);
  const NeedlePrompt example =
      OneWordList(draw, is_short ? WordCounts{3, 1} : WordCounts{10, 3}, is_short ? 10 : 30);
  NeedlePrompt prompt = OneWordList(draw, is_short ? WordCounts{6, 1} : WordCounts{30, 3}, size);
  std::string answer;
  for (size_t i = 0; i < example.references.size(); ++i) {
    answer += fmt::format(" {}. {}", i + 1, example.references[i]);
  }
  prompt.context =
      example.context + example.question + example.answer_prefix + answer + "\n" + prompt.context;
  return prompt;
}

// The task's prompt with a haystack of `size` sentences of noise, words of text or rare words.
NeedlePrompt Build(const NeedleSpec& spec, int64_t size) {
  if (spec.task == "vt") return VariableTracking(spec, size);
  if (spec.task == "cwe") return CommonWords(spec, size);
  NeedleCounts counts = {
      .noise = spec.task == "niah_single_1", .keys = 1, .values = 1, .queries = 1};
  if (spec.task == "niah_multikey_1" || spec.task == "niah_multiquery") counts.keys = 4;
  if (spec.task == "niah_multivalue") counts.values = 4;
  if (spec.task == "niah_multiquery") counts.queries = 4;
  return NumbersInHaystack(spec, counts, size);
}

}  // namespace

std::span<const std::string_view> NeedleTasks() {
  return kTasks;
}

Result<NeedlePrompt> MakeNeedlePrompt(const NeedleSpec& spec) {
  if (std::find(kTasks.begin(), kTasks.end(), spec.task) == kTasks.end()) {
    return InvalidArgumentError(
        fmt::format("unknown task \"{}\", expected one of {}", spec.task, fmt::join(kTasks, ", ")));
  }
  const auto tokens = [&](int64_t size) {
    const NeedlePrompt prompt = Build(spec, size);
    return spec.count_tokens(prompt) + prompt.answer_tokens;
  };
  if (const int64_t least = tokens(0); least > spec.max_tokens) {
    return InvalidArgumentError(
        fmt::format("{}: without a haystack the prompt and its answer already take {} tokens, "
                    "expected at most {}",
                    spec.task, least, spec.max_tokens));
  }
  // A list of words ends where there are no more words.
  const int64_t limit = spec.task == "cwe" ? Draw::MaxPairs() : kMaxSize;
  int64_t fits = 0, too_large = 64;
  while (too_large < limit && tokens(too_large) <= spec.max_tokens) {
    fits = too_large;
    too_large *= 2;
  }
  too_large = std::min(too_large, limit);
  while (fits + 1 < too_large) {
    const int64_t middle = fits + (too_large - fits) / 2;
    (tokens(middle) <= spec.max_tokens ? fits : too_large) = middle;
  }
  return Build(spec, fits);
}

double ScoreAnswer(std::string_view answer, std::span<const std::string> references) {
  const auto lower = [](std::string_view text) {
    std::string out(text);
    for (char& c : out) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    return out;
  };
  const std::string found_in = lower(answer);
  const auto found =
      std::count_if(references.begin(), references.end(), [&](const std::string& reference) {
        return found_in.find(lower(reference)) != std::string::npos;
      });
  return references.empty() ? 0.0
                            : static_cast<double>(found) / static_cast<double>(references.size());
}

}  // namespace lode
