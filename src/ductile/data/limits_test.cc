// Small files that ask for much: what they get is bounded, by counting memory and work, not time.
#include <csignal>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zlib.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/testing.h"
#include "ductile/data/inspect.h"
#include "ductile/data/jpeg.h"
#include "ductile/data/records.h"
#include "ductile/data/tar_index.h"
#include "ductile/data/testing/images.h"

namespace ductile::data {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
using ductile::testing::run_within;

std::string be32(uint32_t v) { return {char(v >> 24), char(v >> 16), char(v >> 8), char(v)}; }

// `head`, then `zeros` zero bytes, packed. format: 31 for gzip, 15 for zlib.
std::string packed(const std::string& head, size_t zeros, int format) {
  z_stream z{};
  deflateInit2(&z, 9, Z_DEFLATED, format, 8, Z_DEFAULT_STRATEGY);
  std::string out, buffer(kMiB, '\0');
  const auto feed = [&](const std::string& in, size_t size, int flush) {
    z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
    z.avail_in = static_cast<uInt>(size);
    do {
      z.next_out = reinterpret_cast<Bytef*>(buffer.data());
      z.avail_out = static_cast<uInt>(buffer.size());
      deflate(&z, flush);
      out.append(buffer, 0, buffer.size() - z.avail_out);
    } while (z.avail_out == 0);
  };
  feed(head, head.size(), Z_NO_FLUSH);
  const std::string block(kMiB, '\0');
  for (size_t left = zeros; left > 0; left -= std::min(left, block.size())) {
    feed(block, std::min(left, block.size()), Z_NO_FLUSH);
  }
  feed("", 0, Z_FINISH);
  deflateEnd(&z);
  return out;
}

std::string png_chunk(const std::string& type, const std::string& body) {
  const std::string text = type + body;
  const auto* bytes = reinterpret_cast<const Bytef*>(text.data());
  return be32(static_cast<uint32_t>(body.size())) + text +
         be32(static_cast<uint32_t>(crc32(0, bytes, static_cast<uInt>(text.size()))));
}

// A black picture of one bit a pixel, whole and right.
std::string flat_png(uint32_t width, uint32_t height) {
  const size_t rows = size_t{height} * (1 + (width + 7) / 8);
  return "\x89PNG\r\n\x1a\n" +
         png_chunk("IHDR", be32(width) + be32(height) + std::string("\x01\0\0\0\0", 5)) +
         png_chunk("IDAT", packed("", rows, 15)) + png_chunk("IEND", "");
}

class Limits : public ::testing::Test {
 protected:
  std::string put(const std::string& name, const std::string& bytes) {
    fs::create_directories((folder_.path() / name).parent_path());
    write_file_atomic(folder_.path() / name, bytes);
    return (folder_.path() / name).string();
  }
  spec::DataOptions options(std::string format, const std::string& path, bool skip = false) {
    spec::DataOptions o;
    o.format = std::move(format);
    o.path = path.empty() ? folder_.path().string() : path;
    o.on_bad_sample = skip ? "skip" : "fail";
    return o;
  }
  // What opening and reading every sample says, in at most that much memory.
  std::string said(const spec::DataOptions& o, size_t bytes) {
    return run_within(bytes, [&] {
      const auto dataset = open_dataset(o, Split::train);
      for (const BadItem& item : dataset->bad_items()) {
        throw Error(ErrorCode::data_loss, item.where + ": " + item.what);
      }
    });
  }

  TempFolder folder_;
};

#define EXPECT_SAYS(text, part) \
  EXPECT_NE(std::string(text).find(part), std::string::npos) << std::string(text)

std::string member(const std::string& name, const std::string& body) {
  std::string out = tar_header(name, body.size()) + body;
  return out.append((512 - body.size() % 512) % 512, '\0');
}

TEST_F(Limits, ATarOfTenKilobytesTakesNoGigabytesForNamesOfClasses) {
  const std::string tar = member("1.jpg", test_jpeg(8, 8, 1)) + member("1.cls", "0") +
                          member("2.jpg", test_jpeg(8, 8, 2)) + member("2.cls", "16777215");
  const std::string path = put("a.tar", tar);
  for (const bool skip : {false, true}) {
    const std::string text = said(options("tar", path, skip), 64 * kMiB);
    EXPECT_SAYS(text, path + ", offset");
    EXPECT_SAYS(text, "label 16777215 is not below 1, the classes of 2 training samples");
  }
  const auto set = open_dataset(options("tar", path, true), Split::train);
  EXPECT_EQ(set->info().size, 1);
  EXPECT_EQ(set->info().num_classes, 1);
  put("a.tar", member("1.jpg", test_jpeg(8, 8, 1)) + member("1.cls", "9223372036854775807"));
  EXPECT_SAYS(said(options("tar", path), 64 * kMiB), "label 9223372036854775807 is not below 0");
}

TEST_F(Limits, NamesOfClassesAreBounded) {
  put("a.tar", member("1.jpg", test_jpeg(8, 8, 1)) + member("1.cls", "0"));
  std::string names;
  for (int i = 0; i < 2 << 20; ++i) names += "a\n";
  put("classes.txt", names);
  const std::string tar = (folder_.path() / "a.tar").string();
  EXPECT_SAYS(said(options("tar", tar, true), 128 * kMiB),
              "classes.txt: more than 1048576 classes");

  const std::string records = (folder_.path() / "train.records").string();
  {
    RecordsWriter writer(records, {"one"});
    const std::string jpeg = test_jpeg(8, 8, 1);
    writer.add({Encoding::jpeg, std::as_bytes(std::span(jpeg.data(), jpeg.size()))}, 0);
    writer.finish();
  }
  put("train.records", read_file(records) + std::string(8 << 20, '\n'));
  EXPECT_SAYS(said(options("records", records, true), 128 * kMiB), "more than 1048576 classes");
  // Classes without images are counted, not listed by the thousand.
  put("classes.txt", names.substr(0, 2 * 100000));
  const auto set = open_dataset(options("tar", tar, true), Split::train);
  ASSERT_EQ(set->bad_items().size(), 17u);
  EXPECT_SAYS(set->bad_items().back().what, "99983 more classes");
}

TEST_F(Limits, PixelsAreBoundedBeforeMemoryIsTakenForThem) {
  // 32 KB that are truly 2^28 pixels: 805 MB as RGB.
  put("train/cat/1.png", flat_png(16384, 16384));
  EXPECT_LT(fs::file_size(folder_.path() / "train/cat/1.png"), 64u << 10);
  const std::string text = run_within(256 * kMiB, [&] {
    const auto set = open_dataset(options("folder", ""), Split::train);
    const auto report = inspect(options("folder", ""), Split::train);
    throw Error(ErrorCode::data_loss, report.bad.at(0).what);
  });
  EXPECT_SAYS(text, "16384 x 16384 pixels; at most 67108864 are read");
  // A header whose pixels the file cannot hold, although their number is allowed.
  const std::string lie =
      "\x89PNG\r\n\x1a\n" +
      png_chunk("IHDR", be32(4096) + be32(4096) + std::string("\x08\x02\0\0\0", 5)) +
      png_chunk("IDAT", packed("", 40000, 15)) + png_chunk("IEND", "") + std::string(3000, 'x');
  put("train/cat/1.png", lie);
  EXPECT_SAYS(run_within(32 * kMiB,
                         [&] {
                           const auto report = inspect(options("folder", ""), Split::train);
                           throw Error(ErrorCode::data_loss, report.bad.at(0).what);
                         }),
              "claims 4096 x 4096 pixels");
}

TEST_F(Limits, AnUnpackedIdxFileIsNoLongerThanItsHeaderSays) {
  put("train-images-idx3-ubyte.gz",
      packed(be32(0x803) + be32(5) + be32(2) + be32(3), 512 * kMiB, 31));
  put("train-labels-idx1-ubyte", be32(0x801) + be32(5) + std::string("\0\1\2\3\4", 5));
  const std::string text = said(options("idx", ""), 64 * kMiB);
  EXPECT_SAYS(text, "train-images-idx3-ubyte.gz");
  EXPECT_SAYS(text, "more bytes of data, the header promises 30");
  // The header is judged before the rest is unpacked.
  put("train-images-idx3-ubyte.gz", packed(be32(0x801) + be32(5), 512 * kMiB, 31));
  EXPECT_SAYS(said(options("idx", ""), 64 * kMiB), "offset 0: starts with 00 00 08 01");
}

// A file of three scans, one a colour, with the first of them `times` times.
std::string jpeg_with_scans(int times) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &out, &size);
  info.image_width = info.image_height = 16;
  info.input_components = 3;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_scan_info scans[3] = {};
  for (int c = 0; c < 3; ++c) scans[c] = {1, {c}, 0, 63, 0, 0};
  info.scan_info = scans;
  info.num_scans = 3;
  jpeg_start_compress(&info, TRUE);
  const auto pixels = test_pixels(16, 16, 3, 1);
  for (int y = 0; y < 16; ++y) {
    JSAMPROW row = const_cast<uint8_t*>(pixels.data()) + y * 16 * 3;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  const std::string file(reinterpret_cast<char*>(out), size);
  jpeg_destroy_compress(&info);
  std::free(out);
  const std::string marker = "\xff\xda";
  const size_t first = file.find(marker), second = file.find("\xff\xc4", first);
  const size_t end = std::min(second, file.find(marker, first + 2));
  std::string many = file.substr(0, first);
  for (int i = 0; i < times; ++i) many += file.substr(first, end - first);
  return many + file.substr(end);
}

TEST_F(Limits, ScansOfAJpegAreBounded) {
  JpegDecoder decoder;
  std::vector<uint8_t> rgb;
  const auto decode = [&](const std::string& file) {
    decoder.open(std::as_bytes(std::span(file.data(), file.size())));
    return decoder.decode_rgb(rgb);
  };
  EXPECT_EQ(decode(jpeg_with_scans(1)).width, 16);
  EXPECT_EQ(decode(jpeg_with_scans(90)).width, 16);
  std::string text;
  EXPECT_EQ(ductile::testing::code_of([&] { decode(jpeg_with_scans(200)); }, &text),
            ErrorCode::data_loss);
  EXPECT_SAYS(text, "more than 100 scans");
  EXPECT_EQ(decode(jpeg_with_scans(1)).width, 16);  // the decoder is still good
}

TEST_F(Limits, TokensMakeNoHugeVocabulary) {
  auto o = options("tokens", put("t.bin", std::string(400, '\0') + std::string(4, '\xff')));
  o.tokens.type = "u32";
  o.tokens.sequence_length = 8;
  EXPECT_SAYS(said(o, 64 * kMiB), "t.bin: token 4294967295; token numbers are below 1048576");
  EXPECT_SAYS(said(o, 64 * kMiB), "data.tokens.type");
}

class OddFiles : public Limits {
 protected:
  void fifo(const std::string& name) {
    fs::create_directories((folder_.path() / name).parent_path());
    ASSERT_EQ(::mkfifo((folder_.path() / name).c_str(), 0600), 0);
  }
};

TEST_F(OddFiles, InAClassFolderAreNamedAndNeverWaitedFor) {
  make_image_folder(folder_.path(), 4);
  fifo("train/cat/pipe.jpg");
  fs::create_symlink("nowhere", folder_.path() / "train/cat/gone.png");
  fs::create_symlink("..", folder_.path() / "train/cat/up");
  fs::create_symlink("self", folder_.path() / "train/cat/self");
  const std::string cat = (folder_.path() / "train/cat").string();
  EXPECT_SAYS(said(options("folder", ""), 512 * kMiB),
              cat + "/gone.png: a link that leads nowhere");
  const auto set = open_dataset(options("folder", "", true), Split::train);
  EXPECT_EQ(set->info().size, 8);
  std::string all;
  for (const BadItem& item : set->bad_items()) all += item.where + ": " + item.what + "\n";
  EXPECT_EQ(all, cat + "/gone.png: a link that leads nowhere, not a file\n" + cat +
                     "/pipe.jpg: a FIFO, not a file\n" + cat + "/self: a loop of links\n" + cat +
                     "/up: a link that leads back to a folder which it lies in\n");
}

TEST_F(OddFiles, AreRefusedByEveryFormat) {
  fifo("pipe");
  const std::string pipe = (folder_.path() / "pipe").string();
  const std::string loop = (folder_.path() / "loop").string();
  fs::create_symlink("loop", loop);
  const std::string socket = (folder_.path() / "socket").string();
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy(socket.begin(), socket.end(), address.sun_path);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ::close(fd);
  for (const char* format : {"idx", "cifar10", "folder", "tar", "records", "tokens"}) {
    EXPECT_SAYS(said(options(format, pipe), 64 * kMiB), pipe + ": is a FIFO") << format;
    EXPECT_SAYS(said(options(format, socket), 64 * kMiB), socket + ": is a socket") << format;
    EXPECT_SAYS(said(options(format, "/dev/zero"), 64 * kMiB), "/dev/zero: is a device") << format;
    EXPECT_SAYS(said(options(format, loop), 64 * kMiB), loop + ": Too many levels") << format;
  }
}

TEST_F(OddFiles, AFolderThatCannotBeReadIsNamed) {
  make_image_folder(folder_.path(), 2);
  const fs::path cat = folder_.path() / "train/cat";
  fs::permissions(folder_.path(), fs::perms::all);  // also for who is no longer root
  fs::permissions(cat, fs::perms::none);
  const std::string text = run_within(512 * kMiB, [&] {
    if (::geteuid() == 0 && ::seteuid(65534) != 0) throw Error(ErrorCode::internal, "no such user");
    open_dataset(options("folder", ""), Split::train);
  });
  fs::permissions(cat, fs::perms::owner_all);
  EXPECT_SAYS(text, cat.string() + ": Permission denied");
}

}  // namespace
}  // namespace ductile::data
