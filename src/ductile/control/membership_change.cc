// Generations: when the members have to change, who is in the next one, where it starts.
#include <algorithm>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ductile/control/membership_impl.h"

namespace ductile::control {

std::vector<WorkerRecord*> Membership::State::participants() {
  std::vector<WorkerRecord*> found;
  for (const Member& member : plan->members)
    if (WorkerRecord* worker = find(member.worker); worker != nullptr && !worker->doomed)
      found.push_back(worker);
  return found;
}

std::vector<WorkerRecord*> Membership::State::joiners() {
  std::vector<WorkerRecord*> found;
  for (auto& [id, worker] : workers)
    if (worker.live() && worker.loaded() && !worker.leaving() && plan->find(id) == nullptr)
      found.push_back(&worker);
  return found;
}

// Whether no further joiner is worth waiting for: one short pause for all of them.
bool Membership::State::joiners_complete() {
  bool more_coming = false;
  Time first_ready = Time::max();
  for (auto& [id, worker] : workers) {
    if (worker.doomed || plan->find(id) != nullptr) continue;
    if (worker.loaded())
      first_ready = std::min(first_ready, worker.ready_at);
    else
      more_coming = true;
  }
  return !more_coming || (first_ready != Time::max() && due(first_ready + options.join_window));
}

// A member that is not known to be gone may go on until its lease ends, and no longer.
bool Membership::State::may_still_act(const WorkerRecord& worker) {
  return !due(lease_end(worker));
}

std::string Membership::State::broken() {
  for (const Member& member : plan->members) {
    const WorkerRecord* worker = find(member.worker);
    if (worker == nullptr || worker->doomed) return fmt::format("worker {} is gone", member.worker);
    if (!worker->reachable) return fmt::format("worker {} cannot be reached", member.worker);
    if (worker->report.phase == WorkerPhase::halted && worker->report.generation == plan->number &&
        worker->report.promised <= plan->number)
      return fmt::format("worker {} halted: {}", member.worker, worker->report.note);
  }
  if (plan->members.empty()) return "the workers begin";
  bool apart = true;
  for (const Member& member : plan->members) {
    const WorkerRecord& worker = *find(member.worker);
    apart &= worker.report.phase == WorkerPhase::done && !can_save(worker);
  }
  return apart ? "nobody has all parts of the result" : "";
}

std::string Membership::State::change_asked() {
  if (phase == Phase::preempting && !parts_are_apart()) return "preemption";
  int64_t staying = 0;
  bool leaver = false;
  for (const WorkerRecord* worker : participants()) {
    // First let everyone get the state: a change in between would begin the feeding anew.
    if (worker->report.generation != plan->number || worker->report.phase == WorkerPhase::restoring)
      return "";
    // One that has handed its parts over has nothing to do any more.
    const bool beside = plan->find(worker->id)->ranks.size() == 0;
    if (worker->leaving() || beside)
      leaver = true;
    else
      ++staying;
  }
  if (phase == Phase::preempting) return "preemption";
  const auto members = static_cast<int64_t>(plan->members.size());
  if (staying > wanted) return fmt::format("from {} to {}", members, counted_workers(wanted));
  if (leaver && staying >= options.min_workers) return "a worker leaves its host";
  if (staying < wanted && !joiners().empty() && joiners_complete())
    return fmt::format("{} of {} wanted workers, and more are ready", members, wanted);
  return "";
}

void Membership::State::begin_change(bool at_boundary, bool after_loss, const std::string& why) {
  change = Change{++granted, at_boundary, after_loss, false, why, now, {}};
  out.must_save = true;
  again = true;
  for (WorkerRecord* worker : participants())
    if (worker->reachable && !worker->halted_for(granted))
      tell(*worker, Halt{granted, at_boundary, why, phase == Phase::preempting});
}

// One member that promised not to vote any more blocks every further commit, since each needs all
// votes. Without one, every member must be gone or without a lease.
bool Membership::State::old_generation_blocked() {
  for (WorkerRecord* worker : participants())
    if (worker->halted_for(change->number)) return true;
  for (const Member& member : plan->members)
    if (const WorkerRecord* worker = find(member.worker);
        worker != nullptr && may_still_act(*worker))
      return false;
  return true;
}

bool Membership::State::halted() {
  for (const WorkerRecord* worker : participants())
    if (worker->reachable && !worker->halted_for(change->number)) return false;
  return old_generation_blocked();
}

void Membership::State::drive_change() {
  if (phase == Phase::finishing && done_worker() != nullptr) return;
  if (!change) {
    if (const std::string why = broken(); !why.empty())
      begin_change(false, true, why);
    else if (const std::string wish = change_asked(); !wish.empty())
      begin_change(true, false, wish);
  }
  if (change && change->at_boundary) {
    const std::string why = broken();
    if (!why.empty() || due(change->since + options.pause_deadline)) {
      change->at_boundary = false;
      change->after_loss = !why.empty();
      change->reason = why.empty() ? "the step took too long to finish" : why;
      for (WorkerRecord* worker : participants())
        if (worker->reachable && !worker->halted_for(change->number))
          tell(*worker, Halt{change->number, false, change->reason});
    }
  }
  const bool to_form = phase != Phase::preempting || parts_are_apart();
  if (change && to_form && halted()) try_form();
  if (active() && !winding_down) update_phase();
}

// A generation that breaks, though all its members are there and can be reached, and that had not
// committed a step: once may be chance, then the member that most others cannot reach has to go.
bool Membership::State::judge() {
  if (change->judged || !change->after_loss || plan->members.empty()) return true;
  change->judged = true;
  size_t present = 0;
  for (const WorkerRecord* worker : participants()) present += worker->reachable;
  if (present < plan->members.size() || high_water > formed_high) {
    barren = 0;
    return true;
  }
  ++barren;
  record_failure(change->reason);
  if (phase == Phase::failed) return false;
  if (barren < 2) return true;
  // Whose host refuses something again and again makes room for a process that may run elsewhere.
  for (WorkerRecord* worker : participants())
    if (worker->report.faulted && worker->reach() < 0) doom(*worker, false, worker->report.note);
  if (plan->members.size() < 2) return true;
  // A link that fails speaks against both its ends: only one of them may have tried it.
  std::set<std::pair<WorkerId, WorkerId>> links;
  for (const WorkerRecord* worker : participants())
    for (WorkerId suspect : worker->report.suspects)
      if (suspect != worker->id && plan->find(suspect) != nullptr)
        links.insert(std::minmax(worker->id, suspect));
  std::map<WorkerId, int> failing;
  for (const auto& [a, b] : links) {
    ++failing[a];
    ++failing[b];
  }
  // Among equals one without the state, then the youngest.
  WorkerId worst = 0;
  const auto guilt = [&](WorkerId id) {
    const WorkerRecord* worker = find(id);
    return std::tuple(failing[id], worker != nullptr && worker->reach() < 0, id);
  };
  for (const auto& [id, count] : failing)
    if (worst == 0 || guilt(id) > guilt(worst)) worst = id;
  if (WorkerRecord* worker = find(worst); worker != nullptr) {
    note("lost", fmt::format("worker {} and {} of its peers cannot reach each other", worst,
                             failing[worst]));
    doom(*worker, true, "it and its peers cannot reach each other");
  }
  return true;
}

void Membership::State::try_form() {
  if (!judge() || !change) return;
  if (barren >= 2 && !due(next_try)) return;
  std::vector<WorkerRecord*> survivors, silent;
  for (WorkerRecord* worker : participants())
    (worker->reachable ? survivors : silent).push_back(worker);
  const std::vector<WorkerRecord*> joined = joiners();
  int64_t start = first_start(survivors);
  const bool from_state = start >= 0;
  if (!from_state) {
    // Those who cannot be reached may come back with the state, or be gone for certain.
    for (const WorkerRecord* worker : silent)
      if (may_still_act(*worker)) return;
    if (phase == Phase::preempting) return wind_down_lost();
    if (!joiners_complete() || publishing) return;
    start = std::max<int64_t>(newest_checkpoint(), 0);
  }
  std::vector<WorkerRecord*> chosen = choose(survivors, joined, from_state ? start : -1);
  if (static_cast<int64_t>(chosen.size()) < options.min_workers) {
    // Those who are to follow the silent ones need their places.
    for (WorkerRecord* worker : silent)
      if (places_held && !may_still_act(*worker))
        lose(*worker, "could not be reached in time, and another one needs its place");
    return;
  }
  for (WorkerRecord* worker : silent) lose(*worker, "could not be reached in time");
  if (!change) return;  // one failure too many
  const std::vector<WorkerRecord*> beside =
      from_state ? donors(chosen, survivors, start) : std::vector<WorkerRecord*>{};
  form(std::move(chosen), beside, start, from_state);
}

bool Membership::State::cover(const std::vector<WorkerRecord*>& workers, int64_t start) {
  std::vector<const Parts*> parts;
  int64_t num_parts = 0;
  for (const WorkerRecord* worker : workers) {
    if (!worker->can_start(start)) continue;
    parts.push_back(&worker->parts_at(start));
    num_parts = std::max(num_parts, worker->report.num_parts);
  }
  return covers(parts, num_parts);
}

// A step that one of them has not voted for was applied by nobody: all who have the state before it
// go on from there, each by itself. Otherwise somebody who is gone may have applied it. Where those
// who can do so do not have all parts, the other of the two states may be whole: nobody alive has
// applied the step.
int64_t Membership::State::first_start(const std::vector<WorkerRecord*>& survivors) {
  int64_t reach = -1, step = -1;
  for (const WorkerRecord* worker : survivors) {
    reach = std::max(reach, worker->reach());
    step = std::max(step, worker->report.step);
  }
  const bool undecided = std::ranges::any_of(survivors, [&](const WorkerRecord* worker) {
    return worker->report.step == step && !worker->report.voted;
  });
  for (const int64_t start : {undecided ? step : reach, undecided ? reach : step})
    if (start >= 0 && cover(survivors, start)) return start;
  return -1;
}

std::vector<WorkerRecord*> Membership::State::donors(const std::vector<WorkerRecord*>& chosen,
                                                     const std::vector<WorkerRecord*>& survivors,
                                                     int64_t start) {
  std::vector<WorkerRecord*> all = chosen, beside;
  for (WorkerRecord* worker : survivors) {
    if (cover(all, start)) break;
    if (std::ranges::find(chosen, worker) != chosen.end() || !worker->can_start(start) ||
        worker->parts_at(start).empty())
      continue;
    all.push_back(worker);
    beside.push_back(worker);
  }
  return beside;
}

bool Membership::State::holds_all(const WorkerRecord& worker) {
  return covers({&worker.report.held}, worker.report.num_parts);
}

// While all stand still.
bool Membership::State::can_save(const WorkerRecord& worker) {
  return holds_all(worker) || worker.report.can_save;
}

bool Membership::State::parts_are_apart() {
  bool some = false;
  for (const WorkerRecord* worker : participants()) {
    if (!worker->reachable || worker->report.step < 0) continue;
    if (can_save(*worker)) return false;
    some = true;
  }
  return some;
}

// As many as are wanted: those that can start by themselves first, then other survivors, then
// joiners. Who was asked to leave, or whose host refused something, stays only where too few are
// left; where it has parts that the others lack it hands them over (donors()).
std::vector<WorkerRecord*> Membership::State::choose(const std::vector<WorkerRecord*>& survivors,
                                                     const std::vector<WorkerRecord*>& joined,
                                                     int64_t start) {
  std::vector<WorkerRecord*> ranked, leavers;
  const auto holds = [&](const WorkerRecord* worker) { return worker->can_start(start); };
  for (WorkerRecord* worker : survivors) {
    const Member* member = plan->find(worker->id);
    const bool beside = member != nullptr && member->ranks.size() == 0;
    (worker->leaving() || worker->report.faulted || beside ? leavers : ranked).push_back(worker);
  }
  std::stable_partition(ranked.begin(), ranked.end(), holds);
  std::stable_partition(leavers.begin(), leavers.end(), holds);
  ranked.insert(ranked.end(), joined.begin(), joined.end());
  if (static_cast<int64_t>(ranked.size()) > wanted) ranked.resize(static_cast<size_t>(wanted));
  for (WorkerRecord* worker : leavers)
    if (static_cast<int64_t>(ranked.size()) < options.min_workers) ranked.push_back(worker);
  const auto place = [&](const WorkerRecord* worker) {
    const Member* member = plan->find(worker->id);
    return member != nullptr ? member - plan->members.data() : std::ptrdiff_t{1} << 40;
  };
  std::stable_sort(ranked.begin(), ranked.end(), [&](const auto* a, const auto* b) {
    return std::pair(place(a), a->id) < std::pair(place(b), b->id);
  });
  return ranked;
}

// Puts them into the order in which most ranks are on the hosts on which they are wanted.
void Membership::State::seat(std::vector<WorkerRecord*>& chosen,
                             std::span<const RankRange> ranges) const {
  std::vector<std::string> hosts;
  for (const WorkerRecord* worker : chosen) hosts.push_back(worker->host);
  std::vector<WorkerRecord*> seated;
  for (const size_t w : seat_workers(ranges, options.rank_hosts, hosts))
    seated.push_back(chosen[w]);
  chosen = std::move(seated);
}

void Membership::State::form(std::vector<WorkerRecord*> chosen,
                             const std::vector<WorkerRecord*>& donors, int64_t start,
                             bool from_state) {
  auto next = std::make_shared<GenerationPlan>();
  next->number = change->number;
  next->start = start;
  std::vector<RankRange> ranges =
      spread_ranks(options.virtual_ranks, static_cast<int64_t>(chosen.size()));
  if (!options.rank_hosts.empty()) seat(chosen, ranges);
  ranges.resize(chosen.size() + donors.size(), {options.virtual_ranks, options.virtual_ranks});
  chosen.insert(chosen.end(), donors.begin(), donors.end());
  std::vector<WorkerId> holders;
  for (size_t i = 0; i < chosen.size(); ++i) {
    const WorkerStatus& report = chosen[i]->report;
    Member member{report.worker, report.address, ranges[i], StateSource::peer, 0, {}};
    if (from_state && report.step == start)
      member.source = StateSource::keep;
    else if (from_state && chosen[i]->reach() == start)
      member.source = StateSource::apply_voted;
    else if (!from_state && newest_checkpoint() < 0)
      member.source = StateSource::initial;
    else if (!from_state && (i == 0 || options.all_read))
      member.source = StateSource::checkpoint;  // where one reads, the others get it from there
    if (from_state && member.source != StateSource::peer) member.held = chosen[i]->parts_at(start);
    if (member.source != StateSource::peer) holders.push_back(member.worker);
    next->members.push_back(std::move(member));
  }
  size_t fed = 0;
  for (Member& member : next->members)
    if (member.source == StateSource::peer) member.feeder = holders[fed++ % holders.size()];

  const std::vector<WorkerRecord*> before = participants();
  plan = next;
  for (WorkerRecord* worker : before)
    if (plan->find(worker->id) == nullptr) doom(*worker, false, "not needed any more");
  const std::string text = fmt::format("generation {} from step {} with {} of {} workers: {}",
                                       plan->number, start, chosen.size(), wanted, change->reason);
  for (WorkerRecord* worker : chosen) tell(*worker, Enter{plan, text});
  note("generation", text);
  change.reset();
  ran = true;
  formed_high = std::max(high_water, start);
  out.must_save = true;
  again = true;
}

void Membership::State::update_phase() {
  if (phase == Phase::preempting || !ran) return;
  if (done_worker() != nullptr && phase != Phase::finishing) {
    finish_since = now;
    last_save_error.clear();
  }
  if (done_worker() != nullptr)
    set_phase(Phase::finishing, "all steps are done");
  else if (static_cast<int64_t>(plan->members.size()) == wanted && !change)
    set_phase(Phase::running, counted_workers(wanted));
  else if (static_cast<int64_t>(plan->members.size()) != wanted)
    set_phase(Phase::resizing, fmt::format("{} workers of {}", plan->members.size(), wanted));
  else if (phase != Phase::resizing)
    set_phase(Phase::running, change->reason);
}

}  // namespace ductile::control
