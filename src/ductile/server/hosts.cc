#include "ductile/server/hosts.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"
#include "ductile/base/text.h"
#include "ductile/net/socket.h"

namespace ductile::server {
namespace {

using nlohmann::json;

constexpr std::string_view kForm = "write host, host:workers or host=address:workers";

int64_t parse_places(std::string_view text, std::string_view item) {
  int64_t places = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), places);
  if (error != std::errc() || end != text.data() + text.size() || places < 1 ||
      places > kMostOnOneHost)
    fail(ErrorCode::invalid_argument, "'{}': '{}' is no number of workers for a host (1 to {}); {}",
         item, text, kMostOnOneHost, kForm);
  return places;
}

bool is_host_name(std::string_view name) {
  return !name.empty() && name.front() != '-' &&
         name.find_first_of(" \t\n'\"\\$`;&|<>()*?{}") == std::string_view::npos;
}

// A version 6 address stands in brackets, so its colons are none of ours.
Host parse_host(std::string_view item) {
  if (const size_t at = find_not_utf8(item); at != std::string_view::npos)
    fail(ErrorCode::invalid_argument, "'{}': byte {} is not UTF-8 text; {}", to_utf8(item), at + 1,
         kForm);
  Host host;
  std::string_view rest = item;
  const size_t bracket = rest.rfind(']');
  const size_t colon = rest.rfind(':');
  if (colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket)) {
    host.places = parse_places(rest.substr(colon + 1), item);
    rest = rest.substr(0, colon);
  }
  const size_t equals = rest.find('=');
  host.name = rest.substr(0, equals);
  if (equals != std::string_view::npos) {
    std::string_view address = rest.substr(equals + 1);
    if (address.size() > 2 && address.front() == '[' && address.back() == ']')
      address = address.substr(1, address.size() - 2);
    if (address.empty()) fail(ErrorCode::invalid_argument, "'{}': no address; {}", item, kForm);
    host.address = address;
  }
  if (!is_host_name(host.name))
    fail(ErrorCode::invalid_argument, "'{}': no name of a host; {}", item, kForm);
  return host;
}

void check(const std::vector<Host>& hosts, std::string_view where) {
  if (hosts.empty()) fail(ErrorCode::invalid_argument, "{}: no host; {}", where, kForm);
  for (size_t i = 0; i < hosts.size(); ++i)
    for (size_t k = 0; k < i; ++k)
      if (hosts[i].name == hosts[k].name)
        fail(ErrorCode::invalid_argument, "{0}: host {1} comes twice; write {1}:2 for two workers",
             where, hosts[i].name);
}

std::string machine_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

std::string short_name(const std::string& name) { return name.substr(0, name.find('.')); }

}  // namespace

int64_t HostSetup::places() const {
  int64_t sum = 0;
  for (const Host& host : hosts) {
    if (host.places == 0) return 0;
    sum += host.places;
  }
  return sum;
}

int64_t HostSetup::most() const {
  if (hosts.empty()) return kMostOnOneHost;
  return places() > 0 ? places() : kMostOnOneHost * static_cast<int64_t>(hosts.size());
}

std::vector<Host> parse_hosts(std::string_view list) {
  std::vector<Host> hosts;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    hosts.push_back(parse_host(list.substr(begin, end - begin)));
    begin = end + 1;
  }
  check(hosts, list);
  return hosts;
}

std::vector<Host> hosts_of(const spec::Cluster& cluster,
                           std::span<const spec::NodeShare> allocation) {
  std::vector<Host> hosts;
  for (const spec::PlacedRun& run : spec::place(cluster, allocation)) {
    const spec::NodeGroup& group = cluster.groups[run.group];
    if (group.hosts.empty())
      fail(ErrorCode::invalid_argument,
           "the {} nodes of type {} have no names; write hosts = [\"gpu1\", \"gpu2\"] in their "
           "[[nodes]]",
           group.count, group.type);
    for (int64_t n = run.first; n < run.first + run.nodes; ++n) {
      const auto at = static_cast<size_t>(n);
      if (!is_host_name(group.hosts[at]))
        fail(ErrorCode::invalid_argument, "'{}' is no name of a host", group.hosts[at]);
      hosts.push_back({group.hosts[at], group.addresses.empty() ? "" : group.addresses[at],
                       std::min<int64_t>(run.devices, kMostOnOneHost), group.notice});
    }
  }
  return hosts;
}

std::vector<Host> read_hosts(const fs::path& file) {
  std::vector<Host> hosts;
  if (file.extension() == ".toml" || file.extension() == ".json") {
    const spec::Cluster cluster = spec::read_cluster(file);
    try {
      return hosts_of(cluster, spec::whole(cluster));
    } catch (Error& e) {
      e.with_context(file.string());
      throw;
    }
  }
  std::istringstream lines(read_text(file));
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    std::string word;
    if (!(words >> word)) continue;
    try {
      if (word.starts_with("[["))
        fail(ErrorCode::invalid_argument,
             "{} is of a cluster file; the name of one ends in .toml or .json", word);
      Host host = parse_host(word);
      while (words >> word) {
        constexpr std::string_view kSlots = "slots=";
        if (!word.starts_with(kSlots))
          fail(ErrorCode::invalid_argument, "'{}' is not understood; {}, or host slots=workers",
               word, kForm);
        host.places = parse_places(std::string_view(word).substr(kSlots.size()), word);
      }
      hosts.push_back(std::move(host));
    } catch (Error& e) {
      e.with_context(fmt::format("{}, line {}", file.string(), number));
      throw;
    }
  }
  check(hosts, file.string());
  return hosts;
}

void save_host_setup(const fs::path& run, const HostSetup& setup) {
  json hosts = json::array();
  for (const Host& host : setup.hosts)
    hosts.push_back({{"name", host.name}, {"address", host.address}, {"places", host.places}});
  const json value = {{"hosts", hosts}, {"launcher", setup.launcher}, {"listen", setup.listen}};
  write_file_atomic(run / "hosts.json", dump_json(value, 2) + "\n");
}

HostSetup load_host_setup(const fs::path& run) {
  const fs::path file = run / "hosts.json";
  if (kind_of(file) == FileKind::none) return {};
  HostSetup setup;
  const json value = parse_json(read_file(file), file.string(), ErrorCode::data_loss);
  try {
    for (const json& host : value.at("hosts"))
      setup.hosts.push_back({host.at("name"), host.at("address"), host.at("places")});
    setup.launcher = value.at("launcher");
    setup.listen = value.at("listen");
  } catch (const json::exception& e) {
    fail(ErrorCode::data_loss, "{}: {}; give --hosts to write it anew", file.string(), e.what());
  }
  return setup;
}

bool is_this_machine(const Host& host) {
  return host.name == "localhost" || host.name == "127.0.0.1" ||
         short_name(host.name) == short_name(machine_name());
}

std::string listen_address(const HostSetup& setup) {
  if (!setup.listen.empty()) return setup.listen;
  for (const Host& host : setup.hosts) {
    if (is_this_machine(host)) continue;
    try {
      return net::local_address_towards({host.address.empty() ? host.name : host.address, 0});
    } catch (const Error& e) {
      if (e.code() != ErrorCode::not_found) throw;  // not for the user to say
      fail(ErrorCode::invalid_argument,
           "under which address does {} reach this machine? Say it with --listen, or write "
           "{}=address ({})",
           host.name, host.name, e.what());
    }
  }
  return "127.0.0.1";
}

std::vector<std::string> launch_words(std::string_view command, const std::string& host) {
  constexpr std::string_view kPlace = "{host}";
  std::vector<std::string> words;
  char quote = 0;
  bool open = false;  // a word, perhaps still an empty one
  const auto add = [&](std::string_view text) {
    if (!open) words.emplace_back();
    open = true;
    words.back() += text;
  };
  for (size_t i = 0; i < command.size(); ++i) {
    const char c = command[i];
    if (quote != 0 && c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
      add("");
    } else if (quote == 0 && (c == ' ' || c == '\t' || c == '\n')) {
      open = false;
    } else if (command.substr(i).starts_with(kPlace)) {
      add(host);
      i += kPlace.size() - 1;
    } else {
      add(command.substr(i, 1));
    }
  }
  if (quote != 0 || words.empty())
    fail(ErrorCode::invalid_argument, "launcher '{}': {}", command,
         quote != 0 ? "a quotation mark is not closed" : "is empty; the usual one is 'ssh {host}'");
  return words;
}

}  // namespace ductile::server
