#include "ductile/base/paths.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "ductile/base/testing.h"

namespace ductile {
namespace {

using testing::code_of;

class Paths : public ::testing::Test {
 protected:
  Paths() {
    write_file_atomic(at("file"), "text");
    fs::create_directory(at("folder"));
    ::mkfifo(at("pipe").c_str(), 0600);
    fs::create_symlink("file", at("link"));
    fs::create_symlink("loop", at("loop"));
    fs::create_symlink("nowhere", at("gone"));
  }
  fs::path at(const std::string& name) const { return folder_.path() / name; }

  TempFolder folder_;
};

TEST_F(Paths, AreToldByWhatLiesThere) {
  EXPECT_EQ(kind_of(at("file")), FileKind::file);
  EXPECT_EQ(kind_of(at("link")), FileKind::file);
  EXPECT_EQ(kind_of(at("folder")), FileKind::folder);
  EXPECT_EQ(kind_of(at("pipe")), FileKind::other);
  EXPECT_EQ(kind_of("/dev/zero"), FileKind::other);
  EXPECT_EQ(kind_of(at("gone")), FileKind::none);
  EXPECT_EQ(kind_of(at("file/below")), FileKind::none);
  EXPECT_TRUE(is_file(at("link")));
  EXPECT_FALSE(is_folder(at("file")));
  EXPECT_EQ(kind_text(at("gone")), "a link that leads nowhere");
  std::string text;
  EXPECT_EQ(code_of([&] { kind_of(at("loop")); }, &text), ErrorCode::invalid_argument);
  EXPECT_EQ(text, at("loop").string() + ": Too many levels of symbolic links");
  EXPECT_EQ(code_of([&] { is_file(at("pipe")); }, &text), ErrorCode::invalid_argument);
  EXPECT_EQ(text, at("pipe").string() + ": is a FIFO, not a file or a folder");
}

TEST_F(Paths, OnlyRegularFilesAreReadAndMapped) {
  std::vector<std::byte> bytes;
  read_regular_file(at("link"), 4, bytes);
  EXPECT_EQ(bytes.size(), 4u);
  EXPECT_EQ(code_of([&] { read_regular_file(at("file"), 3, bytes); }), ErrorCode::data_loss);
  EXPECT_EQ(code_of([&] { read_regular_file(at("gone"), 3, bytes); }), ErrorCode::not_found);
  for (const fs::path& odd : {at("pipe"), at("folder"), fs::path("/dev/zero")}) {
    EXPECT_EQ(code_of([&] { read_regular_file(odd, 3, bytes); }), ErrorCode::invalid_argument);
    EXPECT_EQ(code_of([&] { MappedFile mapped(odd); }), ErrorCode::invalid_argument);
  }
}

TEST_F(Paths, AFolderIsListedInOrder) {
  std::string names;
  for (const fs::path& path : list_folder(folder_.path())) names += path.filename().string() + " ";
  EXPECT_EQ(names, "file folder gone link loop pipe ");
  EXPECT_EQ(code_of([&] { list_folder(at("gone")); }), ErrorCode::not_found);
}

TEST_F(Paths, TheStandardLibrarysErrorsAreTranslated) {
  try {
    fs::directory_iterator it(at("gone"));
    FAIL();
  } catch (const fs::filesystem_error& e) {
    EXPECT_EQ(error_of(e).code(), ErrorCode::not_found);
    EXPECT_EQ(error_of(e).message(), at("gone").string() + ": No such file or directory");
  }
}

}  // namespace
}  // namespace ductile
