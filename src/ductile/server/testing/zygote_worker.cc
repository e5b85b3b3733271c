// A worker without torch that can be forked: it writes down what it is, and ends as it is told.
//
//   ductile-worker --run DIR --worker ID --tell FILE --exit CODE    CODE "wait": it waits
//
// $DUCTILE_TEST_ZYGOTE: "silent", its zygote answers nobody; "threads", it has two threads.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/base/machine.h"
#include "ductile/process/forked_worker.h"
#include "ductile/process/inherited.h"
#include "ductile/process/zygote.h"

extern char** environ;

namespace {

using namespace ductile;
using nlohmann::json;

std::string value_of(const std::vector<std::string>& words, std::string_view name) {
  for (size_t i = 0; i + 1 < words.size(); ++i)
    if (words[i] == name) return words[i + 1];
  return "";
}

// What each descriptor is of, and whether a program that this process starts gets it.
json descriptors() {
  std::map<std::string, int> out;
  for (int fd = 0; fd < 1000; ++fd) {
    const int flags = ::fcntl(fd, F_GETFD);
    if (flags < 0) continue;
    std::error_code error;
    const std::string target = fs::read_symlink("/proc/self/fd/" + std::to_string(fd), error);
    ++out[(fd <= STDERR_FILENO ? std::to_string(fd) + " " : "") +
          target.substr(0, target.find('[')) + ((flags & FD_CLOEXEC) != 0 ? " closed" : "")];
  }
  return out;
}

json signals() {
  std::map<std::string, std::string> out;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("Sig") && !line.starts_with("SigQ"))
      out[line.substr(0, line.find(':'))] = line.substr(line.find(':') + 1);
  return out;
}

json description(const std::vector<std::string>& words, bool forked) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  std::sort(environment.begin(), environment.end());
  std::string line = read_file("/proc/self/cmdline");
  line.resize(line.find_last_not_of('\0') + 1);
  std::vector<std::string> arguments = words;
  arguments.pop_back();  // the number of the progress pipe
  line.resize(line.rfind('\0'));
  int death = 0;
  ::prctl(PR_GET_PDEATHSIG, &death);
  return {{"forked", forked},
          {"process", ::getpid()},
          {"parent", ::getppid()},
          {"leads", ::getpgrp() == ::getpid()},
          {"session", ::getsid(0)},
          {"arguments", arguments},
          {"line", line},
          {"program", fs::read_symlink("/proc/self/exe").string()},
          {"environment", environment},
          {"cores", usable_cores()},
          {"descriptors", descriptors()},
          {"signals", signals()},
          {"death", death},
          {"inherited", process::inherited()}};
}

int work(const std::vector<std::string>& words, bool forked) {
  const std::string end = value_of(words, "--exit");
  const std::string text = description(words, forked).dump();
  const int progress = std::atoi(words.back().c_str());
  if (::write(progress, "here\n", 5) != 5) return 100;
  if (::write(STDOUT_FILENO, "out\n", 4) != 4 || ::write(STDERR_FILENO, "err\n", 4) != 4)
    return 101;
  write_file_atomic(value_of(words, "--tell"), text);
  while (end == "wait") ::pause();
  return std::atoi(end.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words(argv, argv + argc);
  const bool forks = argc > 1 && words[1] == process::kZygote;
  const char* told = std::getenv("DUCTILE_TEST_ZYGOTE");
  const std::string how = forks && told != nullptr ? told : "";
  while (how == "silent") ::pause();
  std::jthread other;
  if (how == "threads")
    other = std::jthread([] { std::this_thread::sleep_for(std::chrono::hours(1)); });
  if (forks) words = process::become_worker(argv[0]);
  return work(words, forks);
}
