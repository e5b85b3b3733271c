#include "ductile/sim/workload.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <ctime>
#include <unordered_set>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/sim/csv.h"

namespace ductile::sim {
namespace {

constexpr double kMostTime = 1e10;
constexpr int64_t kMostDevices = 1'000'000;

template <class T>
T one_of(const Csv& csv, size_t row, std::string_view column, std::initializer_list<T> values) {
  const std::string text = csv.text(row, column);
  std::string known;
  for (const T value : values) {
    if (sched::to_string(value) == text) return value;
    known += (known.empty() ? "" : ", ") + std::string(sched::to_string(value));
  }
  fail(ErrorCode::invalid_argument, "{}: '{}' is none of {}", csv.where(row, column), text, known);
}

void check_application(const Csv& csv, size_t row, const Catalog& catalog,
                       const std::string& application) {
  try {
    catalog.find(application);
  } catch (Error& e) {
    fail(ErrorCode::invalid_argument, "{}: {}", csv.where(row, "application"), e.message());
  }
}

void sort_by_time(Workload& workload) {
  std::stable_sort(workload.jobs.begin(), workload.jobs.end(),
                   [](const Submission& a, const Submission& b) { return a.time < b.time; });
}

// "3", or "0:3; 43200:9; 86400:3".
std::vector<std::pair<double, double>> read_load(const Csv& csv, size_t row) {
  const std::string text = csv.text(row, "load");
  std::vector<std::pair<double, double>> points;
  const auto wrong = [&] {
    fail(ErrorCode::invalid_argument,
         "{}: '{}' is neither a number of requests a second nor a list of seconds:requests such as "
         "0:3; 43200:9; 86400:3, with times that rise from 0",
         csv.where(row, "load"), text);
  };
  const auto number = [&](std::string_view part) {
    while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
    while (!part.empty() && part.back() == ' ') part.remove_suffix(1);
    double value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (part.empty() || error != std::errc() || end != part.data() + part.size() || !(value >= 0) ||
        value > 1e9)
      wrong();
    return value;
  };
  for (size_t at = 0; at <= text.size();) {
    const size_t stop = std::min(text.find(';', at), text.size());
    const std::string_view part = std::string_view(text).substr(at, stop - at);
    const size_t colon = part.find(':');
    if (colon == std::string_view::npos) {
      points.push_back({0, number(part)});
      if (stop != text.size() || points.size() > 1) wrong();
    } else {
      points.push_back({number(part.substr(0, colon)), number(part.substr(colon + 1))});
      if (points.size() == 1 ? points[0].first != 0
                             : points.back().first <= points[points.size() - 2].first)
        wrong();
    }
    at = stop + 1;
  }
  return points;
}

ServiceSpec read_service(const Csv& csv, size_t row, const Submission& job) {
  ServiceSpec service;
  service.load = read_load(csv, row);
  const auto positive = [&](const char* column, double fallback) {
    return csv.has(column) && !csv.text(row, column).empty() ? csv.number(row, column, 1e-9, 1e9)
                                                             : fallback;
  };
  service.replica_rate = positive("replica_rate", service.replica_rate);
  service.latency = positive("latency", service.latency);
  service.seconds = positive("seconds", service.seconds);
  if (csv.has("replica_devices") && !csv.text(row, "replica_devices").empty())
    service.replica_devices =
        static_cast<int32_t>(csv.whole(row, "replica_devices", 1, kMostDevices));
  if (job.devices % service.replica_devices != 0)
    fail(ErrorCode::invalid_argument, "{}: a floor of {} devices is no number of replicas of {}",
         csv.where(row, "num_replicas"), job.devices, service.replica_devices);
  return service;
}

Workload from_jobs(const Csv& csv, const Catalog& catalog) {
  using sched::Scaling, sched::Tier;
  Workload workload;
  std::unordered_set<std::string> names;
  for (size_t row = 0; row < csv.rows(); ++row) {
    Submission job;
    job.name = csv.text(row, "name");
    if (job.name.empty() || !names.insert(job.name).second)
      fail(ErrorCode::invalid_argument, "{}: '{}' is empty or the name of an earlier job",
           csv.where(row, "name"), job.name);
    job.time = csv.number(row, "time", 0, kMostTime);
    job.application = csv.text(row, "application");
    check_application(csv, row, catalog, job.application);
    job.devices = static_cast<int32_t>(csv.whole(row, "num_replicas", 1, kMostDevices));
    if (csv.has("batch_size"))
      job.batch = static_cast<int32_t>(csv.whole(row, "batch_size", 0, 1 << 30));
    if (csv.has("scaling"))
      job.scaling =
          one_of(csv, row, "scaling", {Scaling::rigid, Scaling::strong, Scaling::adaptive});
    if (csv.has("tier"))
      job.tier = one_of(csv, row, "tier", {Tier::premium, Tier::standard, Tier::basic});
    if (csv.has("team")) job.team = static_cast<int32_t>(csv.whole(row, "team", 0, 1 << 30));
    if (csv.has("preemptible")) job.preemptible = csv.whole(row, "preemptible", 0, 1) == 1;
    if (csv.has("work")) job.work = csv.number(row, "work", 1e-6, 1e6);
    if (csv.has("checkpoint")) job.checkpoint_every = csv.number(row, "checkpoint", 0, 1e7);
    if (csv.has("region")) job.region = csv.text(row, "region");
    if (csv.has("transfer")) job.transfer = csv.number(row, "transfer", 0, 1e7);
    if (csv.has("movable")) job.movable = csv.whole(row, "movable", 0, 1) == 1;
    if (!job.movable && job.region.empty())
      fail(ErrorCode::invalid_argument, "{}: a job that may not move needs a region",
           csv.where(row, "movable"));
    if (csv.has("load") && !csv.text(row, "load").empty())
      job.service = read_service(csv, row, job);
    workload.jobs.push_back(std::move(job));
  }
  return workload;
}

// Seconds since 1970 of "2017-10-09 07:01:55", with anything after the seconds left out.
double timestamp(const Csv& csv, size_t row) {
  const std::string text = csv.text(row, "timestamp");
  std::tm parts{};
  const char* end = strptime(text.c_str(), "%Y-%m-%d %H:%M:%S", &parts);
  if (end == nullptr)
    fail(ErrorCode::invalid_argument, "{}: '{}' is not a time like 2017-10-09 07:01:55",
         csv.where(row, "timestamp"), text);
  return static_cast<double>(timegm(&parts));
}

// Seconds the application takes on `devices` devices packed by fours, at the batch asked for.
double solo_seconds(const Application& app, int32_t devices, int32_t batch) {
  const Profile& profile = app.profiles.begin()->second;
  const sched::BatchLimits limits = app.limits(profile);
  std::vector<int32_t> counts;
  for (int32_t left = devices; left > 0; left -= 4) counts.push_back(std::min(left, 4));
  const sched::BatchChoice split = sched::split_batch(limits, devices, batch);
  const StepTime time = profile.at(counts, std::max(split.local_batch, 1));
  const int32_t whole = devices * split.local_batch * (split.accumulation + 1);
  return app.iteration(std::max(whole, limits.init_batch), app.epochs - 1) *
         (time.step + split.accumulation * (time.step - time.sync)) * app.slowdown;
}

Workload from_philly(const Csv& csv, const Catalog& catalog) {
  static constexpr std::array<std::pair<double, const char*>, 4> kKinds = {
      {{1, "cifar10"}, {10, "deepspeech2"}, {100, "yolov3"}, {1e300, "imagenet"}}};
  Workload workload;
  std::vector<std::string> teams;
  double first = INFINITY;
  for (size_t row = 0; row < csv.rows(); ++row) {
    Submission job;
    job.name = fmt::format("philly-{}", row);
    job.time = timestamp(csv, row);
    first = std::min(first, job.time);
    const double duration = csv.number(row, "duration", 0, kMostTime);
    job.devices = static_cast<int32_t>(csv.whole(row, "num_gpus", 0, kMostDevices));
    if (duration <= 0 || job.devices == 0) continue;  // never ran
    const std::string cluster = csv.text(row, "cluster");
    auto team = std::find(teams.begin(), teams.end(), cluster);
    if (team == teams.end()) team = teams.insert(teams.end(), cluster);
    job.team = static_cast<int32_t>(team - teams.begin());
    const double hours = duration * job.devices / 3600;
    for (const auto& [below, name] : kKinds) {
      if (hours >= below) continue;
      job.application = name;
      break;
    }
    const Application& app = catalog.find(job.application);
    job.batch = static_cast<int32_t>(std::clamp<int64_t>(
        static_cast<int64_t>(app.init_batch) * job.devices, app.init_batch, app.max_batch));
    job.devices = std::min(job.devices, job.batch);
    job.work = duration / solo_seconds(app, job.devices, job.batch);
    workload.jobs.push_back(std::move(job));
  }
  for (Submission& job : workload.jobs) job.time -= first;
  return workload;
}

}  // namespace

Workload parse_workload(std::string_view text, const std::string& name, const Catalog& catalog) {
  const Csv csv = Csv::parse(text, name);
  Workload workload = csv.has("timestamp") && csv.has("num_gpus") ? from_philly(csv, catalog)
                                                                  : from_jobs(csv, catalog);
  workload.name = fs::path(name).stem().string();
  if (workload.jobs.empty()) fail(ErrorCode::invalid_argument, "{}: no job in it", name);
  sort_by_time(workload);
  return workload;
}

Workload read_workload(const fs::path& file, const Catalog& catalog) {
  return parse_workload(read_text(file, kMostTrace), file.string(), catalog);
}

void compress(Workload& workload, double load) {
  if (!(load > 0)) fail(ErrorCode::invalid_argument, "a load of {}; it must be above 0", load);
  for (Submission& job : workload.jobs) job.time /= load;
}

void truncate(Workload& workload, int64_t count) {
  if (count < static_cast<int64_t>(workload.jobs.size()))
    workload.jobs.resize(static_cast<size_t>(std::max<int64_t>(count, 1)));
}

void make_unique(Workload& workload, Catalog& catalog, uint64_t seed, double spread) {
  for (size_t i = 0; i < workload.jobs.size(); ++i) {
    Submission& job = workload.jobs[i];
    if (job.service) continue;
    Rng rng(seed, 0x0112e, i);
    const double compute = std::exp(spread * rng.normal()),
                 network = std::exp(spread * rng.normal()), noise = std::exp(spread * rng.normal());
    Application own = catalog.find(job.application);
    own.name = fmt::format("{}~{}", job.application, i);
    for (auto& [type, profile] : own.profiles) profile = profile.scaled(compute, network);
    for (PlanProfile& plan : own.plans) plan.seconds *= compute;
    for (BatchTrace& trace : own.traces)
      for (sched::GradientNoise& epoch : trace.noise) epoch.var *= noise;
    job.application = own.name;
    catalog.applications.insert_or_assign(own.name, std::move(own));
  }
}

namespace {

Submission made_service(const SyntheticOptions& options, int64_t index) {
  Rng rng(options.seed, 3, static_cast<uint64_t>(index));
  Submission job;
  job.application = "bert";
  job.devices = 2;
  job.tier = sched::Tier::premium;
  job.team = static_cast<int32_t>(rng.below(static_cast<uint32_t>(options.teams)));
  ServiceSpec service;
  service.seconds = options.hours * 3600;
  // One day, that is the length of the workload: a sine in eighths, shifted.
  const double phase = rng.uniform(0, 1), mean = rng.uniform(30, 42);
  service.load.clear();
  for (int i = 0; i <= 8; ++i)
    service.load.push_back(
        {std::round(options.hours * 450) * i,
         std::round(10 * mean * (1 + 0.7 * std::sin(2 * M_PI * (i / 8.0 + phase)))) / 10});
  job.service = service;
  return job;
}

}  // namespace

Workload synthetic_workload(const SyntheticOptions& options, const Catalog& catalog) {
  if (options.jobs < 1 || !(options.hours > 0) || options.teams < 1)
    fail(ErrorCode::invalid_argument, "{} jobs in {} hours for {} teams: each must be above 0",
         options.jobs, options.hours, options.teams);
  // Arrivals of each eighth of the period, relative; parts of 100 by application.
  static constexpr std::array<double, 8> kHours = {1, 1.5, 2, 3, 2.5, 2, 1.5, 1};
  struct Kind {
    const char* name;
    int share;
    std::array<int32_t, 3> devices;  // asked for, one of these
  };
  static constexpr std::array<Kind, 6> kKinds = {{{"cifar10", 38, {2, 4, 8}},
                                                  {"ncf", 34, {1, 1, 1}},
                                                  {"bert", 9, {4, 8, 12}},
                                                  {"deepspeech2", 11, {4, 8, 12}},
                                                  {"yolov3", 6, {8, 12, 16}},
                                                  {"imagenet", 2, {12, 16, 24}}}};
  double whole = 0;
  for (const double hour : kHours) whole += hour;
  Workload workload;
  workload.name = fmt::format("synthetic-{}", options.seed);
  for (int64_t i = 0; i < options.jobs; ++i) {
    Rng rng(options.seed, 1, static_cast<uint64_t>(i));
    Submission job;
    double at = rng.uniform(0, whole);
    size_t part = 0;
    while (part + 1 < kHours.size() && at >= kHours[part]) at -= kHours[part++];
    job.time =
        std::floor((static_cast<double>(part) + at / kHours[part]) / 8 * options.hours * 3600);
    int pick = static_cast<int>(rng.below(100));
    const uint32_t size = rng.below(3);
    for (const Kind& kind : kKinds) {
      job.application = kind.name;
      job.devices = kind.devices[size];
      if ((pick -= kind.share) < 0) break;
    }
    const Application& app = catalog.find(job.application);
    job.devices = std::min(job.devices, app.max_batch / app.profiles.begin()->second.min_local());
    if (app.most_devices > 0) job.devices = std::min(job.devices, app.most_devices);
    job.batch = std::min<int32_t>(app.init_batch * job.devices, app.max_batch);
    job.work = std::exp(options.spread * rng.normal());
    job.team = static_cast<int32_t>(rng.below(static_cast<uint32_t>(options.teams)));
    if (options.tiers) {
      const uint32_t tier = rng.below(10);
      job.tier = tier < 1   ? sched::Tier::premium
                 : tier < 4 ? sched::Tier::standard
                            : sched::Tier::basic;
    }
    workload.jobs.push_back(std::move(job));
  }
  for (int64_t i = 0; i < options.services; ++i) workload.jobs.push_back(made_service(options, i));
  sort_by_time(workload);
  for (size_t i = 0; i < workload.jobs.size(); ++i)
    workload.jobs[i].name = fmt::format("{}-{}{}", workload.jobs[i].application,
                                        workload.jobs[i].service ? "service-" : "", i);
  return workload;
}

std::string to_csv(const Workload& workload) {
  bool checkpoints = false, services = false, regions = false;
  for (const Submission& job : workload.jobs) {
    checkpoints |= job.checkpoint_every > 0;
    services |= job.service.has_value();
    regions |= !job.region.empty();
  }
  std::string out =
      "name,time,application,num_replicas,batch_size,scaling,tier,team,preemptible,work";
  if (checkpoints) out += ",checkpoint";
  if (regions) out += ",region,transfer,movable";
  if (services) out += ",load,replica_rate,latency,replica_devices,seconds";
  out += "\n";
  for (const Submission& job : workload.jobs) {
    out += fmt::format("{},{},{},{},{},{},{},{},{},{}", job.name, job.time, job.application,
                       job.devices, job.batch, sched::to_string(job.scaling),
                       sched::to_string(job.tier), job.team, job.preemptible ? 1 : 0, job.work);
    if (checkpoints) out += fmt::format(",{}", job.checkpoint_every);
    if (regions) out += fmt::format(",{},{},{}", job.region, job.transfer, job.movable ? 1 : 0);
    if (services && !job.service) out += ",,,,,";
    if (job.service) {
      out += ",";
      for (const auto& [time, load] : job.service->load)
        out += fmt::format("{}{}:{}", time > 0 ? ";" : "", time, load);
      out += fmt::format(",{},{},{},{}", job.service->replica_rate, job.service->latency,
                         job.service->replica_devices, job.service->seconds);
    }
    out += "\n";
  }
  return out;
}

}  // namespace ductile::sim
