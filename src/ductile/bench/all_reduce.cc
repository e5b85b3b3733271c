#include "ductile/bench/all_reduce.h"

#include <random>
#include <string_view>

#include <fmt/format.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/bench/rank_processes.h"
#include "ductile/server/hosts.h"

namespace ductile::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kRankProgram = "ductile-bench-rank";

// A host of a run.
struct Place {
  std::string name;
  std::vector<std::string> launcher;  // empty: this machine
  std::vector<std::string> links = {"127.0.0.1"};
};

// "10.0.0.2+10.0.1.2": a link per network; the name where no address was given.
std::vector<std::string> addresses_of(const server::Host& host) {
  std::string_view left = host.address.empty() ? host.name : host.address;
  std::vector<std::string> links;
  while (true) {
    const size_t end = left.find('+');
    if (!left.substr(0, end).empty()) links.emplace_back(left.substr(0, end));
    if (end == std::string_view::npos) return links;
    left.remove_prefix(end + 1);
  }
}

// The hosts of --hosts; this machine alone where it names none. Adds up their workers where they
// all say how many they take.
std::vector<Place> places_of(const AllReduceOptions& options, std::optional<int64_t>& workers) {
  std::vector<Place> places;
  if (options.hosts.empty()) {
    places.emplace_back();
    return places;
  }
  std::error_code error;
  const auto hosts = fs::is_regular_file(options.hosts, error) ? server::read_hosts(options.hosts)
                                                               : server::parse_hosts(options.hosts);
  int64_t sum = 0;
  for (const server::Host& host : hosts) {
    Place place;
    place.name = host.name;
    place.links = addresses_of(host);
    if (!server::is_this_machine(host))
      place.launcher = server::launch_words(options.launcher, host.name);
    places.push_back(std::move(place));
    sum += host.places;
    if (host.places != hosts.front().places)
      fail(ErrorCode::invalid_argument,
           "bench all-reduce: every host takes as many workers as the others; {} takes {}, {} {}",
           hosts.front().name, hosts.front().places, host.name, host.places);
  }
  if (!workers && sum > 0) workers = sum;
  return places;
}

// The options with every default resolved, and what follows from them.
struct Setup {
  std::vector<Place> places;
  bool several = false;  // hosts were named
  int64_t workers = 0, per_host = 0;
  std::string transport;
};

Setup resolve(const AllReduceOptions& options) {
  Setup setup;
  std::optional<int64_t> wanted = options.workers;
  setup.places = places_of(options, wanted);
  setup.several = !options.hosts.empty();
  const auto num_hosts = static_cast<int64_t>(setup.places.size());
  setup.workers = wanted.value_or(setup.several ? num_hosts : 2);
  setup.transport = !options.transport.empty() ? options.transport : setup.several ? "tcp" : "shm";
  if (setup.workers % num_hosts != 0)
    fail(ErrorCode::invalid_argument,
         "bench all-reduce: {} workers do not spread evenly over {} hosts", setup.workers,
         num_hosts);
  if (setup.several && setup.transport == "shm")
    fail(ErrorCode::invalid_argument,
         "bench all-reduce: shared memory ends at a host; between hosts there are tcp and ucx");
  setup.per_host = setup.workers / num_hosts;
  return setup;
}

// What the ranks are told; each gets its number and links, too.
Json spec_of(const AllReduceOptions& options, const Setup& setup) {
  std::random_device random;
  std::string secret;
  for (int i = 0; i < 8; ++i) secret += fmt::format("{:08x}", random());
  Json variants = Json::array();
  for (const auto& v : options.variants)
    variants.push_back({{"algorithm", v.algorithm}, {"pieces", v.pieces}});
  return {{"job", fmt::format("bench-{}-{:08x}", getpid(), random())},
          {"secret", secret},
          {"ranks", setup.workers},
          {"ranks_per_host", setup.per_host},
          {"transport", setup.transport},
          {"shm_inside", setup.several && setup.per_host > 1},
          {"seconds", options.seconds},
          {"cache", true},
          {"recalibrate", options.recalibrate},
          {"algorithms", std::move(variants)},
          {"sizes", options.sizes}};
}

}  // namespace

Json time_all_reduces(const AllReduceOptions& options, const AllReduceListener& listener) {
  if (options.sizes.empty())
    fail(ErrorCode::invalid_argument, "bench all-reduce: no size is named");
  const Setup setup = resolve(options);
  Json spec = spec_of(options, setup);
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path() / kRankProgram;
  if (access(program.c_str(), X_OK) != 0)
    fail(ErrorCode::not_found, "{}: not beside this program; build it, or install Ductile again",
         program.string());
  const auto place_of = [&](size_t rank) -> const Place& {
    return setup.places[rank / static_cast<size_t>(setup.per_host)];
  };
  RankProcesses ranks;
  for (size_t r = 0; r < static_cast<size_t>(setup.workers); ++r) {
    const Place& place = place_of(r);
    ranks.start(program, place.launcher, setup.several ? " on " + place.name : "");
  }
  const auto tell = [&](size_t r) {
    Json own = spec;
    own["rank"] = r;
    own["links"] = place_of(r).links;
    ranks.tell(r, own);
  };
  const auto tell_others = [&] {
    for (size_t r = 1; r < ranks.size(); ++r) tell(r);
  };
  tell(0);
  if (setup.transport == "shm") tell_others();  // otherwise rank 0 says first where its store is

  Json result = {{"ranks", setup.workers},
                 {"hosts", setup.places.size()},
                 {"transport", setup.transport},
                 {"sizes", Json::array()}};
  ranks.listen([&](size_t, const Json& line) {
    if (line.contains("store")) {
      spec["store"] = line.at("store");
      tell_others();
    } else if (line.contains("ready")) {
      result["cores"] = line.at("cores");
      result["calibration"] = line.at("calibration");
      listener.ready(result);
    } else if (line.contains("bytes")) {
      result["sizes"].push_back(line);
      listener.timed(line);
    }
    return true;
  });
  return result;
}

}  // namespace ductile::bench
