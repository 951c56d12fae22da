// SPDX-License-Identifier: Apache-2.0
#include "golden/golden_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace lode {
namespace {

namespace fs = std::filesystem;
const fs::path kData = "tests/data";

std::vector<float> ReadFloats(const fs::path& path, size_t count) {
  std::vector<float> values(count);
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(values.data()),
            static_cast<std::streamsize>(count * sizeof(float)));
  LODE_CHECK(file.good() && file.peek() == std::ifstream::traits_type::eof());
  return values;
}

}  // namespace

GoldenFile ReadGolden(const fs::path& json_path) {
  std::ifstream file(json_path);
  LODE_CHECK(file.good());
  const nlohmann::json json = nlohmann::json::parse(file);
  GoldenFile golden;
  golden.name = json.at("name");
  golden.base = json_path.parent_path();
  if (json.contains("base")) golden.base = kData / json.at("base").get<std::string>();
  if (json.contains("file")) golden.base /= json.at("file").get<std::string>();
  if (json.contains("config")) golden.config = json.at("config").dump(2);
  golden.vocab_size = json.at("vocab_size");
  golden.logit_range =
      json.at("logit_range").at(1).get<float>() - json.at("logit_range").at(0).get<float>();
  golden.token_ids = json.at("token_ids").get<std::vector<int32_t>>();
  golden.positions = json.at("positions").get<std::vector<int64_t>>();
  golden.logits = ReadFloats(json_path.parent_path() / json.at("logits_file").get<std::string>(),
                             golden.positions.size() * golden.vocab_size);
  return golden;
}

std::vector<GoldenFile> AllGoldens() {
  std::vector<GoldenFile> goldens;
  for (const fs::directory_entry& entry : fs::directory_iterator(kData)) {
    if (fs::exists(entry.path() / "golden.json")) {
      goldens.push_back(ReadGolden(entry.path() / "golden.json"));
    }
  }
  for (const char* folder : {"rope-variants", "tiny-gguf"}) {
    for (const fs::directory_entry& entry : fs::directory_iterator(kData / folder)) {
      if (entry.path().extension() == ".json") goldens.push_back(ReadGolden(entry.path()));
    }
  }
  std::ranges::sort(goldens, {}, &GoldenFile::name);
  return goldens;
}

GoldenModel::GoldenModel(const GoldenFile& golden) : path_(golden.base) {
  if (golden.config.empty()) return;
  path_ = fs::path(testing::TempDir()) /
          ("lode_golden_" + golden.name + "_" + std::to_string(getpid()));
  scratch_ = true;
  fs::remove_all(path_);
  fs::create_directories(path_);
  for (const fs::directory_entry& entry : fs::directory_iterator(golden.base)) {
    if (entry.path().filename() == "config.json") continue;
    fs::create_symlink(fs::absolute(entry.path()), path_ / entry.path().filename());
  }
  std::ofstream(path_ / "config.json") << golden.config;
}

GoldenModel::~GoldenModel() {
  std::error_code ignored;
  if (scratch_) fs::remove_all(path_, ignored);
}

}  // namespace lode
