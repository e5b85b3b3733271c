#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

// What the all-reduce benchmarks between emulated hosts share. All ranks run on one machine, so
// they have one clock: a repetition begins at a time agreed on before, and lasts until the last
// rank is done. No barrier's skew is in it.
namespace bench {

inline std::vector<std::string> words(const char* text) {
  std::istringstream in(text == nullptr ? "" : text);
  std::vector<std::string> all;
  for (std::string word; in >> word;) all.push_back(word);
  return all;
}

// Sizes in bytes, "4096 1048576".
inline std::vector<size_t> sizes(const char* text) {
  std::vector<size_t> all;
  for (const std::string& word : words(text)) all.push_back(std::stoull(word));
  return all;
}

inline double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

inline void sleep_until(double time) {
  timespec t;
  t.tv_sec = static_cast<time_t>(time);
  t.tv_nsec = static_cast<long>((time - static_cast<double>(t.tv_sec)) * 1e9);
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, nullptr);
}

// One all-reduce a repetition on `data`; `largest` is the maximum of a double over all ranks. Rank
// 0 prints "NAME BYTES MILLISECONDS" for each repetition but the first, which warms up. Ends the
// process on a wrong sum.
inline void measure(const std::string& name, int rank, int size, size_t bytes, int repetitions,
                    float* data, const std::function<void()>& all_reduce,
                    const std::function<double(double)>& largest) {
  const size_t count = bytes / sizeof(float);
  for (int i = 0; i <= repetitions; ++i) {
    for (size_t k = 0; k < count; ++k) data[k] = static_cast<float>(rank + 1 + (k & 7));
    const double start = largest(now() + 0.03);
    sleep_until(start);
    all_reduce();
    const double took = largest(now()) - start;
    for (size_t k = 0; k<count; k += count> 4096 ? 997 : 1) {
      const float right =
          static_cast<float>(size * (size + 1) / 2 + size * static_cast<int>(k & 7));
      if (data[k] != right) {
        std::fprintf(stderr, "%s: rank %d: element %zu is %g, not %g\n", name.c_str(), rank, k,
                     data[k], right);
        std::exit(3);
      }
    }
    if (rank == 0 && i > 0) std::printf("%s %zu %.4f\n", name.c_str(), bytes, took * 1e3);
  }
  std::fflush(stdout);
}

// Runs body(rank) in a process for each host, inside its network namespace; the worst exit status.
inline int on_hosts(const std::vector<std::string>& hosts, const std::function<int(int)>& body) {
  for (size_t r = 0; r < hosts.size(); ++r) {
    if (fork() != 0) continue;
    const std::string path = "/run/netns/" + hosts[r];
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) {
      std::perror(path.c_str());
      _exit(1);
    }
    const int code = body(static_cast<int>(r));
    std::fflush(nullptr);
    _exit(code);
  }
  int worst = 0;
  for (size_t r = 0; r < hosts.size(); ++r) {
    int status = 0;
    wait(&status);
    worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  return worst;
}

}  // namespace bench
