// SPDX-License-Identifier: Apache-2.0
// lode_dump_logits: writes a model's logits for given token ids, for scripts/verify_real.py.
//
//   lode_dump_logits MODEL IDS OUT ACTIVATIONS KV ATTENTION THREADS CHUNK
//
// IDS is a file of int32 ids, OUT receives float32 [ids, vocab_size], both little-endian.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "golden/model_under_test.h"

namespace lode {
namespace {

Result<std::vector<int32_t>> ReadIds(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file.good()) return IoError("cannot open " + path);
  std::vector<int32_t> ids(static_cast<size_t>(file.tellg()) / sizeof(int32_t));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(ids.data()),
            static_cast<std::streamsize>(ids.size() * sizeof(int32_t)));
  if (!file.good()) return IoError("cannot read " + path);
  return ids;
}

Status Dump(char** args) {
  ModelUnderTestOptions options;
  const std::string activations = args[4];
  if (activations != "f32" && activations != "int8") {
    return InvalidArgumentError("ACTIVATIONS is f32 or int8, found " + activations);
  }
  options.activations =
      activations == "f32" ? kernels::ActivationType::kF32 : kernels::ActivationType::kInt8;
  LODE_ASSIGN_OR_RETURN(options.kv_dtypes, ParseKvDTypes(args[5]));
  options.attention = args[6];
  options.threads = std::max(1, std::atoi(args[7]));
  const int64_t chunk = std::max(1, std::atoi(args[8]));
  LODE_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ReadIds(args[2]));
  LODE_ASSIGN_OR_RETURN(auto model, ModelUnderTest::Load(args[1], options));
  std::ofstream out(args[3], std::ios::binary);
  LODE_RETURN_IF_ERROR(model->Run(ids, chunk, [&](int64_t, std::span<const float> logits) {
    out.write(reinterpret_cast<const char*>(logits.data()),
              static_cast<std::streamsize>(logits.size_bytes()));
  }));
  out.close();
  return out.good() ? OkStatus() : IoError(std::string("cannot write ") + args[3]);
}

}  // namespace
}  // namespace lode

int main(int argc, char** argv) {
  if (argc != 9) {
    std::fprintf(stderr,
                 "usage: lode_dump_logits MODEL IDS OUT ACTIVATIONS KV ATTENTION THREADS CHUNK\n");
    return 2;
  }
  const lode::Status status = lode::Dump(argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "lode_dump_logits: %s\n", status.ToString().c_str());
  return 1;
}
