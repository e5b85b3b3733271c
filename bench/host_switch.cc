// A switch in user space for emulated hosts (bench/hosts, set-up b): what a network of real hosts
// has and a bridge with a token bucket lacks, a delay and full-duplex ports of a fixed rate.
//
//   host_switch HOSTS NICS RATE_BITS_PER_SECOND DELAY_SECONDS
//
// Makes HOSTS x NICS TUN devices port<host>n<nic> in its own network namespace and prints "ready";
// the caller moves them into the namespaces of the hosts and numbers host h's card
// k 10.(80+k).0.(h+1).
//
// Each packet takes a slot of the sending port at the rate, travels for the delay, takes a slot of
// the receiving port, and is delivered at its end. A card whose port is 2 ms behind is not read, so
// that its queue pushes back on the sender as a real card does; the receiving port drops what comes
// on top of a queue of 4 MB. Counts are printed at SIGTERM.

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <queue>
#include <string>
#include <vector>

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace {

using Nanoseconds = int64_t;

constexpr Nanoseconds kReadAhead = 2'000'000;
constexpr int64_t kQueueBytes = 4 << 20;
constexpr size_t kPacketBytes = 9216;
constexpr int kFirstNetwork = 80;

volatile std::sig_atomic_t stopping = 0;

Nanoseconds now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

struct Packet {
  std::array<unsigned char, kPacketBytes> bytes;
  size_t size = 0;
  int to = 0;
};

struct Port {
  int fd = -1;
  Nanoseconds sending_until = 0;
  Nanoseconds receiving_until = 0;
};

struct Event {
  Nanoseconds at;
  uint64_t number;  // of two at one time, the first first
  bool deliver;     // else: it reaches the receiving port
  Packet* packet;
  bool operator>(const Event& o) const { return at != o.at ? at > o.at : number > o.number; }
};

[[noreturn]] void give_up(const std::string& what) {
  std::fprintf(stderr, "host_switch: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

int open_tun(const std::string& name) {
  const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) give_up("cannot open /dev/net/tun (root, and a kernel with TUN, are needed)");
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
  if (ioctl(fd, TUNSETIFF, &request) != 0) give_up("cannot make device " + name);
  return fd;
}

class Switch {
 public:
  Switch(int hosts, int nics, double rate, double delay)
      : hosts_(hosts),
        nics_(nics),
        nanoseconds_per_byte_(8e9 / rate),
        delay_(static_cast<Nanoseconds>(delay * 1e9)) {
    for (int h = 0; h < hosts; ++h) {
      for (int n = 0; n < nics; ++n) {
        ports_.push_back({open_tun("port" + std::to_string(h) + "n" + std::to_string(n))});
      }
    }
  }

  void run() {
    std::vector<pollfd> polled;
    while (stopping == 0) {
      Nanoseconds time = now();
      serve(time);
      polled.clear();
      Nanoseconds wake = time + 1'000'000'000;
      if (!events_.empty()) wake = std::min(wake, events_.top().at);
      for (const Port& port : ports_) {
        const bool behind = port.sending_until > time + kReadAhead;
        if (behind) wake = std::min(wake, port.sending_until - kReadAhead);
        polled.push_back({behind ? -1 : port.fd, POLLIN, 0});
      }
      const Nanoseconds left = std::max<Nanoseconds>(0, wake - now());
      const timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
      if (ppoll(polled.data(), polled.size(), &timeout, nullptr) <= 0) continue;
      for (size_t i = 0; i < ports_.size(); ++i) {
        if (polled[i].revents & POLLIN) take(static_cast<int>(i));
      }
    }
    std::fprintf(stderr, "host_switch: %llu packets carried, %llu dropped\n",
                 static_cast<unsigned long long>(carried_),
                 static_cast<unsigned long long>(dropped_));
  }

 private:
  Nanoseconds slot(size_t bytes) const {
    return static_cast<Nanoseconds>(static_cast<double>(bytes) * nanoseconds_per_byte_);
  }

  // Reads what the card has, for as long as its port is not behind.
  void take(int from) {
    Port& port = ports_[static_cast<size_t>(from)];
    const Nanoseconds time = now();
    while (port.sending_until <= time + kReadAhead) {
      Packet* packet = fresh();
      const ssize_t size = read(port.fd, packet->bytes.data(), packet->bytes.size());
      if (size <= 0) {
        free_.push_back(packet);
        return;
      }
      packet->size = static_cast<size_t>(size);
      packet->to = destination(*packet);
      if (packet->to < 0) {  // IPv6 neighbour talk and the like
        free_.push_back(packet);
        continue;
      }
      port.sending_until = std::max(port.sending_until, time) + slot(packet->size);
      events_.push({port.sending_until + delay_, number_++, false, packet});
    }
  }

  int destination(const Packet& packet) const {
    const auto& b = packet.bytes;
    if (packet.size < 20 || b[0] >> 4 != 4 || b[16] != 10) return -1;
    const int nic = b[17] - kFirstNetwork;
    const int host = b[19] - 1;
    if (nic < 0 || nic >= nics_ || host < 0 || host >= hosts_) return -1;
    return host * nics_ + nic;
  }

  void serve(Nanoseconds time) {
    while (!events_.empty() && events_.top().at <= time) {
      const Event event = events_.top();
      events_.pop();
      Packet* packet = event.packet;
      Port& port = ports_[static_cast<size_t>(packet->to)];
      if (event.deliver) {
        if (write(port.fd, packet->bytes.data(), packet->size) < 0) ++dropped_;
        ++carried_;
        free_.push_back(packet);
        continue;
      }
      // Computed from the time it was due, not from when this process got to it.
      const Nanoseconds behind = std::max<Nanoseconds>(0, port.receiving_until - event.at);
      if (behind > slot(static_cast<size_t>(kQueueBytes))) {
        ++dropped_;
        free_.push_back(packet);
        continue;
      }
      port.receiving_until = event.at + behind + slot(packet->size);
      events_.push({port.receiving_until, number_++, true, packet});
    }
  }

  Packet* fresh() {
    if (free_.empty()) return new Packet;
    Packet* packet = free_.back();
    free_.pop_back();
    return packet;
  }

  const int hosts_;
  const int nics_;
  const double nanoseconds_per_byte_;
  const Nanoseconds delay_;
  std::vector<Port> ports_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<Packet*> free_;  // lives as long as the process
  uint64_t number_ = 0;
  uint64_t carried_ = 0;
  uint64_t dropped_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: host_switch HOSTS NICS RATE_BITS_PER_SECOND DELAY_SECONDS\n");
    return 2;
  }
  const int hosts = std::atoi(argv[1]);
  const int nics = std::atoi(argv[2]);
  const double rate = std::atof(argv[3]);
  const double delay = std::atof(argv[4]);
  if (hosts < 1 || hosts > 250 || nics < 1 || nics > 8 || rate <= 0 || delay < 0) {
    std::fprintf(
        stderr, "host_switch: 1-250 hosts, 1-8 cards each, a rate above 0, a delay of 0 or more\n");
    return 2;
  }
  struct sigaction stop {};
  stop.sa_handler = [](int) { stopping = 1; };
  sigaction(SIGTERM, &stop, nullptr);
  sigaction(SIGINT, &stop, nullptr);
  Switch the_switch(hosts, nics, rate, delay);
  std::puts("ready");
  std::fflush(stdout);
  the_switch.run();
  return 0;
}
