#pragma once

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/error.h"

// Real processes for tests of what happens when one of them dies, sleeps or is cut off.
namespace ductile::comm {

// Children that talk to the test over two pipes: one line of text to each, lines back from all.
class Processes {
 public:
  // body(rank, input): runs in the child, which ends with it; its lines are written by say().
  using Body = std::function<void(int rank, const std::string& input, const Processes& self)>;

  Processes() {
    if (pipe2(out_, O_CLOEXEC) != 0) fail_errno("pipe", errno);
  }

  ~Processes() {
    for (size_t i = 0; i < pids_.size(); ++i) end(static_cast<int>(i));
    close(out_[0]);
    close(out_[1]);
  }

  // Returns the child's index. `own_network`: in a fresh network namespace, gone with the child.
  int start(int rank, const Body& body, bool own_network = false) {
    int in[2];
    if (pipe2(in, O_CLOEXEC) != 0) fail_errno("pipe", errno);
    const pid_t pid = fork();
    if (pid == 0) {
      close(in[1]);
      if (own_network && unshare(CLONE_NEWNET) != 0) _exit(3);
      if (own_network) say("namespace");
      std::string input;
      for (char c; read(in[0], &c, 1) == 1 && c != '\n';) input += c;
      try {
        body(rank, input, *this);
      } catch (const std::exception& e) {
        say(std::string("error ") + e.what());
      }
      _exit(0);
    }
    close(in[0]);
    pids_.push_back(pid);
    inputs_.push_back(in[1]);
    return static_cast<int>(pids_.size()) - 1;
  }

  pid_t pid(int child) const { return pids_[static_cast<size_t>(child)]; }

  void tell(int child, const std::string& line) {
    const std::string text = line + "\n";
    if (write(inputs_[static_cast<size_t>(child)], text.data(), text.size()) < 0) {
      fail_errno("pipe", errno);
    }
  }

  // From a child; shorter than a pipe's atomic write.
  void say(const std::string& line) const {
    const std::string text = line.substr(0, 2000) + "\n";
    if (write(out_[1], text.data(), text.size()) < 0) _exit(4);
  }

  // The next line of any child; nothing when patience ends.
  std::optional<std::string> hear(std::chrono::seconds patience = std::chrono::seconds(30)) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (true) {
      if (const size_t end = heard_.find('\n'); end != std::string::npos) {
        std::string line = heard_.substr(0, end);
        heard_.erase(0, end + 1);
        return line;
      }
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          deadline - std::chrono::steady_clock::now());
      pollfd item{out_[0], POLLIN, 0};
      if (left.count() <= 0 || ::poll(&item, 1, static_cast<int>(left.count())) <= 0) return {};
      char bytes[4096];
      const ssize_t got = read(out_[0], bytes, sizeof bytes);
      if (got > 0) heard_.append(bytes, static_cast<size_t>(got));
    }
  }

  void end(int child) {
    pid_t& pid = pids_[static_cast<size_t>(child)];
    if (pid <= 0) return;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    close(inputs_[static_cast<size_t>(child)]);
    pid = 0;
  }

 private:
  int out_[2] = {-1, -1};
  std::string heard_;
  std::vector<pid_t> pids_;
  std::vector<int> inputs_;
};

}  // namespace ductile::comm
