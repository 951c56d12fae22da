// SPDX-License-Identifier: Apache-2.0
#include "engine/configured_attention.h"

#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "attention/sparse_parameters.h"
#include "formats/gguf_writer.h"

namespace lode {
namespace {

using Scores = SparseOptions::Scores;

// A file with this metadata and no model.
std::unique_ptr<WeightSource> Source(const std::function<void(GgufWriter&)>& edit) {
  GgufWriter file;
  file.AddString("general.architecture", "qwen2");
  edit(file);
  const std::string path = testing::TempDir() + "configured_attention_test.gguf";
  EXPECT_TRUE(file.WriteTo(path).ok());
  auto source = OpenWeights(path);
  EXPECT_TRUE(source.ok()) << source.status().ToString();
  return std::move(source).value();
}

TEST(ConfiguredAttentionTest, EveryParameterMayBeConfigured) {
  const auto source = Source([](GgufWriter& file) {
    file.AddUint32("lode.csa_top_k", 128);
    file.AddFloat32("lode.csa_max_error", 0.125f);
    file.AddFloat32("lode.csa_max_unread", 0.25f);
    file.AddString("lode.csa_index", "buckets");
    file.AddInt32("lode.csa_hash_dim", 32);
    file.AddUint32("lode.csa_seed", 7);
    file.AddUint64("lode.hca_window", 2048);
    file.AddString("lode.hca_summary", "ffn");
    file.AddUint32("lode.csa_oversample", 4);
    file.AddFloat32("lode.hca_summary_ratio", 0.25f);
    file.AddUint32("lode.hca_update_interval", 1000);
    file.AddBool("lode.use_hca", false);
  });
  const auto sparse = SparseOptionsOf(*source, {});
  ASSERT_TRUE(sparse.ok()) << sparse.status().ToString();
  EXPECT_EQ(sparse->top_k, 128);
  EXPECT_EQ(sparse->max_error, 0.125);
  EXPECT_EQ(sparse->max_unread, 0.25);
  EXPECT_EQ(sparse->scores, Scores::kBuckets);
  EXPECT_EQ(sparse->hash_dim, 32);
  EXPECT_EQ(sparse->seed, 7u);
  EXPECT_EQ(sparse->window, 2048);
  EXPECT_EQ(sparse->summary, SparseOptions::Summary::kNone);
  EXPECT_EQ(sparse->oversample, 4);
  EXPECT_EQ(sparse->summary_ratio, 0.25);
  EXPECT_EQ(sparse->update_interval, 1000);
  const SparseOptions defaults;
  for (const SparseParameter& parameter : SparseParameters()) {
    EXPECT_NE(parameter.get(*sparse), parameter.get(defaults)) << parameter.name;
    EXPECT_EQ(parameter.get(*sparse).index(), parameter.get(defaults).index()) << parameter.name;
  }
}

TEST(ConfiguredAttentionTest, OptionsThatWereGivenWin) {
  const auto source = Source([](GgufWriter& file) {
    file.AddUint32("lode.csa_top_k", 128);
    file.AddUint32("lode.hca_window", 64);
    file.AddString("lode.csa_index", "nonsense");
    file.AddBool("lode.use_hca", false);
  });
  EngineOptions options;
  options.sparse = {.top_k = 32, .max_unread = 0.5, .window = 33};
  options.sparse_given = {"csa_top_k", "csa_index", "hca_summary"};
  const auto sparse = SparseOptionsOf(*source, options);
  ASSERT_TRUE(sparse.ok()) << sparse.status().ToString();
  EXPECT_EQ(sparse->top_k, 32);
  EXPECT_EQ(sparse->window, 64) << "the configuration wins over what nobody asked for";
  EXPECT_EQ(sparse->max_unread, 0.5) << "nobody says anything else";
  EXPECT_EQ(sparse->scores, Scores::kCodes);
  EXPECT_EQ(sparse->summary, SparseOptions::Summary::kMean);
}

TEST(ConfiguredAttentionTest, TheFlagUseHcaWinsOverAConfiguredSummary) {
  using Summary = SparseOptions::Summary;
  const auto source = Source([](GgufWriter& file) { file.AddString("lode.hca_summary", "ffn"); });
  EngineOptions options;
  options.sparse_given = {"use_hca"};
  EXPECT_EQ(SparseOptionsOf(*source, options)->summary, Summary::kFeedForward);
  options.sparse.summary = Summary::kNone;
  EXPECT_EQ(SparseOptionsOf(*source, options)->summary, Summary::kNone);
}

TEST(ConfiguredAttentionTest, UseHcaTrueLeavesAConfiguredSummary) {
  const auto source = Source([](GgufWriter& file) {
    file.AddString("lode.hca_summary", "none");
    file.AddBool("lode.use_hca", true);
  });
  EXPECT_EQ(SparseOptionsOf(*source, {})->summary, SparseOptions::Summary::kNone);
}

TEST(ConfiguredAttentionTest, UseHcaFalseTurnsSummariesOff) {
  for (const bool use : {false, true}) {
    const auto source = Source([&](GgufWriter& file) { file.AddBool("lode.use_hca", use); });
    EXPECT_EQ(SparseOptionsOf(*source, {})->summary == SparseOptions::Summary::kMean, use);
  }
}

TEST(ConfiguredAttentionTest, RefusesWhatItCannotMean) {
  const auto refuses = [](const std::string& key, const std::function<void(GgufWriter&)>& edit,
                          std::initializer_list<std::string> words) {
    const Status status = SparseOptionsOf(*Source(edit), {}).status();
    EXPECT_EQ(status.code(), StatusCode::kCorruption) << status.ToString();
    std::vector<std::string> expected = {"configured_attention_test.gguf", key};
    expected.insert(expected.end(), words);
    for (const std::string& word : expected) {
      EXPECT_NE(status.message().find(word), std::string::npos) << word << ": " << status.message();
    }
  };
  refuses("'csa_index'", [](GgufWriter& file) { file.AddString("lode.csa_index", "hash"); },
          {"codes, means, exact, hamming or buckets", "string 'hash'"});
  refuses("'csa_index'", [](GgufWriter& file) { file.AddUint32("lode.csa_index", 4); },
          {"integer 4"});
  refuses("'csa_top_k'", [](GgufWriter& file) { file.AddInt32("lode.csa_top_k", -1); },
          {"an integer from 0", "integer -1"});
  refuses("'csa_top_k'", [](GgufWriter& file) { file.AddFloat32("lode.csa_top_k", 0.5f); },
          {"float 0.5"});
  refuses("'csa_top_k'", [](GgufWriter& file) { file.AddString("lode.csa_top_k", "all"); },
          {"string 'all'"});
  refuses("'hca_window'", [](GgufWriter& file) { file.AddUint32("lode.hca_window", 0); },
          {"an integer from 1", "integer 0"});
  refuses("'csa_hash_dim'", [](GgufWriter& file) { file.AddUint32("lode.csa_hash_dim", 48); },
          {"32, 64 or 128", "integer 48"});
  refuses("'csa_seed'", [](GgufWriter& file) { file.AddInt32("lode.csa_seed", -1); },
          {"at least 0", "integer -1"});
  for (const float share : {-0.5f, 1.5f, std::numeric_limits<float>::quiet_NaN()}) {
    refuses("'csa_max_unread'",
            [&](GgufWriter& file) { file.AddFloat32("lode.csa_max_unread", share); },
            {"a share from 0 to 1", "float "});
  }
  refuses("'hca_summary'", [](GgufWriter& file) { file.AddBool("lode.hca_summary", false); },
          {"mean, ffn or none", "bool false"});
  refuses("'use_hca'", [](GgufWriter& file) { file.AddString("lode.use_hca", "no"); },
          {"true or false", "string 'no'"});
  refuses("'csa_oversample'", [](GgufWriter& file) { file.AddUint32("lode.csa_oversample", 0); },
          {"an integer from 1", "integer 0"});
  refuses("'hca_summary_ratio'",
          [](GgufWriter& file) { file.AddFloat32("lode.hca_summary_ratio", 0.0f); },
          {"a share above 0", "float 0"});
}

}  // namespace
}  // namespace lode
