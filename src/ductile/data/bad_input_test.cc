#include <cstdlib>
#include <string>

#include <gtest/gtest.h>
#include <zlib.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/data/convert.h"
#include "ductile/data/gzip.h"
#include "ductile/data/inspect.h"
#include "ductile/data/jpeg.h"
#include "ductile/data/loader.h"
#include "ductile/data/png.h"
#include "ductile/data/tar_index.h"
#include "ductile/data/testing/images.h"

namespace ductile::data {
namespace {

std::string be32(uint32_t v) { return {char(v >> 24), char(v >> 16), char(v >> 8), char(v)}; }

std::string gzip(const std::string& text) {
  z_stream z{};
  deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&z, text.size()), '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  deflate(&z, Z_FINISH);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

class BadInput : public ::testing::Test {
 protected:
  void put(const std::string& name, const std::string& bytes) {
    fs::create_directories((folder_.path() / name).parent_path());
    write_file_atomic(folder_.path() / name, bytes);
  }
  spec::DataOptions options(std::string format, bool skip = false) {
    spec::DataOptions o;
    o.format = std::move(format);
    o.path = folder_.path().string();
    o.on_bad_sample = skip ? "skip" : "fail";
    return o;
  }
  // What opening says; empty if it goes well.
  std::string error(const spec::DataOptions& o, Split split = Split::train) {
    try {
      open_dataset(o, split);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  void put_idx(int n = 5, int classes = 5) {
    put("train-images-idx3-ubyte",
        be32(0x803) + be32(n) + be32(2) + be32(3) + std::string(size_t(6 * n), 'p'));
    std::string labels = be32(0x801) + be32(n);
    for (int i = 0; i < n; ++i) labels += char(i % classes);
    put("train-labels-idx1-ubyte", labels);
  }
  std::string in(const std::string& name) { return (folder_.path() / name).string(); }

  TempFolder folder_;
};

#define EXPECT_SAYS(text, part) EXPECT_NE(std::string(text).find(part), std::string::npos) << text

TEST_F(BadInput, IdxFilesCutShortAtEveryByte) {
  put_idx();
  EXPECT_EQ(error(options("idx")), "");
  const std::string images = read_file(in("train-images-idx3-ubyte"));
  for (size_t n = 0; n < images.size(); ++n) {
    put("train-images-idx3-ubyte", images.substr(0, n));
    EXPECT_SAYS(error(options("idx")), in("train-images-idx3-ubyte") + ", offset");
  }
}

TEST_F(BadInput, GzipCutShortAtEveryByteOrAltered) {
  put_idx();
  const std::string packed = gzip(read_file(in("train-images-idx3-ubyte")));
  fs::remove(in("train-images-idx3-ubyte"));
  put("train-images-idx3-ubyte.gz", packed);
  EXPECT_EQ(error(options("idx")), "");
  for (size_t n = 2; n < packed.size(); ++n) {
    put("train-images-idx3-ubyte.gz", packed.substr(0, n));
    EXPECT_SAYS(error(options("idx")), in("train-images-idx3-ubyte.gz") + ", compressed offset");
  }
  std::string altered = packed;
  altered[packed.size() - 6] ^= 1;  // the checksum
  put("train-images-idx3-ubyte.gz", altered);
  EXPECT_SAYS(error(options("idx")), "offset");
  // The header is judged before the rest is unpacked, and a byte beyond what it states is kept.
  put("long", gzip(std::string(1 << 20, 'x')));
  EXPECT_EQ(read_maybe_gzip(in("long"), 8, [](auto head) { return head.size() + 92; }).size(),
            101u);
  EXPECT_EQ(read_maybe_gzip(in("long"), 8, [](auto) { return 1 << 20; }).size(), 1u << 20);
}

TEST_F(BadInput, IdxHeadersThatLie) {
  put_idx();
  std::string images = read_file(in("train-images-idx3-ubyte"));
  images[3] = 1;
  put("train-images-idx3-ubyte", images);
  EXPECT_SAYS(error(options("idx")), "offset 0: starts with 00 00 08 01");
  put("train-images-idx3-ubyte",
      be32(0x803) + be32(0xffffffff) + be32(0xffffffff) + be32(0xffffffff));
  EXPECT_SAYS(error(options("idx")), "too large");
  put("train-images-idx3-ubyte", be32(0x803) + be32(1000000) + be32(28) + be32(28));
  EXPECT_SAYS(error(options("idx")), "the header promises 784000000");
}

TEST_F(BadInput, IdxLabels) {
  put_idx(5, 5);
  std::string labels = read_file(in("train-labels-idx1-ubyte"));
  labels[8 + 3] = 9;
  put("train-labels-idx1-ubyte", labels);
  EXPECT_SAYS(error(options("idx")), in("train-labels-idx1-ubyte") + ", offset 11: label 9");
  put("train-labels-idx1-ubyte", be32(0x801) + be32(4) + std::string("\0\1\2\3", 4));
  EXPECT_SAYS(error(options("idx")), "4 labels for the 5 images");
  fs::remove(in("train-labels-idx1-ubyte"));
  EXPECT_SAYS(error(options("idx")), "labels are not beside it");
}

TEST_F(BadInput, CifarLabelsAndTails) {
  for (int k = 1; k <= 5; ++k) {
    put("data_batch_" + std::to_string(k) + ".bin", std::string(2 * 3073, '\1'));
  }
  EXPECT_SAYS(error(options("cifar10"), Split::test), "test_batch.bin");
  std::string bad(3 * 3073, '\1');
  bad[3073] = 10;
  put("data_batch_2.bin", bad);
  EXPECT_SAYS(error(options("cifar10")), in("data_batch_2.bin") + ", offset 3073: label 10");
  const auto set = open_dataset(options("cifar10", true), Split::train);
  EXPECT_EQ(set->info().size, 10);
  ASSERT_EQ(set->bad_items().size(), 1u);
  EXPECT_EQ(set->where(3), in("data_batch_2.bin") + ", offset 6146");
  put("data_batch_3.bin", std::string(3073 + 5, '\1'));
  EXPECT_SAYS(error(options("cifar10")), "offset 3073");
}

TEST_F(BadInput, FoldersWithoutImagesOrClasses) {
  EXPECT_SAYS(error(options("folder")), "no class folders");
  fs::create_directories(folder_.path() / "cat");
  EXPECT_SAYS(error(options("folder")), "no JPEG or PNG images");
  put("dog/1.jpg", test_jpeg(8, 8, 1));
  EXPECT_SAYS(error(options("folder")), "class cat: no images of this class");
  EXPECT_EQ(open_dataset(options("folder", true), Split::train)->bad_items().size(), 1u);
  EXPECT_SAYS(error(options("folder"), Split::test), "data.test_path");
  auto o = options("folder");
  o.path += "/none";
  EXPECT_SAYS(error(o), "no such folder");
}

TEST_F(BadInput, ATestClassThatTrainingLacks) {
  make_image_folder(folder_.path(), 4);
  put("val/emu/1.jpg", test_jpeg(8, 8, 1));
  EXPECT_SAYS(error(options("folder"), Split::test), "not in the training set");
}

TEST_F(BadInput, ACorruptJpegFailsOrIsReplacedAndCounted) {
  make_image_folder(folder_.path(), 6);
  const std::string good = read_file(in("train/cat/102.jpg"));
  put("train/cat/102.jpg", good.substr(0, good.size() / 2));
  put("train/cat/103.jpg", "not an image");
  spec::AugmentOptions a;
  a.crop = 16;
  spec::LoaderOptions l;
  for (const int64_t cache : {0, 64}) {
    l.cache_mb = cache;
    Loader strict(open_dataset(options("folder"), Split::train), a, l, {.batch_size = 12});
    try {
      strict.next();
      FAIL() << "a corrupt file went unnoticed";
    } catch (const Error& e) {
      EXPECT_SAYS(e.what(), in("train/cat/10"));
      EXPECT_SAYS(e.what(), "offset");
    }
    Loader lenient(open_dataset(options("folder", true), Split::train), a, l, {.batch_size = 12});
    const auto b = lenient.next();
    EXPECT_EQ(b->num_samples, 12);
    int fours = 0;
    for (const uint64_t s : b->samples) {
      EXPECT_NE(s, 2u);
      EXPECT_NE(s, 3u);
      fours += s == 4;
    }
    EXPECT_EQ(fours, 3);  // itself and in the place of 2 and 3
    EXPECT_EQ(lenient.stats().bad_samples, 2);
    EXPECT_EQ(lenient.stats().bad_items.size(), 2u);
    // Evaluation counts each good sample once.
    auto o = options("folder", true);
    o.test_path = in("train");
    Loader test(open_dataset(o, Split::test), a, l, {.batch_size = 12, .training = false});
    EXPECT_EQ(test.next()->num_samples, 10);
    EXPECT_EQ(test.next(), nullptr);
  }
  const InspectResult result = inspect(options("folder"), Split::train);
  EXPECT_EQ(result.good, 10);
  EXPECT_EQ(result.bad.size(), 2u);
}

TEST_F(BadInput, JpegCutShortAnywhereIsAnError) {
  const std::string file = test_jpeg(64, 48, 3);
  JpegDecoder decoder;
  std::vector<uint8_t> rgb;
  for (size_t n = 0; n + 2 < file.size(); ++n) {
    const std::string part = file.substr(0, n);
    EXPECT_THROW(
        {
          decoder.open(std::as_bytes(std::span(part.data(), part.size())));
          decoder.decode_rgb(rgb);
        },
        Error)
        << n;
  }
  decoder.open(std::as_bytes(std::span(file.data(), file.size())));
  EXPECT_EQ(decoder.decode_rgb(rgb).width, 64);  // the decoder is still good
}

TEST_F(BadInput, JpegWithAlteredBytesNeverCrashes) {
  const std::string file = test_jpeg(40, 40, 3);
  JpegDecoder decoder;
  std::vector<uint8_t> rgb;
  for (size_t i = 0; i < file.size(); ++i) {
    std::string bad = file;
    bad[i] = static_cast<char>(bad[i] ^ 0x55);
    try {
      decoder.open(std::as_bytes(std::span(bad.data(), bad.size())));
      decoder.decode_rgb(rgb);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::data_loss);
    }
  }
}

TEST_F(BadInput, ImageSizesThatLieAllocateNothing) {
  std::string jpeg = test_jpeg(16, 16, 1);
  const size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  for (size_t i = 5; i < 9; ++i) jpeg[frame + i] = '\xff';
  JpegDecoder decoder;
  EXPECT_THROW(decoder.open(std::as_bytes(std::span(jpeg.data(), jpeg.size()))), Error);
  const std::string png = std::string("\x89PNG\r\n\x1a\n", 8) + be32(13) + "IHDR" + be32(60000) +
                          be32(60000) + std::string("\x08\x02\0\0\0", 5) + be32(0);
  EXPECT_THROW(png_size(std::as_bytes(std::span(png.data(), png.size()))), Error);
}

std::string tar_of(const std::vector<std::pair<std::string, std::string>>& members) {
  std::string out;
  for (const auto& [name, body] : members) {
    out += tar_header(name, body.size()) + body;
    out.append((512 - body.size() % 512) % 512, '\0');
  }
  return out;
}

// Whether numbers or folders name the classes is said of the whole set.
TEST_F(BadInput, PlainTarsBesideWebDatasetOnes) {
  const std::string image = test_jpeg(8, 8, 1);
  for (const std::string part : {"train", "val"}) {
    put(part + "-0.tar",
        tar_of({{"1.jpg", image}, {"1.cls", "0"}, {"2.jpg", image}, {"2.cls", "1"}}));
    put(part + "-1.tar", tar_of({{"ant/3.jpg", image}}));
  }
  for (const Split split : {Split::train, Split::test}) {
    EXPECT_SAYS(error(options("tar"), split), "no .cls member beside it");
    const auto set = open_dataset(options("tar", true), split);
    EXPECT_EQ(set->info().size, 2);
    EXPECT_EQ(set->bad_items().size(), 1U);
  }
}

TEST_F(BadInput, TarsWithOddNames) {
  const auto member = [](const std::string& name, const std::string& body) {
    return tar_of({{name, body}});
  };
  const std::string good = member("cat/1.jpg", test_jpeg(8, 8, 1));
  put("a.tar", good + member("loose.jpg", test_jpeg(8, 8, 2)));
  auto o = options("tar");
  o.path = in("a.tar");
  EXPECT_SAYS(error(o), fmt::format("{}, offset {}: member \"loose.jpg\"", o.path, good.size()));
  o.on_bad_sample = "skip";
  EXPECT_EQ(open_dataset(o, Split::train)->bad_items().size(), 1u);
  put("a.tar", good + member("../../x.jpg", test_jpeg(8, 8, 2)));
  EXPECT_EQ(open_dataset(o, Split::train)->bad_items().size(), 1u);
  put("a.tar", member("1.jpg", test_jpeg(8, 8, 1)) + member("1.cls", "zero"));
  o.on_bad_sample = "fail";
  EXPECT_SAYS(error(o), "not a class number");
  put("a.tar", member("1.cls", "0"));
  EXPECT_SAYS(error(o), "no image beside it");
  put("a.tar", "this is no archive" + std::string(600, 'x'));
  EXPECT_SAYS(error(o), "not a tar archive");
  o.path = in("s-{000..}.tar");
  EXPECT_SAYS(error(o), "expected a pattern");
}

TEST_F(BadInput, RecordsCutShortOrAltered) {
  make_image_folder(folder_.path() / "images", 2);
  auto o = options("folder");
  o.path = in("images");
  convert(o, Split::train, {.to = "records", .out = in("out")});
  o.format = "records";
  o.path = in("out/train.records");
  const std::string file = read_file(o.path);
  EXPECT_EQ(error(o), "");
  for (size_t n = 0; n < file.size(); n += n < 70 ? 1 : 499) {
    put("out/train.records", file.substr(0, n));
    const std::string said = error(o);
    EXPECT_FALSE(said.empty()) << n;
  }
  for (size_t i = 0; i < 64; ++i) {
    std::string bad = file;
    bad[i] = static_cast<char>(bad[i] ^ 0xff);
    put("out/train.records", bad);
    error(o);
  }
}

TEST_F(BadInput, TokensThatDoNotFit) {
  put("t.bin", std::string(101, 'x'));
  auto o = options("tokens");
  o.path = in("t.bin");
  EXPECT_SAYS(error(o), "offset 100");
  put("t.bin", std::string(100, 'x'));
  EXPECT_SAYS(error(o), "data.tokens.sequence_length");
  put("t.bin", "");
  EXPECT_SAYS(error(o), "0 tokens");
}

TEST_F(BadInput, UnknownFormatsAndMissingPaths) {
  EXPECT_SAYS(error(options("parquet")), "parquet");
  auto o = options("idx");
  o.path = "";
  EXPECT_SAYS(error(o), "needs data.path");
}

}  // namespace
}  // namespace ductile::data
