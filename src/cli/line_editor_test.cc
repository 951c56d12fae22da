// SPDX-License-Identifier: Apache-2.0
#include "cli/line_editor.h"

#include <gtest/gtest.h>

namespace lode::cli {
namespace {

TEST(LineBufferTest, EditsWholeCharacters) {
  const std::vector<std::string> history;
  LineBuffer buffer(history);
  buffer.Insert("aé模🙂");
  buffer.Left();
  buffer.Backspace();
  EXPECT_EQ(buffer.text(), "aé🙂");
  buffer.Delete();
  EXPECT_EQ(buffer.text(), "aé");
  buffer.Home();
  buffer.Right();
  buffer.Insert("b");
  EXPECT_EQ(buffer.text(), "abé");
  buffer.DeleteToEnd();
  EXPECT_EQ(buffer.text(), "ab");
  buffer.Backspace();
  buffer.Backspace();
  buffer.Backspace();  // on an empty line: nothing
  buffer.Delete();
  buffer.Left();
  buffer.Right();
  EXPECT_EQ(buffer.text(), "");
}

TEST(LineBufferTest, DeletesWordsAndLines) {
  const std::vector<std::string> history;
  LineBuffer buffer(history);
  buffer.Insert("one two  three ");
  buffer.DeleteWord();
  EXPECT_EQ(buffer.text(), "one two  ");
  buffer.Left();
  buffer.Left();
  buffer.DeleteToStart();
  EXPECT_EQ(buffer.text(), "  ");
  EXPECT_EQ(buffer.cursor(), 0u);
}

TEST(LineBufferTest, HistoryKeepsTheDraft) {
  const std::vector<std::string> history = {"first", "second"};
  LineBuffer buffer(history);
  buffer.Insert("draft");
  buffer.Newer();
  EXPECT_EQ(buffer.text(), "draft");
  buffer.Older();
  EXPECT_EQ(buffer.text(), "second");
  buffer.Older();
  buffer.Older();
  EXPECT_EQ(buffer.text(), "first");
  buffer.Newer();
  buffer.Newer();
  EXPECT_EQ(buffer.text(), "draft");
}

TEST(DisplayColumnsTest, WideAndCombiningCharacters) {
  EXPECT_EQ(DisplayColumns("abc"), 3);
  EXPECT_EQ(DisplayColumns("é"), 1);
  EXPECT_EQ(DisplayColumns("e\u0301"), 1);
  EXPECT_EQ(DisplayColumns("模型"), 4);
  EXPECT_EQ(DisplayColumns("🙂"), 2);
  EXPECT_EQ(DisplayColumns("\xff\x80"), 1);  // ill-formed bytes do no harm
}

}  // namespace
}  // namespace lode::cli
