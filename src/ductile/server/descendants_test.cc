#include <exception>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/server/descendants_impl.h"

namespace ductile::server {
namespace {

// Begins a chain of processes that outlive their parents, ends them all, and says in its exit code
// whether it did.
[[noreturn]] void begin_and_end(bool without_list, int alive) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  for (int i = 0; i < 5; ++i) {
    if (::fork() != 0) continue;
    ::setsid();
    ::prctl(PR_SET_NAME, "odd) Z 7 (name");
    if (i % 2 == 0 && ::fork() != 0) ::_exit(0);  // its child is an orphan
    while (true) ::pause();
  }
  ::close(alive);
  try {
    end_descendants(without_list ? "/proc/self/no-such-list" : list_of_children());
  } catch (const std::exception&) {
    ::_exit(2);
  }
  ::_exit(::waitpid(-1, nullptr, WNOHANG) < 0 ? 0 : 1);
}

// Whether all ended: each of them has the pipe's end until it does.
void expect_end_of_all(bool without_list) {
  int alive[2];
  ASSERT_EQ(::pipe(alive), 0);
  const pid_t parent = ::fork();
  if (parent == 0) begin_and_end(without_list, alive[1]);
  ::close(alive[1]);
  int status = 0;
  EXPECT_EQ(::waitpid(parent, &status, 0), parent);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  pollfd end{alive[0], POLLIN, 0};
  EXPECT_EQ(::poll(&end, 1, 10000), 1);
  EXPECT_EQ(end.revents & POLLHUP, POLLHUP);
  ::close(alive[0]);
}

TEST(Descendants, AllOfThemEnd) { expect_end_of_all(/*without_list=*/false); }

TEST(Descendants, TheyEndOnAKernelWithoutListsOfChildren) {
  expect_end_of_all(/*without_list=*/true);
}

}  // namespace
}  // namespace ductile::server
