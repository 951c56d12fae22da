// SPDX-License-Identifier: Apache-2.0
#include "base/sha256.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string_view>

namespace lode {
namespace {

std::string HashOf(std::string_view text) {
  Sha256 hash;
  // Two updates, so that the split inside a block is covered.
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  hash.Update(bytes.first(bytes.size() / 2));
  hash.Update(bytes.subspan(bytes.size() / 2));
  return hash.HexDigest();
}

// Test vectors of FIPS 180-4.
TEST(Sha256Test, PublishedVectors) {
  EXPECT_EQ(HashOf(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(HashOf("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(HashOf("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Sha256Test, OfFile) {
  const std::string path = testing::TempDir() + "/sha256_test_file";
  std::ofstream(path) << "abc";
  int64_t seen = 0;
  const auto hash = Sha256OfFile(path, [&](int64_t done) {
    seen = done;
    return true;
  });
  EXPECT_EQ(hash.value(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(seen, 3);
  EXPECT_EQ(Sha256OfFile(path, [](int64_t) { return false; }).status().code(),
            StatusCode::kCancelled);
  std::filesystem::remove(path);
  EXPECT_EQ(Sha256OfFile(path, [](int64_t) { return true; }).status().code(),
            StatusCode::kNotFound);
  EXPECT_EQ(Sha256OfFile(testing::TempDir(), [](int64_t) { return true; }).status().code(),
            StatusCode::kIo);
}

}  // namespace
}  // namespace lode
