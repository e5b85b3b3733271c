// What encryption costs on control links: processor time of a message and of a new connection, and
// memory of an idle one, for net::Seal, beside frames that carry an authentication code and are
// readable (the layer before it, 16 of 32 bytes of HMAC-SHA256), in alternation. Times are those of
// the thread, so a loaded machine changes them little. Prints JSON.
#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iostream>
#include <thread>
#include <vector>

#include <unistd.h>

#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/net/channel.h"
#include "ductile/net/gate.h"

using namespace ductile;
using namespace ductile::net;

namespace {

using Bytes = std::vector<std::byte>;
using Json = nlohmann::ordered_json;

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double resident_bytes() {
  size_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

// One end of the layer before: length, payload, and a code over the message's number and both.
struct CodedFrames {
  Secret key{std::string_view("the key of one direction")};
  uint64_t number = 0;
  Mac code(std::span<const std::byte> bytes) {
    std::array<std::byte, 8> head;
    std::memcpy(head.data(), &number, sizeof number);
    ++number;
    return key.mac({head, bytes});
  }
  void append(std::span<const std::byte> payload, Bytes& out) {
    const size_t start = out.size();
    const auto length = static_cast<uint32_t>(payload.size());
    const auto bytes = std::as_bytes(std::span(&length, 1));
    out.insert(out.end(), bytes.begin(), bytes.end());
    out.insert(out.end(), payload.begin(), payload.end());
    const Mac mac = code(std::span(out).subspan(start));
    out.insert(out.end(), mac.begin(), mac.begin() + 16);
  }
  Bytes open(std::span<const std::byte> frame) {
    const Mac mac = code(frame.first(frame.size() - 16));
    if (!equal_in_constant_time(frame.last(16), std::span(mac).first(16))) std::abort();
    return {frame.begin() + 4, frame.end() - 16};
  }
};

double coded_message(size_t size, int count) {
  CodedFrames from, to;
  const Bytes payload(size, std::byte{'x'});
  const double begin = processor_seconds();
  for (int i = 0; i < count; ++i) {
    Bytes wire;
    from.append(payload, wire);
    if (to.open(wire).size() != size) std::abort();
  }
  return (processor_seconds() - begin) / count;
}

struct SealedEnds {
  Seal client, server;
  explicit SealedEnds(const Mac& key)
      : client(Seal::Side::client, key), server(Seal::Side::server, key) {
    while (!client.done() || !server.done()) {
      pass(client, server);
      pass(server, client);
    }
  }
  static void pass(Seal& from, Seal& to) {
    const Bytes bytes = from.take_output();
    for (std::span<const std::byte> rest(bytes); !rest.empty();) {
      const auto part = rest.first(std::min(rest.size(), to.wanted()));
      to.feed(part);
      rest = rest.subspan(part.size());
    }
  }
};

double sealed_message(size_t size, int count) {
  SealedEnds ends(Mac{});
  const Bytes payload(size, std::byte{'x'});
  const double begin = processor_seconds();
  for (int i = 0; i < count; ++i) {
    Bytes wire;
    ends.client.append(payload, wire);
    ends.server.feed(wire);
    if (ends.server.next()->size() != size) std::abort();
  }
  return (processor_seconds() - begin) / count;
}

// Both ends together, without sockets.
double gate_handshake(bool then_seal, int count) {
  const Secret secret = Secret::random();
  const Identity server{"control", "job", 0, -1, 0}, client{"control", "job", 0, 1, 0};
  const double begin = processor_seconds();
  for (int i = 0; i < count; ++i) {
    Handshake c = Handshake::client(secret, client, server);
    Handshake s =
        Handshake::server(secret, server, [](const Identity&) { return Verdict::admitted; });
    while (c.state() == Handshake::State::running) {
      s.feed(c.take_output());
      c.feed(s.take_output());
    }
    if (then_seal) SealedEnds ends(c.key());
  }
  return (processor_seconds() - begin) / count;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Medians of both over rounds in which each has its turn.
template <class A, class B>
Json in_turns(const A& coded, const B& sealed, int rounds = 15) {
  std::vector<double> a, b;
  for (int i = 0; i < rounds; ++i) {
    a.push_back(coded());
    b.push_back(sealed());
  }
  return {{"coded_us", 1e6 * median(a)},
          {"sealed_us", 1e6 * median(b)},
          {"ratio", median(b) / median(a)}};
}

}  // namespace

int main() {
  Json out;
  double before = processor_seconds();
  gate_handshake(false, 1);  // what any connection needs of OpenSSL
  out["first_gate_of_a_process_ms"] = 1e3 * (processor_seconds() - before);
  before = processor_seconds();
  SealedEnds first(Mac{});
  out["first_seal_of_a_process_ms"] = 1e3 * (processor_seconds() - before);
  for (const size_t size : {32, 200, 2000, 20'000}) {
    const int count = size > 10'000 ? 500 : 3000;
    out["message_of_" + std::to_string(size) + "_bytes"] = in_turns(
        [&] { return coded_message(size, count); }, [&] { return sealed_message(size, count); });
  }
  out["new_connection"] =
      in_turns([] { return gate_handshake(false, 200); }, [] { return gate_handshake(true, 200); });
  constexpr int kIdle = 1000;
  std::vector<SealedEnds> idle;
  idle.reserve(kIdle);
  const double memory = resident_bytes();
  for (int i = 0; i < kIdle; ++i) {
    SealedEnds& ends = idle.emplace_back(Mac{});
    Bytes wire;
    ends.client.append(Bytes(200), wire);
    ends.server.feed(wire);
    ends.server.next();
  }
  out["memory_of_an_idle_end_kb"] = (resident_bytes() - memory) / kIdle / 2 / 1024;
  std::cout << out.dump(1) << "\n";
}
