#include "ductile/run/progress_bar.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <vector>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "ductile/run/format.h"

namespace ductile::run {
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

// Columns of a line of ours: ASCII and block characters, one column a character.
int columns_of(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

// Bytes that could move the cursor or change the terminal's state: C0 controls but tab and newline,
// DEL, and the C1 controls, which in UTF-8 are 0xC2 0x80..0x9F.
std::string without_controls(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == 0xC2 && i + 1 < text.size()) {
      const auto next = static_cast<unsigned char>(text[i + 1]);
      if (next >= 0x80 && next < 0xA0) {
        ++i;
        continue;
      }
    }
    if ((c >= 0x20 && c != 0x7F) || c == '\t' || c == '\n') out += text[i];
  }
  return out;
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

// The share of the whole run, or of the evaluation under way.
double share_of(const Progress& p) {
  if (p.phase == Phase::eval && p.phase_share) return *p.phase_share;
  if (p.total_steps > 0) return static_cast<double>(p.step) / static_cast<double>(p.total_steps);
  if (p.epochs > 0) return p.epoch / static_cast<double>(p.epochs);
  return 0;
}

// The epoch under way, counted from 1: after 2.26 passes it is the third.
std::string epoch_text(const Progress& p) {
  int64_t epoch = static_cast<int64_t>(std::floor(std::isfinite(p.epoch) ? p.epoch : 0)) + 1;
  if (p.epochs == 0) return fmt::format("epoch {}", epoch);
  return fmt::format("epoch {}/{}", std::min(epoch, p.epochs), p.epochs);
}

// One part of the line; parts with the smallest weight are left out first.
struct Part {
  std::string text;
  int weight;
};

// Everything but the bar, in the order shown.
std::vector<Part> parts_of(const Progress& p) {
  std::vector<Part> parts;
  const auto add = [&](int weight, std::string text) {
    parts.push_back({std::move(text), weight});
  };
  add(9, epoch_text(p));
  if (p.phase == Phase::eval) add(7, "evaluating");
  if (p.phase == Phase::checkpoint) add(7, "saving");
  add(10, fmt::format("{:.0f}%", 100 * std::clamp(share_of(p), 0.0, 1.0)));
  add(4, p.total_steps > 0 ? fmt::format("step {}/{}", p.step, p.total_steps)
                           : fmt::format("step {}", p.step));
  if (p.loss) add(8, "loss " + as_number(*p.loss));
  if (p.accuracy) add(6, fmt::format("acc {:.1f}%", 100 * *p.accuracy));
  if (p.eval_accuracy) add(5, fmt::format("test {:.1f}%", 100 * *p.eval_accuracy));
  if (p.lr) add(1, "lr " + as_number(*p.lr));
  if (p.samples_per_second) add(3, with_thousands(*p.samples_per_second) + " samples/s");
  if (p.workers > 1) add(2, fmt::format("{} workers", p.workers));
  if (p.eta_seconds) add(7, "ETA " + as_clock(*p.eta_seconds));
  return parts;
}

}  // namespace

std::string live_line(const Progress& progress, int columns, bool unicode) {
  constexpr int kSmallestBar = 8;
  constexpr int kLargestBar = 30;
  const int room = std::max(columns, 2) - 1;  // the last column would wrap on some terminals
  std::vector<Part> parts = parts_of(progress);
  const auto length = [&] {
    int sum = 0;
    for (const Part& part : parts) sum += columns_of(part.text) + 2;
    return sum - 2;
  };
  // The bar counts as a part of its own: shown while nothing but the step and less would go.
  while (parts.size() > 1 && length() > room) {
    parts.erase(std::min_element(parts.begin(), parts.end(),
                                 [](const Part& a, const Part& b) { return a.weight < b.weight; }));
  }
  const int left = room - length() - 2;
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i == 1 && left >= kSmallestBar) {
      out += "  " + bar(share_of(progress), std::min(left, kLargestBar), unicode);
    }
    if (i > 0) out += "  ";
    out += parts[i].text;
  }
  return out.substr(0, columns_of(out) > room ? static_cast<size_t>(room) : out.size());
}

std::string plain_line(const Progress& progress) {
  std::string out;
  for (const Part& part : parts_of(progress)) {
    if (!out.empty()) out += "  ";
    out += part.text;
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

void ProgressBar::show(const Progress& progress) {
  const double now = options_.now();
  const bool first = !last_;
  const bool new_epoch = !first && std::floor(last_->epoch) != std::floor(progress.epoch);
  const bool new_phase = !first && last_->phase != progress.phase;
  const double interval = options_.terminal ? options_.redraw_interval : options_.plain_interval;
  const bool due =
      first || now - shown_at_ >= interval || new_epoch || (options_.terminal && new_phase);
  last_ = progress;
  last_is_shown_ = due;
  if (!due) return;
  shown_at_ = now;
  draw(progress);
}

void ProgressBar::draw(const Progress& progress) {
  if (!options_.terminal) return write(fmt::format("{}\n", plain_line(progress)));
  std::string line = live_line(progress, options_.width(), options_.unicode);
  if (options_.color) {
    // The bar and its share: from the first block or bracket to the per cent sign.
    const size_t begin = line.find_first_of("[\xE2");
    const size_t end = line.find('%');
    if (begin != std::string::npos && end != std::string::npos && begin < end) {
      line.insert(end + 1, "\x1b[0m");
      line.insert(begin, "\x1b[36m");
    }
  }
  write(fmt::format("\r{}\x1b[K", line));
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

void ProgressBar::write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd_, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace ductile::run
