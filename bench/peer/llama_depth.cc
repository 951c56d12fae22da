// SPDX-License-Identifier: Apache-2.0
// Times llama.cpp at a given depth of the KV cache through its public API, as `lode bench` times
// lodestone: prefill of a prompt and one-token decode steps behind `depth` cached tokens.
//
// Filling a deep cache by prefill would take minutes, so it is filled with copies: a short prefix
// is prefilled, its sequence state is saved, a longer state is written that repeats the prefix's
// rows, and that state is loaded. Attention in llama.cpp is dense, so its cost does not depend on
// values. Output: one line of JSON on stdout; every time is listed, in seconds, nothing is
// averaged.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llama.h"

namespace {

constexpr int64_t kPrefixTokens = 512;  // really prefilled before the cache is stretched by copies

struct Options {
  std::string model;
  std::vector<int64_t> depths = {0};
  int64_t prefill_tokens = 512;
  int64_t decode_tokens = 16;
  int repeats = 1;
  int threads = 2;
  int64_t batch = 512;
  bool flash = true;
  std::string kv = "f16";
  bool first_token = false;  // only load and generate one token behind prefill_tokens
};

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "llama_depth: %s\n", message.c_str());
  std::exit(1);
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Options Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const std::string value = argv[i + 1];
    if (name == "--model") {
      options.model = value;
    } else if (name == "--depths") {
      options.depths.clear();
      std::istringstream list(value);
      for (std::string item; std::getline(list, item, ',');) {
        options.depths.push_back(std::stoll(item));
      }
    } else if (name == "--prefill") {
      options.prefill_tokens = std::stoll(value);
    } else if (name == "--decode") {
      options.decode_tokens = std::stoll(value);
    } else if (name == "--repeats") {
      options.repeats = std::stoi(value);
    } else if (name == "--threads") {
      options.threads = std::stoi(value);
    } else if (name == "--batch") {
      options.batch = std::stoll(value);
    } else if (name == "--flash") {
      options.flash = value == "1";
    } else if (name == "--kv") {
      options.kv = value;
    } else if (name == "--first-token") {
      options.first_token = value == "1";
    } else {
      Fail("unknown option " + std::string(name));
    }
  }
  if (options.model.empty()) Fail("--model FILE is needed");
  if (options.kv != "f16" && options.kv != "q8_0") Fail("--kv is f16 or q8_0");
  return options;
}

// Reads and writes the little-endian fields of a serialised sequence state.
class StateReader {
 public:
  explicit StateReader(const std::vector<uint8_t>& bytes) : bytes_(bytes) {}
  template <class T>
  T Get() {
    T value;
    std::memcpy(&value, Take(sizeof value), sizeof value);
    return value;
  }
  const uint8_t* Take(size_t count) {
    if (count > bytes_.size() - offset_) Fail("sequence state shorter than its layout says");
    offset_ += count;
    return bytes_.data() + offset_ - count;
  }
  bool AtEnd() const { return offset_ == bytes_.size(); }

 private:
  const std::vector<uint8_t>& bytes_;
  size_t offset_ = 0;
};

class StateWriter {
 public:
  explicit StateWriter(std::vector<uint8_t>& bytes) : bytes_(bytes) {}
  template <class T>
  T Put(T value) {
    const auto* begin = reinterpret_cast<const uint8_t*>(&value);
    bytes_.insert(bytes_.end(), begin, begin + sizeof value);
    return value;
  }
  void Append(const uint8_t* data, size_t count) {
    bytes_.insert(bytes_.end(), data, data + count);
  }

 private:
  std::vector<uint8_t>& bytes_;
};

// Stretches one cache of the state from `prefix` cells to `depth` by repetition. A sliding-window
// cache keeps its number of cells; they are moved to the end of the sequence.
void StretchCache(StateReader& in, StateWriter& out, int64_t prefix, int64_t depth, bool sliding) {
  if (out.Put(in.Get<uint32_t>()) != 1) Fail("more than one stream in the sequence state");
  const uint32_t cells = in.Get<uint32_t>();
  if (!sliding && cells != prefix) Fail("sequence state holds another number of cells");
  const uint32_t new_cells = sliding ? cells : static_cast<uint32_t>(depth);
  out.Put(new_cells);
  std::vector<int32_t> positions(cells);
  for (int32_t& position : positions) {
    position = in.Get<int32_t>();
    in.Get<uint32_t>();  // number of sequence ids: one
    in.Get<int32_t>();   // the id
  }
  for (uint32_t i = 0; i < new_cells; ++i) {
    out.Put<int32_t>(sliding ? positions[i] + static_cast<int32_t>(depth - prefix)
                             : static_cast<int32_t>(i));
    out.Put<uint32_t>(1);
    out.Put<int32_t>(0);
  }
  const bool transposed = out.Put(in.Get<uint32_t>()) != 0;  // values stored by channel
  const uint32_t layers = out.Put(in.Get<uint32_t>());
  const auto repeat_rows = [&](uint64_t row_bytes) {
    const uint8_t* rows = in.Take(cells * row_bytes);
    for (uint32_t i = 0; i < new_cells; i += cells) {
      out.Append(rows, std::min(cells, new_cells - i) * row_bytes);
    }
  };
  for (uint32_t layer = 0; layer < layers; ++layer) {  // keys
    out.Put(in.Get<int32_t>());                        // type
    repeat_rows(out.Put(in.Get<uint64_t>()));
  }
  for (uint32_t layer = 0; layer < layers; ++layer) {  // values
    out.Put(in.Get<int32_t>());
    if (!transposed) {
      repeat_rows(out.Put(in.Get<uint64_t>()));
      continue;
    }
    const uint32_t element_bytes = out.Put(in.Get<uint32_t>());
    const uint32_t channels = out.Put(in.Get<uint32_t>());
    for (uint32_t channel = 0; channel < channels; ++channel) repeat_rows(element_bytes);
  }
}

// A context, its cache filled to a depth, and the two timed operations.
class Bench {
 public:
  Bench(llama_model* model, const Options& options, int64_t depth)
      : options_(options), depth_(depth) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx =
        static_cast<uint32_t>(std::max(depth, kPrefixTokens) +
                              std::max(options.prefill_tokens, options.decode_tokens) + 64);
    params.n_batch = static_cast<uint32_t>(options.batch);
    params.n_ubatch = params.n_batch;
    params.n_seq_max = 1;
    params.swa_full = false;
    params.n_threads = params.n_threads_batch = options.threads;
    params.flash_attn_type =
        options.flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = options.kv == "q8_0" ? GGML_TYPE_Q8_0 : GGML_TYPE_F16;
    // llama.cpp reads quantised values only through flash attention.
    params.type_v = options.flash ? params.type_k : GGML_TYPE_F16;
    context_ = llama_init_from_model(model, params);
    if (context_ == nullptr) Fail("cannot create a context");
    vocab_size_ = llama_vocab_n_tokens(llama_model_get_vocab(model));
  }
  ~Bench() { llama_free(context_); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void Fill() {
    if (depth_ == 0) return;
    const int64_t prefix = std::min(depth_, kPrefixTokens);
    Feed(prefix, 0);
    if (depth_ > prefix) Stretch(prefix);
  }

  double TimePrefill() {
    const double begin = Now();
    Feed(options_.prefill_tokens, depth_);
    const double seconds = Now() - begin;
    Rewind();
    return seconds;
  }

  // The first step is not counted: it follows a rewind and builds the graph of the new shape.
  std::vector<double> TimeDecode() {
    std::vector<double> seconds;
    for (int64_t i = 0; i <= options_.decode_tokens; ++i) {
      const double begin = Now();
      Feed(1, depth_ + i);
      if (i > 0) seconds.push_back(Now() - begin);
    }
    Rewind();
    return seconds;
  }

  // Feeds pseudo-random tokens at positions [position, position + count); logits of the last one.
  void Feed(int64_t count, int64_t position) {
    for (int64_t done = 0; done < count; done += options_.batch) {
      const int64_t n = std::min(options_.batch, count - done);
      llama_batch batch = llama_batch_init(static_cast<int32_t>(n), 0, 1);
      batch.n_tokens = static_cast<int32_t>(n);
      for (int64_t i = 0; i < n; ++i) {
        random_ = random_ * 6364136223846793005ull + 1442695040888963407ull;
        batch.token[i] = static_cast<llama_token>((random_ >> 33) % vocab_size_);
        batch.pos[i] = static_cast<llama_pos>(position + done + i);
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = done + i == count - 1;
      }
      const int status = llama_decode(context_, batch);
      llama_batch_free(batch);
      if (status != 0) Fail("llama_decode returned " + std::to_string(status));
    }
    llama_synchronize(context_);
  }

 private:
  void Rewind() {
    if (depth_ == 0) {
      llama_memory_clear(llama_get_memory(context_), false);
      return;
    }
    if (llama_memory_seq_rm(llama_get_memory(context_), 0, static_cast<llama_pos>(depth_), -1)) {
      return;
    }
    // A sliding-window cache has dropped cells it would need: start over.
    llama_memory_clear(llama_get_memory(context_), false);
    Fill();
  }

  void Stretch(int64_t prefix) {
    std::vector<uint8_t> state(llama_state_seq_get_size(context_, 0));
    state.resize(llama_state_seq_get_data(context_, state.data(), state.size(), 0));
    std::vector<uint8_t> stretched;
    stretched.reserve(state.size() / prefix * (depth_ + prefix));
    StateReader in(state);
    StateWriter out(stretched);
    out.Put(in.Get<uint32_t>());  // magic
    out.Put(in.Get<uint32_t>());  // sequence id
    StretchCache(in, out, prefix, depth_, false);
    if (!in.AtEnd()) StretchCache(in, out, prefix, depth_, true);
    if (!in.AtEnd()) Fail("unknown layout of the sequence state");
    if (llama_state_seq_set_data(context_, stretched.data(), stretched.size(), 0) == 0) {
      Fail("llama.cpp refused the stretched state");
    }
  }

  const Options& options_;
  const int64_t depth_;
  llama_context* context_ = nullptr;
  uint64_t vocab_size_ = 0;
  uint64_t random_ = 1;
};

void PrintList(const char* name, const std::vector<double>& values) {
  std::printf(", \"%s\": [", name);
  for (size_t i = 0; i < values.size(); ++i) std::printf("%s%.6f", i ? ", " : "", values[i]);
  std::printf("]");
}

void PrintRow(llama_model* model, const Options& options, int64_t depth) {
  Bench bench(model, options, depth);
  bench.Fill();
  std::vector<double> prefill;
  std::vector<double> decode;
  for (int i = 0; i < options.repeats; ++i) {
    if (options.prefill_tokens > 0) prefill.push_back(bench.TimePrefill());
    if (options.decode_tokens == 0) continue;
    const std::vector<double> steps = bench.TimeDecode();
    decode.insert(decode.end(), steps.begin(), steps.end());
  }
  std::printf("{\"depth\": %lld, \"prefill_tokens\": %lld", static_cast<long long>(depth),
              static_cast<long long>(options.prefill_tokens));
  PrintList("prefill_seconds", prefill);
  PrintList("decode_seconds", decode);
  std::printf("}");
}

}  // namespace

int main(int argc, char** argv) {
  const double begin = Now();
  const Options options = Parse(argc, argv);
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  llama_backend_init();
  llama_model* model =
      llama_model_load_from_file(options.model.c_str(), llama_model_default_params());
  if (model == nullptr) Fail("cannot load " + options.model);
  const double loaded = Now() - begin;
  std::printf("{\"flash\": %s, \"kv\": \"%s\", \"threads\": %d, \"load_seconds\": %.6f",
              options.flash ? "true" : "false", options.kv.c_str(), options.threads, loaded);
  if (options.first_token) {
    Bench bench(model, options, 0);
    bench.Feed(options.prefill_tokens, 0);
    std::printf(", \"first_token_seconds\": %.6f}\n", Now() - begin);
    std::fflush(stdout);
  } else {
    std::printf(", \"system\": \"%s\", \"rows\": [", llama_print_system_info());
    for (size_t i = 0; i < options.depths.size(); ++i) {
      if (i > 0) std::printf(", ");
      PrintRow(model, options, options.depths[i]);
    }
    std::printf("]}\n");
  }
  llama_model_free(model);
  return 0;
}
