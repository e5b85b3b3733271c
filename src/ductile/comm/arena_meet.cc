#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <new>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/comm/arena_impl.h"

// The meeting: rank 0 listens, the others connect and say who they are, rank 0 opens a pidfd of
// each while its connection proves that it lives, and sends the segment and the pidfds to all.
namespace ductile::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMagic = 0x6475637469'6c6531;

struct Hello {
  uint64_t magic;
  uint64_t generation;
  uint64_t region_bytes;
  int32_t num_ranks;
  int32_t rank;
};

struct Welcome {
  uint64_t magic;
  int32_t num_fds;  // 0: refused, for the reason
  char reason[200];
};

struct Address {
  sockaddr_un address{};
  socklen_t length;

  explicit Address(const std::string& name) {
    // A leading zero byte: an abstract name, which is gone with the socket.
    const std::string path = fmt::format("ductile/{}/{}", geteuid(), name);
    address.sun_family = AF_UNIX;
    std::copy(path.begin(), path.end(), address.sun_path + 1);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

bool same_user(int socket, pid_t* pid = nullptr) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return false;
  if (pid != nullptr) *pid = peer.pid;
  return peer.uid == geteuid();
}

int milliseconds_to(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 10));
}

void check_given_up(const ArenaOptions& options, const std::string& name) {
  if (options.given_up && options.given_up())
    fail(ErrorCode::peer_lost, "the meeting in the arena '{}' was given up", name);
}

Descriptor make_segment(size_t bytes) {
  Descriptor fd(memfd_create("ductile-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0) fail_errno("create the arena's segment", errno);
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    fail_errno(fmt::format("size the arena's segment to {} bytes", bytes), errno);
  }
  // Nobody can cut it short under its peers.
  fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return fd;
}

void send_fds(int socket, const Welcome& welcome, const std::vector<int>& fds) {
  std::vector<char> control(CMSG_SPACE(sizeof(int) * std::max<size_t>(fds.size(), 1)));
  iovec part{const_cast<Welcome*>(&welcome), sizeof welcome};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(head), fds.data(), sizeof(int) * fds.size());
  }
  // A rank that is gone by now is noticed at the first barrier, through its pidfd.
  (void)sendmsg(socket, &message, MSG_NOSIGNAL);
}

// The answer with its file descriptors; num_fds < 0 if the connection ended without one.
Welcome receive_fds(int socket, std::vector<Descriptor>& fds) {
  Welcome welcome{};
  welcome.num_fds = -1;
  std::vector<char> control(CMSG_SPACE(sizeof(int) * (Arena::kMaxRanks + 1)));
  iovec part{&welcome, sizeof welcome};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    std::vector<int> raw((head->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(raw.data(), CMSG_DATA(head), raw.size() * sizeof(int));
    for (const int fd : raw) fds.emplace_back(fd);
  }
  if (got != static_cast<ssize_t>(sizeof welcome) || welcome.magic != kMagic) {
    welcome.num_fds = -1;
  }
  welcome.reason[sizeof welcome.reason - 1] = 0;
  return welcome;
}

struct Guest {
  Descriptor socket;
  Descriptor pidfd;
};

// The meeting as rank 0 sees it.
class Host {
 public:
  Host(const std::string& name, int num_ranks, const ArenaOptions& options,
       Clock::time_point deadline)
      : num_ranks_(num_ranks), options_(options), guests_(static_cast<size_t>(num_ranks)) {
    const Address address(name);
    listener_ = Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (listener_.get() < 0) fail_errno("open a socket for the arena", errno);
    while (bind(listener_.get(), address.get(), address.length) != 0) {
      if (errno != EADDRINUSE) fail_errno(fmt::format("meet under the name '{}'", name), errno);
      check_given_up(options, name);
      if (Clock::now() > deadline) {
        fail(ErrorCode::conflict,
             "another process meets under the name '{}': is rank 0 of this job running twice?",
             name);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    if (listen(listener_.get(), 256) != 0) fail_errno("listen for the arena", errno);
  }

  std::vector<Guest> gather(const std::string& name, Clock::time_point deadline) {
    while (missing() > 0) {
      check_given_up(options_, name);
      if (Clock::now() > deadline) {
        std::string who;
        for (int r = 1; r < num_ranks_; ++r) {
          if (guests_[r].socket.get() < 0) who += fmt::format("{}{}", who.empty() ? "" : ", ", r);
        }
        fail(ErrorCode::deadline, "local ranks {} of {} did not come to the arena{}", who,
             num_ranks_, refused_.empty() ? "" : "; refused: " + refused_);
      }
      std::vector<pollfd> polled{{listener_.get(), POLLIN, 0}};
      for (const Descriptor& f : waiting_) polled.push_back({f.get(), POLLIN, 0});
      for (const Guest& g : guests_) polled.push_back({g.socket.get(), 0, 0});
      if (poll(polled.data(), polled.size(), milliseconds_to(deadline)) <= 0) continue;
      std::vector<Descriptor> still;
      for (size_t i = 0; i < waiting_.size(); ++i) {
        if (polled[1 + i].revents == 0) {
          still.push_back(std::move(waiting_[i]));
        } else {
          hear(std::move(waiting_[i]));
        }
      }
      const size_t first_guest = 1 + waiting_.size();
      for (size_t r = 0; r < guests_.size(); ++r) {  // one that went away may come again
        if (polled[first_guest + r].fd >= 0 && polled[first_guest + r].revents != 0) {
          guests_[r] = {};
        }
      }
      waiting_ = std::move(still);
      if (polled[0].revents != 0) {
        Descriptor fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (fd.get() >= 0 && same_user(fd.get()) && waiting_.size() < 1024) {
          waiting_.push_back(std::move(fd));
        }
      }
    }
    return std::move(guests_);
  }

 private:
  int missing() const {
    return static_cast<int>(std::count_if(guests_.begin() + 1, guests_.end(),
                                          [](const Guest& g) { return g.socket.get() < 0; }));
  }

  void hear(Descriptor fd) {
    Hello hello{};
    if (recv(fd.get(), &hello, sizeof hello, 0) != static_cast<ssize_t>(sizeof hello) ||
        hello.magic != kMagic) {
      return;  // a stranger: closed
    }
    std::string reason;
    if (hello.generation != options_.generation) {
      reason = fmt::format("generation {} where {} meets", hello.generation, options_.generation);
    } else if (hello.num_ranks != num_ranks_ || hello.region_bytes != options_.region_bytes) {
      reason = fmt::format("{} ranks of {} bytes where {} of {} meet", hello.num_ranks,
                           hello.region_bytes, num_ranks_, options_.region_bytes);
    } else if (hello.rank < 1 || hello.rank >= num_ranks_) {
      reason = fmt::format("rank {} of {}", hello.rank, num_ranks_);
    } else if (guests_[hello.rank].socket.get() >= 0) {
      reason = fmt::format("rank {} is there already", hello.rank);
    }
    pid_t pid = 0;
    Descriptor pidfd;
    if (reason.empty() && same_user(fd.get(), &pid)) {
      pidfd = Descriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
      if (pidfd.get() < 0) reason = fmt::format("process {} cannot be watched", pid);
    }
    if (!reason.empty()) {
      refused_ = reason;
      Welcome no{kMagic, 0, {}};
      reason.copy(no.reason, sizeof no.reason - 1);
      send_fds(fd.get(), no, {});
      return;
    }
    guests_[hello.rank] = {std::move(fd), std::move(pidfd)};
  }

  int num_ranks_;
  const ArenaOptions& options_;
  Descriptor listener_;
  std::vector<Descriptor> waiting_;  // connected, not heard yet
  std::vector<Guest> guests_;
  std::string refused_;
};

std::vector<Descriptor> join(const std::string& name, const Hello& hello,
                             const ArenaOptions& options, Clock::time_point deadline) {
  const Address address(name);
  std::string reason = "nobody meets there";
  while (true) {
    Descriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (fd.get() < 0) fail_errno("open a socket for the arena", errno);
    std::vector<Descriptor> fds;
    if (connect(fd.get(), address.get(), address.length) == 0) {
      if (!same_user(fd.get())) {
        fail(ErrorCode::conflict, "a process of another user meets under the name '{}'", name);
      }
      (void)send(fd.get(), &hello, sizeof hello, MSG_NOSIGNAL);
      pollfd polled{fd.get(), POLLIN, 0};
      while (poll(&polled, 1, milliseconds_to(deadline)) <= 0 && Clock::now() < deadline) {
        check_given_up(options, name);
      }
      if (polled.revents != 0) {
        const Welcome welcome = receive_fds(fd.get(), fds);
        if (welcome.num_fds == hello.num_ranks + 1 &&
            static_cast<int>(fds.size()) == welcome.num_fds) {
          return fds;
        }
        // Refused, perhaps by the generation before this one, which is about to leave.
        reason = welcome.num_fds == 0 ? welcome.reason : "rank 0 broke off";
      } else {
        reason = "rank 0 still waits for others";
      }
    }
    check_given_up(options, name);
    if (Clock::now() > deadline) {
      fail(ErrorCode::deadline, "local rank {} of {} did not get into the arena '{}': {}",
           hello.rank, hello.num_ranks, name, reason);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace

std::unique_ptr<Arena> Arena::meet(const std::string& name, int rank, int num_ranks,
                                   const ArenaOptions& options, std::chrono::nanoseconds patience) {
  if (num_ranks < 1 || num_ranks > kMaxRanks || rank < 0 || rank >= num_ranks) {
    ductile::fail(ErrorCode::invalid_argument, "rank {} of {}: an arena has 1 to {} ranks", rank,
                  num_ranks, kMaxRanks);
  }
  if (name.empty() || name.size() > 80) {
    ductile::fail(ErrorCode::invalid_argument, "the arena's name '{}' must have 1 to 80 characters",
                  name);
  }
  const auto deadline = Clock::now() + patience;
  ArenaOptions rounded = options;
  rounded.region_bytes =
      (std::max<size_t>(options.region_bytes, 1) + kHugePage - 1) / kHugePage * kHugePage;
  const ArenaLayout layout(num_ranks, rounded.region_bytes);
  std::vector<Descriptor> fds;  // the segment, then a pidfd of each rank
  if (rank == 0) {
    std::vector<Guest> guests = Host(name, num_ranks, rounded, deadline).gather(name, deadline);
    fds.push_back(make_segment(layout.total));
    {
      ArenaMapping mapping(fds[0].get(), layout.total);
      auto* const header = new (mapping.base) ArenaHeader{};
      header->magic = kMagic;
      header->generation = options.generation;
      header->num_ranks = static_cast<uint32_t>(num_ranks);
      header->region_bytes = rounded.region_bytes;
    }
    for (int r = 0; r < num_ranks; ++r) {
      fds.push_back(r == 0 ? Descriptor(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)))
                           : std::move(guests[r].pidfd));
    }
    std::vector<int> raw;
    for (const Descriptor& fd : fds) raw.push_back(fd.get());
    for (int r = 1; r < num_ranks; ++r) {
      send_fds(guests[r].socket.get(), Welcome{kMagic, num_ranks + 1, {}}, raw);
    }
  } else {
    fds = join(name, {kMagic, options.generation, rounded.region_bytes, num_ranks, rank}, options,
               deadline);
  }
  auto mapping = std::make_shared<ArenaMapping>(fds[0].get(), layout.total);
  DUCTILE_CHECK(reinterpret_cast<const ArenaHeader*>(mapping->base)->magic == kMagic);
  auto impl = std::make_unique<Impl>(std::move(mapping), rank, num_ranks, rounded);
  for (int r = 0; r < num_ranks; ++r) {
    if (r != rank) impl->pidfds[r] = fds[r + 1].release();
  }
  // Once all have arrived, each has mapped the segment.
  impl->options.stall_deadline = std::max<Nanoseconds>(deadline - Clock::now(), kNap);
  impl->begin(OpKind::barrier, 0, 0);
  impl->end();
  impl->options.stall_deadline = options.stall_deadline;
  impl->options.given_up = nullptr;
  return std::unique_ptr<Arena>(new Arena(std::move(impl)));
}

}  // namespace ductile::comm
