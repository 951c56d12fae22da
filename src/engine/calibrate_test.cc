// SPDX-License-Identifier: Apache-2.0
#include "engine/calibrate.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "engine/shipped_calibrations.h"
#include "formats/weight_source.h"
#include "models/model_config.h"

namespace lode {
namespace {

class CalibrationFileTest : public testing::Test {
 protected:
  void SetUp() override {
    source_ = OpenWeights("tests/data/tiny-qwen2").value();
    config_ = ReadModelConfig(*source_).value();
    fingerprint_ = FingerprintOf(*source_).value();
    path_ = testing::TempDir() + "calibrate_test.calibration";
  }
  void TearDown() override { std::filesystem::remove(path_); }

  // What comes of a file with these sizes.
  Status Load(int64_t num_layers, int64_t num_kv_heads, int64_t head_dim) const {
    const Status saved =
        SaveCalibration(Calibration(num_layers, num_kv_heads, head_dim, fingerprint_), path_);
    EXPECT_TRUE(saved.ok()) << saved.ToString();
    return LoadCalibration(path_, *source_, config_).status();
  }

  std::unique_ptr<WeightSource> source_;
  ModelConfig config_;
  ModelFingerprint fingerprint_ = {};
  std::string path_;
};

TEST_F(CalibrationFileTest, LoadsWhatFitsTheModel) {
  const Status status = Load(config_.num_layers, config_.num_kv_heads, config_.head_dim);
  EXPECT_TRUE(status.ok()) << status.ToString();
}

// The checksum and the fingerprint can be right in a file that was made to do harm.
TEST_F(CalibrationFileTest, RefusesOtherSizesUnderTheRightFingerprint) {
  EXPECT_EQ(Load(config_.num_layers - 1, config_.num_kv_heads, config_.head_dim).code(),
            StatusCode::kCorruption);
  EXPECT_EQ(Load(config_.num_layers, config_.num_kv_heads + 1, config_.head_dim).code(),
            StatusCode::kCorruption);
  const Status status = Load(config_.num_layers, config_.num_kv_heads, 2 * config_.head_dim);
  EXPECT_EQ(status.code(), StatusCode::kCorruption);
  EXPECT_NE(status.message().find(path_), std::string::npos);
}

TEST_F(CalibrationFileTest, RefusesAnotherModel) {
  fingerprint_[3] ^= 1;
  EXPECT_EQ(Load(config_.num_layers, config_.num_kv_heads, config_.head_dim).code(),
            StatusCode::kInvalidArgument);
}

TEST(ShippedCalibrations, AreOfTheModelsThatTheyAreNamedAfter) {
  const auto files = ShippedCalibrations();
  const Calibration qwen = Calibration::Parse(files[0], "qwen").value();
  EXPECT_EQ(qwen.num_layers(), 24);
  EXPECT_EQ(qwen.num_kv_heads(), 2);
  EXPECT_EQ(qwen.head_dim(), 64);
  EXPECT_NE(qwen.Find(23, 1), nullptr);
  const Calibration gemma = Calibration::Parse(files[1], "gemma").value();
  EXPECT_EQ(gemma.num_layers(), 18);
  EXPECT_EQ(gemma.head_dim(), 256);
  EXPECT_EQ(gemma.Find(0, 0), nullptr) << "slides";
  EXPECT_NE(gemma.Find(5, 0), nullptr);
}

}  // namespace
}  // namespace lode
