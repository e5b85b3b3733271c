// Processes: launching, watching, stopping them, and counting what goes wrong.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "ductile/control/membership_impl.h"

namespace ductile::control {

void Membership::State::check_timeouts() {
  std::vector<WorkerId> forgotten;
  for (auto& [id, worker] : workers) {
    if (worker.doomed) {
      // A launcher that cannot confirm the end (its host is cut off) is not waited for for ever:
      // without Acks the lease has ended, and what it writes is refused.
      if (due(std::max(worker.doomed_at, worker.acked_at) + options.lease + options.clock_drift +
              2 * options.stop_deadline)) {
        forgotten.push_back(id);
      } else if (due(worker.doomed_at + options.stop_deadline) && !worker.killed) {
        worker.killed = true;
        out.commands.emplace_back(KillWorker{id, "it did not stop when told to"});
      }
      continue;
    }
    if (worker.reachable && due(worker.heard_at + options.heartbeat_deadline)) {
      worker.reachable = false;
      note("silent", silence_of(worker));
    }
    if (!worker.loaded() && due(worker.launched_at + options.start_deadline)) {
      lose(worker, "was not ready in time");
    } else if (plan->find(id) == nullptr && worker.connected && !worker.reachable) {
      lose(worker, "went silent before it took part");
    } else if (plan->find(id) == nullptr && worker.leaving()) {
      doom(worker, false, "it was asked to leave its host");
    }
  }
  for (WorkerId id : forgotten) {
    note("forgotten", fmt::format("worker {}: its end was never confirmed; its lease is over", id));
    forget(id);
  }
}

// Where others have the state they go on at once. Else the silent one may go on by itself, unseen,
// until its lease ends.
std::string Membership::State::silence_of(const WorkerRecord& worker) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now - worker.heard_at);
  const bool last = plan->find(worker.id) != nullptr &&
                    std::ranges::none_of(participants(), [](const WorkerRecord* member) {
                      return member->reachable;
                    });
  return fmt::format(
      "worker {}: no heartbeat for {} ms; if its process was stopped, kill -CONT wakes it up "
      "(`ductile status` has its number){}",
      worker.id, ms.count(),
      last ? fmt::format(
                 "; else another worker takes its place, from the last checkpoint, in {:.0f} s",
                 std::chrono::duration<double>(lease_end(worker) - now).count())
           : "");
}

void Membership::State::launch_and_trim() {
  if (phase == Phase::preempting || phase == Phase::finishing) return;
  int64_t usable = 0;
  for (const auto& [id, worker] : workers)
    usable += !worker.doomed && !worker.leaving() && (worker.reachable || !worker.connected);
  if (usable < wanted && due(next_try) && due(next_begin) && due(next_launch)) {
    std::vector<std::string> avoid;
    for (const auto& [host, trouble] : troubled) avoid.push_back(host);
    for (; usable < wanted; ++usable) {
      WorkerRecord worker;
      worker.id = next_worker++;
      worker.report.worker = worker.id;
      worker.launched_at = now;
      out.commands.emplace_back(LaunchWorker{
          worker.id,
          fmt::format("{} {} wanted{}{}", counted_workers(wanted), wanted == 1 ? "is" : "are",
                      failures > 0 ? "; after: " : "", failures > 0 ? last_failure : ""),
          avoid});
      out.must_save = true;
      workers.emplace(worker.id, std::move(worker));
      again = true;
    }
  }
  // Too many members are dropped by a change of generation; too many others at once, youngest
  // first.
  for (auto it = workers.rbegin(); it != workers.rend() && usable > wanted; ++it) {
    WorkerRecord& worker = it->second;
    if (worker.doomed || plan->find(worker.id) != nullptr) continue;
    doom(worker, false,
         fmt::format("{} {} wanted", counted_workers(wanted), wanted == 1 ? "is" : "are"));
    --usable;
  }
}

// It takes part in nothing any more. The first word is to the worker itself unless it cannot hear.
void Membership::State::doom(WorkerRecord& worker, bool kill, const std::string& why) {
  if (worker.doomed) return;
  worker.doomed = true;
  worker.doomed_at = now;
  worker.killed = kill || !worker.connected;
  if (worker.killed)
    out.commands.emplace_back(KillWorker{worker.id, why});
  else
    tell(worker, Stop{why});
  if (save_task && save_task->worker == worker.id) save_task.reset();
  out.must_save = true;
  again = true;
}

void Membership::State::lose(WorkerRecord& worker, const std::string& why) {
  const std::string text = fmt::format("worker {} {}", worker.id, why);
  note("lost", text);
  doom(worker, true, why);
  record_failure(text, Failure::crash);
}

// A host that dies takes many workers along: what goes wrong before the next try is one failure.
void Membership::State::record_failure(const std::string& text, Failure kind) {
  last_failure = text;
  out.must_save = true;
  again = true;
  if (!active() || winding_down || now < next_try) return;
  ++failures;
  if (kind == Failure::crash) ++crashes;
  if (too_many_failures()) {
    fail_job(fmt::format("{} failures without one more step than {} committed; the last: {}",
                         failures, high_water, text));
    return;
  }
  next_try = now + backoff(failures);
  next_begin = now;
}

// A launch that failed will fail again for a while, however well those train that are there.
void Membership::State::launch_later() {
  if (now >= next_launch) next_launch = now + backoff(++launch_failures);
}

// A launch that found no room need not wait any longer: a place is free.
void Membership::State::place_is_free() {
  launch_failures = 0;
  next_launch = now;
  places_held = false;
  if (std::exchange(hosts_away, 0) > 0)
    next_try = std::min(next_try, now + backoff(std::max<int64_t>(failures, 1)));
}

Time Membership::State::backoff(int64_t failures_in_a_row) const {
  Time wait = options.backoff_base;
  for (int64_t i = 1; i < failures_in_a_row && wait < options.backoff_max; ++i) wait *= 2;
  return std::min(wait, options.backoff_max);
}

// That there is no host, or no room on any, says nothing of the job, however often it happens.
void Membership::State::wait_for_hosts(const std::string& text) {
  last_failure = text;
  again = true;
  if (now >= next_try) next_try = now + backoff(++hosts_away);
}

// An error of a worker that never took part: of its host, as long as others take part or may still
// do. It is the job's where it follows the job to another host, or stays where there is no other.
void Membership::State::cannot_begin(WorkerRecord& worker, const std::string& host,
                                     const std::string& text) {
  Trouble& trouble = troubled[host];
  if (trouble.tries == 0 || worker.launched_at > trouble.last) ++trouble.tries;
  trouble.last = now;
  const int64_t tries = trouble.tries;
  doom(worker, false, "it cannot take part");
  if (!active() || winding_down) return;
  last_failure = text;
  const ErrorCode code = worker.report.error_code;
  const bool certain = code == ErrorCode::invalid_argument || code == ErrorCode::not_found ||
                       code == ErrorCode::data_loss || code == ErrorCode::conflict;
  const bool alone =
      std::ranges::all_of(workers, [](const auto& one) { return one.second.doomed; });
  const bool stays = options.num_hosts == 1 && (certain || tries >= options.max_begin_tries);
  if (alone && !ran && (troubled.size() > 1 || stays))
    return fail_job(troubled.size() > 1
                        ? fmt::format("{} (an error on each of {} hosts)", text, troubled.size())
                        : text,
                    code);
  note("lost", text);
  const bool new_round = now >= next_begin;
  if (alone) record_failure(text);
  if (new_round) ++begin_errors;
  next_begin = now + backoff(begin_errors);
}

void Membership::State::wind_down(Phase then, const std::string& why) {
  winding_down = true;
  after = then;
  change.reset();
  save_task.reset();
  save_asked = false;
  for (auto& [id, worker] : workers) doom(worker, false, why);
  out.must_save = true;
  again = true;
}

void Membership::State::fail_job(const std::string& why, ErrorCode code) {
  if (phase == Phase::failed) return;
  error_code = code;
  result_unsaved = false;
  set_phase(Phase::failed, why);
  resume_after = false;
  wind_down(Phase::failed, "the job failed");
}

void Membership::State::settle() {
  if (!workers.empty()) return;
  winding_down = false;
  ran = false;
  out.commands.emplace_back(Release{fmt::format("the job is {}", to_string(after))});
  out.must_save = true;
  set_phase(after, reason);
  if (resume_after) {
    resume_after = false;
    on(ResumeJob{});
  }
}

}  // namespace ductile::control
