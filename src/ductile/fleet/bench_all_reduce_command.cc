// `ductile bench all-reduce`: reads what is to be timed, and prints what bench::time_all_reduces
// finds.
#include <charconv>
#include <cmath>
#include <map>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/bench/all_reduce.h"
#include "ductile/cli/commands.h"
#include "ductile/page/numbers.h"
#include "ductile/page/terminal.h"

namespace ductile::cli {
namespace {

using Json = nlohmann::ordered_json;

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

std::vector<bench::AllReduceOptions::Variant> parse_variants(const std::string& list) {
  std::vector<bench::AllReduceOptions::Variant> variants;
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
    variants.push_back({word.substr(0, colon), pieces});
  }
  return variants;
}

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

}  // namespace

ExitCode bench_all_reduce(const AllReduceBenchCommand& command, Context& context) {
  Console& console = context.console;
  bench::AllReduceOptions options;
  options.workers = command.workers;
  options.hosts = command.hosts;
  options.launcher = command.launcher;
  options.transport = command.transport;
  options.seconds = command.seconds;
  options.recalibrate = command.recalibrate;
  options.variants = parse_variants(command.algorithms);
  for (const std::string& text : split(command.sizes, ','))
    options.sizes.push_back(parse_size(text));
  if (options.sizes.empty())
    fail(ErrorCode::invalid_argument, "bench all-reduce: --sizes names none");

  size_t done = 0;
  bench::AllReduceListener listener;
  listener.ready = [&](const Json& result) {
    const double seconds = result["calibration"].at("seconds");
    const std::string file = result["calibration"].at("file");
    console.say("{} ranks on {}, {}; {}", result["ranks"].get<int64_t>(),
                command.hosts.empty() ? "this host"
                                      : fmt::format("{} hosts", result["hosts"].get<int64_t>()),
                result["transport"].get<std::string>(),
                seconds > 0 ? "links measured in " + page::as_short_duration(seconds)
                            : fmt::format("links as measured before ({})", file));
    if (!command.json && command.explain) print_links(result, console);
  };
  listener.timed = [&](const Json& size) {
    const bool first = done == 0 && !command.explain;
    if (!command.json) print_size(size, first, command.explain, console);
    console.out().flush();
    console.explain("{} of {} sizes done", ++done, options.sizes.size());
  };
  const Json result = bench::time_all_reduces(options, listener);
  if (command.json) {
    console.print("{}\n", dump_json(result, 2));
  } else {
    print_summary(result.at("sizes"), console);
  }
  for (const Json& size : result.at("sizes")) {
    if (!size.at("correct").get<bool>())
      fail(ErrorCode::internal, "bench all-reduce: a sum came out wrong");
  }
  return kDone;
}

}  // namespace ductile::cli
