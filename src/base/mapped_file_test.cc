// SPDX-License-Identifier: Apache-2.0
#include "base/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string_view>

namespace lode {
namespace {

std::string_view TextOf(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

class MappedFileTest : public testing::Test {
 protected:
  // Not ASCII, as users' folders are not.
  std::string folder_ = testing::TempDir() + "/modèles_模型";
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
};

TEST_F(MappedFileTest, MapsAndMoves) {
  const std::string path = folder_ + "/загрузки.bin";
  std::ofstream(path) << "hello";
  auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(TextOf(*file), "hello");
  MappedFile moved = std::move(*file);
  EXPECT_EQ(TextOf(moved), "hello");
  EXPECT_EQ(moved.path(), path);
  MappedFile other;
  other = std::move(moved);
  EXPECT_EQ(TextOf(other), "hello");
  // Advice out of range must be harmless, and dropped pages are read again.
  other.WillNeed(0, UINT64_MAX);
  other.DontNeed(3, UINT64_MAX - 1);
  other.DontNeed(UINT64_MAX, 1);
  EXPECT_EQ(TextOf(other), "hello");
}

TEST_F(MappedFileTest, EmptyFile) {
  std::ofstream(folder_ + "/empty");
  const auto file = MappedFile::Open(folder_ + "/empty");
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->bytes().empty());
}

TEST_F(MappedFileTest, ErrorsNameThePath) {
  const auto missing = MappedFile::Open(folder_ + "/none");
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), testing::HasSubstr(folder_ + "/none"));
  const auto folder = MappedFile::Open(folder_);
  EXPECT_EQ(folder.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(folder.status().message(), testing::HasSubstr("found a folder"));
  const auto device = MappedFile::Open("/dev/null");
  EXPECT_EQ(device.status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lode
