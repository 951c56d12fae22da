// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>

namespace lode {
namespace {

Result<int> Half(int x) {
  if (x % 2 != 0)
    return InvalidArgumentError("expected an even number, found " + std::to_string(x));
  return x / 2;
}

Result<int> Quarter(int x) {
  LODE_ASSIGN_OR_RETURN(const int half, Half(x));
  LODE_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

Status CheckQuarter(int x) {
  LODE_RETURN_IF_ERROR(Quarter(x).status());
  return OkStatus();
}

TEST(StatusTest, CarriesCodeAndMessage) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status().ToString(), "Ok");
  EXPECT_EQ(CorruptionError("x.gguf: bad").ToString(), "Corruption: x.gguf: bad");
  EXPECT_EQ(IoError("disk").WithContext("x").message(), "x: disk");
  EXPECT_TRUE(Status().WithContext("x").ok());
}

TEST(StatusTest, EveryCodeHasItsOwnName) {
  EXPECT_EQ(StatusCodeName(StatusCode::kOk), "Ok");
  EXPECT_EQ(InvalidArgumentError("").ToString(), "InvalidArgument: ");
  EXPECT_EQ(NotFoundError("").ToString(), "NotFound: ");
  EXPECT_EQ(UnsupportedError("").ToString(), "Unsupported: ");
  EXPECT_EQ(ResourceExhaustedError("").ToString(), "ResourceExhausted: ");
  EXPECT_EQ(CancelledError("").ToString(), "Cancelled: ");
  EXPECT_EQ(InternalError("").ToString(), "Internal: ");
}

TEST(ResultTest, MacrosPassErrorsUp) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status().message(), "expected an even number, found 3");
  EXPECT_EQ(CheckQuarter(7).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(CheckQuarter(4).ok());
}

TEST(ResultTest, HoldsMoveOnlyValues) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(5));
  std::unique_ptr<int> value = std::move(result).value();
  EXPECT_EQ(*value, 5);
}

TEST(ResultDeathTest, ReadingAnErrorsValueAborts) {
  EXPECT_DEATH((void)*Half(3), "check failed");
}

}  // namespace
}  // namespace lode
