// SPDX-License-Identifier: Apache-2.0
#include "base/function_ref.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace lode {
namespace {

int Twice(FunctionRef<int(int)> f) {
  return f(f(1));
}

int AddTen(int x) {
  return x + 10;
}

TEST(FunctionRefTest, CallsLambdasFunctionsAndMutableState) {
  EXPECT_EQ(Twice([](int x) { return x * 3; }), 9);
  EXPECT_EQ(Twice(AddTen), 21);
  int calls = 0;
  auto counter = [&calls](int x) mutable {
    ++calls;
    return x;
  };
  Twice(counter);
  EXPECT_EQ(calls, 2);
}

TEST(FunctionRefTest, CopiesReferToTheSameCallable) {
  int count = 0;
  const auto increment = [&count] { ++count; };
  const FunctionRef<void()> a = increment;
  const FunctionRef<void()> b = a;
  a();
  b();
  EXPECT_EQ(count, 2);
}

TEST(FunctionRefTest, ForwardsReferencesAndMoveOnlyArguments) {
  const auto append = [](std::string& text, std::unique_ptr<int> n) { text += std::to_string(*n); };
  const FunctionRef<void(std::string&, std::unique_ptr<int>)> ref = append;
  std::string text;
  ref(text, std::make_unique<int>(7));
  EXPECT_EQ(text, "7");
}

}  // namespace
}  // namespace lode
