// What is seen of running jobs: their speed, and the batches of those that let somebody else choose
// them (train.rate_control = "goodput").
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "ductile/base/clock.h"
#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/log.h"
#include "ductile/cluster/service_impl.h"
#include "ductile/run/folder.h"
#include "ductile/run/json_lines.h"
#include "ductile/run/metrics.h"
#include "ductile/spec/methods.h"

namespace ductile::cluster {
namespace {

bool is_ordered(const Work& work) {
  const auto* job = std::get_if<spec::JobOptions>(&work);
  return job != nullptr && spec::batch_is_ordered(*job);
}

// What a job's newest metrics say.
struct Reading {
  int64_t batch = 0;
  std::optional<double> noise_scale;  // in samples
};

std::optional<Reading> newest_reading(const fs::path& metrics) {
  constexpr int64_t kBytes = int64_t{64} << 10;
  std::optional<Reading> out;
  run::for_each_last_json_line(metrics, kBytes, [&](const nlohmann::json& line) {
    const double batch = run::number_at(line, run::kBatchSize.data());
    if (!(batch >= 1 && batch <= INT32_MAX)) return false;
    out = Reading{static_cast<int64_t>(batch), {}};
    const double scale = run::number_at(line, run::kNoiseScale.data());
    if (scale >= 0) out->noise_scale = scale;
    return true;
  });
  return out;
}

}  // namespace

// From the steps that it committed while its workers were the same. The first measurement takes a
// second: a policy must not decide about a job of which it knows nothing for longer than it has to,
// and jobs of a few seconds would never be known, nor others of their kind.
void Service::Impl::measure(Live& live) {
  constexpr int64_t kLeastSteps = 5;
  constexpr double kFirst = 1;
  if (!live.runner || live.stopping || !scheduler_.knows(live.record.id)) return;
  const JobProgress progress = live.runner->progress();
  if (progress.generation < 0) return;
  live.save = std::max(live.save, progress.save);
  if (progress.total_steps > 0) {
    scheduler_.progress(live.record.id, progress.step, progress.total_steps);
    if (progress.generation != live.generation) live.rate = 0;
    view_.set_training(live.record.id, {progress.step, progress.total_steps, live.rate});
  }
  if (progress.pauses != std::exchange(live.pauses, progress.pauses) && progress.pauses > 0)
    scheduler_.paused(live.record.id, progress.pause, progress.pause_of_start);
  const JobProgress::Told now =
      progress.last.value_or(JobProgress::Told{progress.step, loop_.now()});
  const int64_t batch = live.batch;
  follow_batch(live);
  if (progress.generation != live.generation || live.batch != batch) {
    const bool are_others =
        std::exchange(live.generation, progress.generation) != progress.generation;
    live.first = are_others ? progress.first.value_or(now) : now;
    live.measured = false;
  }
  const double seconds = std::chrono::duration<double>(now.time - live.first.time).count();
  const double enough =
      live.measured ? options_.interval / 2 : std::min(kFirst, options_.interval / 2);
  if (now.step < live.first.step + kLeastSteps || seconds < enough) return;
  live.rate = static_cast<double>(now.step - live.first.step) / seconds;
  const double speed =
      live.rate * static_cast<double>(live.batch > 0 ? live.batch : batch_of(live.work));
  scheduler_.measured(live.record.id, speed);
  note_speed(live, speed, progress);
  live.first = now;
  live.measured = true;
}

// For people: what was measured, and what the model makes of it, where that is news.
void Service::Impl::note_speed(Live& live, double speed, const JobProgress& progress) {
  constexpr double kNews = 0.25;
  const int64_t devices = sched::device_count(live.asked);
  if (live.noted_devices == devices &&
      std::abs(speed - live.noted_speed) <= kNews * live.noted_speed)
    return;
  live.noted_devices = devices;
  live.noted_speed = speed;
  const JobId id = live.record.id;
  nlohmann::json body = {{"devices", devices},
                         {"samples_per_second", speed},
                         {"model", scheduler_.modelled_speeds(id)},
                         {"step", progress.step},
                         {"total_steps", progress.total_steps}};
  if (const auto efficiency = scheduler_.efficiency(id)) body["efficiency"] = *efficiency;
  writer_.write_newest(fmt::format("speed {}", id), [id, body = dump_json(body)](Change& change) {
    change.record(id, "speed", body, wall_seconds());
  });
}

// Read from the run directory, so that a service which takes over knows what the one before knew.
void Service::Impl::follow_batch(Live& live) {
  if (!is_ordered(live.work)) return;
  try {
    const auto reading = newest_reading(run::RunFolder::open(live.run).metrics_file());
    if (!reading) return;
    live.batch = reading->batch;
    scheduler_.trains_with(live.record.id, reading->batch, reading->noise_scale);
  } catch (const Error&) {  // it is read again in the next round
  }
}

// In the file that its workers read (train/batch_orders.h). The store's thread writes it.
void Service::Impl::order_batch(Live& live) {
  constexpr double kNews = 0.1;  // smaller changes gain less than they disturb
  if (!live.runner || live.stopping || live.batch == 0) return;
  const JobId id = live.record.id;
  const int64_t best = scheduler_.best_batch(id);
  const auto now = static_cast<double>(live.ordered > 0 ? live.ordered : live.batch);
  if (best == 0 || std::abs(static_cast<double>(best) - now) <= kNews * now) return;
  const nlohmann::json body = {
      {"batch", best}, {"before", live.batch}, {"devices", sched::device_count(live.asked)}};
  live.ordered = best;
  const auto failed = std::make_shared<bool>(false);
  writer_.write_newest(
      fmt::format("batch {}", id),
      [id, best, folder = live.run, failed, body = dump_json(body)](Change& change) {
        try {  // the run directory may be gone, or damaged
          write_file_atomic(run::RunFolder::open(folder).batch_file(),
                            dump_json(nlohmann::json{{"batch", best}}) + "\n");
        } catch (const Error& error) {
          *failed = true;
          log_line(fmt::format("job {}: its batch could not be ordered: {}", id, error.message()));
          return;
        }
        change.record(id, "batch", body, wall_seconds());
      },
      [this, id, failed] {
        const auto found = live_.find(id);
        if (*failed && found != live_.end()) found->second.ordered = 0;
      });
}

}  // namespace ductile::cluster
