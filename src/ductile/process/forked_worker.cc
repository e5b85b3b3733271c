#include "ductile/process/forked_worker.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/files.h"
#include "ductile/base/log.h"

namespace ductile::process {
namespace {

constexpr size_t kLongest = 1 << 16;  // message
constexpr const char* kTitle = "ductile zygote";

// What a launcher sends for a worker (Zygote::ask): its cores, the variables that it gets now (a
// name alone: it does not have it), its arguments.
struct Order {
  std::vector<int> cpus;
  std::vector<std::string> variables, arguments;
  Descriptor progress, launcher, log;
};

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(at, begin), text.size());
    out.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

std::optional<Order> order_of(std::string_view text, std::vector<Descriptor> descriptors) {
  std::vector<std::string> words = split(text, '\0');
  if (words.size() < 2 || descriptors.size() != 3) return std::nullopt;
  size_t variables = 0;
  const std::string& number = words[1];
  if (std::from_chars(number.data(), number.data() + number.size(), variables).ec != std::errc() ||
      variables > words.size() - 2)
    return std::nullopt;
  Order order;
  for (const std::string& cpu : split(words[0], ','))
    if (!cpu.empty()) order.cpus.push_back(std::atoi(cpu.c_str()));
  const auto begin = words.begin() + 2, end = begin + static_cast<std::ptrdiff_t>(variables);
  order.variables.assign(begin, end);
  order.arguments.assign(end, words.end());
  order.progress = std::move(descriptors[0]);
  order.launcher = std::move(descriptors[1]);
  order.log = std::move(descriptors[2]);
  return order;
}

// The next message; nothing where it was none of ours. Ends the process with its launcher.
std::optional<Order> receive(int link) {
  static char text[kLongest];
  std::array<int, 3> numbers{};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof numbers)];
  iovec part{text, sizeof text};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof room;
  ssize_t size;
  do {
    size = ::recvmsg(link, &message, MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  if (size <= 0) ::_exit(0);
  std::vector<Descriptor> descriptors;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = std::min(numbers.size(), (head->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(numbers.data(), CMSG_DATA(head), count * sizeof(int));
    for (size_t i = 0; i < count; ++i) descriptors.emplace_back(numbers[i]);
  }
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) return std::nullopt;
  return order_of({text, static_cast<size_t>(size)}, std::move(descriptors));
}

size_t number_of_threads() {
  std::error_code error;
  const fs::directory_iterator threads("/proc/self/task", error);
  return error ? 0 : static_cast<size_t>(std::distance(begin(threads), end(threads)));
}

// Nothing comes through it any more. What is not open below 3 would be what a worker opens first.
bool close_input() {
  ::close(STDIN_FILENO);
  if (::open("/dev/null", O_RDONLY) != STDIN_FILENO) return false;
  int null = 0;
  do {
    null = ::open("/dev/null", O_RDWR);
  } while (null >= 0 && null <= STDERR_FILENO);
  return null >= 0 && ::close(null) == 0;
}

// What spawn() does between fork and exec, and exec itself.
void take_over(const Order& order) {
  ::setpgid(0, 0);
  if (!order.cpus.empty()) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    for (const int cpu : order.cpus) CPU_SET(static_cast<size_t>(cpu), &cpus);
    ::sched_setaffinity(0, sizeof cpus, &cpus);
  }
  ::dup2(order.log.get(), STDOUT_FILENO);
  ::dup2(order.log.get(), STDERR_FILENO);
  ::fcntl(order.progress.get(), F_SETFD, 0);
  for (const std::string& variable : order.variables) {
    const size_t end = variable.find('=');
    if (end == std::string::npos)
      ::unsetenv(variable.c_str());
    else
      ::setenv(variable.substr(0, end).c_str(), variable.c_str() + end + 1, /*overwrite=*/1);
  }
}

// Says that it is there, and waits. Nobody wants a worker whose launcher went away meanwhile.
void wait_to_be_let_go(int launcher) {
  const std::string pid = std::to_string(::getpid());
  char word = 0;
  ssize_t size = ::send(launcher, pid.data(), pid.size(), MSG_NOSIGNAL);
  if (size < 0) ::_exit(0);
  do {
    size = ::read(launcher, &word, 1);
  } while (size < 0 && errno == EINTR);
  if (size <= 0) ::_exit(0);
}

std::vector<std::string> begun(const std::string& program, Order order) {
  take_over(order);
  std::vector<std::string> words = {program};
  words.insert(words.end(), order.arguments.begin(), order.arguments.end());
  words.insert(words.end(), {"--progress-fd", std::to_string(order.progress.release())});
  std::string title;
  for (const std::string& word : words) title.append(word).append(1, '\0');
  set_title(title);
  wait_to_be_let_go(order.launcher.get());
  return words;
}

}  // namespace

std::vector<std::string> become_worker(const std::string& program) {
  const std::string name = program;  // argv[0] itself is written over
  Descriptor link(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!link || !close_input()) ::_exit(1);
  // Also of a zygote that is stopped; the end of `link` tells where the launcher had gone before.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (number_of_threads() != 1) {
    log_line(
        fmt::format("{}: workers are started one by one, since this program has threads as "
                    "soon as it is loaded",
                    name));
    ::_exit(0);
  }
  if (::send(link.get(), "r", 1, MSG_NOSIGNAL) < 0) ::_exit(0);  // ready
  set_title(kTitle);
  while (true) {
    // Where nothing comes of it the launcher sees that its socket ends.
    std::optional<Order> order = receive(link.get());
    if (!order || fork_as_sibling() != 0) continue;
    link.close();
    return begun(name, *std::move(order));
  }
}

void set_title(std::string_view title) {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t name = text.rfind(')');
  if (name == std::string::npos) return;
  std::istringstream words(text.substr(name + 1));
  std::vector<std::string> fields;
  for (std::string word; words >> word;) fields.push_back(word);
  constexpr size_t kArgStart = 45;  // the 48th of proc(5), of which three are before the bracket
  if (fields.size() <= kArgStart + 1) return;
  char* const begin = reinterpret_cast<char*>(std::stoull(fields[kArgStart]));
  char* const end = reinterpret_cast<char*>(std::stoull(fields[kArgStart + 1]));
  if (begin == nullptr || end <= begin) return;
  const auto room = static_cast<size_t>(end - begin);
  std::memset(begin, 0, room);
  std::memcpy(begin, title.data(), std::min(title.size(), room - 1));
}

// The C library's own function cannot make a sibling; what it does besides, when there is one
// thread, is to tell the thread its new number, whose place only the kernel can name, and to let
// the kernel know again which locks it holds. Handlers of pthread_atfork() are not called: those of
// the libraries that a worker has look after threads, and there are none.
pid_t fork_as_sibling() {
  void* number = nullptr;
  if (::prctl(PR_GET_TID_ADDRESS, &number) != 0) return -1;
  void* locks = nullptr;
  size_t size = 0;
  const bool has_locks = ::syscall(SYS_get_robust_list, 0, &locks, &size) == 0 && locks != nullptr;
  constexpr unsigned long kFlags = CLONE_PARENT | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID |
                                   static_cast<unsigned long>(SIGCHLD);
#if defined(__x86_64__)
  const long pid = ::syscall(SYS_clone, kFlags, nullptr, nullptr, number, nullptr);
#else
  const long pid = ::syscall(SYS_clone, kFlags, nullptr, nullptr, nullptr, number);
#endif
  if (pid == 0 && has_locks) ::syscall(SYS_set_robust_list, locks, size);
  return static_cast<pid_t>(pid);
}

}  // namespace ductile::process
