#include "ductile/cli/replan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"
#include "ductile/cli/other_commands.h"
#include "ductile/cli/other_plan.h"
#include "ductile/cli/pipeline_plan.h"
#include "ductile/cli/plan_memory.h"
#include "ductile/cli/plan_placement.h"
#include "ductile/cli/work_folder.h"
#include "ductile/link/plan_change.h"
#include "ductile/link/saved_state.h"
#include "ductile/link/worker_processes.h"
#include "ductile/page/numbers.h"
#include "ductile/run/diary.h"
#include "ductile/run/trace.h"
#include "ductile/spec/cluster.h"

namespace ductile::cli {
namespace {

using nlohmann::json;

constexpr const char* kPlanBefore = "plan_before.json";  // in the run's folder
constexpr const char* kRemedy =
    "go on with as many workers as before (--workers), or give it a plan for those that there are "
    "as a new run";

bool is_asked_for(const json& event) { return event.value("asked", json()) == true; }

// The plan of a report with the same stages, each of which keeps less: it computes all of its
// operators once more for the backward pass, and has, `in_turn`, one micro-batch at a time. Nothing
// where the report holds no plan.
std::optional<json> leaner_plan(const json& report, int64_t micro_batches, bool in_turn) {
  if (!report.contains("plan")) return std::nullopt;
  json plan = report.at("plan");
  if (!plan.is_object() || !plan.contains("stages") || !plan["stages"].is_array())
    return std::nullopt;
  for (json& stage : plan["stages"]) {
    if (!stage.is_object() || !stage.contains("ops") || !stage.contains("micro_batch"))
      return std::nullopt;
    stage["recompute"] = stage["ops"];
    if (!in_turn) continue;
    std::string order;
    for (int64_t m = 0; m < micro_batches; ++m) order += "FB";
    stage["order"] = std::move(order);
    stage["k"] = 1;
    stage["in_flight"] = stage["micro_batch"];
  }
  if (in_turn) plan["schedule"] = "kfkb";
  return plan;
}

// The run's job by another plan.
struct NewJob {
  spec::JobOptions job;
  OtherPlan plan;
};
NewJob job_by(const spec::JobOptions& job, const PlanSearch::Found& found, bool had_parts) {
  const WorkFolder temporary;
  const fs::path file = temporary.path() / "plan.json";
  write_file_atomic(file, found.plan);
  NewJob out{job, {}};
  out.plan = other_plan(out.job, file, had_parts);
  if (found.same_stages && !out.plan.keeps_state())
    fail(ErrorCode::conflict, "a plan that was to leave the result as it is would change it");
  spec::check(out.job);
  check_memory(out.job, found.plan, file);
  return out;
}

spec::Cluster devices_of(const json& report) {
  return spec::cluster_from_json(report.at("cluster"), "the run's plan: cluster");
}

using State = std::optional<json>;  // that the controller saved

// A whole number of it; `otherwise` where there is none.
int64_t number_in(const State& state, const char* key, int64_t otherwise) {
  if (!state || !state->is_object() || !state->contains(key)) return otherwise;
  const json& value = state->at(key);
  return value.is_number_integer() ? value.get<int64_t>() : otherwise;
}

// How many workers the controller wanted.
int64_t wanted_in(const State& state) {
  return std::max<int64_t>(1, number_in(state, "wanted", 1));
}

struct ReadState {
  State state;
  bool damaged = false;
};
ReadState read_state_of(const run::RunFolder& folder) {
  try {
    return {link::read_state(link::state_file(folder.path()))};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data_loss) throw;
    return {std::nullopt, /*damaged=*/true};
  }
}

// A done run is not planned anew: no step would be done by the new plan.
void check_has_steps(const run::RunFolder& folder, int64_t workers) {
  if (!is_done(folder)) return;
  fail(
      ErrorCode::conflict,
      "memory of {}: too little for the stages of the run's plan; the run is done, and has no step "
      "left for another plan: resume it with as many workers as it had (--workers)",
      page::plural(static_cast<double>(workers), "worker"));
}

// Whether the run goes by a plan that was made for the workers that were left. Nobody is asked for
// one of a change that its user did not ask for.
bool was_planned_anew(const run::RunFolder& folder, const std::optional<link::PlanChange>& open) {
  json last = open ? open->event() : json();
  if (!last.is_object()) {
    run::for_each_diary_line(folder.events_file(), [&](json& line) {
      if (line.value("kind", json()) == "replan") last = std::move(line);
    });
  }
  return last.is_object() && !is_asked_for(last);
}

}  // namespace

// No job has 0 virtual ranks, so whoever reads this state follows it by one of his own
// (Membership::successor), whatever number the job has.
void leave_state(const run::RunFolder& folder, int64_t workers) {
  const fs::path file = link::state_file(folder.path());
  std::optional<json> state = link::read_state(file);
  if (!state || !state->is_object()) return;
  (*state)["workers"] = json::array();
  (*state)["virtual_ranks"] = 0;
  (*state)["wanted"] = workers;
  write_file_atomic(file, link::sealed(*state));
}

void end_workers_here(const run::RunFolder& folder, const fs::path& program) {
  const fs::path file = link::state_file(folder.path());
  const std::optional<json> state = link::read_state(file);
  if (!state || !state->is_object() || !state->contains("workers")) return;
  for (const json& entry : state->at("workers")) {
    const JsonFields report(JsonFields(entry, file.string()).at("report"), file.string());
    uint64_t worker = 0;
    report.read("worker", worker);
    (void)link::end_worker(program, folder.path().string(), worker);
  }
}

int64_t Replanner::workers_before(const run::RunFolder& folder) {
  return wanted_in(link::read_state(link::state_file(folder.path())));
}

PlanSearch::PlanSearch(const spec::JobOptions& job, const std::string& plan,
                       const WorkersLeft& left, const server::HostSetup& setup)
    : job_(job),
      workers_(left.count),
      here_(memory_here(setup)),
      what_(fmt::format("a plan for {} of the run",
                        page::plural(static_cast<double>(left.count), "worker"))) {
  const json report = parse_json(plan);
  if (!report.is_object() || !report.contains("profile") || !report.contains("cluster")) {
    fail(ErrorCode::conflict,
         "memory of {}: too little for the stages of the run's plan, and plan.json holds no graph "
         "to plan anew with, as what `ductile plan GRAPH --devices FILE --runnable --json` prints "
         "does; {}",
         page::plural(static_cast<double>(left.count), "worker"), kRemedy);
  }
  const fs::path& folder = folder_.path();
  const spec::Cluster cluster = devices_of(report);
  write_file_atomic(folder / "graph.json", dump_json(report.at("profile")));
  write_file_atomic(folder / "devices.toml", spec::to_toml(cluster));
  const spec::Cluster there = devices_left(cluster, left, setup);
  device_memory_ = least_memory(there);
  write_file_atomic(folder / "left.toml", spec::to_toml(there));
  for (const bool in_turn : {true, false}) {  // the last one is tried first
    const auto leaner = leaner_plan(report, job.train.pipelined.micro_batches, in_turn);
    if (!leaner) continue;
    leaner_.push_back(folder / (in_turn ? "in_turn.json" : "again.json"));
    write_file_atomic(leaner_.back(), dump_json(*leaner));
  }
  const std::vector<std::string> one = {"--replicas", "1"};
  if (job.train.pipeline_exact) {
    const int64_t each = job.train.batch_size / spec::batch_parts(job);
    asks_.push_back(one);
    asks_.back().insert(asks_.back().end(), {"--micro-batch", std::to_string(each)});
  }
  asks_.emplace_back();
  asks_.push_back(one);
  if (report.contains("evaluation")) {
    const StateScale scale =
        state_scale(job, report.at("evaluation"), "the run's plan: evaluation");
    if (scale.factor > 1) options_ = {"--optimizer-state", fmt::format("{}", scale.optimizer)};
  }
  try_next();
}

void PlanSearch::try_next() {
  const fs::path& folder = folder_.path();
  judges_ = !leaner_.empty();
  std::vector<std::string> words = {"plan", (folder / "graph.json").string(), "--json", "--batch",
                                    std::to_string(job_.train.batch_size)};
  words.insert(words.end(), options_.begin(), options_.end());
  if (judges_) {
    words.insert(words.end(), {"--devices", (folder / "devices.toml").string(), "--plan",
                               leaner_.back().string()});
    leaner_.pop_back();
  } else {
    words.insert(words.end(),
                 {"--devices", (folder / "left.toml").string(), "--runnable", "--time-limit", "3"});
    asked_ = std::move(asks_.front());
    asks_.erase(asks_.begin());
    words.insert(words.end(), asked_.begin(), asked_.end());
  }
  command_ = std::make_unique<FleetCommand>(words, what_);
}

// Of the same stages, which were judged on the devices of before.
bool PlanSearch::has_room(const spec::JobOptions& job, const std::string& plan) const {
  auto memory = PlanMemory::of(job, plan);
  if (!memory) return false;
  memory->limit_to(device_memory_);
  return memory->fits(workers_, here_);
}

// Whether the plan that the command made will do; begins the next one where it does not.
bool PlanSearch::settle() {
  bool refused = false;  // a plan that was made
  try {
    Found next{command_->output(), /*same_stages=*/judges_};
    refused = true;
    const NewJob now = job_by(job_, next, /*had_parts=*/true);  // its options are the user's
    if (!judges_ || has_room(now.job, next.plan)) {
      kept_ = std::move(next);
      return true;
    }
  } catch (const Error& error) {  // it does not fit the plan's devices, or would change the result
    if (error.code() == ErrorCode::unavailable) throw;  // nobody has judged it
    // Where no plan fits of which nothing is asked, none does of which something is.
    const bool others = !asks_.empty() && error.code() == ErrorCode::invalid_argument;
    if (!judges_ && (!others || (asked_.empty() && !refused))) throw;
  }
  try_next();
  return false;
}

bool PlanSearch::ended() { return kept_ || (command_->ended() && settle()); }

PlanSearch::Found PlanSearch::found() {
  while (!kept_) settle();
  return *kept_;
}

PlanSearch::~PlanSearch() = default;

Replanner::Replanner(JobConfig& config, const run::RunFolder& folder,
                     const server::HostSetup& setup, const fs::path& program, Console& console)
    : config_(config), folder_(folder), setup_(setup), program_(program), console_(console) {
  const fs::path file = run::plan_file(folder);
  if (spec::is_pipelined(config.job) && kind_of(file) == FileKind::file) plan_ = read_file(file);
}

int64_t Replanner::begin(int64_t workers, bool named) {
  const auto [state, damaged] = read_state_of(folder_);
  if (damaged) return workers;  // which the controller says, as of any other job
  const int64_t ranks = config_.job.train.virtual_ranks;
  const auto memory = PlanMemory::of(config_.job, plan_);
  // Killed before its controller had a state: nobody asked for one worker.
  if (workers == 0 && number_in(state, "wanted", 0) < 1 && memory &&
      !memory->fits(1, memory_here(setup_)))
    workers = std::min(ranks, setup_.most());
  // A controller with a state of its own does not know how many there were.
  if (workers == 0 && number_in(state, "virtual_ranks", ranks) != ranks)
    workers = std::min(wanted_in(state), ranks);
  if (!memory) return workers;
  const int64_t asked = workers > 0 ? workers : wanted_in(state);
  if (memory->fits(asked, memory_here(setup_))) return workers;
  check_has_steps(folder_, asked);
  WorkersLeft left{asked};
  if (named) left.hosts = hosts_of_workers(setup_.hosts, asked);
  put(PlanSearch(config_.job, plan_, left, setup_).found(), asked);
  return std::min(asked, config_.job.train.virtual_ranks);
}

int64_t Replanner::fewest() const {
  const auto memory = PlanMemory::of(config_.job, plan_);
  return memory ? memory->fewest(memory_here(setup_)) : 1;
}

bool Replanner::find_plan(const WorkersLeft& left) {
  try {
    if (std::exchange(tried_for_, left) != left) {
      give_up();  // one for others
      check_has_steps(folder_, left.count);
      search_ = std::make_unique<PlanSearch>(config_.job, plan_, left, setup_);
    }
    if (search_ && search_->ended()) {
      const std::unique_ptr<PlanSearch> search = std::move(search_);
      found_ = search->found();
      found_for_ = left;
    }
  } catch (const Error& error) {
    search_.reset();
    if (error.code() == ErrorCode::unavailable) tried_for_ = {};  // it is tried again
    console_.error(fmt::format("the run waits for workers: {}", error.message()));
  }
  return found_.has_value();
}

void Replanner::give_up() {
  search_.reset();
  found_.reset();
}

std::optional<WorkersLeft> Replanner::put_found() {
  if (!found_) return std::nullopt;
  put(*std::exchange(found_, std::nullopt), found_for_.count);
  WorkersLeft out = found_for_;
  out.count = std::min(out.count, config_.job.train.virtual_ranks);
  return out;
}

// The state comes last: until the job is another one, it says how many workers are wanted for the
// plan before.
void put_anew(const run::RunFolder& folder, const std::string& before,
              link::PlanChange::New change) {
  const std::optional<link::PlanChange> open = link::PlanChange::left_open(folder);
  const fs::path kept = folder.path() / kPlanBefore;
  if (kind_of(kept) != FileKind::file || !was_planned_anew(folder, open))
    write_file_atomic(kept, before);
  const bool other_ranks = change.workers_before > 0 || (open && open->workers_before() > 0);
  const auto workers = change.event.at("workers").get<int64_t>();
  link::PlanChange put = link::PlanChange::put(folder, std::move(change));
  if (other_ranks) leave_state(folder, workers);
  // Workers may refuse a plan that was made of one that no worker has seen.
  if (!open) put.accept();
}

// As where a user gives two plans in a row, the first of which no step was done by: the second one
// is compared with the job of before both.
void Replanner::put(const PlanSearch::Found& found, int64_t workers) {
  const std::optional<std::string> seen = link::PlanChange::job_before(folder_);
  const int64_t given = config_.job.train.virtual_ranks;
  JobConfig before;
  if (seen) before.read_saved_text(*seen, folder_.job_file());
  NewJob now = seen ? job_by(before.job, {found.plan, false}, had_parts(folder_))
                    : job_by(config_.job, found, /*had_parts=*/true);
  end_workers_here(folder_, program_);
  config_.job = std::move(now.job);
  link::PlanChange::New change{config_.options.to_toml(), found.plan};
  change.event = change_event(folder_, now.plan);
  change.event.erase("asked");
  change.event["workers"] = workers;
  change.event["plan_before"] = kPlanBefore;
  if (seen) change.event["given"] = given;
  if (!now.plan.keeps_state()) change.workers_before = workers_before(folder_);
  const std::string text = replan_text(folder_, change.event);
  put_anew(folder_, plan_, std::move(change));
  plan_ = found.plan;
  planned_anew_ = true;
  console_.say("{}", text);
}

std::string replan_text(const run::RunFolder& folder, const json& event) {
  const int64_t from = event.value("from", int64_t{0}), to = event.value("to", int64_t{0});
  const std::string text = fmt::format(
      "memory of {}: too little for the {} stages of the run's plan, with all replicas; ",
      page::plural(event.value("workers", 0.0), "worker"), event.value("given", from));
  const std::string kept = (folder.path() / kPlanBefore).string();
  const int64_t step = event.value("step", int64_t{0});
  const bool same = event.value("same_result", false);
  if (same && from == to && !event.contains("given"))
    return fmt::format(
        "{}they go on from step {}, where they compute more than once what they would have kept "
        "(the plan before is {}), with the same result",
        text, step, kept);
  if (same)
    return fmt::format(
        "{}planned anew with {}; they go on from step {} with the same result{}; the plan before "
        "is {}",
        text, to, step, event.value("may_round", false) ? ", but for rounding" : "", kept);
  return fmt::format(
      "{}planned anew with {}; from step {} on the result is that of another plan; the plan before "
      "is {}",
      text, to, step, kept);
}

void finish_replan(const run::RunFolder& folder, const fs::path& program,
                   const link::PlanChange& change, Console& console) {
  const json& event = change.event();
  if (!event.is_object() || is_asked_for(event)) return;
  console.say("{}", replan_text(folder, event));
  if (change.workers_before() == 0) return;
  const auto [state, damaged] = read_state_of(folder);  // a damaged one the controller tells of
  const int64_t from = event.value("from", int64_t{0});
  const int64_t ranks = number_in(state, "virtual_ranks", 0);  // 0: it was left for this plan
  if (damaged || from == 0 || (ranks != 0 && ranks != from)) return;
  end_workers_here(folder, program);
  leave_state(folder, event.value("workers", int64_t{1}));
}

std::string resumed_job(const run::RunFolder& folder, bool by_another_plan) {
  const auto before = by_another_plan ? link::PlanChange::job_before(folder) : std::nullopt;
  return before ? *before : read_file(folder.job_file());
}

void check_unchanged(const run::RunFolder& folder, const std::string& resumed,
                     bool by_another_plan) {
  if (resumed_job(folder, by_another_plan) == resumed) return;
  fail(ErrorCode::conflict, "{}: another command changed its job just now; try again",
       folder.path().string());
}

std::optional<link::PlanChange> changed_plan(const TrainCommand& command, const OtherPlan& plan,
                                             JobConfig& config, const run::RunFolder& folder,
                                             const fs::path& program, Console& console) {
  if (!command.resume) return std::nullopt;
  if (!command.plan) {
    std::optional<link::PlanChange> left = link::PlanChange::left_open(folder);
    if (left && !command.goes_on) finish_replan(folder, program, *left, console);
    return left;
  }
  end_workers_here(folder, program);  // they would go on by the plan before, beside new ones
  link::PlanChange::New now{config.options.to_toml(), plan.text};
  if (plan.changes_job) now.event = change_event(folder, plan);
  const auto open = link::PlanChange::left_open(folder);
  if (!plan.keeps_state() || (open && open->workers_before() > 0)) {
    now.workers_before = Replanner::workers_before(folder);
    leave_state(folder, now.workers_before);
  }
  link::PlanChange change = link::PlanChange::put(folder, std::move(now));
  if (change.event().is_object()) console.say("{}", change_text(change.event()));
  return change;
}

}  // namespace ductile::cli
