// What people ask a service about its jobs, its nodes and its past.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "ductile/base/clock.h"
#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/cli/commands.h"
#include "ductile/cluster/store.h"
#include "ductile/fleet/service_request_impl.h"
#include "ductile/page/numbers.h"
#include "ductile/page/terminal.h"
#include "ductile/server/node_devices.h"

namespace ductile::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kLookAgain{500};

std::string local_time(double seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  ::localtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

// "reason: It was just submitted.; by: ann"; what a person reads of an event's body.
std::string body_text(const Json& body) {
  std::string out;
  for (const auto& [key, value] : body.items()) {
    const std::string text = value.is_string() ? value.get<std::string>() : dump_json(value);
    if (text.empty()) continue;
    out += fmt::format("{}{}: {}", out.empty() ? "" : "; ", key, text);
  }
  return out;
}

void print_event(const Json& event, bool json, Console& console) {
  if (json) {
    console.print("{}\n", dump_json(event));
    return;
  }
  const std::string job =
      event.at("job").is_null() ? "" : fmt::format("job {}  ", event["job"].get<int64_t>());
  console.print("{}  {}{}  {}\n", local_time(event.at("time")), job,
                page::one_line(event.at("kind").get<std::string>()),
                page::one_line(body_text(event.at("body"))));
}

// With when a drain begins and ends, as far as that is to come.
std::string reason_of(const Json& node) {
  std::string out = node.at("reason");
  for (const auto& [key, what] :
       {std::pair{"drain_starts", "drained from"}, std::pair{"drain_ends", "until"}})
    if (node.contains(key))
      out += fmt::format("{}{} {}", out.empty() ? "" : ", ", what, local_time(node.at(key)));
  return out;
}

// " with 2 GPUs".
std::string gpus_held(const Json& job) {
  const int64_t gpus = job.value("gpus", int64_t{0});
  return gpus == 0 ? "" : fmt::format(" with {} GPU{}", gpus, gpus == 1 ? "" : "s");
}

// "2 of 4": free ones, of those that jobs may have.
std::string gpus_of(const Json& node) {
  if (node.value("gpus", int64_t{0}) == 0) return "";
  return fmt::format("{} of {}", node.at("free_gpus").get<int64_t>(),
                     node.at("gpus").get<int64_t>());
}

// Nothing where the node has not said it yet.
std::string hardware_of(const Json& node) {
  if (!node.contains("hardware")) return "";
  const server::NodeHardware hardware =
      server::hardware_from(parse_json(dump_json(node["hardware"])));
  std::string out = server::cores_text(hardware);
  if (const std::string gpus = server::gpus_text(hardware); !gpus.empty()) out += ", " + gpus;
  if (!hardware.trouble.empty()) out += fmt::format(" ({})", hardware.trouble);
  return out;
}

// `done`: says what became of it, when it was told.
ExitCode tell_node(const ServiceCommand& command, Context& context, const char* verb,
                   const nlohmann::json& body,
                   const std::function<std::string(const cluster::Client&)>& done) {
  return with_service(command, context, [&](const cluster::Client& client) {
    std::vector<std::string> known;
    const Json nodes = client.get("/v1/nodes").at("nodes");
    for (const Json& node : nodes) known.push_back(node.at("node").get<std::string>());
    if (std::find(known.begin(), known.end(), command.node) == known.end())
      fail(ErrorCode::not_found, "there is no node \"{}\"; {} lists all: {}", command.node,
           client.with_option("`ductile nodes`"), fmt::join(known, ", "));
    const Json answer = post_flags(
        client, fmt::format("/v1/nodes/{}/{}", cluster::percent_encoded(command.node), verb), body);
    if (command.json) {
      context.console.print("{}\n", dump_json(answer, 2));
    } else {
      context.console.say("node {} {}", command.node, done(client));
    }
  });
}

// "job 3 (train) with 2 devices", of each job that holds devices of the node; empty: none does.
std::string jobs_on(const std::string& name, const cluster::Client& client) {
  std::vector<std::string> out;
  const Json all = client.get("/v1/nodes").at("nodes");
  for (const Json& node : all) {
    if (node.at("node") != name) continue;
    for (const Json& job : node.at("jobs")) {
      const auto devices = job.at("devices").get<int64_t>();
      out.push_back(fmt::format("job {} ({}) with {} device{}", job.at("job").get<int64_t>(),
                                job.at("name").get<std::string>(), devices,
                                devices == 1 ? "" : "s"));
    }
  }
  return fmt::format("{}", fmt::join(out, ", "));
}

}  // namespace

std::string lack_of_gpus(const ServiceCommand& command, const cluster::Client& client) {
  if (command.gpus == 0) return "";
  int64_t most = 0, silent = 0;
  const Json nodes = client.get("/v1/nodes").at("nodes");
  for (const Json& node : nodes) {
    if (command.stay && node.at("region") != command.region) continue;
    most = std::max(most, node.value("gpus", int64_t{0}));
    silent += node.contains("gpus") ? 0 : 1;
  }
  if (command.gpus <= most) return "";
  return fmt::format("no node of this service has {}{}",
                     most == 0 ? "a GPU now" : fmt::format("more than {} GPUs now", most),
                     silent == 0 ? ""
                                 : fmt::format(", as far as they have said it ({} {} not)", silent,
                                               silent == 1 ? "has" : "have"));
}

// A store that takes no requests now, a service that is away, and one that is busy.
void Absence::begin(const Error& error) {
  if (error.code() != ErrorCode::unavailable && error.code() != ErrorCode::deadline) throw;
  const auto now = std::chrono::steady_clock::now();
  if (!since_) console_.say("{}; waiting for it", error.what());
  if (!since_) since_ = now;
  if (std::chrono::duration<double>(now - *since_).count() >= patience_) throw;
}

void Absence::end() {
  if (std::exchange(since_, std::nullopt)) console_.say("the service answers again");
}

ExitCode events(const ServiceCommand& command, Context& context) {
  return with_service(command, context, [&](const cluster::Client& client) {
    std::string job = command.job;
    // Its number, since a later job may have the same name.
    if (command.follow && !job.empty())
      job = std::to_string(client.get(path_of(job)).at("id").get<int64_t>());
    if (!job.empty()) job = "&job=" + cluster::percent_encoded(job);
    Json list = client.get(fmt::format("/v1/events?newest={}{}", command.lines, job));
    for (Absence absence(context.console, command.patience);;) {
      for (const Json& event : list.at("events")) print_event(event, command.json, context.console);
      context.console.out() << std::flush;
      if (!command.follow) return;
      // Numbers of events are used once, also over restarts: nothing is lost, and nothing repeated.
      const auto after = list.at("after").get<int64_t>();
      if (list.at("events").empty()) std::this_thread::sleep_for(kLookAgain);
      list["events"].clear();
      try {
        list = client.get(fmt::format("/v1/events?limit=1000&after={}{}", after, job));
        absence.end();
      } catch (const cluster::Gone& gone) {  // what happened meanwhile is kept in part, or lost
        if (gone.begin <= 0 || gone.begin == after) throw;
        context.console.say("{}; going on after event {}", gone.what(), gone.begin);
        list["after"] = gone.begin;
      } catch (const Error& error) {
        absence.begin(error);
      }
    }
  });
}

ExitCode nodes(const ServiceCommand& command, Context& context) {
  return with_service(command, context, [&](const cluster::Client& client) {
    const Json list = client.get("/v1/nodes").at("nodes");
    if (command.json) {
      context.console.print("{}\n", dump_json(list, 2));
      return;
    }
    using page::Align;
    std::vector<std::vector<std::string>> rows = {
        {"node", "type", "state", "devices", "free", "hardware", "held by", "reason"}};
    std::vector<Align> aligned = {Align::left,  Align::left, Align::left, Align::right,
                                  Align::right, Align::left, Align::left, Align::left};
    const bool gpus = std::any_of(list.begin(), list.end(),
                                  [](const Json& node) { return !gpus_of(node).empty(); });
    if (gpus) rows[0].insert(rows[0].begin() + 5, "free GPUs");
    if (gpus) aligned.insert(aligned.begin() + 5, Align::right);
    // Most services have one region, of which nothing is to be said.
    const bool regions = std::any_of(list.begin(), list.end(), [&](const Json& node) {
      return node.at("region") != list.front().at("region");
    });
    if (regions) rows[0].insert(rows[0].begin() + 2, "region");
    if (regions) aligned.insert(aligned.begin() + 2, Align::left);
    for (const Json& node : list) {
      std::string held;
      for (const Json& job : node.at("jobs"))
        held += fmt::format("{}job {} ({}): {}{}", held.empty() ? "" : ", ",
                            job.at("job").get<int64_t>(), job.at("name").get<std::string>(),
                            job.at("devices").get<int64_t>(), gpus_held(job));
      rows.push_back({node.at("node"), node.at("type"), node.at("state"),
                      std::to_string(node.at("devices").get<int64_t>()),
                      std::to_string(node.at("free").get<int64_t>()), hardware_of(node), held,
                      reason_of(node)});
      if (gpus) rows.back().insert(rows.back().begin() + 5, gpus_of(node));
      if (regions)
        rows.back().insert(rows.back().begin() + 2, node.at("region").get<std::string>());
    }
    context.console.print("{}", page::table(rows, aligned));
  });
}

ExitCode drain(const ServiceCommand& command, Context& context) {
  nlohmann::json body = {{"reason", command.reason}};
  std::string lasts;
  if (command.in > 0) body["in"] = command.in;
  if (command.lasts > 0) {
    body["for"] = command.lasts;
    lasts = fmt::format(", for {}", page::as_duration(command.lasts));
  }
  return tell_node(command, context, "drain", body, [&](const cluster::Client& client) {
    const std::string back = client.with_option(
        fmt::format("; `ductile undrain {}` takes it back", page::shell_word(command.node)));
    if (command.in > 0)
      return fmt::format("is going to be drained in {}{}{}", page::as_duration(command.in), lasts,
                         back);
    const std::string there = jobs_on(command.node, client);
    return there.empty() ? fmt::format("is drained{}{}", lasts, back)
                         : fmt::format("is being drained{}, and what runs there leaves it: {}{}",
                                       lasts, there, back);
  });
}

namespace {

// Of a node that no job may use though it is not drained, as one that is about to be taken back:
// how it is, with a comma before it; empty: jobs may use it.
std::string why_not_used(const std::string& name, const cluster::Client& client) {
  const Json nodes = client.get("/v1/nodes").at("nodes");
  for (const Json& node : nodes) {
    if (node.at("node") != name || node.at("state") == "up") continue;
    const auto reason = node.at("reason").get<std::string>();
    return fmt::format(", and it is {}{}{}", node.at("state").get<std::string>(),
                       reason.empty() ? "" : ": ", reason);
  }
  return "";
}

}  // namespace

// A drain is a person's, and a notice or a silence the node's own.
ExitCode undrain(const ServiceCommand& command, Context& context) {
  return with_service(command, context, [&](const cluster::Client& client) {
    try {
      const ExitCode code = tell_node(
          command, context, "undrain", nlohmann::json::object(), [&](const cluster::Client&) {
            const std::string why = why_not_used(command.node, client);
            return why.empty() ? "is taken back"
                               : fmt::format(
                                     "is not drained any more{}, which no undrain "
                                     "ends",
                                     why);
          });
      static_cast<void>(code);  // it throws where it fails
    } catch (const Error& error) {
      const bool not_drained = error.message().find("is not drained") != std::string::npos;
      const std::string why = not_drained ? why_not_used(command.node, client) : "";
      if (why.empty()) throw;
      throw Error(error.code(), fmt::format("{}{}, which no undrain ends", error.message(), why));
    }
  });
}

namespace {

// As the interface takes what `ductile jobs` is narrowed to.
std::string query_of(const ServiceCommand& command) {
  std::string out = "?limit=1000";
  if (!command.all && command.phases.empty()) out += "&live=1";
  const auto add = [&](const char* key, const std::string& value) {
    if (!value.empty()) out += fmt::format("&{}={}", key, cluster::percent_encoded(value));
  };
  add("user", command.user);
  add("team", command.team);
  add("phase", command.phases);
  add("name", command.name.value_or(""));
  return out;
}

bool is_narrowed(const ServiceCommand& command) {
  return command.name || !command.user.empty() || !command.team.empty() || !command.phases.empty();
}

}  // namespace

std::string done_text(const Json& job, bool whole) {
  const Json progress = job.value("progress", Json::object());
  const double step = progress.value("step", 0.0), total = progress.value("total_steps", 0.0);
  if (!(total > 0)) return "";
  const std::string part = fmt::format("{:.0f} %", std::floor(100 * std::min(1.0, step / total)));
  if (!whole) return part;
  const double left = progress.value("seconds_left", 0.0);
  return fmt::format("{} (step {:.0f} of {:.0f}){}", part, step, total,
                     left > 0 ? ", about " + page::as_short_duration(left) + " left" : "");
}

namespace {

// Since it was submitted, in one or two units: "42s", "12m", "3h 5m", "2d 4h".
std::string age_of(const Json& job) {
  const double until = job.at("ended").is_null() ? wall_seconds() : job["ended"].get<double>();
  const auto age = static_cast<int64_t>(std::max(0.0, until - job.at("submitted").get<double>()));
  const int64_t minutes = age / 60, hours = minutes / 60;
  return age < 60       ? fmt::format("{}s", age)
         : minutes < 60 ? fmt::format("{}m", minutes)
         : hours < 24   ? fmt::format("{}h {}m", hours, minutes % 60)
                        : fmt::format("{}d {}h", hours / 24, hours % 24);
}

// With the teams where there are several, and how far they are where any of them trains.
std::string table_of_jobs(const Json& list) {
  using page::Align;
  std::set<std::string> teams;
  bool trains = false;
  for (const Json& job : list) {
    teams.insert(job.at("team").get<std::string>());
    trains = trains || !done_text(job, false).empty();
  }
  std::vector<std::vector<std::string>> rows(1);
  std::vector<Align> aligned;
  const auto column = [&](const char* title, Align align, const auto& text) {
    rows.resize(list.size() + 1);
    rows[0].emplace_back(title);
    aligned.push_back(align);
    for (size_t i = 0; i < list.size(); ++i) rows[i + 1].push_back(text(list[i]));
  };
  const auto field = [](const char* key) {
    return [key](const Json& job) { return job.at(key).template get<std::string>(); };
  };
  column("job", Align::right,
         [](const Json& job) { return std::to_string(job.at("id").get<int64_t>()); });
  column("name", Align::left, field("name"));
  column("owner", Align::left, field("owner"));
  if (teams.size() > 1) column("team", Align::left, field("team"));
  column("phase", Align::left, field("phase"));
  column("devices", Align::right,
         [](const Json& job) { return job.contains("holdings") ? held_text(job) : ""; });
  column("age", Align::right, age_of);
  if (trains) column("done", Align::right, [](const Json& job) { return done_text(job, false); });
  column("reason", Align::left, field("reason"));
  return page::table(rows, aligned);
}

}  // namespace

ExitCode jobs(const ServiceCommand& command, Context& context) {
  return with_service(command, context, [&](const cluster::Client& client) {
    Json list = Json::array();
    const std::string page = query_of(command);
    for (std::string next = page; !next.empty();) {
      Json answer = client.get("/v1/jobs" + next);
      for (Json& job : answer.at("jobs")) list.push_back(std::move(job));
      next = answer.contains("before")
                 ? fmt::format("{}&before={}", page, answer["before"].get<int64_t>())
                 : "";
    }
    std::map<int64_t, std::map<std::string, int64_t>> held;
    const Json nodes = client.get("/v1/nodes").at("nodes");
    for (const Json& node : nodes)
      for (const Json& job : node.at("jobs"))
        held[job.at("job")][node.at("node")] = job.at("devices");
    for (Json& job : list)
      if (const auto found = held.find(job.at("id")); found != held.end())
        job["holdings"] = found->second;
    if (command.json) {
      context.console.print("{}\n", dump_json(list, 2));
      return;
    }
    if (list.empty()) {
      context.console.say("{}", is_narrowed(command) ? "there is no such job"
                                : command.all        ? "there are no jobs"
                                                     : "no job runs or waits");
      return;
    }
    context.console.print("{}", table_of_jobs(list));
  });
}

ExitCode why(const ServiceCommand& command, Context& context) {
  return ask_service(command, context, [&](const cluster::Client& client) {
    bool first = true;
    const auto names = with_own_matches(command.jobs, client);
    return for_each_job(names, command.json, context.console, [&](const std::string& name) {
      Json job = find_or_none_fits(name, [&] { return client.get(path_of(name)); });
      if (!command.json)
        context.console.print("{}{}", std::exchange(first, false) ? "" : "\n",
                              job_table(job, client));
      return job;
    });
  });
}

ExitCode page_link(const ServiceCommand& command, Context& context) {
  return with_service(command, context, [&](const cluster::Client& client) {
    const Json answer = client.post("/v1/page/links", nlohmann::json::object());
    if (command.json) {
      context.console.print("{}\n", dump_json(answer, 2));
    } else {
      context.console.print("{}\n", answer.at("link").get<std::string>());
      context.console.say("it lets in the first browser that opens it, for ten minutes from now");
    }
  });
}

namespace {

// `by_pattern`: it had not ended when its name was found to fit, so that it may have ended since.
Json cancel_one(const std::string& name, bool by_pattern, const cluster::Client& client,
                const ServiceCommand& command, Console& console) {
  try {
    Json answer = find_or_none_fits(
        name, [&] { return client.post(path_of(name, "/cancel"), nlohmann::json::object()); });
    if (!command.json) console.say("job {} is being cancelled", answer.at("id").get<int64_t>());
    return answer;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::conflict || !by_pattern) throw;
    const Json job = client.get(path_of(name));
    if (job.at("ended").is_null()) throw;
    return {{"id", job.at("id")}, {"phase", job.at("phase")}};
  }
}

}  // namespace

ExitCode cancel(const ServiceCommand& command, Context& context) {
  return ask_service(command, context, [&](const cluster::Client& client) {
    const auto names = with_own_matches(command.jobs, client);
    return for_each_job(names, command.json, context.console, [&](const std::string& name) {
      return cancel_one(name, std::ranges::find(command.jobs, name) == command.jobs.end(), client,
                        command, context.console);
    });
  });
}

}  // namespace ductile::cli
