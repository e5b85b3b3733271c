// What it takes to bring a tensor from one stage to another on the same host: into ordinary memory,
// through a ring, so both sides copy; and into the arena, where the sender puts it. By turns, in
// one run, between two threads. The receiver reads all of each message and posts the next receive
// before, as stages do; what it takes is counted until it has read the last one.
//   stage_messages_bench [ROUNDS]
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "ductile/comm/arena.h"
#include "ductile/comm/communicator.h"
#include "ductile/comm/shm_transport.h"

namespace {

using namespace ductile::comm;

constexpr size_t kSizes[] = {size_t{32} << 10, size_t{128} << 10, size_t{1} << 20, size_t{4} << 20,
                             size_t{16} << 20};
constexpr size_t kMost = size_t{16} << 20;
constexpr int kMessages = 8;
constexpr uint32_t kTag = 1;

double core_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

uint64_t sum_of(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i + sizeof sum <= bytes.size(); i += sizeof sum) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, sizeof word);
    sum += word;
  }
  return sum;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void send_all(Communicator& comm, int rounds) {
  std::vector<std::byte> data(kMost, std::byte{1});
  for (const size_t size : kSizes) {
    for (int turn = 0; turn < 2 * rounds; ++turn) {
      comm.barrier();
      for (int m = 0; m < kMessages; ++m) comm.send(1, kTag, std::span(data).first(size));
    }
  }
}

// Of one turn, by message: seconds, and seconds of both threads' cores.
struct Taken {
  double seconds, core_seconds;
};

Taken receive_turn(Communicator& comm, const std::array<std::span<std::byte>, 2>& places,
                   uint64_t& sum) {
  comm.barrier();
  const auto start = std::chrono::steady_clock::now();
  const double cores = core_seconds();
  Work next = comm.start_receive(0, kTag, places[0]);
  for (int m = 0; m < kMessages; ++m) {
    next.wait();
    if (m + 1 < kMessages) next = comm.start_receive(0, kTag, places[(m + 1) % 2]);
    sum += sum_of(places[m % 2]);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return {seconds.count() / kMessages, (core_seconds() - cores) / kMessages};
}

void receive_all(Communicator& comm, std::byte* arena, int rounds) {
  std::vector<std::byte> ordinary(2 * kMost);
  uint64_t sum = 0;
  fmt::print("{:>10} {:>14} {:>14} {:>8} {:>10}\n", "KiB", "ordinary, us", "arena, us", "faster",
             "core time");
  for (const size_t size : kSizes) {
    std::vector<double> seconds[2], cores[2];
    for (int turn = 0; turn < 2 * rounds; ++turn) {
      std::byte* const memory = turn % 2 == 0 ? ordinary.data() : arena;
      const Taken taken =
          receive_turn(comm, {std::span(memory, size), std::span(memory + kMost, size)}, sum);
      seconds[turn % 2].push_back(taken.seconds);
      cores[turn % 2].push_back(taken.core_seconds);
    }
    const double before = median(seconds[0]), now = median(seconds[1]);
    fmt::print("{:>10} {:>14.1f} {:>14.1f} {:>7.2f}x {:>9.2f}x\n", size >> 10, 1e6 * before,
               1e6 * now, before / now, median(cores[1]) / median(cores[0]));
  }
  fmt::print("(sum of all that was read: {:x})\n", sum);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 40;
  auto arenas = Arena::for_threads(2, {.region_bytes = 2 * kMost});
  std::byte* const inside = arenas[1]->allocate(2 * kMost);
  Communicator sender(make_shm_transport(std::move(arenas[0])));
  Communicator receiver(make_shm_transport(std::move(arenas[1])));
  std::jthread other([&] { send_all(sender, rounds); });
  receive_all(receiver, inside, rounds);
  return 0;
}
