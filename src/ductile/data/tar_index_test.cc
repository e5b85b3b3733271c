#include "ductile/data/tar_index.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"

namespace ductile::data {
namespace {

std::span<const std::byte> view(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string member(const std::string& name, const std::string& body) {
  std::string out = tar_header(name, body.size()) + body;
  return out.append((512 - body.size() % 512) % 512, '\0');
}

TEST(TarIndex, ListsWhatTarHeaderWrites) {
  const std::string deep = std::string(120, 'd') + "/" + std::string(90, 'n') + ".jpg";
  std::string tar = member("a/1.jpg", "hello") + member("./b/2.jpg", std::string(512, 'x')) +
                    member(deep, "") + std::string(1024, '\0');
  const auto entries = index_tar(view(tar), "t.tar");
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].name, "a/1.jpg");
  EXPECT_EQ(tar.substr(entries[0].offset, entries[0].size), "hello");
  EXPECT_EQ(entries[1].name, "b/2.jpg");
  EXPECT_EQ(entries[2].name, deep);
  EXPECT_THROW(tar_header(std::string(300, 'x'), 1), Error);
}

TEST(TarIndex, ReadsWhatGnuTarWritesInEveryFormat) {
  const TempFolder folder;
  const std::string name(150, 'n');
  const fs::path root = folder.path() / "in" / std::string(110, 'd');
  fs::create_directories(root);
  write_file_atomic(root / name, std::string_view("body"));
  fs::create_symlink("nowhere", root / "link");
  for (const std::string format : {"ustar", "gnu", "posix"}) {
    const fs::path tar = folder.path() / (format + ".tar");
    const std::string command = "tar --format=" + format + " -C " +
                                (folder.path() / "in").string() + " -cf " + tar.string() +
                                " . 2>/dev/null";
    // ustar cannot hold such names; tar then leaves the folder out and fails.
    const bool whole = std::system(command.c_str()) == 0;
    const auto entries = index_tar(MappedFile(tar).bytes(), tar.string());
    EXPECT_TRUE(whole || format == "ustar");
    EXPECT_EQ(entries.empty(), !whole);
    if (!whole) continue;
    const auto is_link = [](const TarEntry& e) { return e.link; };
    const auto link = std::find_if(entries.begin(), entries.end(), is_link);
    ASSERT_NE(link, entries.end()) << format;
    EXPECT_EQ(link->name, std::string(110, 'd') + "/link");
    ASSERT_EQ(entries.size(), 2u) << format;
    const auto file = std::find_if_not(entries.begin(), entries.end(), is_link);
    EXPECT_EQ(file->name, std::string(110, 'd') + "/" + name);
  }
}

// GNU tar writes the second name of a file as a link to the first.
TEST(TarIndex, AHardLinkHasTheBytesOfItsFile) {
  const TempFolder folder;
  const fs::path in = folder.path() / "in", tar = folder.path() / "t.tar";
  fs::create_directories(in / "ant");
  fs::create_directories(in / "bee");
  write_file_atomic(in / "ant/1.jpg", std::string_view("body"));
  fs::create_hard_link(in / "ant/1.jpg", in / "bee/2.jpg");
  for (const std::string format : {"ustar", "gnu", "posix"}) {
    const std::string command =
        "tar --format=" + format + " -C " + in.string() + " -cf " + tar.string() + " ant bee";
    ASSERT_EQ(std::system(command.c_str()), 0);
    const MappedFile file(tar);
    const auto entries = index_tar(file.bytes(), "t.tar");
    ASSERT_EQ(entries.size(), 2u) << format;
    EXPECT_EQ(entries[1].name, "bee/2.jpg");
    EXPECT_FALSE(entries[1].link);
    EXPECT_EQ(entries[0].offset, entries[1].offset);
    EXPECT_EQ(entries[1].size, 4u);
  }
}

TEST(TarIndex, NamesBytesBehindTheEnd) {
  const std::string one = member("a/1.jpg", "hello") + std::string(1024, '\0');
  EXPECT_EQ(index_tar(view(one + std::string(10240, '\0')), "t.tar").size(), 1u);
  try {
    index_tar(view(one + member("a/2.jpg", "hello")), "t.tar");
    ADD_FAILURE() << "it was read";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::data_loss);
    EXPECT_NE(error.message().find("offset 2048"), std::string::npos) << error.message();
  }
}

TEST(TarIndex, RefusesEveryTruncationWithAnOffset) {
  const std::string tar = member("a/1.jpg", std::string(700, 'x')) + member("a/2.jpg", "yy");
  for (size_t n = 0; n < tar.size(); ++n) {
    try {
      const auto entries = index_tar(view(tar.substr(0, n)), "t.tar");
      // Only padding may be missing, or whole members at the end of an unterminated archive.
      EXPECT_TRUE(n >= 512 + 700) << n;
      for (const TarEntry& e : entries) EXPECT_LE(e.offset + e.size, n);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::data_loss);
      EXPECT_NE(std::string(e.what()).find("t.tar, offset"), std::string::npos) << e.what();
    }
  }
}

TEST(TarIndex, SurvivesEveryAlteredHeaderByte) {
  const std::string tar = member("a/1.jpg", "hello") + std::string(1024, '\0');
  for (size_t i = 0; i < 512; ++i) {
    if (i == 155) continue;  // the space after the checksum may be anything
    for (const int flip : {1, 0x80, 0xff}) {
      std::string bad = tar;
      bad[i] = static_cast<char>(bad[i] ^ flip);
      EXPECT_THROW(index_tar(view(bad), "t.tar"), Error) << i;
    }
  }
}

TEST(TarIndex, RefusesASizeThatLies) {
  std::string tar = tar_header("a/1.jpg", 1 << 30) + std::string(2048, 'x');
  EXPECT_THROW(index_tar(view(tar), "t.tar"), Error);
}

}  // namespace
}  // namespace ductile::data
