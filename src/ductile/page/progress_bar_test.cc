#include "ductile/page/progress_bar.h"

#include <cmath>
#include <cstdlib>

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include "ductile/base/files.h"
#include "ductile/page/terminal.h"

namespace ductile::page {
namespace {

ProgressLine sample(int step = 120) {
  return {.parts = {{"epoch 3/10", 9},
                    {"26%", 10},
                    {fmt::format("step {}/468", step), 4},
                    {"loss 0.310", 8},
                    {"acc 91.2%", 6},
                    {"4,310 samples/s", 3},
                    {"ETA 0:42", 7}},
          .share = 120.0 / 468,
          .chapter = "2",
          .phase = "train"};
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
  ProgressLine line;
  for (int i = *rc::gen::inRange(1, 8); i > 0; --i) {
    line.parts.push_back({*rc::gen::arbitrary<std::string>(), *rc::gen::inRange(0, 5)});
  }
  line.share = *rc::gen::element(1e300, std::nan(""), -HUGE_VAL, 0.3, 0.0);
  const int columns = *rc::gen::inRange(1, 300);
  const bool unicode = *rc::gen::arbitrary<bool>();
  const std::string text = live_line(line, columns, unicode);
  RC_ASSERT(columns_of(text) <= std::max(columns, 2) - 1);
  RC_ASSERT(text.find_first_of("\n\r\x1b\t") == std::string::npos);
}

TEST(LiveLine, ANameTooLongIsCutBetweenCharacters) {
  EXPECT_EQ(live_line({.parts = {{"ééééé", 1}}}, 4, true), "ééé");
}

TEST(ProgressBar, DrawsOneLineOverAndOverOnATerminal) {
  const std::string text =
      transcript({.terminal = true, .redraw_interval = 0.1}, [](ProgressBar& bar, double& now) {
        bar.show(sample(120));
        now = 0.05;
        bar.show(sample(121));  // too soon
        now = 0.2;
        bar.show(sample(122));
        bar.message(
            "saved\x1b[2J \xC2\x9B"
            "1;1H\tcheckpoint\n");
        bar.show(sample(123));  // too soon, but the last: finish() shows it
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
    for (int step = 0; step < 100; ++step) {
      ProgressLine line = sample(120 + step);
      if (step >= 75) line.chapter = line.parts[0].text = "epoch 4/10";
      now = step * 0.5;
      bar.show(line);
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
      bar.show({.parts = {{"[x]"}, {"50%"}}, .share = 0.5});
    });
  };
  EXPECT_EQ(once(false).find("\x1b[36m"), std::string::npos);
  EXPECT_NE(once(true).find("\x1b[36m[#"), std::string::npos);
}

TEST(ProgressBar, ALineThatIsClearedLeavesNothing) {
  const std::string text = transcript({.terminal = true}, [](ProgressBar& bar, double&) {
    bar.show({.parts = {{"50%"}}, .share = 0.5});
    bar.clear();
  });
  EXPECT_TRUE(text.ends_with("\r\x1b[K")) << text;
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

}  // namespace
}  // namespace ductile::page
