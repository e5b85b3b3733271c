#include <cstdlib>
#include <map>
#include <string>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/data/digits.h"
#include "ductile/data/inspect.h"
#include "ductile/data/jpeg.h"
#include "ductile/data/loader.h"
#include "ductile/data/png.h"
#include "ductile/data/tar_index.h"
#include "ductile/data/testing/images.h"

namespace ductile::data {
namespace {

fs::path shared_data() { return fs::path(DUCTILE_SOURCE_DIR) / ".." / "shared" / "data"; }

spec::DataOptions options(std::string format, const fs::path& path) {
  spec::DataOptions o;
  o.format = std::move(format);
  o.path = path.string();
  return o;
}

TEST(Digits, AreTheSameBytesEverywhere) {
  std::vector<uint8_t> pixels(kDigitSide * kDigitSide);
  uint64_t hash = 14695981039346656037u;
  int labels = 0;
  for (uint64_t i = 0; i < 500; ++i) {
    labels = labels * 3 % 10007 + draw_digit(1, i, pixels);
    for (const uint8_t p : pixels) hash = (hash ^ p) * 1099511628211u;
  }
  EXPECT_EQ(hash, 2673740753216008592u);
}

TEST(Digits, HoldEveryClassEqually) {
  const auto report = inspect({}, Split::train);
  EXPECT_EQ(report.good, kDigitTrain);
  for (const int64_t n : report.class_counts) EXPECT_NEAR(double(n), 2000, 200);
  EXPECT_NEAR(report.info.mean[0], 0.151, 0.02);
}

TEST(Idx, ReadsFashionMnist) {
  const fs::path path = shared_data() / "fashion-mnist";
  if (!fs::exists(path)) GTEST_SKIP() << path << " is absent";
  const auto train = open_dataset(options("idx", path), Split::train);
  const auto test = open_dataset(options("idx", path), Split::test);
  EXPECT_EQ(train->info().size, 60000);
  EXPECT_EQ(test->info().size, 10000);
  EXPECT_EQ(test->info().num_classes, 10);
  EXPECT_NEAR(train->info().mean[0], 0.2860, 1e-4);
  EXPECT_NEAR(train->info().std[0], 0.3530, 1e-4);
  EXPECT_EQ(train->label(0), 9);
}

TEST(Cifar, ReadsRecordsInOrderAndInterleavesPlanes) {
  const TempFolder folder;
  for (const char* name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                           "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"}) {
    std::string file;
    for (int i = 0; i < 3; ++i) {
      file += static_cast<char>(i);
      for (int c = 0; c < 3; ++c) file += std::string(1024, static_cast<char>(10 * c + i));
    }
    write_file_atomic(folder.path() / name, file);
  }
  const auto train = open_dataset(options("cifar10", folder.path()), Split::train);
  ASSERT_EQ(train->info().size, 15);
  EXPECT_EQ(train->label(4), 1);
  std::vector<std::byte> scratch;
  const Sample s = train->read(4, scratch);
  EXPECT_EQ(std::to_integer<int>(s.bytes[0]), 1);
  EXPECT_EQ(std::to_integer<int>(s.bytes[1]), 11);
  EXPECT_EQ(std::to_integer<int>(s.bytes[5]), 21);
  EXPECT_EQ(train->where(4), (folder.path() / "data_batch_2.bin").string() + ", offset 3073");
}

TEST(Cifar, TakesTheFineLabelsOfCifar100) {
  const TempFolder folder;
  for (const char* name : {"train.bin", "test.bin"}) {
    std::string file;
    for (int i = 0; i < 3; ++i) {
      file += static_cast<char>(19);            // the coarse label
      file += static_cast<char>(33 * (i + 1));  // the fine one
      for (int c = 0; c < 3; ++c) file += std::string(1024, static_cast<char>(10 * c + i));
    }
    write_file_atomic(folder.path() / name, file);
  }
  const auto test = open_dataset(options("cifar100", folder.path()), Split::test);
  ASSERT_EQ(test->info().size, 3);
  EXPECT_EQ(test->info().num_classes, 100);
  EXPECT_EQ(test->label(2), 99);
  std::vector<std::byte> scratch;
  EXPECT_EQ(std::to_integer<int>(test->read(2, scratch).bytes[1]), 12);
}

RC_GTEST_PROP(Png, GivesBackEveryPixel, ()) {
  const int width = *rc::gen::inRange(1, 40), height = *rc::gen::inRange(1, 40);
  const std::vector<uint8_t> pixels = test_pixels(width, height, 3, *rc::gen::inRange(0, 1000));
  const std::string file = encode_png(pixels, width, height);
  std::vector<uint8_t> decoded;
  const ImageView image = decode_png(std::as_bytes(std::span(file)), decoded);
  RC_ASSERT(image.width == width);
  RC_ASSERT(image.height == height);
  decoded.resize(pixels.size());
  RC_ASSERT(decoded == pixels);
}

TEST(Png, EveryTruncationIsAnError) {
  const std::string file = encode_png(test_pixels(9, 7, 3, 1), 9, 7);
  std::vector<uint8_t> pixels;
  // Up to the pixels: what follows them (the end mark) carries nothing.
  for (size_t size = 0; size + 16 < file.size(); ++size) {
    EXPECT_THROW(decode_png(std::as_bytes(std::span(file).first(size)), pixels), Error) << size;
  }
}

TEST(Folder, FindsBothSplitsAndTheirClasses) {
  const TempFolder folder;
  make_image_folder(folder.path(), 6);
  const auto train = open_dataset(options("folder", folder.path()), Split::train);
  const auto test = open_dataset(options("folder", folder.path()), Split::test);
  EXPECT_EQ(train->info().size, 12);
  EXPECT_EQ(test->info().size, 6);
  EXPECT_EQ(train->info().class_names, (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(train->info().height, 0);  // sizes vary
  EXPECT_EQ(train->label(6), 1);
}

TEST(Folder, GivesTheSameBatchesWithAndWithoutThreadsAndRestart) {
  const TempFolder folder;
  make_image_folder(folder.path(), 12);
  const auto train = open_dataset(options("folder", folder.path()), Split::train);
  spec::AugmentOptions a;
  a.crop = 24;
  a.random_resized_crop = true;
  a.flip = true;
  for (const int64_t cache : {0, 64}) {
    std::map<std::pair<int64_t, int64_t>, std::string> expected;
    for (const int64_t threads : {1, 3}) {
      spec::LoaderOptions o;
      o.threads = threads;
      o.cache_mb = cache;
      Loader loader(train, a, o, {.seed = 3, .batch_size = 6, .channels_last = false});
      for (int i = 0; i < 12; ++i) {
        const auto b = loader.next();
        std::string bytes(reinterpret_cast<const char*>(b->input), 6 * 3 * 24 * 24 * 4);
        const auto [at, added] = expected.try_emplace({b->epoch, b->first}, bytes);
        EXPECT_TRUE(added || at->second == bytes);
      }
    }
    spec::LoaderOptions o;
    o.cache_mb = cache;
    Loader loader(train, a, o,
                  {.seed = 3, .batch_size = 6, .start = 2 * 24 + 6, .channels_last = false});
    const auto b = loader.next();
    EXPECT_EQ(expected.at({2, 6}),
              std::string(reinterpret_cast<const char*>(b->input), 6 * 3 * 24 * 24 * 4));
  }
}

TEST(Tar, ReadsBothSplitsOfOneArchive) {
  const fs::path path = shared_data() / "cifar10-jpeg" / "cifar10-jpeg-2000.tar";
  if (!fs::exists(path)) GTEST_SKIP() << path << " is absent";
  const auto train = inspect(options("tar", path), Split::train);
  EXPECT_EQ(train.good, 1600);
  EXPECT_TRUE(train.bad.empty());
  EXPECT_EQ(train.info.class_names.size(), 10u);
  EXPECT_EQ(train.info.height, 32);
  for (const int64_t n : train.class_counts) EXPECT_EQ(n, 160);
  EXPECT_NEAR(train.info.mean[0], 0.49, 0.02);
  EXPECT_EQ(inspect(options("tar", path), Split::test).good, 400);
}

std::string tar_member(const std::string& name, const std::string& body) {
  std::string out = tar_header(name, body.size()) + body;
  return out.append((512 - body.size() % 512) % 512, '\0');
}

// Whoever measures a model on an archive, or a folder of archives, that holds training samples as
// well means those that were held out.
TEST(Tar, OfASetThatIsOnlyEvaluatedTheHeldOutPartCounts) {
  const TempFolder folder;
  const std::string image = encode_png(test_pixels(4, 4, 3, 1), 4, 4);
  const auto put = [&](const std::string& name, const std::string& content) {
    fs::create_directories((folder.path() / name).parent_path());
    write_file_atomic(folder.path() / name, content);
  };
  const auto size_of = [&](const std::string& name) {
    spec::DataOptions o = options("tar", folder.path() / name);
    o.test_path = o.path;
    return open_dataset(o, Split::test)->info().size;
  };
  const std::string train = tar_member("train/ant/1.png", image) +
                            tar_member("train/bee/2.png", image) +
                            tar_member("train/bee/3.png", image);
  put("both.tar", train + tar_member("val/bee/4.png", image));
  EXPECT_EQ(size_of("both.tar"), 1);
  const std::string ant = tar_member("ant/1.png", image), bee = tar_member("bee/2.png", image);
  put("named/train-0.tar", ant + bee);
  put("named/val-0.tar", bee);
  EXPECT_EQ(size_of("named"), 1);
  put("plain/a.tar", ant + bee);
  put("plain/b.tar", bee);
  EXPECT_EQ(size_of("plain"), 3);
  EXPECT_EQ(size_of("plain/a.tar"), 2);
}

// Of a few samples, which need not be of the first classes.
TEST(Tar, ClassNumbersOfASetThatIsOnlyEvaluatedMayBeLarge) {
  const TempFolder folder;
  const std::string image = encode_png(test_pixels(4, 4, 3, 1), 4, 4);
  const fs::path file = folder.path() / "a.tar";
  spec::DataOptions o = options("tar", file);
  write_file_atomic(file, tar_member("1.png", image) + tar_member("1.cls", "7"));
  EXPECT_THROW(open_dataset(o, Split::train), Error);
  o.test_path = o.path;
  const auto samples = open_dataset(o, Split::test);
  EXPECT_EQ(samples->label(0), 7);
  EXPECT_EQ(samples->info().num_classes, 8);
  write_file_atomic(file, tar_member("1.png", image) + tar_member("1.cls", "65536"));
  EXPECT_THROW(open_dataset(o, Split::test), Error) << "a name for each would fill memory";
}

TEST(Tokens, CutTheFileIntoSamples) {
  const TempFolder folder;
  std::string file;
  for (int i = 0; i < 1000; ++i) {
    const uint16_t token = static_cast<uint16_t>(i % 300);
    file.append(reinterpret_cast<const char*>(&token), 2);
  }
  write_file_atomic(folder.path() / "t.bin", file);
  auto o = options("tokens", folder.path() / "t.bin");
  o.tokens.sequence_length = 10;
  const auto train = open_dataset(o, Split::train);
  const auto test = open_dataset(o, Split::test);
  EXPECT_EQ(train->info().size, 89);  // 900 tokens
  EXPECT_EQ(test->info().size, 9);
  EXPECT_EQ(train->info().num_classes, 300);
  Loader loader(test, {}, {}, {.batch_size = 3, .training = false});
  int64_t at = 900;
  while (const auto b = loader.next()) {
    EXPECT_EQ(b->dtype, DType::i64);
    EXPECT_EQ(b->shape, (Shape{3, 10}));
    const auto* x = reinterpret_cast<const int64_t*>(b->input);
    for (int i = 0; i < 30; ++i, ++at) {
      EXPECT_EQ(x[i], at % 300);
      EXPECT_EQ(b->labels[i], (at + 1) % 300);
    }
  }
  EXPECT_EQ(at, 990);
}

TEST(Jpeg, DecodesEveryColourSpace) {
  JpegDecoder decoder;
  std::vector<uint8_t> rgb;
  const auto decode = [&](const std::string& file) {
    decoder.open(std::as_bytes(std::span(file.data(), file.size())));
    return decoder.decode_rgb(rgb);
  };
  const auto grey = test_pixels(30, 20, 1, 1);
  ImageView v = decode(encode_jpeg(grey, 30, 20, JCS_GRAYSCALE, 1));
  EXPECT_EQ(v.width, 30);
  for (size_t i = 0; i < grey.size(); ++i) {
    EXPECT_NEAR(v.data[3 * i], grey[i], 20);
    EXPECT_EQ(v.data[3 * i], v.data[3 * i + 2]);
  }
  // Without ink: white.
  for (const bool adobe : {false, true}) {
    std::vector<uint8_t> cmyk(16 * 16 * 4, 255);
    std::string file = encode_jpeg(cmyk, 16, 16, JCS_CMYK, 4);
    const size_t marker = file.find("Adobe");
    ASSERT_NE(marker, std::string::npos);
    if (!adobe) file.replace(marker, 5, "Other");
    v = decode(file);
    EXPECT_EQ(v.data[0], adobe ? 255 : 0);
  }
  const auto colour = test_pixels(33, 17, 3, 2);
  v = decode(encode_jpeg(colour, 33, 17, JCS_RGB, 3, true));
  EXPECT_EQ(v.height, 17);
}

TEST(Jpeg, APartIsNearTheWhole) {
  const int width = 200, height = 150;
  std::vector<uint8_t> pixels(size_t(width * height * 3));
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < 3; ++c) {
        pixels[size_t((y * width + x) * 3 + c)] = uint8_t(40 + x / 2 + y / 2 + 10 * c);
      }
    }
  }
  const std::string file = encode_jpeg(pixels, width, height, JCS_RGB, 3);
  JpegDecoder decoder;
  for (const int eighths : {8, 4, 2, 1}) {
    decoder.open(std::as_bytes(std::span(file.data(), file.size())));
    const auto size = decoder.scaled(eighths);
    const int64_t l = size.width / 3, t = size.height / 4, r = l + size.width / 2,
                  b = t + size.height / 2;
    const int64_t left = decoder.start({eighths, l, t, r, b});
    EXPECT_LE(left, l);
    for (int64_t y = t; y < b; ++y) {
      const uint8_t* row = decoder.next_row();
      for (int64_t x = l; x < r; ++x) {
        const double want = 40 + (double(x) + 0.5) * 4 / eighths + (double(y) + 0.5) * 4 / eighths;
        EXPECT_NEAR(row[(x - left) * 4], want, 4) << eighths;
      }
    }
    decoder.finish();
  }
}

}  // namespace
}  // namespace ductile::data
