#include "ductile/process/zygote.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
extern "C" {  // glibc 2.36 forgot to say so
#include <sys/pidfd.h>
}

#include "ductile/base/error.h"
#include "ductile/process/inherited.h"
#include "ductile/process/worker.h"

namespace ductile::process {
namespace {

// A worker's command line is written over the zygote's, so this has to be long enough. Longer ones
// are started as before.
constexpr size_t kRoom = 4096;
constexpr size_t kMostDigits = 64;  // of "--progress-fd N"
constexpr int kLastBreath = 1000;  // ms; a process that is killed ends at once, if its disk answers

// The rule which variables may differ between a zygote and a worker that it forks: those that only
// Ductile reads, and not before the worker's main(). Of any other one libtorch, OpenBLAS, OpenMP,
// oneDNN, UCX, the C library or the loader may have read the value when the program was loaded.
constexpr std::array<const char*, 3> kReadLate = {"DUCTILE_SECRET_FILE", "DUCTILE_CORES",
                                                  "DUCTILE_THREADS"};
// With any of these OpenMP decides when it is loaded, by where the process may run then, how its
// threads are placed or how long they spin. Where it runs is decided later, so nothing is forked.
// (The spins that worker_environment() sets are few enough to do no harm beside other processes.)
constexpr std::array<const char*, 5> kPlaces = {"OMP_PLACES", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY",
                                                "KMP_AFFINITY", "GOMP_SPINCOUNT"};

bool is_read_late(const std::string& name) {
  return std::ranges::any_of(kReadLate, [&](const char* late) { return name == late; });
}

bool is_script(const fs::path& program) {
  char first[2] = {};
  std::ifstream(program, std::ios::binary).read(first, sizeof first);
  return first[0] == '#' && first[1] == '!';
}

bool is_python(const fs::path& program) { return program.filename() == kPythonWorker; }

std::pair<Descriptor, Descriptor> pair_of_sockets() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    fail_errno("socketpair", errno);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

bool send_with(int socket, std::string_view text, const std::array<int, 3>& descriptors) {
  iovec part{const_cast<char*>(text.data()), text.size()};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof descriptors)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof room;
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof descriptors);
  std::memcpy(CMSG_DATA(head), descriptors.data(), sizeof descriptors);
  return ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

// Whether a file of its code was replaced since it was loaded, as an upgrade of a library does.
bool runs_replaced_code(pid_t pid) {
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  for (std::string line; std::getline(maps, line);) {
    const size_t path = line.find('/');
    if (path == std::string::npos || !line.ends_with(" (deleted)")) continue;
    const std::string_view name = std::string_view(line).substr(path);
    const bool is_code = line.substr(line.find(' ') + 1, 4).find('x') != std::string::npos;
    if (is_code && !name.starts_with("/memfd:") && !name.starts_with("/dev/")) return true;
  }
  return false;
}

}  // namespace

// What a script does before it becomes the program, it is to do for each worker.
bool has_zygote(const fs::path& program) {
  const char* told = std::getenv("DUCTILE_ZYGOTE");
  const char* spins = std::getenv("OMP_WAIT_POLICY");
  if (spins != nullptr && ::strcasecmp(spins, "PASSIVE") != 0) return false;
  return (is_python(program) || (program.filename() == kWorker && !is_script(program))) &&
         (told == nullptr || std::string_view(told) != "off") &&
         std::ranges::none_of(kPlaces,
                              [](const char* name) { return std::getenv(name) != nullptr; });
}

Zygote::Environment Zygote::environment_of(const SpawnOptions& worker) {
  Environment out;
  for (const std::string& entry : process::environment_of(worker)) {
    const size_t end = std::min(entry.find('='), entry.size());
    out.emplace(entry.substr(0, end), entry.substr(std::min(end + 1, entry.size())));
  }
  return out;
}

// Another file under the same name has another one; so has one that was written to.
std::string Zygote::file_of(const fs::path& program) {
  struct stat info {};
  if (::stat(program.c_str(), &info) != 0) return "";
  return fmt::format("{} {} {} {}.{} {}.{}", info.st_dev, info.st_ino, info.st_size,
                     info.st_mtim.tv_sec, info.st_mtim.tv_nsec, info.st_ctim.tv_sec,
                     info.st_ctim.tv_nsec);
}

std::string Zygote::blocked_by(const SpawnOptions& worker) {
  std::string out;
  for (int number = 1; worker.mask != nullptr && number < NSIG; ++number)
    if (::sigismember(worker.mask, number) == 1) out += fmt::format("{} ", number);
  return out;
}

Zygote::Zygote(const SpawnOptions& worker)
    : program_(worker.program),
      file_(file_of(worker.program)),
      inherited_(inherited()),
      blocked_(blocked_by(worker)),
      environment_(environment_of(worker)) {
  auto [ours, theirs] = pair_of_sockets();
  SpawnOptions launch;
  launch.program = worker.program;
  launch.environment = worker.environment;
  launch.mask = worker.mask;
  launch.input_fd = theirs.get();
  if (is_python(worker.program)) {
    launch.log = worker.log;
    for (size_t i = 0; i + 1 < worker.arguments.size(); ++i)  // what says which interpreter it is
      if (const std::string& word = worker.arguments[i]; word == "--run" || word == "--interpreter")
        launch.arguments = {word, worker.arguments[i + 1]};
  } else {
    launch.error_fd = STDERR_FILENO;  // it is of no job
  }
  launch.arguments.insert(launch.arguments.end(), {kZygote, std::string(kRoom, '.')});
  pid_ = spawn(launch);
  link_ = std::move(ours);
}

Zygote::~Zygote() {
  const Descriptor end(::pidfd_open(pid_, 0));
  ::kill(pid_, SIGKILL);
  pollfd ended{end.get(), POLLIN, 0};
  if (end) ::poll(&ended, 1, kLastBreath);
  while (::waitpid(pid_, nullptr, end ? WNOHANG : 0) < 0 && errno == EINTR) continue;
}

bool Zygote::suits(const SpawnOptions& worker) const {
  const Environment environment = environment_of(worker);
  const auto differs = [](const Environment& one, const Environment& other) {
    return std::ranges::any_of(one, [&](const auto& variable) {
      const auto found = other.find(variable.first);
      return !is_read_late(variable.first) &&
             (found == other.end() || found->second != variable.second);
    });
  };
  return !differs(environment, environment_) && !differs(environment_, environment) &&
         worker.program == program_ && blocked_by(worker) == blocked_ && !worker.dies_with_parent &&
         worker.progress_fd >= 0 && worker.input_fd < 0 && worker.output_fd < 0 &&
         worker.error_fd < 0;
}

Descriptor Zygote::ask(const SpawnOptions& worker) {
  if (!suits(worker)) return {};
  const Environment environment = environment_of(worker);
  std::string text = fmt::format("{}", fmt::join(worker.cpus, ","));
  text.append(1, '\0').append(std::to_string(kReadLate.size()));
  for (const char* name : kReadLate) {
    const auto found = environment.find(name);
    text.append(1, '\0').append(name);
    if (found != environment.end()) text.append(1, '=').append(found->second);
  }
  for (const std::string& word : worker.arguments) text.append(1, '\0').append(word);
  if (text.size() > kRoom - kMostDigits) return {};
  const Descriptor log = open_log(worker);
  auto [ours, theirs] = pair_of_sockets();
  if (!send_with(link_.get(), text, {worker.progress_fd, theirs.get(), log.get()})) return {};
  return std::move(ours);
}

// It says one word, when it is ready.
void Zygote::listen() {
  char word;
  ssize_t size;
  do {
    size = ::recv(link_.get(), &word, 1, MSG_DONTWAIT);
    ready_ = ready_ || size > 0;
  } while (size > 0 || (size < 0 && errno == EINTR));
  broken_ = broken_ || size == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

bool Zygote::ready() {
  listen();
  return ready_ && !broken_;
}

bool Zygote::broken() {
  listen();
  return broken_;
}

// What a Python job's workers run they compare themselves.
bool Zygote::outdated() const {
  return file_of(program_) != file_ || inherited() != inherited_ ||
         (!is_python(program_) && runs_replaced_code(pid_));
}

ZygoteAnswer answer_of_zygote(int asked) {
  char text[32];
  ssize_t size;
  do {
    size = ::recv(asked, text, sizeof text, MSG_DONTWAIT);
  } while (size < 0 && errno == EINTR);
  if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
  pid_t pid = 0;
  if (size > 0) std::from_chars(text, text + size, pid);
  if (pid <= 0) return {true, {}};
  return {false, pid};
}

void let_go(int asked) { (void)::send(asked, "g", 1, MSG_DONTWAIT | MSG_NOSIGNAL); }

}  // namespace ductile::process
