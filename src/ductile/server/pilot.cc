#include "ductile/server/pilot.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/log.h"
#include "ductile/net/channel.h"
#include "ductile/net/gate.h"
#include "ductile/net/loop.h"
#include "ductile/net/secret.h"
#include "ductile/process/spawn.h"
#include "ductile/server/descendants_impl.h"
#include "ductile/server/host_agent.h"
#include "ductile/server/pilot_impl.h"

namespace ductile::server {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPilotLook{1000};    // at the ticket, and for processes that have ended
constexpr std::chrono::minutes kAlone{15};  // without a call
constexpr milliseconds kSend{15000};        // an end that takes nothing for longer is gone
constexpr size_t kPilotBlock = 1 << 16;

std::string machine_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// All of it, into a descriptor that blocks or not; false: the other end is gone.
bool write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n > 0) {
      bytes = bytes.subspan(static_cast<size_t>(n));
    } else if (errno == EAGAIN) {
      pollfd room{fd, POLLOUT, 0};
      if (::poll(&room, 1, static_cast<int>(kSend.count())) == 0) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

class Pilot {
 public:
  Pilot(PilotTicket ticket, const std::string& towards) : ticket_(std::move(ticket)) {
    if (is_withdrawn(ticket_))
      fail(ErrorCode::not_found,
           "pilot of {}, generation {}: its ticket was withdrawn, so nobody needs it any more",
           ticket_.node, ticket_.generation);
    const net::Secret secret = net::Secret::from_file(ticket_.path() / "secret");
    PilotClaim by{from_environment("SLURM_JOB_ID"), machine_name(), "", 0};
    const std::string to = towards.empty() ? from_environment("SLURM_SUBMIT_HOST") : towards;
    by.address = net::local_address_towards({to.empty() ? "127.0.0.1" : to, 0});
    net::Listener listener({by.address, 0});
    by.port = listener.address().port;
    sigset_t mask;  // blocked, so that the workers, which inherit this, do not end on the notice
    sigemptyset(&mask);
    sigaddset(&mask, SIGTERM);
    sigprocmask(SIG_BLOCK, &mask, nullptr);
    signals_ = opened(::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK), "signalfd");
    signal_watch_ =
        loop_.watch(signals_.get(), net::Interest::read, [this](net::Ready) { notice(); });
    mask_ = mask;
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    claim(ticket_, by);
    gate_ = std::make_unique<net::Gate>(
        loop_, std::move(listener), secret, pilot_identity(ticket_), net::GateOptions{},
        [this](const net::Identity& peer) {
          return peer == caller_identity(ticket_) ? net::Verdict::admitted
                                                  : net::Verdict::unexpected;
        },
        [](const net::Refusal& refusal) {
          log_line(fmt::format("{} was refused: {}", refusal.address, refusal.reason));
        },
        [this](net::Admission admission) { serve(std::move(admission)); });
    log_line(fmt::format("pilot of {}, generation {}, job {} on {}: waits at {}:{}", ticket_.node,
                         ticket_.generation, by.job, by.machine, by.address, by.port));
  }

  int run() {
    called_at_ = loop_.now();
    const net::Loop::Timer look = loop_.every(kPilotLook, [this] { this->look(); });
    loop_.run();
    hang_up();
    end_descendants();
    return 0;
  }

 private:
  void look() {
    int status = 0;
    for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;)
      if (pid == agent_) agent_ = -1;
    if (channel_) called_at_ = loop_.now();
    if (is_withdrawn(ticket_)) {
      log_line("the ticket was withdrawn; this pilot ends");
      loop_.stop();
    } else if (loop_.now() > called_at_ + kAlone) {
      log_line(fmt::format("nobody has called for {} minutes; this pilot ends", kAlone.count()));
      loop_.stop();
    }
  }

  void notice() {
    signalfd_siginfo info;
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
      log_line("the batch system takes this node back soon");
      try {
        write_file_atomic(ticket_.path() / "notice", "SIGTERM\n");
      } catch (const Error& e) {
        log_line(e.what());
      }
    }
  }

  // The latest caller counts: there is one service.
  void serve(net::Admission admission) {
    hang_up();
    std::array<int, 2> in{}, out{};
    if (::pipe2(in.data(), O_CLOEXEC) != 0) return log_line("no pipe for the agent");
    const Descriptor in_read(in[0]);
    to_agent_ = Descriptor(in[1]);
    if (::pipe2(out.data(), O_CLOEXEC) != 0) return log_line("no pipe for the agent");
    from_agent_ = Descriptor(out[0]);
    const Descriptor out_write(out[1]);
    try {
      process::SpawnOptions launch;
      launch.program = fs::read_symlink("/proc/self/exe");
      launch.arguments = {kHostAgent};
      launch.input_fd = in_read.get();
      launch.output_fd = out_write.get();
      launch.error_fd = STDERR_FILENO;
      launch.mask = &mask_;
      agent_ = process::spawn(launch);
      channel_ =
          std::make_unique<net::Channel>(std::move(admission.socket), *std::move(admission.seal));
      for (const auto* end : {&from_agent_, &to_agent_})  // an agent that is stuck must not stop us
        ::fcntl(end->get(), F_SETFL, O_NONBLOCK);
      call_watch_ = loop_.watch(channel_->socket().fd(), net::Interest::read,
                                [this](net::Ready) { hear_caller(); });
      agent_watch_ =
          loop_.watch(from_agent_.get(), net::Interest::read, [this](net::Ready) { hear_agent(); });
    } catch (const std::exception& e) {
      log_line(e.what());
      hang_up();
    }
  }

  void hear_caller() {
    try {
      while (const auto bytes = channel_->try_receive())
        if (!write_all(to_agent_.get(), *bytes)) return hang_up();
    } catch (const Error&) {
      hang_up();
    }
  }

  void hear_agent() {
    try {
      std::vector<std::byte> block(kPilotBlock);
      const ssize_t n = ::read(from_agent_.get(), block.data(), block.size());
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (n <= 0) return hang_up();
      block.resize(static_cast<size_t>(n));
      channel_->send(block, net::Clock::now() + kSend);
    } catch (const Error&) {
      hang_up();
    }
  }

  // The agent ends with its input; its workers go on.
  void hang_up() {
    call_watch_.end();
    agent_watch_.end();
    channel_.reset();
    to_agent_.close();
    from_agent_.close();
    agent_ = -1;
  }

  const PilotTicket ticket_;
  net::Loop loop_;
  sigset_t mask_{};
  Descriptor signals_, to_agent_, from_agent_;
  net::Loop::Watch signal_watch_, call_watch_, agent_watch_;
  std::unique_ptr<net::Channel> channel_;
  std::unique_ptr<net::Gate> gate_;
  pid_t agent_ = -1;
  net::Deadline called_at_{};
};

}  // namespace

int run_pilot(const fs::path& ticket, const std::string& towards) {
  std::signal(SIGPIPE, SIG_IGN);
  return Pilot(PilotTicket::at(ticket), towards).run();
}

int call_pilot(const fs::path& folder, const std::string& node, int in, int out) {
  std::signal(SIGPIPE, SIG_IGN);
  const PilotTicket ticket{folder, node, current_generation(folder, node)};
  const std::optional<PilotClaim> pilot = claim_of(ticket);
  if (ticket.generation == 0 || !pilot)
    fail(ErrorCode::not_found, "node {}: no pilot has come yet", node);
  net::DialOptions options;
  options.wait_for_server = false;
  net::Admission admission =
      net::dial({pilot->address, pilot->port}, net::Secret::from_file(ticket.path() / "secret"),
                caller_identity(ticket), pilot_identity(ticket), options,
                net::Clock::now() + std::chrono::seconds(10));
  net::Channel channel(std::move(admission.socket), *std::move(admission.seal));
  std::vector<std::byte> block(kPilotBlock);
  while (true) {
    std::array<pollfd, 2> ends{{{in, POLLIN, 0}, {channel.socket().fd(), POLLIN, 0}}};
    ::poll(ends.data(), ends.size(), -1);
    if (ends[0].revents != 0) {
      const ssize_t n = ::read(in, block.data(), block.size());
      if (n == 0) return 0;
      if (n > 0)
        channel.send(std::span(block).first(static_cast<size_t>(n)), net::Clock::now() + kSend);
    }
    if (ends[1].revents != 0)
      while (const auto bytes = channel.try_receive())
        if (!write_all(out, *bytes)) return 0;
  }
}

}  // namespace ductile::server
