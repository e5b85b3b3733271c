#include "ductile/bench/rank_processes.h"

#include <cerrno>
#include <string_view>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/process/spawn.h"

namespace ductile::bench {

namespace {

constexpr auto kGrace = std::chrono::seconds(2);  // between SIGTERM and SIGKILL

// Whether the process has ended; it is then reaped.
bool ended(pid_t pid, int flags) { return waitpid(pid, nullptr, flags) != 0; }

}  // namespace

RankProcesses::~RankProcesses() {
  for (Rank& rank : ranks_) {
    rank.in.close();  // the end of a rank's stdin is its end
    if (rank.pid > 0) kill(rank.pid, SIGTERM);
  }
  const auto deadline = std::chrono::steady_clock::now() + kGrace;
  for (Rank& rank : ranks_) {
    if (rank.pid <= 0) continue;
    bool gone = ended(rank.pid, WNOHANG);
    while (!gone && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      gone = ended(rank.pid, WNOHANG);
    }
    if (gone) continue;
    kill(rank.pid, SIGKILL);
    ended(rank.pid, 0);
  }
}

void RankProcesses::start(const fs::path& program, const std::vector<std::string>& launcher,
                          std::string where) {
  Rank rank;
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0) fail_errno("pipe", errno);
  Descriptor child_in(in[0]);
  rank.in = Descriptor(in[1]);
  if (pipe2(out, O_CLOEXEC) != 0) fail_errno("pipe", errno);
  rank.out = Descriptor(out[0]);
  Descriptor child_out(out[1]);
  fcntl(rank.out.get(), F_SETFL, O_NONBLOCK);
  process::SpawnOptions spawn;
  spawn.program = program;
  if (!launcher.empty()) {
    spawn.program = "/usr/bin/env";  // looks the launcher up on PATH
    spawn.arguments = launcher;
    spawn.arguments.push_back(program.string());
  }
  spawn.input_fd = child_in.get();
  spawn.output_fd = child_out.get();
  spawn.error_fd = STDERR_FILENO;
  rank.pid = process::spawn(spawn);
  rank.where = std::move(where);
  ranks_.push_back(std::move(rank));
}

void RankProcesses::tell(size_t r, const Json& line) {
  const std::string text = dump_json(line) + "\n";
  // One line is far shorter than a pipe; that a rank is gone shows on its other end.
  const auto before = signal(SIGPIPE, SIG_IGN);
  [[maybe_unused]] const ssize_t n = write(ranks_[r].in.get(), text.data(), text.size());
  signal(SIGPIPE, before);
}

void RankProcesses::listen(const std::function<bool(size_t, const Json&)>& on_line) {
  bool more = true;
  while (more) {
    std::vector<pollfd> polled;
    std::vector<size_t> who;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].out.get() < 0) continue;
      polled.push_back({ranks_[r].out.get(), POLLIN, 0});
      who.push_back(r);
    }
    const bool late = first_error_ &&
                      std::chrono::steady_clock::now() > first_error_at_ + std::chrono::seconds(1);
    if (polled.empty() || late) break;
    if (poll(polled.data(), polled.size(), 200) <= 0) continue;
    for (size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      const size_t r = who[i];
      const bool open = ranks_[r].lines.read(ranks_[r].out.get(), [&](std::string_view text) {
        const Json line = parse_json<Json>(text);
        if (line.contains("error")) {
          ranks_[r].explained = true;
          note(r, error_code_from(line.value("code", "internal")), line.at("error"));
        } else if (line.is_object() && !on_line(r, line)) {
          more = false;
        }
      });
      if (!open) reap(r);
    }
  }
  if (first_error_) throw *first_error_;
}

void RankProcesses::reap(size_t r) {
  ranks_[r].out.close();
  int status = 0;
  waitpid(ranks_[r].pid, &status, 0);
  ranks_[r].pid = -1;
  if (ranks_[r].explained) return;
  if (WIFSIGNALED(status)) {
    note(r, ErrorCode::peer_lost, fmt::format("killed by signal {}", WTERMSIG(status)));
  } else if (WEXITSTATUS(status) != 0) {
    note(r, ErrorCode::unavailable, fmt::format("ended with exit code {}", WEXITSTATUS(status)));
  }
}

// The cause comes first, but that others lost a rank is never the cause.
void RankProcesses::note(size_t r, ErrorCode code, const std::string& text) {
  const bool better = !first_error_ || (first_error_->code() == ErrorCode::peer_lost &&
                                        code != ErrorCode::peer_lost && !settled_);
  if (!first_error_) first_error_at_ = std::chrono::steady_clock::now();
  if (better) {
    first_error_.emplace(code, fmt::format("rank {}{}: {}", r, ranks_[r].where, text));
    settled_ = code != ErrorCode::peer_lost;
  }
}

}  // namespace ductile::bench
