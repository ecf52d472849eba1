// Names from files in messages: nothing in them can move a cursor, end a line or hide text.
#include "model/file/printable.h"

#include <gtest/gtest.h>

namespace kvart {
namespace {

TEST(Printable, KeepsVisibleText) {
  EXPECT_EQ(printable("blk.0.attn_q.weight"), "blk.0.attn_q.weight");
  EXPECT_EQ(printable("\xC3\xA9 \xE4\xB8\xAD \xF0\x9F\x98\x80"),
            "\xC3\xA9 \xE4\xB8\xAD \xF0\x9F\x98\x80");
  EXPECT_EQ(printable(""), "");
}

TEST(Printable, EscapesControlCharacters) {
  EXPECT_EQ(printable("a\nb\r\t\x1B[31m\x7F"), "a\\x0Ab\\x0D\\x09\\x1B[31m\\x7F");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\\x41"), "\\x5Cx41");
  EXPECT_EQ(printable("\xC2\x9B"), "\\xC2\\x9B");  // C1: a control sequence's start
  EXPECT_EQ(printable("\xE2\x80\xAE"
                      "abc"),
            "\\xE2\\x80\\xAE"
            "abc");  // right-to-left override
}

TEST(Printable, EscapesWhatIsNotUtf8) {
  EXPECT_EQ(printable("\xFF\xFE"), "\\xFF\\xFE");
  EXPECT_EQ(printable("\x80"), "\\x80");
  EXPECT_EQ(printable("\xC0\xAF"), "\\xC0\\xAF");                    // overlong
  EXPECT_EQ(printable("\xE0\x80\xAF"), "\\xE0\\x80\\xAF");           // overlong
  EXPECT_EQ(printable("\xED\xA0\x80"), "\\xED\\xA0\\x80");           // surrogate
  EXPECT_EQ(printable("\xF4\x90\x80\x80"), "\\xF4\\x90\\x80\\x80");  // above U+10FFFF
  EXPECT_EQ(printable("\xF8\x88\x80\x80"), "\\xF8\\x88\\x80\\x80");
  EXPECT_EQ(printable("a\xE4\xB8"), "a\\xE4\\xB8");  // cut
}

TEST(Printable, IsBounded) {
  EXPECT_EQ(printable("abcdef", 4), "abcd... (6 bytes)");
  EXPECT_EQ(printable("abcd", 4), "abcd");
  EXPECT_EQ(printable("abc\xC3\xA9", 4), "abc... (5 bytes)");  // never half a character
  EXPECT_LT(printable(std::string(1 << 20, '\n')).size(), 500u);
}

}  // namespace
}  // namespace kvart
