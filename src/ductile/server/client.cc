#include "ductile/server/client.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include <poll.h>
#include <sys/socket.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/link/worker_link.h"
#include "ductile/link/worker_processes.h"
#include "ductile/run/folder.h"
#include "ductile/run/history.h"
#include "ductile/run/lock.h"
#include "ductile/server/unix_socket_impl.h"

namespace ductile::server {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kLook{200};
constexpr milliseconds kStopped{2000};  // so long a controller may be stopped and is waited for
constexpr milliseconds kRoom{3000};     // for it to take a connection: others wait for it, too

// 0 where that cannot be told.
pid_t peer_of(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
}

bool is_stopped(pid_t pid) {
  const auto state = link::state_of(pid);  // nothing: it is gone, or on another machine
  return state && (state->letter == 'T' || state->letter == 't');
}

// Until the controller says something, or hangs up. `asked`: what is said besides where it does
// not.
void await(int fd, const fs::path& run, Clock::time_point end, const std::string& otherwise,
           const std::string& asked) {
  const pid_t pid = peer_of(fd);
  auto moved = Clock::now();  // when it was last seen not to be stopped
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(end - Clock::now());
    pollfd item{fd, POLLIN, 0};
    const auto wait = std::clamp(left, milliseconds(0), kLook);
    if (::poll(&item, 1, static_cast<int>(wait.count())) > 0) return;
    if (!is_stopped(pid)) {
      moved = Clock::now();
    } else if (Clock::now() >= std::min(moved + kStopped, end)) {
      fail(
          ErrorCode::deadline,
          "{0}: its controller (process {1}) is stopped and answers nobody; `kill -CONT {1}` wakes "
          "it up{2}",
          run.string(), pid, asked);
    }
    if (left <= milliseconds(0)) fail(ErrorCode::deadline, "{}{}", otherwise, asked);
  }
}

// Of the process at the other end; unread words to it make a reset of its end.
bool is_gone(int error_number) { return error_number == ECONNRESET || error_number == EPIPE; }

[[noreturn]] void no_controller(const fs::path& run) {
  const std::optional<run::LockHolder> holder = run::lock_holder(run);
  if (holder && holder->driver == run::RunLock::kController)
    fail(ErrorCode::unavailable,
         "{}: its controller (process {}) is about to begin or to end; try again in a moment",
         run.string(), holder->pid);
  if (holder)
    fail(ErrorCode::conflict,
         "{0}: process {1} trains in this run by itself and takes no requests; {0}/metrics.jsonl "
         "shows how far it is, and `kill -INT {1}` lets it save and end",
         run.string(), holder->pid);
  std::error_code unknown;
  const auto done = fs::exists(run / "job.toml", unknown) ? run::done_run(run::RunFolder::open(run))
                                                          : std::nullopt;
  if (done)
    fail(ErrorCode::not_found,
         "{0}: the run {1} after {2} steps, so no controller runs for it any more; `ductile report "
         "{0}` shows it",
         run.string(), done->target_reached ? "reached its target" : "is done", done->steps);
  fail(ErrorCode::not_found,
       "{0}: no controller runs for this run; start one with `ductile train --resume {0}`",
       run.string());
}

}  // namespace

nlohmann::json ask(const fs::path& run, const nlohmann::json& request, milliseconds deadline) {
  const auto end = Clock::now() + deadline;
  const Descriptor fd = connect_unix(run, std::min(deadline, kRoom));
  if (!fd) no_controller(run);
  if (!same_user(fd.get()))
    fail(ErrorCode::unavailable, "{}: its controller belongs to another user", run.string());
  const std::string text = dump_json(request) + "\n";
  const bool asks_only = request.value("request", "") == "status";
  const auto ended = [&] {
    fail(ErrorCode::deadline, "{0}: its controller ended before it answered{1}", run.string(),
         asks_only
             ? ""
             : fmt::format("; what it was asked may have been carried out, and `ductile report "
                           "{}` shows how far the run is",
                           run.string()));
  };
  if (send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(text.size())) {
    if (is_gone(errno)) ended();
    fail_errno(run.string() + ": its controller", errno);
  }
  // It has the request now, and reads it when it can, though nobody waits for the answer.
  const std::string asked =
      asks_only ? ""
                : fmt::format(
                      "; it may still carry out what it was asked, and `ductile status {}` shows "
                      "whether it has",
                      run.string());
  std::string answer;
  while (answer.empty() || answer.back() != '\n') {
    await(fd.get(), run, end,
          fmt::format("{}: its controller (process {}) gave no answer in {} ms", run.string(),
                      peer_of(fd.get()), deadline.count()),
          asked);
    char block[4096];
    const ssize_t n = recv(fd.get(), block, sizeof block, MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n == 0 || (n < 0 && is_gone(errno))) ended();
    if (n < 0) fail_errno(run.string() + ": its controller", errno);
    answer.append(block, static_cast<size_t>(n));
  }
  nlohmann::json value = parse_json(answer);
  if (!value.is_object())
    fail(ErrorCode::data_loss, "{}: its controller answered with something else than JSON",
         run.string());
  if (const auto error = value.find("error"); error != value.end() && error->is_string())
    throw Error(error_code_from(value.value("code", "")), error->get<std::string>());
  return value;
}

// Who hangs up has ended, or had to make room for another client.
void await_end(const fs::path& run, milliseconds patience, Clock::time_point since) {
  const auto end = since + patience;
  while (const Descriptor fd = connect_unix(run, kRoom)) {
    await(fd.get(), run, end,
          fmt::format("{0}: still ending after {1} s; `ductile status {0}` says why", run.string(),
                      std::chrono::ceil<std::chrono::seconds>(patience).count()),
          "");
    std::this_thread::sleep_for(milliseconds(10));
  }
}

namespace {

// One that was killed, whose workers may be there still, or whose disk is full.
[[noreturn]] void told_no_end(const run::RunFolder& folder) {
  const std::string run = folder.path().string();
  const std::optional<int64_t> saved = run::last_saved_step(folder);
  const std::string from =
      saved ? fmt::format("goes on from its last checkpoint, which is of step {}", *saved)
            : "begins anew, since it has no checkpoint";
  if (const std::optional<std::string> why = run::told_unsaved(folder))
    fail(ErrorCode::unavailable,
         "{0}: {1}. Its end could not be written down either. `ductile train --resume {0}` {2}",
         run, *why, from);
  fail(ErrorCode::unavailable,
       "{0}: its controller ended without a word, as one that was killed, or whose disk is full. "
       "Workers that are left keep all steps for {1} minutes: until then `ductile train --resume "
       "{0}` goes on with them; later it {2}",
       run, link::kOrphanAfter.count(), from);
}

}  // namespace

std::string what_became_of(const fs::path& run) {
  const run::RunFolder folder = run::RunFolder::open(run);
  const std::optional<run::ToldEnd> end = run::told_end(folder);
  if (!end) told_no_end(folder);
  switch (end->status) {
    case run::Status::done:
    case run::Status::target_reached:
      return fmt::format("not preempted, since it {} after {} steps",
                         end->status == run::Status::done ? "was done" : "reached its target",
                         end->step);
    case run::Status::failed:
      fail(ErrorCode::peer_lost, "{}: failed, and was not preempted: {}", run.string(), end->error);
    case run::Status::interrupted:
    case run::Status::unfinished:
      break;
  }
  if (!end->checkpoint && end->step > 0)
    fail(ErrorCode::unavailable,
         "{0}: ended at step {1} and could not save; `ductile train --resume {0}` begins anew",
         run.string(), end->step);
  if (end->unsaved_steps > 0)
    fail(ErrorCode::unavailable,
         "{0}: ended at step {1} without saving: its last checkpoint is of step {2}, and the steps "
         "since then will be done again; to go on: ductile resume {0}",
         run.string(), end->step, end->checkpoint.value_or(0));
  return fmt::format("preempted; to go on: ductile resume {}", run.string());
}

bool has_controller(const fs::path& run) { return is_listening(run); }

}  // namespace ductile::server
