#include "ductile/dashboard/dashboard.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace ductile::dashboard {
namespace {

// What follows each `before` in the page, up to `end`.
std::vector<std::string> texts_after(std::string_view page, std::string_view before,
                                     char end = '"') {
  std::vector<std::string> out;
  for (size_t at = 0; (at = page.find(before, at)) != std::string_view::npos;) {
    at += before.size();
    out.emplace_back(page.substr(at, page.find(end, at) - at));
  }
  return out;
}

TEST(Dashboard, EveryFileThatThePageNamesIsThere) {
  const auto page = file("/");
  ASSERT_TRUE(page);
  size_t named = 0;
  for (const char* before : {"src=\"", "href=\""}) {
    for (const std::string& path : texts_after(page->text, before)) {
      if (path.starts_with('#')) continue;  // a place in the page
      EXPECT_TRUE(file(path)) << path;
      ++named;
    }
  }
  EXPECT_GT(named, 5u);
  const std::string_view scripts[] = {"main", "service", "parts",     "figures", "jobs",
                                      "job",  "cluster", "accounts",  "actions", "events",
                                      "api",  "submit",  "submission"};
  for (const std::string_view script : scripts) {
    const auto known = file("/assets/" + std::string(script) + ".js");
    ASSERT_TRUE(known) << script;
    for (const std::string& other : texts_after(known->text, "from \"./"))
      EXPECT_TRUE(file("/assets/" + other)) << script << " imports " << other;
  }
}

// The page's Content-Security-Policy forbids both; they would do nothing.
TEST(Dashboard, HasNoScriptAndNoStyleInItsMarkup) {
  const std::string page(file("/")->text);
  EXPECT_EQ(page.find("style="), std::string::npos);
  EXPECT_EQ(page.find("<style"), std::string::npos);
  EXPECT_EQ(page.find(" on"), std::string::npos);
  for (const std::string& tag : texts_after(page, "<script", '>'))
    EXPECT_NE(tag.find("src="), std::string::npos) << tag;
}

TEST(Dashboard, HasNoOtherFiles) {
  for (const char* path : {"", "/index.html", "/assets", "/assets/", "/assets/../main.js", "//"})
    EXPECT_FALSE(file(path)) << path;
}

}  // namespace
}  // namespace ductile::dashboard
