#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Shows progress to a person, on standard error or wherever else. What progress it is, its caller
// says: a line's parts and the share that is done.
namespace ductile::page {

struct ProgressLine {
  // One part of the line; parts with the smallest weight are left out first.
  struct Part {
    std::string text;
    int weight = 1;
  };
  std::vector<Part> parts;  // in the order shown; the bar stands behind the first
  double share = 0;         // of the bar, [0, 1]
  // A change of one of these is shown at once: of `chapter` everywhere, of `phase` on a terminal.
  std::string chapter = {}, phase = {};
};

struct ProgressBarOptions {
  bool terminal = false;  // one live line, else plain lines now and then
  bool color = false;
  bool unicode = false;          // a bar of blocks, else of '#'
  double plain_interval = 10;    // seconds between plain lines
  double redraw_interval = 0.1;  // seconds between redraws of the live line
  std::function<int()> width;    // columns of the terminal, asked at each redraw
  std::function<double()> now;   // seconds on any clock that only rises

  // What suits the file descriptor: a live line on a terminal that understands one (TERM is not
  // "dumb"), colour unless NO_COLOR is set, blocks where the locale is UTF-8.
  static ProgressBarOptions detect(int fd);
};

// On a terminal one line that is drawn over and over:
//
//   epoch 3/10 ███████▌          45% step 120/468  loss 0.31  acc 91.2%  4,310 samples/s  ETA 0:42
//
// which leaves out its least important parts where the terminal is narrow. Elsewhere a plain line
// at most every `plain_interval` seconds and at each new chapter. Nothing it shows can move
// the cursor: control characters in messages are dropped. It never fails: output that cannot be
// written is lost. One thread at a time.
class ProgressBar {
 public:
  explicit ProgressBar(int fd) : ProgressBar(fd, ProgressBarOptions::detect(fd)) {}
  ProgressBar(int fd, ProgressBarOptions options);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar();  // finish()

  void show(const ProgressLine& line);
  void message(std::string_view text);  // a line above the live one
  void finish();                        // leaves the last state standing and ends the line
  void clear();                         // removes the live line; nothing is left to finish

 private:
  void write(std::string_view text);
  void draw(const ProgressLine& line);

  int fd_;
  ProgressBarOptions options_;
  std::optional<ProgressLine> last_;
  bool last_is_shown_ = false;
  bool line_is_open_ = false;
  double shown_at_ = 0;
};

// The line for a terminal `columns` wide, without colour; never longer than columns - 1.
// The plain line is the same with no limit and no bar.
std::string live_line(const ProgressLine& line, int columns, bool unicode);
std::string plain_line(const ProgressLine& line);

}  // namespace ductile::page
