// SPDX-License-Identifier: Apache-2.0
// GoldenFile: token ids and reference logits as scripts/make_golden.py wrote them, with the model
// they belong to.
#ifndef LODE_TESTS_GOLDEN_GOLDEN_FILE_H_
#define LODE_TESTS_GOLDEN_GOLDEN_FILE_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lode {

struct GoldenFile {
  std::string name;
  std::filesystem::path base;  // model: a folder or a GGUF file
  std::string config;          // config.json to lay over the base folder; empty: its own
  int64_t vocab_size = 0;
  float logit_range = 0.0f;  // largest minus smallest reference logit
  std::vector<int32_t> token_ids;
  std::vector<int64_t> positions;
  std::vector<float> logits;  // [positions.size(), vocab_size]
};

// Reads NAME.json and its .f32 file. Aborts the test with a message when they are ill-formed.
GoldenFile ReadGolden(const std::filesystem::path& json_path);
// Every golden of tests/data: tiny folders, config variants, GGUF files; sorted by name.
std::vector<GoldenFile> AllGoldens();

// The path of a golden's model. A variant gets a scratch folder of links to the base's files and
// its own config.json, which lives as long as this object.
class GoldenModel {
 public:
  explicit GoldenModel(const GoldenFile& golden);
  ~GoldenModel();
  GoldenModel(const GoldenModel&) = delete;
  GoldenModel& operator=(const GoldenModel&) = delete;

  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
  bool scratch_ = false;
};

}  // namespace lode

#endif  // LODE_TESTS_GOLDEN_GOLDEN_FILE_H_
