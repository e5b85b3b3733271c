#include "ductile/run/progress_bar.h"

#include <cmath>
#include <cstdlib>

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include "ductile/base/files.h"
#include "ductile/run/format.h"

namespace ductile::run {
namespace {

int columns_of(std::string_view text) {
  int n = 0;
  for (const char c : text) n += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return n;
}

Progress sample() {
  return {.step = 120,
          .total_steps = 468,
          .epoch = 2.25,
          .epochs = 10,
          .loss = 0.31,
          .accuracy = 0.912,
          .samples_per_second = 4310,
          .eta_seconds = 42};
}

// Runs `f` on a bar that writes to a file under a clock of ours; returns what it wrote.
template <class F>
std::string transcript(ProgressBarOptions options, const F& f) {
  const TempFolder temp;
  const fs::path path = temp.path() / "out";
  const int fd = ::open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  double now = 0;
  options.now = [&] { return now; };
  options.width = [] { return 64; };
  {
    ProgressBar bar(fd, options);
    f(bar, now);
  }
  ::close(fd);
  return read_file(path);
}

TEST(LiveLine, ShowsAllWhereThereIsRoom) {
  EXPECT_EQ(live_line(sample(), 140, true),
            "epoch 3/10  ███████▋                        26%  step 120/468  loss 0.310  acc 91.2%  "
            "4,310 samples/s  ETA 0:42");
  EXPECT_EQ(
      live_line(sample(), 100, false),
      "epoch 3/10  [####............]  26%  step 120/468  loss 0.310  acc 91.2%  4,310 samples/s  "
      "ETA 0:42");
}

TEST(LiveLine, LeavesOutTheLeastImportantFirst) {
  EXPECT_EQ(live_line(sample(), 64, false),
            "epoch 3/10  26%  step 120/468  loss 0.310  acc 91.2%  ETA 0:42");
  EXPECT_EQ(live_line(sample(), 30, false), "epoch 3/10  26%  loss 0.310");
  EXPECT_EQ(live_line(sample(), 8, false), "26%");
}

RC_GTEST_PROP(LiveLine, NeverWraps, ()) {
  Progress p = sample();
  p.step = *rc::gen::arbitrary<int64_t>();
  p.total_steps = *rc::gen::arbitrary<int64_t>();
  p.epoch = *rc::gen::element(0.0, 1e300, -5.0, std::nan(""), 9.99);
  p.loss = *rc::gen::element(1e300, std::nan(""), -HUGE_VAL, 1e-300, 0.0);
  p.phase = *rc::gen::element(Phase::train, Phase::eval, Phase::checkpoint);
  p.workers = *rc::gen::inRange<int64_t>(1, 100000);
  const int columns = *rc::gen::inRange(1, 300);
  const bool unicode = *rc::gen::arbitrary<bool>();
  const std::string line = live_line(p, columns, unicode);
  RC_ASSERT(columns_of(line) <= std::max(columns, 2) - 1);
}

TEST(ProgressBar, DrawsOneLineOverAndOverOnATerminal) {
  const std::string text =
      transcript({.terminal = true, .redraw_interval = 0.1}, [](ProgressBar& bar, double& now) {
        Progress p = sample();
        bar.show(p);
        now = 0.05;
        p.step = 121;
        bar.show(p);  // too soon
        now = 0.2;
        p.step = 122;
        bar.show(p);
        bar.message(
            "saved\x1b[2J \xC2\x9B"
            "1;1H\tcheckpoint\n");
        p.step = 123;
        bar.show(p);  // too soon, but the last: finish() shows it
      });
  const auto line = [](int step) {
    return fmt::format("\repoch 3/10  26%  step {}/468  loss 0.310  acc 91.2%  ETA 0:42\x1b[K",
                       step);
  };
  EXPECT_EQ(text, line(120) + line(122) + "\r\x1b[Ksaved[2J 1;1H\tcheckpoint\n" + line(122) +
                      line(123) + "\n");
}

TEST(ProgressBar, PrintsPlainLinesNowAndThenElsewhere) {
  const std::string text = transcript({}, [](ProgressBar& bar, double& now) {
    Progress p = sample();
    for (int step = 0; step < 100; ++step) {
      p.step = 120 + step;
      p.epoch = 2.25 + step / 100.0;
      now = step * 0.5;
      bar.show(p);
    }
    bar.message("done");
  });
  int lines = 0;
  for (const char c : text) lines += c == '\n' ? 1 : 0;
  // At 0, 10, 20 ... s, once for the fourth epoch (which begins the ten seconds anew), the message,
  // and the last state.
  EXPECT_EQ(lines, 8) << text;
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_TRUE(
      text.starts_with("epoch 3/10  26%  step 120/468  loss 0.310  acc 91.2%  4,310 "
                       "samples/s  ETA 0:42\n"));
  EXPECT_NE(text.find("epoch 4/10"), std::string::npos);
}

TEST(ProgressBar, ColoursTheBarOnlyWhenAsked) {
  const auto once = [](bool color) {
    return transcript({.terminal = true, .color = color}, [](ProgressBar& bar, double&) {
      bar.show({.step = 5, .total_steps = 10, .epochs = 2});
    });
  };
  EXPECT_EQ(once(false).find("\x1b[36m"), std::string::npos);
  EXPECT_NE(once(true).find("\x1b[36m[#"), std::string::npos);
}

TEST(ProgressBar, AClosedOutputIsNoError) {
  ProgressBar bar(-1, {.terminal = true});
  bar.show(sample());
  bar.message("x");
  bar.finish();
}

TEST(ProgressBarOptions, AFileIsNoTerminal) {
  const int fd = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  const ProgressBarOptions options = ProgressBarOptions::detect(fd);
  ::close(fd);
  EXPECT_FALSE(options.terminal);
  EXPECT_FALSE(options.color);
}

TEST(Format, ReadsAsPeopleWrite) {
  EXPECT_EQ(with_thousands(4310), "4,310");
  EXPECT_EQ(with_thousands(-1234567), "-1,234,567");
  EXPECT_EQ(with_thousands(999.6), "1,000");
  EXPECT_EQ(with_thousands(2.5), "2.5");
  EXPECT_EQ(with_thousands(0), "0");
  EXPECT_EQ(as_clock(41.2), "0:42");
  EXPECT_EQ(as_clock(3723), "1:02:03");
  EXPECT_EQ(as_clock(90061), "1d 01:01");
  EXPECT_EQ(as_clock(std::nan("")), "--:--");
  EXPECT_EQ(as_number(2.5), "2.50");
  EXPECT_EQ(as_number(0.000123), "1.23e-04");
  EXPECT_EQ(as_number(std::nan("")), "nan");
  EXPECT_EQ(as_duration(0.0084), "8.4 ms");
  EXPECT_EQ(as_duration(0), "0 s");
  EXPECT_EQ(as_duration(8.4), "8.4 s");
  EXPECT_EQ(as_duration(9.97), "10 s");
  EXPECT_EQ(as_duration(192), "3 min 12 s");
  EXPECT_EQ(as_duration(7380), "2 h 03 min");
  EXPECT_EQ(as_bytes(1536), "1.5 KiB");
  EXPECT_EQ(as_bytes(12), "12 B");
  EXPECT_EQ(as_energy(12345), "12.3 kJ");
  EXPECT_EQ(as_percent(0.9153), "91.53 %");
}

}  // namespace
}  // namespace ductile::run
