#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/files.h"
#include "ductile/base/options.h"
#include "ductile/comm/cost.h"

namespace ductile::comm {
namespace {

// The text between the line that begins with `from` and the next that begins with `to`.
std::string between(const std::string& text, const std::string& from, const std::string& to) {
  const size_t begin = text.find("\n", text.find(from)) + 1;
  return text.substr(begin, text.find("\n" + to, begin) + 1 - begin);
}

// The page holds fabrics as TOML, each followed by its table.
TEST(ScaleTable, ThePageSaysWhatTheModelSays) {
  const std::string page =
      read_file(fs::path(DUCTILE_SOURCE_DIR) / "docs/reference/collectives.md");
  const std::vector<int64_t> ranks = {1024, 2048, 4096, 16384, 65536};
  const std::vector<int64_t> bytes = {4 << 10, 1 << 20, 100 << 20};
  int fabrics = 0;
  for (size_t at = page.find("```toml"); at != std::string::npos;
       at = page.find("```toml", at + 1)) {
    ++fabrics;
    const std::string rest = page.substr(at);
    Fabric fabric;
    OptionSet(fabric).read_toml_text(between(rest, "```toml", "```"), "collectives.md");
    const std::string table = scale_table(fabric, ranks, bytes);
    EXPECT_NE(rest.find(table), std::string::npos) << "the table should be\n" << table;
  }
  EXPECT_EQ(fabrics, 2);
}

}  // namespace
}  // namespace ductile::comm
