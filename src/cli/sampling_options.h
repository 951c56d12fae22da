// SPDX-License-Identifier: Apache-2.0
// The sampling options of `lode run` and of its chat. Without any, an answer is greedy: the same
// question gives the same answer. A chat uses what the model's file recommends, if it does.
#ifndef LODE_CLI_SAMPLING_OPTIONS_H_
#define LODE_CLI_SAMPLING_OPTIONS_H_

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cli/args.h"
#include "engine/sampler.h"
#include "formats/metadata.h"

namespace lode::cli {

class SamplingOptions {
 public:
  void AddTo(Args& args);
  // The parameters to sample with. use_recommended: those the metadata names (general.sampling.*)
  // count unless the command line says otherwise. Without --seed, a seed from the system.
  Result<SamplingParams> Resolve(const Args& args, const Metadata& metadata,
                                 bool use_recommended) const;

 private:
  SamplingParams params_;
  int64_t top_k_ = 0, penalty_window_ = -1, seed_ = 0, num_logprobs_ = -1;
};

// Names that SetSamplingParam knows: "temperature", "top_k", ...
std::vector<std::string> SamplingParamNames();
// Sets one parameter by name. InvalidArgument: unknown name or ill-formed value. Ranges are checked
// by SamplingParams::Validate.
Status SetSamplingParam(std::string_view name, std::string_view value, SamplingParams& params);
// "temperature 0.7, top_k 20, ..." : what differs from greedy defaults.
std::string DescribeSampling(const SamplingParams& params);

}  // namespace lode::cli

#endif  // LODE_CLI_SAMPLING_OPTIONS_H_
