// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <gtest/gtest.h>

#include <clocale>
#include <limits>

namespace lode {
namespace {

TEST(JsonWriterTest, NestsAndIndents) {
  JsonWriter json;
  json.BeginObject().Field("name", "a\"b").Key("list").BeginArray().Value(1).Value(-2).EndArray();
  json.Key("empty").BeginObject().EndObject().Field("yes", true).Key("none").Null().EndObject();
  EXPECT_EQ(json.text(),
            "{\n  \"name\": \"a\\\"b\",\n  \"list\": [\n    1,\n    -2\n  ],\n  \"empty\": {},\n"
            "  \"yes\": true,\n  \"none\": null\n}");
}

TEST(JsonWriterTest, CompactIsOneLine) {
  JsonWriter json(JsonWriter::Style::kCompact);
  json.BeginObject().Field("a", 1).Field("b", "x\ny").EndObject();
  EXPECT_EQ(json.text(), "{\"a\":1,\"b\":\"x\\ny\"}");
}

TEST(JsonWriterTest, NumbersDoNotDependOnTheLocale) {
  const bool has_comma_locale = std::setlocale(LC_ALL, "de_DE.UTF-8") != nullptr;
  JsonWriter json(JsonWriter::Style::kCompact);
  json.BeginArray().Value(1.5).Value(0.1).Value(1e300).Value(
      std::numeric_limits<double>::infinity());
  json.Value(std::numeric_limits<uint64_t>::max()).EndArray();
  EXPECT_EQ(json.text(), "[1.5,0.1,1e+300,null,18446744073709551615]") << has_comma_locale;
  std::setlocale(LC_ALL, "C");
}

TEST(JsonQuoteTest, EscapesControlAndIllFormedBytes) {
  EXPECT_EQ(JsonQuote("\t\r\x01\\ \x7f"), "\"\\t\\r\\u0001\\\\ \\u007f\"");
  EXPECT_EQ(JsonQuote("é 模 🙂"), "\"é 模 🙂\"");
  EXPECT_EQ(JsonQuote("a\xff"
                      "b"),
            "\"a\xef\xbf\xbd"
            "b\"");
  EXPECT_EQ(JsonQuote("\xe6\xa8"), "\"\xef\xbf\xbd\xef\xbf\xbd\"");  // cut short
  EXPECT_EQ(JsonQuote(std::string_view("\0", 1)), "\"\\u0000\"");
}

TEST(JsonQuoteTest, FollowsRfc3629) {
  const std::string bad = "\xef\xbf\xbd";
  EXPECT_EQ(JsonQuote("\xc0\x80"), '"' + bad + bad + '"');            // overlong
  EXPECT_EQ(JsonQuote("\xe0\x80\x80"), '"' + bad + bad + bad + '"');  // overlong
  EXPECT_EQ(JsonQuote("\xed\xa0\x80"), '"' + bad + bad + bad + '"');  // surrogate
  EXPECT_EQ(JsonQuote("\xf4\x90\x80\x80"), '"' + bad + bad + bad + bad + '"');
}

}  // namespace
}  // namespace lode
