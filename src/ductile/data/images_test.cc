#include "ductile/data/images.h"

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace ductile::data
