// SPDX-License-Identifier: Apache-2.0
#include "formats/metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace lode {
namespace {

using testing::HasSubstr;

Metadata Sample() {
  Metadata metadata("model.gguf");
  EXPECT_TRUE(metadata.Add("int", int64_t{24}).ok());
  EXPECT_TRUE(metadata.Add("huge", std::numeric_limits<uint64_t>::max()).ok());
  EXPECT_TRUE(metadata.Add("text", std::string_view("513")).ok());
  EXPECT_TRUE(metadata.Add("float", 24.0).ok());
  EXPECT_TRUE(metadata.Add("nan", std::numeric_limits<double>::quiet_NaN()).ok());
  EXPECT_TRUE(metadata.Add("bool", true).ok());
  EXPECT_TRUE(metadata.Add("ints", std::vector<int64_t>{1, 2}).ok());
  return metadata;
}

TEST(MetadataTest, ReadsTypedValues) {
  const Metadata metadata = Sample();
  EXPECT_EQ(*metadata.GetInt("int", 1, 24), 24);
  EXPECT_EQ(*metadata.GetFloat("float"), 24.0);
  EXPECT_EQ(*metadata.GetFloat("int"), 24.0);
  EXPECT_EQ(*metadata.GetString("text"), "513");
  EXPECT_EQ(*metadata.GetBool("bool"), true);
  EXPECT_THAT(**metadata.GetInts("ints"), testing::ElementsAre(1, 2));
}

TEST(MetadataTest, RefusesNumbersOutOfRange) {
  const Metadata metadata = Sample();
  const Status status = metadata.GetInt("int", 1, 23).status();
  EXPECT_EQ(status.code(), StatusCode::kCorruption);
  EXPECT_EQ(status.message(),
            "model.gguf: key 'int': expected an integer from 1 to 23, found integer 24");
  EXPECT_FALSE(metadata.GetInt("int", 25, 100).ok());
  EXPECT_FALSE(metadata.GetInt("huge", 0, std::numeric_limits<int64_t>::max()).ok());
}

TEST(MetadataTest, RefusesOtherTypes) {
  const Metadata metadata = Sample();
  EXPECT_THAT(metadata.GetInt("text", 1, 1000).status().message(), HasSubstr("found string '513'"));
  EXPECT_THAT(metadata.GetInt("float", 1, 1000).status().message(), HasSubstr("found float 24"));
  EXPECT_THAT(metadata.GetInt("bool", 0, 1).status().message(), HasSubstr("found bool true"));
  EXPECT_THAT(metadata.GetFloat("nan").status().message(), HasSubstr("expected a finite number"));
  EXPECT_THAT(metadata.GetString("int").status().message(), HasSubstr("expected a string"));
  EXPECT_THAT(metadata.GetStrings("ints").status().message(),
              HasSubstr("expected an array of strings, found array of 2 integers"));
  EXPECT_FALSE(metadata.GetBool("int").ok());
  EXPECT_FALSE(metadata.GetFloats("ints").ok());
}

TEST(MetadataTest, DefaultsAreForAbsentKeysOnly) {
  const Metadata metadata = Sample();
  EXPECT_EQ(metadata.GetInt("absent", 0, 1).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(*metadata.GetIntOr("absent", 0, 1, 7), 7);
  EXPECT_EQ(*metadata.GetFloatOr("absent", 0.5), 0.5);
  EXPECT_EQ(*metadata.GetBoolOr("absent", true), true);
  EXPECT_EQ(*metadata.GetStringOr("absent", "x"), "x");
  EXPECT_EQ(metadata.GetIntOr("text", 0, 1000, 7).status().code(), StatusCode::kCorruption);
  EXPECT_EQ(metadata.GetFloatOr("text", 7).status().code(), StatusCode::kCorruption);
}

TEST(MetadataTest, RefusesASecondValueForAKey) {
  Metadata metadata = Sample();
  const Status status = metadata.Add("int", int64_t{25});
  EXPECT_EQ(status.code(), StatusCode::kCorruption);
  EXPECT_THAT(status.message(), HasSubstr("key 'int': expected once, found twice"));
  EXPECT_EQ(*metadata.GetInt("int", 0, 100), 24);
}

TEST(MetadataTest, MessagesCannotMoveTheCursor) {
  const Metadata metadata("m");
  EXPECT_THAT(metadata.GetInt("\x1b[2J\n", 0, 1).status().message(), HasSubstr("'\\x1b[2J\\x0a'"));
}

}  // namespace
}  // namespace lode
