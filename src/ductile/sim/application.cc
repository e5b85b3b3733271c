#include "ductile/sim/application.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "ductile/base/error.h"
#include "ductile/base/options.h"
#include "ductile/noise/noise_scale.h"
#include "ductile/sim/csv.h"

namespace ductile::sim {
namespace {

// What the published simulators say of their applications beside the traces.
struct Published {
  const char* name;
  int32_t epochs;
  int32_t most_local;    // Pollux's
  int32_t most_devices;  // Pollux's
  int32_t batch;         // under adaptive policies; in Pollux's it is not changed
  double pause;          // Sia's
  double slowdown;       // Sia's
};
constexpr Published kPublished[] = {
    {"bert", 2, 0, 0, 0, 120, 1.2},        {"cifar10", 100, 0, 0, 0, 50, 1.8},
    {"ncf", 10, 0, 1, 32768, 15, 1.5},     {"imagenet", 90, 0, 0, 0, 250, 1.2},
    {"deepspeech2", 80, 0, 0, 0, 25, 1.2}, {"yolov3", 50, 8, 0, 0, 80, 1.2},
    {"gpt_pmp", 2, 0, 0, 0, 30, 1.0},
};

// The published pipelines: stages by device type, micro-batches of one sample.
void read_pipeline(const fs::path& file, Application& app) {
  if (!fs::exists(file)) {
    if (app.name != "gpt_pmp") return;
    app.micro_batches = 48;
    for (const auto& [type, stages] : {std::pair{"dgx-ext", 2}, std::pair{"rtx", 8}})
      if (app.profiles.contains(type)) app.stages[type] = stages;
    return;
  }
  const Csv csv = Csv::read(file);
  for (size_t row = 0; row < csv.rows(); ++row) {
    const std::string type = csv.text(row, "type");
    if (!app.profiles.contains(type))
      fail(ErrorCode::invalid_argument, "{}: no profile placements-{}.csv", csv.where(row, "type"),
           type);
    app.stages[type] = static_cast<int32_t>(csv.whole(row, "stages", 1, 1024));
    const auto micro = static_cast<int32_t>(csv.whole(row, "micro_batches", 1, 1 << 20));
    if (app.micro_batches > 0 && micro != app.micro_batches)
      fail(ErrorCode::invalid_argument, "{}: {} here, {} before: a job has one number of them",
           csv.where(row, "micro_batches"), micro, app.micro_batches);
    app.micro_batches = micro;
  }
  if (app.micro_batches == 0) fail(ErrorCode::invalid_argument, "{}: no row in it", file.string());
}

void read_plans(const fs::path& file, Application& app) {
  if (!fs::exists(file)) return;
  const Csv csv = Csv::read(file);
  for (size_t row = 0; row < csv.rows(); ++row)
    app.plans.push_back({csv.text(row, "plan"), csv.text(row, "type"),
                         static_cast<int32_t>(csv.whole(row, "devices", 1, 1 << 20)),
                         static_cast<int32_t>(csv.whole(row, "batch", 1, 1 << 30)),
                         csv.number(row, "seconds", 1e-9, 1e9)});
  if (app.plans.empty()) fail(ErrorCode::invalid_argument, "{}: no row in it", file.string());
}

BatchTrace read_trace(const fs::path& file, int32_t batch) {
  const Csv csv = Csv::read(file);
  BatchTrace trace;
  trace.batch = batch;
  for (size_t row = 0; row < csv.rows(); ++row) {
    trace.progress.push_back(csv.number(row, "progress", 0, 1e12));
    trace.iteration.push_back(csv.number(row, "iteration", 0, 1e12));
    trace.noise.push_back(
        {csv.number(row, "grad_sqr", 0, 1e30), csv.number(row, "grad_var", 0, 1e30)});
  }
  if (csv.rows() == 0) fail(ErrorCode::invalid_argument, "{}: no epoch", file.string());
  return trace;
}

Application read_application(const fs::path& folder) {
  Application app;
  app.name = folder.filename().string();
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    const std::string stem = file.stem().string();
    if (file.extension() != ".csv") continue;
    if (stem.starts_with("validation-")) {
      const std::string digits = stem.substr(11);
      int32_t batch = 0;
      const auto [end, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), batch);
      if (error != std::errc() || end != digits.data() + digits.size() || batch < 1)
        fail(ErrorCode::invalid_argument, "{}: the name ends in a batch size, validation-128.csv",
             file.string());
      app.traces.push_back(read_trace(file, batch));
    } else if (stem.starts_with("placements")) {
      const std::string suffix = stem.substr(10);
      const std::string type = suffix.empty() ? "t4" : suffix.substr(1);
      app.profiles.emplace(type, Profile::read(file, folder / ("scalability" + suffix + ".csv")));
    }
  }
  read_plans(folder / "plans.csv", app);
  if (app.traces.empty() || app.profiles.empty() == app.plans.empty())
    fail(ErrorCode::not_found, "{}: needs validation-B.csv, and either placements.csv or plans.csv",
         folder.string());
  std::sort(app.traces.begin(), app.traces.end(),
            [](const BatchTrace& a, const BatchTrace& b) { return a.batch < b.batch; });
  app.init_batch = app.traces.front().batch;
  app.max_batch = app.traces.back().batch;
  size_t shortest = app.traces.front().progress.size();
  for (const BatchTrace& trace : app.traces) shortest = std::min(shortest, trace.progress.size());
  app.epochs = static_cast<int32_t>(shortest);
  return app;
}

double between(double lower, double upper, int32_t low, int32_t high, int32_t at) {
  if (low == high) return lower;
  return (static_cast<double>(at - low) * upper + static_cast<double>(high - at) * lower) /
         static_cast<double>(high - low);
}

// The traces below and above a batch size, the same one where it was measured.
std::pair<const BatchTrace*, const BatchTrace*> around(const std::vector<BatchTrace>& traces,
                                                       int32_t batch) {
  const BatchTrace *low = &traces.front(), *high = &traces.back();
  for (const BatchTrace& trace : traces) {
    if (trace.batch <= batch) low = &trace;
    if (trace.batch >= batch) {
      high = &trace;
      break;
    }
  }
  if (batch <= traces.front().batch) return {low, low};
  if (batch >= traces.back().batch) return {high, high};
  return {low, high};
}

}  // namespace

double Application::progress_at(int32_t epochs_done) const {
  if (epochs_done == 0) return 0;
  double least = INFINITY;
  for (const BatchTrace& trace : traces) least = std::min(least, trace.progress[epochs_done - 1]);
  return least;
}

sched::GradientNoise Application::noise(int32_t batch, int32_t epoch) const {
  const auto [low, high] = around(traces, batch);
  const sched::GradientNoise &a = low->noise[epoch], &b = high->noise[epoch];
  return {between(a.sqr, b.sqr, low->batch, high->batch, batch),
          between(a.var, b.var, low->batch, high->batch, batch)};
}

double Application::iteration(int32_t batch, int32_t epoch) const {
  const auto [low, high] = around(traces, batch);
  return between(low->iteration[epoch], high->iteration[epoch], low->batch, high->batch, batch);
}

const Profile& Application::profile(const std::string& type) const {
  const auto found = profiles.find(type);
  if (found != profiles.end()) return found->second;
  if (micro_batches > 0) return profiles.begin()->second;
  std::string known;
  for (const auto& [measured, profile] : profiles) known += (known.empty() ? "" : ", ") + measured;
  fail(ErrorCode::not_found,
       "application {} has no profile for device type '{}'; there are {}. Name one of these in the "
       "cluster file, or add placements-{}.csv to the application's folder",
       name, type, known, type);
}

sched::BatchLimits Application::limits(const Profile& profile) const {
  sched::BatchLimits limits{init_batch, max_batch, profile.min_local(), profile.max_local()};
  if (most_local > 0) limits.max_local = std::min(limits.max_local, most_local);
  if (micro_batches > 0) limits.min_local = limits.max_local = micro_batches;
  return limits;
}

int32_t Application::unit(const std::string& type) const {
  if (!plans.empty())
    return std::any_of(plans.begin(), plans.end(),
                       [&](const PlanProfile& plan) { return plan.type == type; });
  if (micro_batches == 0) return 1;
  const auto found = stages.find(type);
  return found != stages.end() ? found->second : 0;
}

StepTime Application::step_time(const std::string& type, std::span<const int32_t> counts,
                                int32_t local) const {
  if (micro_batches == 0) return profile(type).at(counts, local);
  const StepTime stage = profile(type).at(counts, 1);
  return {3.0 * (unit(type) - 1 + micro_batches) * stage.step, stage.sync};
}

const Application& Catalog::find(const std::string& name) const {
  const auto found = applications.find(name);
  if (found != applications.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, app] : applications) names.push_back(known);
  fail(ErrorCode::not_found, "{}", unknown_name("application", name, names));
}

Catalog read_catalog(const fs::path& folder) {
  if (!fs::is_directory(folder))
    fail(ErrorCode::not_found, "{}: no folder of application traces", folder.string());
  Catalog catalog;
  bool typed = false;
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_directory()) folders.push_back(entry.path());
  std::sort(folders.begin(), folders.end());
  for (const fs::path& sub : folders) {
    Application app = read_application(sub);
    read_pipeline(sub / "pipeline.csv", app);
    typed |= app.profiles.size() > 1 && app.micro_batches == 0;
    catalog.applications.emplace(app.name, std::move(app));
  }
  if (catalog.applications.empty())
    fail(ErrorCode::not_found,
         "{}: no application in it; each is a folder with validation-B.csv "
         "and placements.csv",
         folder.string());
  if (typed) catalog.rules = {true, true, true};
  for (const Published& known : kPublished) {
    const auto found = catalog.applications.find(known.name);
    if (found == catalog.applications.end()) continue;
    Application& app = found->second;
    app.epochs = std::min(app.epochs, known.epochs);
    app.adaptive_batch = known.batch;
    if (typed) {
      app.pause = known.pause;
      app.slowdown = known.slowdown;
    } else {
      app.most_local = known.most_local;
      app.most_devices = known.most_devices;
      app.fixed_batch = known.batch > 0;
    }
  }
  return catalog;
}

Catalog built_in_catalog() {
  // Steps on one t4; noise scale at the start and at the end, in samples; steps of M0 in all.
  struct Kind {
    const char* name;
    int32_t init_batch, max_batch, min_local, max_local, epochs;
    double steps, noise_start, noise_end;
    sched::PerfParams perf;
  };
  static const Kind kKinds[] = {
      {"bert", 12, 384, 2, 12, 2, 15000, 60, 200, {.03, .052, .28, .006, .06, .003, 1.6}},
      {"cifar10",
       128,
       4096,
       16,
       1024,
       50,
       39000,
       500,
       9000,
       {.018, .00055, .035, .001, .01, .0005, 2}},
      {"ncf",
       256,
       32768,
       64,
       32768,
       10,
       190000,
       8000,
       60000,
       {.004, 1.5e-6, .02, .001, .01, .0005, 1.5}},
      {"imagenet",
       200,
       12800,
       20,
       200,
       90,
       577000,
       4000,
       60000,
       {.02, .0045, .09, .002, .03, .001, 2}},
      {"deepspeech2", 20, 640, 4, 40, 80, 76000, 60, 900, {.05, .0115, .11, .003, .04, .002, 1.8}},
      {"yolov3", 8, 512, 2, 8, 50, 103000, 50, 1200, {.08, .05, .33, .006, .1, .004, 1.8}},
  };
  static const std::pair<const char*, double> kSpeeds[] = {
      {"t4", 1}, {"aws", 1}, {"rtx", 1.6}, {"a100", 4}, {"dgx-ext", 4}};
  Catalog catalog;
  for (const Kind& kind : kKinds) {
    Application app;
    app.name = kind.name;
    app.init_batch = kind.init_batch;
    app.max_batch = kind.max_batch;
    app.epochs = kind.epochs;
    for (const int32_t batch : {kind.init_batch, kind.max_batch}) {
      BatchTrace trace;
      trace.batch = batch;
      double iterations = 0;
      for (int32_t epoch = 0; epoch < kind.epochs; ++epoch) {
        const double part = kind.epochs == 1 ? 1 : epoch / (kind.epochs - 1.0);
        const double scale = kind.noise_start * std::pow(kind.noise_end / kind.noise_start, part);
        trace.noise.push_back({1, scale / kind.init_batch});
        trace.progress.push_back(kind.steps * (epoch + 1) / kind.epochs);
        iterations += kind.steps / kind.epochs /
                      noise::gain(trace.noise.back(), static_cast<double>(batch) / kind.init_batch);
        trace.iteration.push_back(iterations);
      }
      app.traces.push_back(std::move(trace));
    }
    for (const auto& [type, speed] : kSpeeds) {
      sched::PerfParams perf = kind.perf;
      perf.alpha_c /= speed;
      perf.beta_c /= speed;
      app.profiles.emplace(type, Profile::formula(perf, kind.min_local, kind.max_local));
    }
    catalog.applications.emplace(kind.name, std::move(app));
  }
  return catalog;
}

std::optional<fs::path> traces_beside(const fs::path& workload) {
  fs::path at = fs::absolute(workload).parent_path();
  for (int up = 0; up < 4; ++up, at = at.parent_path()) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(at / "traces", error))
      if (fs::exists(entry.path() / "placements.csv", error)) return at / "traces";
    if (!at.has_relative_path()) break;
  }
  return std::nullopt;
}

}  // namespace ductile::sim
