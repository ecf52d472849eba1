// Keys, hosts, origins and paths.
#include "server/guard.h"

#include <gtest/gtest.h>

#include "server/routes.h"

namespace kvart::server {
namespace {

TEST(Keys, OnlyTheWholeKeyCounts) {
  const std::vector<std::string> keys = {"alpha", "beta", "b"};
  EXPECT_EQ(find_key(keys, "Bearer alpha"), 0u);
  EXPECT_EQ(find_key(keys, "bearer beta"), 1u);
  EXPECT_EQ(find_key(keys, "Bearer b"), 2u);
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer alph", "Bearer alphaa", "Bearer  beta",
                            "alpha", "Basic alpha", "Bearer alpha ", "Bearer bb"}) {
    EXPECT_FALSE(find_key(keys, wrong)) << wrong;
  }
  EXPECT_TRUE(same_secret("", ""));
  EXPECT_FALSE(same_secret("", "a"));
  EXPECT_FALSE(same_secret("a", ""));
  EXPECT_FALSE(same_secret("aa", "a"));
}

TEST(Hosts, OnlyThisMachinesNames) {
  for (const char* own : {"localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:80", "127.9.9.9:1",
                          "[::1]:8000", "[::1]", "::1", ""}) {
    EXPECT_TRUE(names_this_machine(own, "127.0.0.1")) << own;
  }
  for (const char* foreign : {"evil.example", "localhost.evil", "localhost.evil:8000",
                              "127.0.0.1.x", "127.0.0.1.evil.example", "0.0.0.0",
                              "evil.example:127", "[::2]", "127.", "localhost:1:2"}) {
    EXPECT_FALSE(names_this_machine(foreign, "127.0.0.1")) << foreign;
  }
  EXPECT_TRUE(names_this_machine("mybox:80", "mybox"));
  EXPECT_TRUE(is_loopback("127.0.0.1"));
  EXPECT_FALSE(is_loopback("0.0.0.0"));
  EXPECT_FALSE(is_loopback("192.168.0.1"));
}

TEST(Origins, ListedOnesAndOnesOwn) {
  EXPECT_FALSE(allowed_origin({}, "http://evil.example"));
  EXPECT_EQ(allowed_origin({"http://a.example"}, "http://a.example"), "http://a.example");
  EXPECT_FALSE(allowed_origin({"http://a.example"}, "http://a.example.evil"));
  EXPECT_EQ(allowed_origin({"*"}, "null"), "*");
  EXPECT_FALSE(allowed_origin({"*"}, ""));
  EXPECT_TRUE(is_own_origin("http://localhost:8000", "localhost:8000"));
  EXPECT_FALSE(is_own_origin("http://localhost:8000", "localhost"));
  EXPECT_FALSE(is_own_origin("null", "null"));
}

TEST(Origins, MaySendTheHeadersThatTheyAskFor) {
  const char* usual = "Authorization, Content-Type";
  EXPECT_EQ(allowed_headers(""), usual);
  EXPECT_EQ(allowed_headers(" , "), usual);
  EXPECT_EQ(allowed_headers("authorization,content-type,x-stainless-arch"),
            "authorization, content-type, x-stainless-arch");
  EXPECT_EQ(allowed_headers("\tX-a ,, x-B_1~ "), "X-a, x-B_1~");
  for (const char* wrong :
       {"x-a: b", "x-a, x b", "x-a\r\nSet-Cookie", "\"x\"", "x-\xC3\xA4", "(x)"}) {
    EXPECT_EQ(allowed_headers(wrong), usual) << wrong;
  }
}

TEST(Routes, NothingButTheExactPathLeadsThere) {
  EXPECT_EQ(path_of("/health?x=1"), "/health");
  EXPECT_FALSE(path_of("http://localhost/health"));
  EXPECT_FALSE(path_of("*"));
  for (const Route& route : routes()) {
    const std::string path(route.path);
    if (path.ends_with('*')) continue;
    ASSERT_EQ(find_route(path), &route);
    for (const std::string& other : {"/" + path, path + "/", path + "%2e", "/v1/.." + path,
                                     "/%2e%2e" + path, path + "//", path + ";", path + "\\"}) {
      const Route* found = find_route(other);
      EXPECT_TRUE(found == nullptr || found->action == Action::model) << other;
    }
    std::string upper = path;
    for (char& c : upper) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    if (upper != path) {
      EXPECT_EQ(find_route(upper), nullptr);
    }
  }
  EXPECT_EQ(find_route("/v1/models/a/b")->action, Action::model);
  EXPECT_EQ(find_route("/v1/models/"), nullptr);
}

}  // namespace
}  // namespace kvart::server
