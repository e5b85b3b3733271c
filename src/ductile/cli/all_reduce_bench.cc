// `ductile bench all-reduce`: starts the ranks, passes on what they find, and prints it.
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <map>
#include <random>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/cli/commands.h"
#include "ductile/page/numbers.h"
#include "ductile/page/terminal.h"
#include "ductile/process/line_reader.h"
#include "ductile/process/spawn.h"
#include "ductile/server/hosts.h"

namespace ductile::cli {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::string_view kRankProgram = "ductile-bench-rank";

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> parts;
  while (true) {
    const size_t end = text.find(at);
    if (!text.substr(0, end).empty()) parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// "4096", "64K", "25M", "1G": bytes, in powers of two.
int64_t parse_size(const std::string& text) {
  int64_t value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  const std::string_view unit(end, static_cast<size_t>(last - end));
  const std::map<std::string_view, int> shift = {{"", 0}, {"K", 10}, {"M", 20}, {"G", 30}};
  const auto found = shift.find(unit);
  constexpr int64_t kMost = int64_t{4} << 30;
  if (error != std::errc() || found == shift.end() || value < 1 || value > (kMost >> found->second))
    fail(ErrorCode::invalid_argument,
         "bench all-reduce: size '{}': write bytes, such as 4096, 64K or 25M, up to 4G", text);
  return value << found->second;
}

// A rank as a process of ours: here, or a launcher's that runs it elsewhere.
struct Rank {
  pid_t pid = -1;
  Descriptor in;   // to its stdin
  Descriptor out;  // from its stdout
  process::LineReader lines;
  std::string where;
};

Descriptor end_of(int fd) { return Descriptor(fd); }

void start(Rank& rank, const std::vector<std::string>& launcher, const fs::path& program) {
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0) fail_errno("pipe", errno);
  Descriptor child_in = end_of(in[0]);
  rank.in = end_of(in[1]);
  if (pipe2(out, O_CLOEXEC) != 0) fail_errno("pipe", errno);
  rank.out = end_of(out[0]);
  Descriptor child_out = end_of(out[1]);
  fcntl(rank.out.get(), F_SETFL, O_NONBLOCK);
  process::SpawnOptions spawn;
  spawn.program = program;
  if (!launcher.empty()) {
    spawn.program = "/usr/bin/env";  // looks the launcher up on PATH
    spawn.arguments = launcher;
    spawn.arguments.push_back(program.string());
  }
  spawn.input_fd = child_in.get();
  spawn.output_fd = child_out.get();
  spawn.error_fd = STDERR_FILENO;
  rank.pid = process::spawn(spawn);
}

// The ranks of one run; whatever happens, none is left.
class Group {
 public:
  ~Group() {
    for (Rank& rank : ranks) rank.in.close();  // the end of a rank's stdin is its end
    for (Rank& rank : ranks) {
      if (rank.pid > 0) kill(rank.pid, SIGTERM);
    }
    for (Rank& rank : ranks) {
      if (rank.pid > 0) waitpid(rank.pid, nullptr, 0);
    }
  }

  void tell(size_t r, const Json& line) {
    const std::string text = dump_json(line) + "\n";
    // One line is far shorter than a pipe; that a rank is gone shows on its other end.
    const auto before = signal(SIGPIPE, SIG_IGN);
    [[maybe_unused]] const ssize_t n = write(ranks[r].in.get(), text.data(), text.size());
    signal(SIGPIPE, before);
  }

  // Calls on_line(rank, line) for what the ranks say, until all have ended or it returns false.
  // Throws what a rank reports, or how it died.
  void listen(const std::function<bool(size_t, const Json&)>& on_line) {
    bool more = true;
    while (more) {
      std::vector<pollfd> polled;
      std::vector<size_t> who;
      for (size_t r = 0; r < ranks.size(); ++r) {
        if (ranks[r].out.get() < 0) continue;
        polled.push_back({ranks[r].out.get(), POLLIN, 0});
        who.push_back(r);
      }
      const bool late = first_error && Clock::now() > first_error_at + std::chrono::seconds(1);
      if (polled.empty() || late) break;
      if (poll(polled.data(), polled.size(), 200) <= 0) continue;
      for (size_t i = 0; i < polled.size(); ++i) {
        if (polled[i].revents == 0) continue;
        const size_t r = who[i];
        const bool open = ranks[r].lines.read(ranks[r].out.get(), [&](std::string_view text) {
          const Json line = parse_json<Json>(text);
          if (line.contains("error")) {
            note(r, error_code_from(line.value("code", "internal")), line.at("error"));
          } else if (line.is_object() && !on_line(r, line)) {
            more = false;
          }
        });
        if (!open) reap(r);
      }
    }
    if (first_error) throw *first_error;
  }

  std::vector<Rank> ranks;

 private:
  void reap(size_t r) {
    ranks[r].out.close();
    int status = 0;
    waitpid(ranks[r].pid, &status, 0);
    ranks[r].pid = -1;
    if (WIFSIGNALED(status)) {
      note(r, ErrorCode::peer_lost, fmt::format("killed by signal {}", WTERMSIG(status)));
    } else if (WEXITSTATUS(status) != 0) {
      note(r, ErrorCode::unavailable, fmt::format("ended with exit code {}", WEXITSTATUS(status)));
    }
  }

  // The cause comes first, but that others lost a rank is never the cause.
  void note(size_t r, ErrorCode code, const std::string& text) {
    const bool better = !first_error || (first_error->code() == ErrorCode::peer_lost &&
                                         code != ErrorCode::peer_lost && !settled);
    if (!first_error) first_error_at = Clock::now();
    if (better) {
      first_error.emplace(code, fmt::format("rank {}{}: {}", r, ranks[r].where, text));
      settled = code != ErrorCode::peer_lost;
    }
  }

  std::optional<Error> first_error;
  Clock::time_point first_error_at;
  bool settled = false;
};

// 0.034 -> "+3 %".
std::string behind_text(double share) {
  return fmt::format("+{:.0f} %", std::floor(share * 100 + 0.5));
}

// "ring in 4 pieces".
std::string way_text(const Json& algorithm) {
  const std::string name = algorithm.at("algorithm");
  const int pieces = algorithm.at("pieces");
  return pieces > 1 ? fmt::format("{} in {} pieces", name, pieces) : name;
}

const Json* find_algorithm(const Json& size, const std::string& name) {
  for (const Json& a : size.at("algorithms")) {
    if (a.at("algorithm") == name && a.contains("measured")) return &a;
  }
  return nullptr;
}

// Lines of at most 100 columns, two spaces in.
std::string wrapped(const std::string& text) {
  std::string result, line;
  for (const std::string& word : split(text, ' ')) {
    if (!line.empty() && line.size() + word.size() > 96) {
      result += "  " + line + "\n";
      line = "  ";
    }
    line += (line.empty() || line.back() == ' ' ? "" : " ") + word;
  }
  return result + "  " + line + "\n";
}

void print_size(const Json& size, bool first, bool explain, Console& console) {
  std::vector<std::vector<std::string>> rows = {
      {"", "algorithm", "pieces", "predicted", "measured", "spread", "to best"}};
  if (explain) rows[0].insert(rows[0].end(), {"steps", "alpha", "beta", "gamma"});
  std::vector<page::Align> align(rows[0].size(), page::Align::right);
  align[0] = align[1] = page::Align::left;
  const std::string chosen = size.at("chosen"), best = size.at("best");
  double least = 0;
  if (const Json* b = find_algorithm(size, best)) least = (*b)["measured"]["median"];
  std::string others;
  for (const Json& a : size.at("algorithms")) {
    const std::string name = a.at("algorithm");
    if (!a.contains("measured")) {
      others += wrapped(fmt::format("{}: {}", name, a.value("note", "not measured")));
      continue;
    }
    const Json& m = a.at("measured");
    const double median = m.at("median");
    const double spread = (m.at("high").get<double>() - m.at("low").get<double>()) / median;
    rows.push_back({name == chosen ? "*" : "", name,
                    a.at("pieces") == 0 ? "" : std::to_string(a.at("pieces").get<int>()),
                    a.contains("predicted") ? page::as_short_duration(a.at("predicted")) : "",
                    page::as_short_duration(median), fmt::format("{:.0f} %", spread * 100),
                    name == best ? "best" : behind_text(median / least - 1)});
    if (!explain) continue;
    const Json& parts = a.at("parts");
    if (a.at("rounds") == 0) continue;
    rows.back().push_back(std::to_string(a.at("rounds").get<int64_t>()));
    for (const char* part : {"latency", "transfer", "reduction"}) {
      rows.back().push_back(page::as_short_duration(parts.at(part)));
    }
  }
  console.print("{}{}\n{}", first ? "" : "\n", page::as_bytes(size.at("bytes")),
                page::table(rows, align));
  if (explain) {
    console.print("{}{}", others, wrapped("why: " + size.at("reason").get<std::string>()));
  }
}

void print_links(const Json& ready, Console& console) {
  const Json& c = ready.at("calibration");
  const auto rate = [](double bytes) { return fmt::format("{:.3g} GB/s", bytes / 1e9); };
  const auto link = [&](const char* name, const char* text) {
    if (!c.contains(name)) return;
    const Json& l = c.at(name);
    console.print("  {:<16}{:>9} latency  {:>11}", text, page::as_short_duration(l.at("latency")),
                  rate(l.at("bandwidth")));
    if (l.contains("overhead")) {
      console.print("  {:>9} of processor a message, each end",
                    page::as_short_duration(l.at("overhead")));
    }
    console.print("\n");
    if (l.contains("sustained")) {
      console.print("  {:<16}{:>9} {:>9}{:>11} beyond\n", "", "",
                    page::as_bytes(l.at("burst")) + ",", rate(l.at("sustained")));
    }
  };
  link("inside", "inside a host");
  link("between", "between hosts");
  link("shared_memory", "shared memory");
  console.print("  {:<16}{:>20}  {:>11} a rank\n", "adding", "", rate(c.at("reduce_bandwidth")));
}

void print_summary(const Json& sizes, Console& console) {
  using page::Align;
  std::vector<std::vector<std::string>> rows = {
      {"size", "chosen", "takes", "best", "chosen to best"}};
  for (const Json& size : sizes) {
    const Json* chosen = find_algorithm(size, size.at("chosen"));
    const Json* best = find_algorithm(size, size.at("best"));
    if (chosen == nullptr || best == nullptr) continue;
    rows.push_back({page::as_bytes(size.at("bytes")), way_text(*chosen),
                    page::as_short_duration((*chosen)["measured"]["median"]), way_text(*best),
                    chosen == best ? "" : behind_text(size.at("regret"))});
  }
  if (rows.size() < 3) return;  // the head and one size
  console.print("\n{}", page::table(rows, {Align::right, Align::left, Align::right, Align::left,
                                           Align::right}));
}

// A host of a run.
struct Place {
  std::string name;
  std::vector<std::string> launcher;  // empty: this machine
  std::vector<std::string> links = {"127.0.0.1"};
};

// The hosts of --hosts; this machine alone where it names none. Adds up their workers where they
// all say how many they take.
std::vector<Place> places_of(const AllReduceBenchCommand& command,
                             std::optional<int64_t>& workers) {
  std::vector<Place> places;
  if (command.hosts.empty()) {
    places.emplace_back();
    return places;
  }
  std::error_code error;
  const auto hosts = fs::is_regular_file(command.hosts, error) ? server::read_hosts(command.hosts)
                                                               : server::parse_hosts(command.hosts);
  int64_t sum = 0;
  for (const server::Host& host : hosts) {
    Place place;
    place.name = host.name;
    place.links = split(host.address.empty() ? host.name : host.address, '+');
    if (!server::is_this_machine(host))
      place.launcher = server::launch_words(command.launcher, host.name);
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

Json checked_algorithms(const std::string& list) {
  Json variants = Json::array();
  for (const std::string& word : split(list, ',')) {
    const size_t colon = word.find(':');
    int pieces = 0;
    if (colon != std::string::npos) {
      const char* const last = word.data() + word.size();
      const auto [end, error] = std::from_chars(word.data() + colon + 1, last, pieces);
      if (error != std::errc() || end != last || pieces < 1 || pieces > 1024)
        fail(ErrorCode::invalid_argument,
             "bench all-reduce: '{}': write an algorithm, or algorithm:pieces", word);
    }
    variants.push_back({{"algorithm", word.substr(0, colon)}, {"pieces", pieces}});
  }
  return variants;
}

}  // namespace

ExitCode bench_all_reduce(const AllReduceBenchCommand& command, Context& context) {
  Console& console = context.console;
  std::optional<int64_t> wanted = command.workers;
  const std::vector<Place> places = places_of(command, wanted);
  const bool hosts = !command.hosts.empty();
  const auto num_hosts = static_cast<int64_t>(places.size());
  const int64_t workers = wanted.value_or(hosts ? num_hosts : 2);
  const std::string transport = !command.transport.empty() ? command.transport
                                : hosts                    ? "tcp"
                                                           : "shm";
  if (workers % num_hosts != 0)
    fail(ErrorCode::invalid_argument,
         "bench all-reduce: {} workers do not spread evenly over {} hosts", workers, num_hosts);
  if (hosts && transport == "shm")
    fail(ErrorCode::invalid_argument,
         "bench all-reduce: shared memory ends at a host; between hosts there are tcp and ucx");
  const int64_t per_host = workers / num_hosts;

  std::random_device random;
  std::string secret;
  for (int i = 0; i < 8; ++i) secret += fmt::format("{:08x}", random());
  Json spec = {{"job", fmt::format("bench-{}-{:08x}", getpid(), random())},
               {"secret", secret},
               {"ranks", workers},
               {"ranks_per_host", per_host},
               {"transport", transport},
               {"shm_inside", hosts && per_host > 1},
               {"seconds", command.seconds},
               {"cache", true},
               {"recalibrate", command.recalibrate},
               {"algorithms", checked_algorithms(command.algorithms)}};
  for (const std::string& text : split(command.sizes, ','))
    spec["sizes"].push_back(parse_size(text));
  const size_t num_sizes = spec["sizes"].size();
  if (num_sizes == 0) fail(ErrorCode::invalid_argument, "bench all-reduce: --sizes names none");

  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path() / kRankProgram;
  if (access(program.c_str(), X_OK) != 0)
    fail(ErrorCode::not_found, "{}: not beside this program; build it, or install Ductile again",
         program.string());
  Group group;
  for (int64_t r = 0; r < workers; ++r) {
    const Place& place = places[static_cast<size_t>(r / per_host)];
    Rank rank;
    if (hosts) rank.where = " on " + place.name;
    start(rank, place.launcher, program);
    group.ranks.push_back(std::move(rank));
  }
  const auto tell = [&](size_t r) {
    Json own = spec;
    own["rank"] = r;
    own["links"] = places[r / static_cast<size_t>(per_host)].links;
    group.tell(r, own);
  };
  tell(0);
  if (transport == "shm") {
    for (size_t r = 1; r < group.ranks.size(); ++r) tell(r);
  }

  Json result = {{"ranks", workers}, {"hosts", num_hosts}, {"transport", transport}};
  result["sizes"] = Json::array();
  const std::string where = hosts ? fmt::format("{} hosts", num_hosts) : "this host";
  bool correct = true;
  group.listen([&](size_t, const Json& line) {
    if (line.contains("store")) {
      spec["store"] = line.at("store");
      for (size_t r = 1; r < group.ranks.size(); ++r) tell(r);
    } else if (line.contains("ready")) {
      result["cores"] = line.at("cores");
      result["calibration"] = line.at("calibration");
      const Json& c = line.at("calibration");
      const double seconds = c.at("seconds");
      const std::string file = c.at("file");
      console.say("{} ranks on {}, {}; {}", workers, where, transport,
                  seconds > 0 ? "links measured in " + page::as_short_duration(seconds)
                              : fmt::format("links as measured before ({})", file));
      if (!command.json && command.explain) print_links(line, console);
    } else if (line.contains("bytes")) {
      correct = correct && line.at("correct").get<bool>();
      const bool first = result["sizes"].empty() && !command.explain;
      result["sizes"].push_back(line);
      if (!command.json) print_size(line, first, command.explain, console);
      console.out().flush();
      console.explain("{} of {} sizes done", result["sizes"].size(), num_sizes);
    }
    return true;
  });
  if (command.json) {
    console.print("{}\n", dump_json(result, 2));
  } else {
    print_summary(result.at("sizes"), console);
  }
  if (!correct) fail(ErrorCode::internal, "bench all-reduce: a sum came out wrong");
  return kDone;
}

}  // namespace ductile::cli
