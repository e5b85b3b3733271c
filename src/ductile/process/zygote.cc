#include "ductile/process/zygote.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/process/worker.h"

namespace ductile::process {
namespace {

// A worker's command line is written over the zygote's, so this has to be long enough. Longer ones
// are started as before.
constexpr size_t kRoom = 4096;

std::pair<Descriptor, Descriptor> pair_of_sockets() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    fail_errno("socketpair", errno);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

bool send_with(int socket, std::string_view text, const std::array<int, 2>& descriptors) {
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

}  // namespace

bool has_zygote(const fs::path& program) {
  const char* told = std::getenv("DUCTILE_ZYGOTE");
  return program.filename() == kPythonWorker &&
         (told == nullptr || std::string_view(told) != "off");
}

Zygote::Zygote(const SpawnOptions& worker) : environment_(worker.environment) {
  auto [ours, theirs] = pair_of_sockets();
  SpawnOptions launch;
  launch.program = worker.program;
  launch.environment = worker.environment;
  launch.log = worker.log;
  launch.mask = worker.mask;
  launch.input_fd = theirs.get();
  for (size_t i = 0; i + 1 < worker.arguments.size(); ++i)  // where the interpreter is read
    if (worker.arguments[i] == "--run") launch.arguments = {"--run", worker.arguments[i + 1]};
  launch.arguments.insert(launch.arguments.end(), {"--zygote", std::string(kRoom, '.')});
  pid_ = spawn(launch);
  link_ = std::move(ours);
}

Zygote::~Zygote() {
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
}

Descriptor Zygote::ask(const SpawnOptions& worker) {
  if (worker.environment != environment_) return {};
  std::string text = fmt::format("{}", fmt::join(worker.cpus, ","));
  for (const std::string& word : worker.arguments) text.append(1, '\0').append(word);
  if (text.size() > kRoom) return {};
  auto [ours, theirs] = pair_of_sockets();
  if (!send_with(link_.get(), text, {worker.progress_fd, theirs.get()})) return {};
  return std::move(ours);
}

bool Zygote::broken() const {
  pollfd end{link_.get(), POLLIN, 0};  // it never says anything
  return ::poll(&end, 1, 0) > 0;
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
