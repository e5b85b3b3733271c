#pragma once

#include <atomic>
#include <cstdint>

// What the test of injected errors and the library that injects them tell each other: one mapped
// file for each job, shared by all of its processes.
namespace ductile::injection {

// Which processes of a job are meant. Each process has one role of the first kind; the last two are
// groups.
enum Role : uint32_t {
  kNobody,      // launchers, shells, and workers or agents beyond those counted here
  kController,  // ductile train
  kAgent1,      // ductile host-agent, in the order in which they start
  kAgent2,
  kWorker0,  // ductile-worker of a job without a controller
  kWorker1,  // ductile-worker --worker 1
  kWorker2,
  kWorker3,
  kLaterWorker,  // replacements
  kWorkers,      // all of the four above
  kEverybody,    // all but kNobody
  kNumRoles
};
inline constexpr const char* kRoleNames[kNumRoles] = {
    "nobody",  "controller", "agent1",      "agent2",  "worker0",  "worker1",
    "worker2", "worker3",    "replacement", "workers", "everybody"};

// Kinds of calls. Those on paths and files count below the test's own folder only; `descriptor` is
// everything that takes a number of a descriptor and is neither a file nor a socket.
enum Call : uint32_t {
  kOpen,
  kCreate,  // open with O_CREAT
  kRead,
  kWrite,
  kSync,
  kRename,
  kLink,
  kUnlink,
  kMkdir,
  kStat,
  kList,  // opendir, readdir
  kMmap,
  kTruncate,
  kLock,
  kDescriptor,  // pipe, eventfd, signalfd, epoll_create, pidfd_open
  kFork,
  kExec,
  kSocket,
  kBind,
  kListen,
  kConnect,
  kAccept,
  kEpoll,
  kSend,
  kReceive,
  kPipeRead,
  kPipeWrite,
  kPoll,
  kNumCalls
};
inline constexpr const char* kCallNames[kNumCalls] = {
    "open",       "create", "read", "write",   "sync",      "rename",     "link",
    "unlink",     "mkdir",  "stat", "list",    "mmap",      "truncate",   "lock",
    "descriptor", "fork",   "exec", "socket",  "bind",      "listen",     "connect",
    "accept",     "epoll",  "send", "receive", "pipe_read", "pipe_write", "poll"};

// Instead of an errno: half of what was asked for is transferred.
inline constexpr int32_t kShort = -1;

struct Board {
  char root[256];  // paths below it count
  // The n-th call of a kind by processes of `role`, and `times - 1` that follow, fail.
  uint32_t role, call;
  uint64_t first, times;  // first 0: nothing fails
  int32_t error;
  std::atomic<uint32_t> agents;
  std::atomic<uint64_t> counts[kNumRoles][kNumCalls];
  std::atomic<uint64_t> struck;
  char what[320];  // the first call that was struck: what it was about
};

inline constexpr const char* kBoardVariable = "DUCTILE_INJECTION_BOARD";

}  // namespace ductile::injection
