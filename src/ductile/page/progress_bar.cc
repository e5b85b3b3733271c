#include "ductile/page/progress_bar.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <vector>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "ductile/page/terminal.h"

namespace ductile::page {
namespace {

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && value[0] != '\0';
}

bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    if (!is_set(name)) continue;
    std::string value = std::getenv(name);
    std::transform(value.begin(), value.end(), value.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return value.find("utf-8") != std::string::npos || value.find("utf8") != std::string::npos;
  }
  return false;
}

int terminal_columns(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

std::string bar(double share, int columns, bool unicode) {
  share = std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0.0;
  std::string out;
  if (!unicode) {
    const int full = static_cast<int>(share * (columns - 2));
    return fmt::format("[{:#<{}}{:.<{}}]", "", full, "", columns - 2 - full);
  }
  static constexpr std::string_view kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(share * columns * 8);
  for (int i = 0; i < eighths / 8; ++i) out += "█";
  out += kEighths[eighths % 8];
  const int used = eighths / 8 + (eighths % 8 != 0 ? 1 : 0);
  return out + std::string(static_cast<size_t>(columns - used), ' ');
}

// Never half of a character.
std::string first_columns(const std::string& text, int columns) {
  size_t end = 0;
  for (int n = 0; end < text.size(); ++end) {
    if ((static_cast<unsigned char>(text[end]) & 0xC0) != 0x80 && n++ == columns) break;
  }
  return text.substr(0, end);
}

// The live line, `color` and its end around the bar.
std::string compose(const ProgressLine& line, int columns, bool unicode, bool color) {
  constexpr int kSmallestBar = 8;
  constexpr int kLargestBar = 30;
  const int room = std::max(columns, 2) - 1;  // the last column would wrap on some terminals
  std::vector<ProgressLine::Part> parts = line.parts;
  for (ProgressLine::Part& part : parts) part.text = one_line(part.text);
  const auto length = [&] {
    int sum = 0;
    for (const auto& part : parts) sum += columns_of(part.text) + 2;
    return sum - 2;
  };
  // The bar counts as a part of its own: shown while nothing but the step and less would go.
  while (parts.size() > 1 && length() > room) {
    parts.erase(std::min_element(parts.begin(), parts.end(),
                                 [](const auto& a, const auto& b) { return a.weight < b.weight; }));
  }
  const int left = room - length() - 2;
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i == 1 && left >= kSmallestBar) {
      const std::string drawn = bar(line.share, std::min(left, kLargestBar), unicode);
      out += "  " + (color ? "\x1b[36m" + drawn + "\x1b[0m" : drawn);
    }
    if (i > 0) out += "  ";
    out += parts[i].text;
  }
  return parts.size() > 1 ? out : first_columns(out, room);  // several fit: see above
}

}  // namespace

std::string live_line(const ProgressLine& line, int columns, bool unicode) {
  return compose(line, columns, unicode, false);
}

std::string plain_line(const ProgressLine& line) {
  std::string out;
  for (const auto& part : line.parts) {
    if (!out.empty()) out += "  ";
    out += one_line(part.text);
  }
  return out;
}

ProgressBarOptions ProgressBarOptions::detect(int fd) {
  ProgressBarOptions options;
  const char* term = std::getenv("TERM");
  options.terminal = ::isatty(fd) == 1 && !(term != nullptr && std::string_view(term) == "dumb");
  options.color = options.terminal && !is_set("NO_COLOR");
  options.unicode = locale_is_utf8();
  options.width = [fd] { return terminal_columns(fd); };
  options.now = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  return options;
}

ProgressBar::ProgressBar(int fd, ProgressBarOptions options)
    : fd_(fd), options_(std::move(options)) {
  const ProgressBarOptions detected = ProgressBarOptions::detect(fd);
  if (!options_.width) options_.width = detected.width;
  if (!options_.now) options_.now = detected.now;
}

ProgressBar::~ProgressBar() { finish(); }

void ProgressBar::show(const ProgressLine& line) {
  const double now = options_.now();
  const bool first = !last_;
  const bool new_chapter = !first && last_->chapter != line.chapter;
  const bool new_phase = !first && last_->phase != line.phase;
  const double interval = options_.terminal ? options_.redraw_interval : options_.plain_interval;
  const bool due =
      first || now - shown_at_ >= interval || new_chapter || (options_.terminal && new_phase);
  last_ = line;
  last_is_shown_ = due;
  if (!due) return;
  shown_at_ = now;
  draw(line);
}

void ProgressBar::draw(const ProgressLine& line) {
  if (!options_.terminal) return write(fmt::format("{}\n", plain_line(line)));
  const std::string text = compose(line, options_.width(), options_.unicode, options_.color);
  write(fmt::format("\r{}\x1b[K", text));
  line_is_open_ = true;
}

void ProgressBar::message(std::string_view text) {
  std::string line = without_controls(text);
  while (line.ends_with('\n')) line.pop_back();
  write(fmt::format("{}{}\n", line_is_open_ ? "\r\x1b[K" : "", line));
  const bool redraw = line_is_open_;
  line_is_open_ = false;
  if (redraw && last_) draw(*last_);
}

void ProgressBar::finish() {
  if (last_ && !last_is_shown_) draw(*last_);
  last_is_shown_ = true;
  if (line_is_open_) write("\n");
  line_is_open_ = false;
}

void ProgressBar::clear() {
  if (line_is_open_) write("\r\x1b[K");
  line_is_open_ = false;
  last_.reset();
}

void ProgressBar::write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd_, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace ductile::page
