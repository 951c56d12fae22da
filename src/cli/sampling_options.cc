// SPDX-License-Identifier: Apache-2.0
#include "cli/sampling_options.h"

#include <random>

namespace lode::cli {
namespace {

// The float parameters: name as in the API and in /set, GGUF key of a model's recommendation.
struct RealParam {
  const char* name;
  float SamplingParams::* field;
  const char* recommended_key;
};
constexpr RealParam kRealParams[] = {
    {"temperature", &SamplingParams::temperature, "general.sampling.temp"},
    {"top_p", &SamplingParams::top_p, "general.sampling.top_p"},
    {"min_p", &SamplingParams::min_p, "general.sampling.min_p"},
    {"typical_p", &SamplingParams::typical_p, nullptr},
    {"repetition_penalty", &SamplingParams::repetition_penalty, "general.sampling.penalty_repeat"},
    {"presence_penalty", &SamplingParams::presence_penalty, nullptr},
    {"frequency_penalty", &SamplingParams::frequency_penalty, nullptr},
};

std::string OptionName(std::string_view param) {
  std::string name = "--" + std::string(param);
  for (char& c : name) c = c == '_' ? '-' : c;
  return name;
}

// "1234=-5.5" into params.logit_bias.
Status AddLogitBias(std::string_view text, SamplingParams& params) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) {
    return InvalidArgumentError("expected ID=BIAS, found '" + std::string(text) + "'");
  }
  LODE_ASSIGN_OR_RETURN(const int64_t id,
                        ParseInteger(text.substr(0, equals), {.min = 0, .max = INT32_MAX}));
  LODE_ASSIGN_OR_RETURN(params.logit_bias[static_cast<int32_t>(id)],
                        ParseReal(text.substr(equals + 1)));
  return OkStatus();
}

}  // namespace

void SamplingOptions::AddTo(Args& args) {
  args.Group("Sampling (docs/sampling.md)");
  args.Real("--temperature, --temp", "T", &params_.temperature, "0: always the likeliest token.");
  args.Int("--top-k", "K", &top_k_, {.min = 0, .max = INT32_MAX},
           "Only the K likeliest tokens; 0: off.");
  args.Real("--top-p", "P", &params_.top_p, "Only the likeliest tokens that reach P together.");
  args.Real("--min-p", "P", &params_.min_p, "Only tokens at least P times as likely as the best.");
  args.Real("--typical-p", "P", &params_.typical_p, "Locally typical sampling; 1: off.");
  args.Real("--repetition-penalty, --repeat-penalty", "X", &params_.repetition_penalty,
            "Above 1: discourage tokens seen before.");
  args.Real("--presence-penalty", "X", &params_.presence_penalty, "Subtracted once a seen token.");
  args.Real("--frequency-penalty", "X", &params_.frequency_penalty,
            "Subtracted for each time a token was seen.");
  args.Int("--penalty-window", "N", &penalty_window_, {.min = -1, .max = INT32_MAX},
           "Last tokens the penalties look at; -1: all.");
  args.Custom("--logit-bias", "ID=BIAS", "Added to a token's logit. May be repeated.",
              [this](std::string_view text) { return AddLogitBias(text, params_); });
  args.Int("--seed", "N", &seed_, {}, "Equal seeds give equal answers. Without it: by chance.");
  args.Int("--logprobs", "N", &num_logprobs_, {.min = 0, .max = 1000},
           "With --json: the log probability of each token and of the N best.");
}

Result<SamplingParams> SamplingOptions::Resolve(const Args& args, const Metadata& metadata,
                                                bool use_recommended) const {
  SamplingParams params = params_;
  params.top_k = static_cast<int32_t>(top_k_);
  params.penalty_window = static_cast<int32_t>(penalty_window_);
  params.num_logprobs = static_cast<int32_t>(num_logprobs_);
  params.seed = args.Given("--seed") ? static_cast<uint64_t>(seed_) : std::random_device()();
  if (!use_recommended) return params;
  for (const RealParam& param : kRealParams) {
    if (param.recommended_key == nullptr || args.Given(OptionName(param.name))) continue;
    LODE_ASSIGN_OR_RETURN(const double value,
                          metadata.GetFloatOr(param.recommended_key, params.*param.field));
    params.*param.field = static_cast<float>(value);
  }
  if (!args.Given("--top-k")) {
    LODE_ASSIGN_OR_RETURN(const int64_t top_k,
                          metadata.GetIntOr("general.sampling.top_k", 0, INT32_MAX, params.top_k));
    params.top_k = static_cast<int32_t>(top_k);
  }
  return params;
}

std::vector<std::string> SamplingParamNames() {
  std::vector<std::string> names = {"top_k", "penalty_window", "seed"};
  for (const RealParam& param : kRealParams) names.emplace_back(param.name);
  return names;
}

Status SetSamplingParam(std::string_view name, std::string_view value, SamplingParams& params) {
  for (const RealParam& param : kRealParams) {
    if (name != param.name) continue;
    LODE_ASSIGN_OR_RETURN(params.*param.field, ParseReal(value));
    return OkStatus();
  }
  if (name == "top_k" || name == "penalty_window") {
    LODE_ASSIGN_OR_RETURN(const int64_t number, ParseInteger(value, {.min = -1, .max = INT32_MAX}));
    (name == "top_k" ? params.top_k : params.penalty_window) = static_cast<int32_t>(number);
    return OkStatus();
  }
  if (name == "seed") {
    LODE_ASSIGN_OR_RETURN(const int64_t number, ParseInteger(value, {}));
    params.seed = static_cast<uint64_t>(number);
    return OkStatus();
  }
  const std::string nearest = NearestName(name, SamplingParamNames());
  return WithHint(InvalidArgumentError("unknown parameter '" + std::string(name) + "'"),
                  nearest.empty() ? "/help lists them" : "did you mean " + nearest + "?");
}

std::string DescribeSampling(const SamplingParams& params) {
  if (params.temperature == 0.0f) return "temperature 0 (always the likeliest token)";
  const SamplingParams defaults;
  std::string out;
  const auto add = [&](const std::string& text) { out += (out.empty() ? "" : ", ") + text; };
  for (const RealParam& param : kRealParams) {
    const float value = params.*param.field;
    if (value != defaults.*param.field) {
      add(std::string(param.name) + " " + FormatFixed(value, 3));
    }
  }
  if (params.top_k > 0) add("top_k " + std::to_string(params.top_k));
  if (params.penalty_window >= 0) add("penalty_window " + std::to_string(params.penalty_window));
  add("seed " + std::to_string(params.seed));
  return out;
}

}  // namespace lode::cli
