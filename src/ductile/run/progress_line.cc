#include "ductile/run/progress_line.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "ductile/page/numbers.h"

namespace ductile::run {
namespace {

double share_of(const Progress& p) {
  if ((p.phase == Phase::eval || p.phase == Phase::tune) && p.phase_share) return *p.phase_share;
  if (p.total_steps > 0) return static_cast<double>(p.step) / static_cast<double>(p.total_steps);
  if (p.epochs > 0) return p.epoch / static_cast<double>(p.epochs);
  return 0;
}

// The epoch under way, counted from 1: after 2.26 passes it is the third. After exactly two it is
// the third as well, but the second as long as that is evaluated, and at the end of a run.
std::string epoch_text(const Progress& p) {
  const double passes = std::isfinite(p.epoch) ? std::clamp(p.epoch, 0.0, 1e15) : 0;
  const bool is_between = p.phase == Phase::eval || (p.total_steps > 0 && p.step >= p.total_steps);
  const double begun = is_between ? std::ceil(passes) : std::floor(passes) + 1;
  const int64_t epoch = std::max<int64_t>(1, static_cast<int64_t>(begun));
  if (p.epochs == 0) return fmt::format("epoch {}", epoch);
  return fmt::format("epoch {}/{}", std::min(epoch, p.epochs), p.epochs);
}

}  // namespace

page::ProgressLine progress_line(const Progress& p) {
  const double share = share_of(p);
  page::ProgressLine line;
  line.share = std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0;
  line.chapter = fmt::format("{}", std::floor(p.epoch));
  line.phase = to_string(p.phase);
  const auto add = [&](int weight, std::string text) {
    line.parts.push_back({std::move(text), weight});
  };
  add(9, epoch_text(p));
  if (p.phase == Phase::eval) add(7, "evaluating");
  if (p.phase == Phase::tune) add(7, "tuning");
  add(10, fmt::format("{:.0f}%", 100 * line.share));
  add(4, p.total_steps > 0 ? fmt::format("step {}/{}", p.step, p.total_steps)
                           : fmt::format("step {}", p.step));
  if (p.loss) add(8, "loss " + page::as_number(*p.loss));
  if (p.accuracy) add(6, fmt::format("acc {:.1f}%", 100 * *p.accuracy));
  if (p.eval_accuracy) add(5, fmt::format("test {:.1f}%", 100 * *p.eval_accuracy));
  if (p.lr) add(1, "lr " + page::as_number(*p.lr));
  if (p.samples_per_second) add(3, page::with_thousands(*p.samples_per_second) + " samples/s");
  if (p.workers > 1) add(2, fmt::format("{} workers", p.workers));
  if (p.eta_seconds) add(7, "ETA " + page::as_clock(*p.eta_seconds));
  return line;
}

}  // namespace ductile::run
