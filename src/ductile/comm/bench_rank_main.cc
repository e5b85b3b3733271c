// ductile-bench-rank: one rank of `ductile bench all-reduce`, which starts it here or, through a
// launcher, on another host. Nothing on its command line: it reads one line of JSON from stdin (the
// secret is in it) and answers with lines of JSON on stdout. Its end of stdin is its end.
#include <iostream>
#include <optional>
#include <thread>

#include <poll.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/log.h"
#include "ductile/base/machine.h"
#include "ductile/comm/bench_ranks.h"
#include "ductile/comm/benchmark.h"
#include "ductile/comm/calibrate.h"

namespace {

using namespace ductile;
using namespace ductile::comm;
using Json = nlohmann::ordered_json;

void say(const Json& line) { std::cout << dump_json(line) << std::endl; }

Json link_json(const Link& l) {
  Json j = {{"latency", l.latency}, {"bandwidth", l.bandwidth}, {"overhead", l.overhead}};
  if (l.sustained > 0) {
    j["burst"] = l.burst;
    j["sustained"] = l.sustained;
  }
  return j;
}

Json spread_json(const Spread& s) {
  return {{"median", s.median}, {"low", s.low}, {"high", s.high}};
}

Json calibration_json(const Calibration& c, const Topology& topology) {
  const Fabric& f = c.fabric;
  Json j = {{"seconds", c.seconds}, {"file", c.file.string()}};
  bool inside = false, between = false;
  for (int r = 1; r < topology.num_ranks; ++r) {
    (topology.host_of(r) == topology.host_of(r - 1) ? inside : between) = true;
  }
  if (inside) j["inside"] = link_json(f.inside);
  if (between) j["between"] = link_json(f.between);
  if (f.shared_bandwidth > 0) {
    j["shared_memory"] = {{"latency", f.shared_latency}, {"bandwidth", f.shared_bandwidth}};
  }
  j["reduce_bandwidth"] = f.reduce_bandwidth;
  return j;
}

Json times_json(const SizeTimes& times) {
  Json list = Json::array();
  for (const TimedAlgorithm& t : times.algorithms) {
    Json j = {{"algorithm", t.name}, {"pieces", t.pipeline}};
    if (t.predicted > 0) j["predicted"] = t.predicted;
    if (t.measured.median > 0) j["measured"] = spread_json(t.measured);
    if (!t.note.empty()) j["note"] = t.note;
    j["rounds"] = t.parts.rounds;
    j["parts"] = {{"latency", t.parts.latency},
                  {"transfer", t.parts.transfer},
                  {"reduction", t.parts.reduction}};
    list.push_back(std::move(j));
  }
  const auto name = [&](int i) {
    return i < 0 ? std::string() : times.algorithms[static_cast<size_t>(i)].name;
  };
  return {{"bytes", times.bytes},         {"algorithms", std::move(list)},
          {"chosen", name(times.chosen)}, {"best", name(times.best)},
          {"regret", times.regret()},     {"correct", times.correct},
          {"reason", times.reason}};
}

void run(const Json& spec) {
  const net::Secret secret(spec.at("secret").get<std::string>());
  BenchPlace place;
  place.job = spec.at("job");
  place.rank = spec.at("rank");
  place.size = spec.at("ranks");
  place.ranks_per_host = spec.at("ranks_per_host");
  place.transport = spec.at("transport");
  place.shm_inside = spec.at("shm_inside");
  place.tcp.links = spec.at("links").get<std::vector<std::string>>();
  const auto sizes = spec.at("sizes").get<std::vector<int64_t>>();
  for (const int64_t bytes : sizes) place.arena_bytes += static_cast<size_t>(bytes) + (2 << 20);

  BenchmarkOptions options;
  options.seconds = spec.at("seconds");
  for (const Json& v : spec.at("algorithms")) {
    options.variants.push_back(
        {algorithm_from_string(v.at("algorithm").get<std::string>()), v.at("pieces")});
  }

  std::optional<net::StoreServer> server;
  if (place.transport != "shm") {
    if (place.rank == 0) {
      server.emplace(net::Address{place.tcp.links.front(), 0}, secret, place.job);
      place.store = server->address();
      say({{"store", place.store.to_string()}});
    } else {
      place.store = net::Address::parse(spec.at("store").get<std::string>());
    }
  }
  BenchRank rank(place, secret);
  Communicator& comm = rank.communicator();
  CalibrationOptions calibration;
  if (spec.at("cache").get<bool>()) calibration.cache = calibration_cache();
  calibration.anew = spec.at("recalibrate");
  calibration.transport = place.transport;
  if (place.shm_inside) calibration.transport += " and shared memory inside";
  const Calibration links = calibrate(comm, calibration);
  if (place.rank == 0) {
    const CpuShare cpu = cpu_share();
    say({{"ready", true},
         {"cores", cpu.usable()},
         {"calibration", calibration_json(links, comm.topology())}});
  }
  for (const int64_t bytes : sizes) {
    float* const data = rank.memory(static_cast<size_t>(bytes) / sizeof(float) + 1);
    const SizeTimes times = time_all_reduce(comm, data, bytes, options);
    if (place.rank == 0) say(times_json(times));
  }
  comm.barrier();
}

// Whoever started us holds the other end of stdin: when that goes away, so do we.
void end_with_stdin() {
  std::thread([] {
    pollfd fd{STDIN_FILENO, POLLIN, 0};
    char c;
    while (poll(&fd, 1, -1) < 0 || read(STDIN_FILENO, &c, 1) > 0) {
    }
    _exit(1);
  }).detach();
}

}  // namespace

int main() {
  Json spec;
  try {
    std::string line;
    std::getline(std::cin, line);
    if (line.empty()) {
      log_line("ductile-bench-rank is started by `ductile bench all-reduce`");
      return 2;
    }
    spec = parse_json<Json>(line);
    end_with_stdin();
    run(spec);
    std::cout.flush();
    _exit(0);  // the thread above still reads
  } catch (const Error& error) {
    say({{"error", error.what()}, {"code", to_string(error.code())}});
  } catch (const std::exception& error) {
    say({{"error", error.what()}, {"code", "internal"}});
  }
  _exit(1);
}
