#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>

#include <fcntl.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/text.h"
#include "ductile/cluster/slurm_impl.h"
#include "ductile/process/find_program.h"
#include "ductile/process/spawn.h"

namespace ductile::cluster {
namespace {

using SlurmClock = std::chrono::steady_clock;

constexpr size_t kMostOutput = 8 << 20;
constexpr std::chrono::milliseconds kCommandLimit{20000};
constexpr std::string_view kQueueFormat = "%i|%T|%P|%e|%r|%j";

fs::path program_on_path(const std::string& name) {
  if (auto found = process::find_program(name)) return *std::move(found);
  fail(
      ErrorCode::not_found,
      "there is no program '{}' on PATH; a [[pool]] of engine \"slurm\" needs a machine from which "
      "jobs can be submitted, such as a login node",
      name);
}

bool is_number(std::string_view text) {
  return !text.empty() && text.size() <= 18 &&
         std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

std::string shown(std::string_view line) {
  return to_utf8(line.substr(0, 120)) + (line.size() > 120 ? "..." : "");
}

std::string last_line(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  const size_t at = text.rfind('\n');
  return shown(at == std::string_view::npos ? text : text.substr(at + 1));
}

ProgramAnswer succeed(const fs::path& program, const std::vector<std::string>& arguments) {
  // The time as seconds since 1970: without a time zone, and in one form everywhere.
  ProgramAnswer answer = run_program(program, arguments,
                                     {{"SLURM_TIME_FORMAT", "%s"}, {"LC_ALL", "C"}}, kCommandLimit);
  if (answer.status != 0)
    fail(ErrorCode::unavailable, "{} (exit status {}): {}", program.filename().string(),
         answer.status, answer.error.empty() ? "it said nothing" : last_line(answer.error));
  return answer;
}

struct Reads {
  Descriptor out, error;
};

// False at the end of the stream.
bool read_more(Descriptor& fd, std::string& text) {
  std::array<char, 16384> block;
  const ssize_t n = ::read(fd.get(), block.data(), block.size());
  if (n > 0) text.append(block.data(), static_cast<size_t>(n));
  if (n == 0) fd.close();
  return n != 0;
}

}  // namespace

ProgramAnswer run_program(const fs::path& program, const std::vector<std::string>& arguments,
                          const std::vector<std::pair<std::string, std::string>>& environment,
                          std::chrono::milliseconds limit) {
  const SlurmClock::time_point until = SlurmClock::now() + limit;
  std::array<int, 2> out{}, error{};
  if (::pipe2(out.data(), O_CLOEXEC) != 0) fail_errno("pipe", errno);
  Descriptor out_read(out[0]), out_write(out[1]);
  if (::pipe2(error.data(), O_CLOEXEC) != 0) fail_errno("pipe", errno);
  Descriptor error_read(error[0]), error_write(error[1]);
  process::SpawnOptions launch;
  launch.program = program;
  launch.arguments = arguments;
  launch.environment = environment;
  launch.output_fd = out_write.get();
  launch.error_fd = error_write.get();
  const pid_t pid = process::spawn(launch);
  out_write.close();
  error_write.close();
  const auto end = [&] {
    ::kill(-pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  };
  ProgramAnswer answer;
  while (out_read || error_read) {
    std::array<pollfd, 2> ends{{{out_read.get(), POLLIN, 0}, {error_read.get(), POLLIN, 0}}};
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - SlurmClock::now());
    if (left.count() <= 0) {
      end();
      fail(ErrorCode::deadline, "{} did not end in {} s", program.filename().string(),
           limit.count() / 1000.0);
    }
    if (::poll(ends.data(), ends.size(), static_cast<int>(left.count())) <= 0) continue;
    if (ends[0].revents != 0) read_more(out_read, answer.out);
    if (ends[1].revents != 0) read_more(error_read, answer.error);
    if (answer.out.size() + answer.error.size() > kMostOutput) {
      end();
      fail(ErrorCode::data_loss, "{} printed more than {} bytes", program.filename().string(),
           kMostOutput);
    }
  }
  int status = 0;  // both ends are closed: it has ended, or has nothing more to say
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    if (SlurmClock::now() >= until) {
      end();
      fail(ErrorCode::deadline, "{} did not end in {} s", program.filename().string(),
           limit.count() / 1000.0);
    }
    ::usleep(2000);
  }
  answer.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return answer;
}

std::string parse_sbatch(std::string_view text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  const std::string_view number = line.substr(0, line.find(';'));  // "12" or "12;cluster"
  if (line.size() + 1 != text.size() || !is_number(number))
    fail(ErrorCode::data_loss, "sbatch --parsable printed '{}', which is no job's number",
         shown(text));
  return std::string(number);
}

std::vector<QueueEntry> parse_squeue(std::string_view text, const std::vector<std::string>& names) {
  std::vector<QueueEntry> out;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    const auto wrong = [&](std::string_view what) {
      fail(ErrorCode::data_loss, "squeue printed '{}': {}; the form is {}", shown(line), what,
           kQueueFormat);
    };
    if (end == std::string_view::npos) wrong("the line has no end, so the list is not whole");
    text.remove_prefix(end + 1);
    std::array<std::string_view, 6> fields;
    std::string_view rest = line;
    for (size_t f = 0; f < fields.size(); ++f) {
      const size_t bar = f + 1 < fields.size() ? rest.find('|') : std::string_view::npos;
      if (f + 1 < fields.size() && bar == std::string_view::npos) wrong("a field is missing");
      fields[f] = rest.substr(0, bar);
      rest.remove_prefix(bar == std::string_view::npos ? rest.size() : bar + 1);
    }
    if (!is_number(fields[0])) wrong("it does not begin with a job's number");
    const bool state = !fields[1].empty() && std::ranges::all_of(fields[1], [](char c) {
      return (c >= 'A' && c <= 'Z') || c == '_';
    });
    if (!state) wrong("the second field is no state");
    if (!fields[3].empty() && fields[3] != "N/A" && fields[3] != "NONE" && !is_number(fields[3]))
      wrong("the fourth field is no time");
    if (std::ranges::find(names, fields[5]) == names.end()) wrong("it was not asked for this job");
    double ends = 0;
    if (is_number(fields[3])) ends = static_cast<double>(std::stoll(std::string(fields[3])));
    out.push_back({std::string(fields[0]), std::string(fields[1]), to_utf8(fields[2]),
                   to_utf8(fields[4]), std::string(fields[5]), ends});
  }
  return out;
}

bool has_ended_in_slurm(std::string_view state) {
  constexpr std::array<std::string_view, 11> kEnded = {
      "BOOT_FAIL",     "CANCELLED", "COMPLETED", "DEADLINE",     "FAILED", "NODE_FAIL",
      "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",   "SPECIAL_EXIT", "TIMEOUT"};
  return std::ranges::find(kEnded, state) != kEnded.end();
}

Slurm::Slurm()
    : sbatch_(program_on_path("sbatch")),
      squeue_(program_on_path("squeue")),
      scancel_(program_on_path("scancel")),
      scontrol_(program_on_path("scontrol")) {}

std::string Slurm::submit(const std::vector<std::string>& options, const fs::path& script) const {
  std::vector<std::string> words = {"--parsable"};
  words.insert(words.end(), options.begin(), options.end());
  words.push_back(script.string());
  return parse_sbatch(succeed(sbatch_, words).out);
}

std::vector<QueueEntry> Slurm::list(const std::vector<std::string>& names) const {
  return parse_squeue(
      succeed(squeue_, {"--noheader", "--states=all", fmt::format("--user={}", ::geteuid()),
                        fmt::format("--name={}", fmt::join(names, ",")),
                        fmt::format("--format={}", kQueueFormat)})
          .out,
      names);
}

void Slurm::cancel(const std::string& name) const {
  succeed(scancel_, {"--quiet", fmt::format("--user={}", ::geteuid()), "--name=" + name});
}

// Any change of a job is saved soon; a comment is the one that changes nothing.
void Slurm::write_down(const std::string& name) const {
  succeed(scontrol_, {"--quiet", "update", "JobName=" + name, fmt::format("UserID={}", ::geteuid()),
                      "Comment=ductile"});
}

}  // namespace ductile::cluster
