#include "ductile/data/images.h"

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/data/testing/images.h"

namespace ductile::data {
namespace {

using Names = std::vector<std::string>;

void put_image(const fs::path& file, int seed) {
  fs::create_directories(file.parent_path());
  write_file_atomic(file, encode_png(test_pixels(9, 7, 3, seed), 9, 7));
}

std::string refusal(const std::function<void()>& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }
  return "nothing thrown";
}

TEST(Images, OfAFolderAreInTheOrderOfTheirNames) {
  const TempFolder folder;
  for (const char* name : {"b.png", "a.png", "c.PNG"}) put_image(folder.path() / name, 1);
  put_image(folder.path() / "sub" / "d.png", 1);
  write_file_atomic(folder.path() / "notes.txt", "x");
  ASSERT_TRUE(holds_images(folder.path()));
  const auto images = open_images(folder.path(), false);
  ASSERT_EQ(images->info().size, 3);
  EXPECT_EQ(images->info().height, 7);
  EXPECT_EQ(images->where(0), (folder.path() / "a.png").string());
  EXPECT_EQ(images->where(2), (folder.path() / "c.PNG").string());
  std::vector<std::byte> scratch;
  EXPECT_EQ(images->read(1, scratch).encoding, Encoding::png);
  EXPECT_EQ(images->label(1), 0);

  EXPECT_TRUE(holds_images(folder.path() / "a.png"));
  EXPECT_EQ(open_images(folder.path() / "a.png", false)->info().size, 1);
}

TEST(Images, ThatAreNotThereAreNamed) {
  const TempFolder folder;
  EXPECT_FALSE(holds_images(folder.path()));
  EXPECT_FALSE(holds_images(folder.path() / "absent"));
  put_image(folder.path() / "cats" / "a.png", 1);
  EXPECT_FALSE(holds_images(folder.path())) << "those of classes are no images without";
  EXPECT_NE(refusal([&] { open_images(folder.path(), false); }, ErrorCode::invalid_argument)
                .find(folder.path().string()),
            std::string::npos);
  EXPECT_NE(refusal([&] { open_images(folder.path() / "absent", false); }, ErrorCode::not_found)
                .find("absent"),
            std::string::npos);
}

// As training reports them; nobody writes into the FIFO.
TEST(Images, WhatIsNoFileIsReportedAndNeverWaitedFor) {
  const TempFolder folder;
  put_image(folder.path() / "b.png", 1);
  put_image(folder.path() / "c.png" / "inner.png", 1);  // a folder is left out
  fs::create_symlink("nowhere", folder.path() / "a.jpg");
  ASSERT_EQ(::mkfifo((folder.path() / "d.jpg").c_str(), 0600), 0);
  fs::create_symlink("e.png", folder.path() / "e.png");
  EXPECT_NE(refusal([&] { open_images(folder.path(), false); }, ErrorCode::data_loss)
                .find("a.jpg: a link that leads nowhere, not a file"),
            std::string::npos);
  const auto images = open_images(folder.path(), true);
  EXPECT_EQ(images->info().size, 1);
  EXPECT_EQ(images->where(0), (folder.path() / "b.png").string());
  std::string bad;
  for (const BadItem& item : images->bad_items())
    bad += fs::path(item.where).filename().string() + ": " + item.what + "\n";
  EXPECT_EQ(bad,
            "a.jpg: a link that leads nowhere, not a file\nd.jpg: a FIFO, not a file\n"
            "e.png: a loop of links\n");
  fs::remove(folder.path() / "b.png");
  EXPECT_TRUE(holds_images(folder.path()));
}

TEST(WithClasses, NumbersTheClassesOfASetByTheirNames) {
  const TempFolder folder;
  for (const char* name : {"ant", "cat"}) put_image(folder.path() / name / "0.png", 1);
  spec::DataOptions options;
  options.format = "folder";
  options.path = options.test_path = folder.path().string();
  const auto samples = open_dataset(options, Split::test);
  ASSERT_EQ(samples->info().class_names, (Names{"ant", "cat"}));
  EXPECT_EQ(with_classes(samples, {"ant", "cat"}), samples);
  const auto renumbered = with_classes(samples, {"bee", "cat", "ant"});
  EXPECT_EQ(renumbered->info().class_names, (Names{"bee", "cat", "ant"}));
  EXPECT_EQ(renumbered->info().num_classes, 3);
  EXPECT_EQ(renumbered->label(0), 2);
  EXPECT_EQ(renumbered->label(1), 1);
  EXPECT_EQ(renumbered->where(1), samples->where(1));
  EXPECT_NE(refusal(
                [&] {
                  with_classes(samples, {"bee", "cat"});
                },
                ErrorCode::invalid_argument)
                .find("class ant; it knows bee, cat"),
            std::string::npos);
}

// A saved model has the names as text; the folder of a class has them as bytes.
TEST(WithClasses, FindsANameThatIsNotUtf8) {
  const TempFolder folder;
  for (const char* name : {"ant", "b\xff"}) put_image(folder.path() / name / "0.png", 1);
  spec::DataOptions options;
  options.format = "folder";
  options.path = options.test_path = folder.path().string();
  const auto samples = open_dataset(options, Split::test);
  const auto renumbered = with_classes(samples, {"b\xef\xbf\xbd", "ant"});
  EXPECT_EQ(renumbered->label(0), 1);
  EXPECT_EQ(renumbered->label(1), 0);
}

// A model of grey images sees the brightness of the pixels.
TEST(Images, AreGreyForAModelOfOneChannel) {
  const TempFolder folder;
  const std::vector<uint8_t> pixels = test_pixels(9, 7, 3, 4);
  write_file_atomic(folder.path() / "a.png", encode_png(pixels, 9, 7));
  const auto images = open_images(folder.path(), false, 1);
  EXPECT_EQ(images->info().channels, 1);
  std::vector<std::byte> scratch;
  const Sample grey = images->read(0, scratch);
  ASSERT_EQ(grey.encoding, Encoding::pixels);
  EXPECT_EQ(grey.height, 7);
  EXPECT_EQ(grey.width, 9);
  EXPECT_EQ(grey.channels, 1);
  ASSERT_EQ(grey.bytes.size(), 63u);
  for (size_t i = 0; i < 63; ++i) {
    const double light =
        0.299 * pixels[3 * i] + 0.587 * pixels[3 * i + 1] + 0.114 * pixels[3 * i + 2];
    EXPECT_NEAR(std::to_integer<int>(grey.bytes[i]), light, 0.51) << i;
  }
  write_file_atomic(folder.path() / "bad.png", "no image");
  EXPECT_THROW(open_images(folder.path(), false, 1)->read(1, scratch), Error);
}

}  // namespace
}  // namespace ductile::data
