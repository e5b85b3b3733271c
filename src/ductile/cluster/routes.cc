// Every route of the interface: its path, who may call it, and what it does.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/cluster/routes_impl.h"
#include "ductile/cluster/why_impl.h"

namespace ductile::cluster {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostPage = 1000;
constexpr size_t kMostName = 200;
constexpr size_t kMostAfter = 1000;                // jobs that one begins after: an array
constexpr size_t kMostMembers = 1000;              // jobs of an array
constexpr size_t kMostWaits = 10'000;              // of all jobs of an array together
constexpr int64_t kMostNumber = int64_t{1} << 53;  // of a job, in JSON
// Jobs that have not ended, each of which the service has in memory and its policy looks at; more
// of them wait with who submits. Nobody but an admin takes all places.
constexpr int64_t kMostLive = 250'000, kMostLiveOfOne = 50'000;
constexpr double kMostDrain = 366 * 86400.0, kMostTransfer = 1e7;  // seconds

std::string checked_line(const JsonFields& fields, const char* key, std::string otherwise) {
  std::string text = fields.text(key, std::move(otherwise));
  require_line(text, fmt::format("{}: {}", fields.where(), key));
  return text;
}

// Jobs and nodes are named in paths.
void require_name(std::string_view name, std::string_view what) {
  require_line(name, what);
  if (name.empty() || name.find('/') != std::string_view::npos)
    fail(ErrorCode::invalid_argument, "{} = \"{}\": a name is not empty and has no slash", what,
         name);
}

Answer list_jobs(Request& request) {
  const JobFilter filter = filter_of(request);
  const int64_t limit = request.number("limit", 100, 1, kMostPage);
  const auto at_once = request.reader.at_once();  // a job's devices are those of its phase
  const auto jobs = request.reader.jobs(filter, request.number("before", 0, 0, INT64_MAX), limit);
  if (jobs.empty()) require_known(request, filter);
  Json out = {{"jobs", Json::array()}};
  const auto held = request.reader.all_holdings();
  for (const JobRecord& job : jobs) {
    Json& shown = out["jobs"].emplace_back(shown_now(request, job));
    shown["devices"] = 0;
    if (const auto found = held.find(job.id); found != held.end())
      for (const Holding& h : found->second)
        shown["devices"] = shown["devices"].get<int64_t>() + h.devices;
  }
  // The cursor of the next page.
  if (static_cast<int64_t>(jobs.size()) == limit) out["before"] = jobs.back().id;
  return json_answer(out);
}

void require_place(Request& request) {
  if (request.view() == nullptr) return;
  const Principal& who = request.call.principal;
  const auto [all, own] = request.view()->live(who.name);
  if (all >= kMostLive)
    fail(ErrorCode::unavailable,
         "{} jobs have not ended, and this service takes no more: submit again when some have",
         all);
  if (own >= kMostLiveOfOne && who.role < Role::admin)
    fail(
        ErrorCode::unavailable,
        "{} has {} jobs that have not ended, of which one may have {}: submit again when some have",
        who.name, own, kMostLiveOfOne);
}

Beginning beginning_of(const JsonFields& fields) {
  Beginning out;
  out.held = fields.boolean("held", false);
  if (!fields.has("after")) return out;
  const nlohmann::json& after = fields.array("after");
  if (after.size() > kMostAfter)
    fail(ErrorCode::invalid_argument, "body: after names {} jobs, and {} are allowed", after.size(),
         kMostAfter);
  for (const nlohmann::json& id : after)
    out.after.push_back(fields.as_integer(id, "after", 1, kMostNumber));
  return out;
}

// A job of those that one request submits.
struct Member {
  std::string name;
  nlohmann::json spec;
};

// One job, or those of an array, which are called NAME-INDEX.
std::vector<Member> members_of(const JsonFields& fields, const std::string& name) {
  std::vector<Member> out;
  if (!fields.has("array")) {
    out.push_back({name, fields.at("spec")});
  } else {
    const nlohmann::json& array = fields.array("array");
    if (fields.has("spec") || array.empty() || array.size() > kMostMembers)
      fail(ErrorCode::invalid_argument,
           "body: array has from 1 to {} items, each with an index and a spec, in place of spec",
           kMostMembers);
    std::set<int64_t> indices;
    for (const nlohmann::json& item : array) {
      const JsonFields one(item, "body: array");
      one.only({"index", "spec"});
      const int64_t index = one.integer("index", 0, kMostNumber);
      if (!indices.insert(index).second)
        fail(ErrorCode::invalid_argument, "body: array has two items with the index {}", index);
      out.push_back({fmt::format("{}-{}", name, index), one.at("spec")});
      require_line(out.back().name, "body: name");
    }
  }
  for (const Member& member : out)
    if (!member.spec.is_object()) fields.wrong("spec", "an object", member.spec);
  return out;
}

Answer submit_job(Request& request) {
  require_place(request);
  const nlohmann::json body = request.object();
  const JsonFields fields(body, "body");
  fields.only({"name", "team", "tier", "kind", "min_devices", "max_devices", "region", "transfer",
               "movable", "after", "held", "array", "spec"});
  Submission s;
  s.name = fields.text("name", "job");
  require_plain_name(s.name, "body: name");
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  if (std::ranges::all_of(s.name, digit))
    fail(ErrorCode::invalid_argument,
         "body: name = \"{}\": a job is found by its number, too, so its name needs a letter",
         s.name);
  const Principal& who = request.call.principal;
  s.team = checked_line(fields, "team", "");
  if (s.team.empty()) s.team = who.team;
  if (!who.team.empty() && s.team != who.team && who.role < Role::admin)
    throw Refused(fmt::format("{} submits jobs of the team {} alone, and not of \"{}\"", who.name,
                              who.team, s.team));
  s.tier = checked_line(fields, "tier", s.tier);
  if (s.tier == "premium" && who.role < Role::admin)
    throw Refused(
        fmt::format("{} has the role \"{}\", and jobs of tier \"premium\" come before everybody "
                    "else's, so an admin submits them; without --tier it is \"standard\"",
                    who.name, to_string(who.role)));
  s.kind = checked_line(fields, "kind", s.kind);
  s.owner = who.name;
  s.min_devices = fields.integer_or("min_devices", 1, 1, 1 << 20);
  s.max_devices = fields.integer_or("max_devices", s.min_devices, s.min_devices, 1 << 20);
  s.region = checked_line(fields, "region", "");
  if (fields.has("transfer")) s.transfer = fields.number("transfer", 0, kMostTransfer);
  s.movable = fields.boolean("movable", true);
  if (s.region.empty() && (s.transfer > 0 || !s.movable))
    fail(ErrorCode::invalid_argument, "body: {} is of a job whose data are in a region: name it",
         s.movable ? "transfer" : "movable");
  if (s.kind == "command" && request.call.principal.role < Role::admin)
    throw Refused("a command runs as the user of the service, so only that user may submit one");
  Beginning beginning = beginning_of(fields);
  std::vector<Member> members = members_of(fields, s.name);
  if (fields.has("array")) beginning.array = static_cast<int64_t>(members.size());
  if (members.size() * beginning.after.size() > kMostWaits)
    fail(ErrorCode::invalid_argument,
         "body: {} jobs are to begin after {} others each, and {} such pairs are allowed at once: "
         "let them begin after one that begins after all of these",
         members.size(), beginning.after.size(), kMostWaits);
  // Once for all members.
  if (s.kind == "serve") beginning.finished = request.reader.finished_before(beginning.after);
  for (Member& member : members) {
    s.name = member.name;
    request.check(s, member.spec, &beginning);
  }
  return request.commit(201, [&](Change& change) -> nlohmann::json {
    std::vector<JobId> ids;
    change.require_room_behind(beginning.after, static_cast<int64_t>(members.size()));
    for (const Member& member : members) {
      s.name = member.name;
      ids.push_back(change.submit(s, dump_json(member.spec), request.now(), beginning));
    }
    if (fields.has("array")) return {{"ids", ids}};
    return {{"id", ids.front()}};
  });
}

Answer show_job(Request& request) {
  Json out;
  JobRecord job;
  {
    const auto at_once = request.reader.at_once();  // its devices are those of its phase and reason
    job = request.reader.find(request.argument);
    out = shown_now(request, job);
    out["why"] = why(request, job);
    out["after"] = Json::array();
    for (const EarlierJob& earlier : request.reader.awaited_by(job.id))
      out["after"].push_back(earlier.id);
    out["holdings"] = Json::object();
    for (const Holding& h : request.reader.holdings(job.id)) out["holdings"][h.node] = h.devices;
  }
  request.with_ledger([&](const Ledger& ledger) {
    out["device_seconds"] = ledger.device_seconds(job.id, request.now());
  });
  show_live(request, job, out);
  out["spec"] = spec_shown(request, job.id);
  return json_answer(out);
}

// What ends a job, for good or for now, is possible on the full disk that the job may have filled.
template <Wish wish>
Answer wish_for_job(Request& request) {
  constexpr auto kRoom = wish == Wish::run ? CommitQueue::Room::usual : CommitQueue::Room::kept;
  const JobRecord job = job_to_act_on(request);
  const Principal& who = request.call.principal;
  require_owner(who, job);
  const auto write = [&](Change& change) -> nlohmann::json {
    change.set_wish(job.id, wish, who.name, request.now());
    return {{"id", job.id}, {"wish", to_string(wish)}};
  };
  return request.commit(200, write, kRoom);
}

Answer list_events(Request& request) {
  std::optional<JobId> job;
  if (const auto text = request.text("job")) job = request.reader.find(*text).id;
  const int64_t limit = request.number("limit", 100, 1, kMostPage);
  Revision after = request.number("after", 0, 0, INT64_MAX);
  const int64_t newest = request.number("newest", 0, 0, kMostPage);
  std::vector<Event> events;
  if (newest > 0) {
    events = request.reader.newest_events(newest, job);
    if (!job) after = std::max(after, request.reader.removed_events());
  } else {
    events =
        job ? request.reader.events(after, limit, job) : request.reader.whole_events(after, limit);
  }
  Json out = {{"events", Json::array()}, {"after", after}};
  for (const Event& event : events) {
    out["events"].push_back(to_json(event));
    out["after"] = std::max(after, event.seq);  // the cursor of the next page
  }
  return json_answer(out);
}

Answer list_nodes(Request& request) {
  const auto at_once = request.reader.at_once();
  const std::vector<Drain> drains = request.reader.drains();
  const std::vector<Holder> holders = request.reader.holders();
  Json nodes = Json::array();
  const LiveView* const view = request.view();
  const auto hardware =
      view == nullptr ? std::map<std::string, server::NodeHardware>() : view->hardware();
  const auto gpus = view == nullptr ? std::map<JobId, int64_t>() : view->gpus();
  for (const NodeRecord& node : request.reader.nodes()) {
    const auto drain =
        std::ranges::find_if(drains, [&](const Drain& d) { return d.node == node.node; });
    Json jobs = Json::array();
    int64_t held = 0;
    for (const Holder& h : holders) {
      if (h.node != node.node) continue;
      Json& job = jobs.emplace_back(Json{{"job", h.job}, {"name", h.name}, {"devices", h.devices}});
      if (gpus.contains(h.job)) job["gpus"] = gpus.at(h.job);
      held += h.devices;
    }
    const bool up = node.state == NodeState::up;
    const bool planned = drain != drains.end() && !drain->over(request.now());
    const bool drained = planned && drain->holds(request.now());
    Json one = {{"node", node.node},
                {"type", node.type},
                {"region", node.region},
                {"state", to_string(node.state)},
                {"drained", drained},
                {"reason", node.why},
                {"since", node.since},
                {"devices", node.devices},
                {"free", up && !drained ? std::max<int64_t>(0, node.devices - held) : 0}};
    if (const auto known = hardware.find(node.node); known != hardware.end()) {
      const int64_t taken = held_gpus(holders, gpus, node.node);
      one["gpus"] = known->second.usable_gpus;
      one["free_gpus"] = up && !drained ? known->second.free_gpus(taken) : 0;
      one["hardware"] = server::to_json(known->second);
    }
    if (up && drained) {
      one["state"] = held > 0 ? "draining" : "drained";
      one["reason"] = drain->reason;
      one["since"] = std::max(drain->time, drain->starts);
    }
    if (planned && !drained) one["drain_starts"] = drain->starts;
    if (planned && drain->ends) one["drain_ends"] = *drain->ends;
    one["jobs"] = std::move(jobs);
    nodes.push_back(std::move(one));
  }
  return json_answer(Json{{"nodes", std::move(nodes)}});
}

Answer drain_node(Request& request) {
  const std::string node(request.argument);
  require_name(node, "node");
  const nlohmann::json body = request.object();
  const JsonFields fields(body, "body");
  fields.only({"reason", "in", "for"});
  const std::string reason = checked_line(fields, "reason", "");
  const double in = fields.has("in") ? fields.number("in", 0, kMostDrain) : 0;
  std::optional<double> lasts;
  if (fields.has("for")) lasts = fields.number("for", 1, kMostDrain);
  return request.commit(200, [&](Change& change) -> nlohmann::json {
    if (!change.has_node(node))
      fail(ErrorCode::not_found, "there is no node \"{}\"; `ductile nodes` lists them", node);
    change.drain(node, reason, request.now(), in, lasts);
    return {{"node", node}, {"drained", in <= 0}};
  });
}

Answer undrain_node(Request& request) {
  const std::string node(request.argument);
  return request.commit(200, [&](Change& change) -> nlohmann::json {
    change.undrain(node, request.now());
    return {{"node", node}, {"drained", false}};
  });
}

constexpr Parameter kJobFilters[] = {
    {"phase", "string",
     "queued, running, paused, finished, failed or cancelled; several with commas between"},
    {"live", "integer", "1: only jobs that have not ended"},
    {"name", "string", "of the job; * stands for any text in it, and ? for one character"},
    {"user", "string", "who submitted it"},
    {"owner", "string", "the same, also of somebody who is not known yet"},
    {"team", "string", "whose quota it uses"},
    {"part", "string", "of its name, owner or team, without regard to case"},
    {"before", "integer", "the cursor: jobs with smaller numbers"},
    {"limit", "integer", "jobs of a page, at most 1000; default 100"},
};
constexpr Parameter kEventFilters[] = {
    {"job", "string", "a number or a name: events of this job alone"},
    {"after", "integer", "the cursor: events with larger numbers"},
    {"limit", "integer", "events of a page, at most 1000; default 100"},
    {"newest", "integer", "the last so many events, in order, instead of those after the cursor"},
};

constexpr Parameter kAllocationFilters[] = {
    {"since", "integer",
     "seconds since 1970: what reaches beyond that time; default: the last hour"},
};
constexpr Parameter kCurvesFilters[] = {
    {"known", "string", "the version that is known: its curves are not sent again"},
};
constexpr Parameter kLogFilters[] = {
    {"from", "integer", "the cursor: bytes from there on; default: the last 64 KiB"},
};

constexpr Route kRoutes[] = {
    {"GET", "/v1/jobs", Role::read, list_jobs, "Jobs, the newest first.", kJobFilters, ""},
    {"POST", "/v1/jobs", Role::submit, submit_job, "Submits a job.", {}, "Submission"},
    {"GET", "/v1/jobs/{job}", Role::read, show_job, "One job, by number or name.", {}, ""},
    {"POST",
     "/v1/jobs/{job}/pause",
     Role::submit,
     wish_for_job<Wish::pause>,
     "Stops a job and keeps its state.",
     {},
     ""},
    {"POST",
     "/v1/jobs/{job}/resume",
     Role::submit,
     wish_for_job<Wish::run>,
     "Lets a paused job go on.",
     {},
     ""},
    {"POST",
     "/v1/jobs/{job}/cancel",
     Role::submit,
     wish_for_job<Wish::cancel>,
     "Ends a job for good.",
     {},
     ""},
    {"POST",
     "/v1/jobs/{job}/resize",
     Role::submit,
     resize_job,
     "Says how many devices a job is to have.",
     {},
     "Devices"},
    {"POST",
     "/v1/jobs/{job}/reload",
     Role::submit,
     reload_job,
     "Lets a job that answers requests load other weights of its run, one replica after the other.",
     {},
     "Weights"},
    {"GET", "/v1/events", Role::read, list_events,
     "What happened, in order. With \"Accept: text/event-stream\" it goes on as it happens.",
     kEventFilters, ""},
    {"GET",
     "/v1/nodes",
     Role::read,
     list_nodes,
     "Nodes: their states, and who holds what.",
     {},
     ""},
    {"POST",
     "/v1/nodes/{node}/drain",
     Role::admin,
     drain_node,
     "Lets nothing new start on a node, and moves away what runs there: now or later, and until "
     "undrain or for a time.",
     {},
     "Drain"},
    {"POST",
     "/v1/nodes/{node}/undrain",
     Role::admin,
     undrain_node,
     "Takes a drained node back.",
     {},
     ""},
    {"GET",
     "/v1/overview",
     Role::read,
     show_overview,
     "Who asks, the policy, and how many jobs there are.",
     {},
     ""},
    {"GET", "/v1/allocations", Role::read, show_allocations,
     "Who held how many devices of which node, and when.", kAllocationFilters, ""},
    {"GET",
     "/v1/accounts",
     Role::read,
     show_accounts,
     "Jobs and device-seconds by team, tier and owner; quotas and shares of teams.",
     {},
     ""},
    {"GET", "/v1/jobs/{job}/curves", Role::read, show_curves,
     "What a job has measured of itself, at most 2,000 points a curve.", kCurvesFilters, ""},
    {"GET", "/v1/jobs/{job}/log", Role::read, show_log,
     "What a job's workers printed, at most 64 KiB at once.", kLogFilters, ""},
    {"GET", "/v1/jobs/{job}/metrics", Role::read, show_metric_lines,
     "What a training job has measured, as lines of JSON, at most 64 KiB at once.", kLogFilters,
     ""},
    {"GET",
     "/v1/jobs/{job}/options",
     Role::read,
     show_options,
     "All options of a job, as TOML writes their values, and which of them are not the default.",
     {},
     ""},
    {"POST",
     "/v1/page/links",
     Role::read,
     make_page_link,
     "A link that lets one browser in as the user who asks.",
     {},
     ""},
    {"GET",
     "/v1/tokens",
     Role::admin,
     list_tokens,
     "Tokens, with those that were revoked; not what they are.",
     {},
     ""},
    {"POST",
     "/v1/tokens",
     Role::admin,
     add_token,
     "Makes a token, which this answer alone shows.",
     {},
     "Token"},
    {"POST",
     "/v1/tokens/{name}/revoke",
     Role::admin,
     revoke_token,
     "Lets nobody in by a token any more, from this answer on.",
     {},
     ""},
    {"GET", "/metrics", Role::read, show_metrics, "Figures for Prometheus.", {}, ""},
    {"GET", "/v1/openapi.json", Role::read, show_openapi, "This description.", {}, ""},
};

}  // namespace

std::span<const Route> routes() { return kRoutes; }

JobRecord job_to_act_on(Request& request) {
  const JobRecord job = request.reader.find(request.argument);
  if (job.submission.name != request.argument) return job;
  JobFilter filter;
  filter.name = job.submission.name;
  filter.live = true;
  const auto jobs = request.reader.jobs(filter, 0, 2);
  if (jobs.size() > 1)
    fail(
        ErrorCode::conflict,
        "several jobs that have not ended are called \"{}\", as {} and {}: say which by its number",
        job.submission.name, jobs[0].id, jobs[1].id);
  return job;
}

void require_line(std::string_view text, std::string_view what) {
  bool odd = text.size() > kMostName ||
             dump_json(nlohmann::json(text)).find("\xef\xbf\xbd") != std::string::npos;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0xff;
    odd = odd || c < 0x20 || c == 0x7f || (c == 0xc2 && next < 0xa0);  // U+0080 to U+009F, too
    // What is not seen, ends lines or turns them round: U+200B to U+200F, U+2028 to U+202E, U+2060
    // to U+206F, U+FEFF.
    const auto third = i + 2 < text.size() ? static_cast<unsigned char>(text[i + 2]) : 0;
    odd = odd ||
          (c == 0xe2 && next == 0x80 &&
           ((third >= 0x8b && third <= 0x8f) || (third >= 0xa8 && third <= 0xae))) ||
          (c == 0xe2 && next == 0x81 && third >= 0xa0 && third <= 0xaf) ||
          (c == 0xef && next == 0xbb && third == 0xbf);
  }
  if (odd)
    fail(ErrorCode::invalid_argument,
         "{} has control characters, bytes that are not UTF-8, or more than {} bytes", what,
         kMostName);
}

void require_plain_name(std::string_view name, std::string_view what) {
  require_name(name, what);
  if (name.front() == '-' || name.front() == ' ' || name.back() == ' ' || name == "." ||
      name == "..")
    fail(ErrorCode::invalid_argument,
         "{} = \"{}\": a name begins with no \"-\", neither begins nor ends with a space, and is "
         "neither \".\" nor \"..\"",
         what, name);
}

void require_owner(const Principal& who, const JobRecord& job) {
  const bool of_team = !who.team.empty() && job.submission.team == who.team;
  if (who.role < Role::admin && job.submission.owner != who.name && !of_team)
    throw Refused(fmt::format("job {} belongs to {}; only they and an admin may act on it", job.id,
                              job.submission.owner));
}

Answer json_answer(const Json& value) {
  Answer out;
  out.body = dump_json(value);
  return out;
}

Json to_json(const JobRecord& job) {
  const Submission& s = job.submission;
  Json out = {{"id", job.id},
              {"name", s.name},
              {"owner", s.owner},
              {"team", s.team},
              {"tier", s.tier},
              {"kind", s.kind},
              {"min_devices", s.min_devices},
              {"max_devices", s.max_devices},
              {"phase", to_string(job.phase)},
              {"wish", to_string(job.wish)},
              {"reason", job.reason},
              {"run", job.run},
              {"submitted", job.submitted},
              {"started", nullptr},
              {"ended", nullptr},
              {"generation", job.generation},
              {"revision", job.revision}};
  if (!s.region.empty()) {
    out["region"] = s.region;
    out["transfer"] = s.transfer;
    out["movable"] = s.movable;
  }
  if (job.started) out["started"] = *job.started;
  if (job.ended) out["ended"] = *job.ended;
  if (job.exit_code) out["exit_code"] = *job.exit_code;
  if (job.wish == Wish::pause && !job.held_by.empty()) out["held_by"] = job.held_by;
  return out;
}

Json to_json(const ServingFigures& serving) {
  return {{"address", serving.address},          {"replicas", serving.ready},
          {"requests_per_second", serving.load}, {"replica_requests_per_second", serving.rate},
          {"arrived", serving.arrived},          {"answered", serving.answered},
          {"retried", serving.retried},          {"waiting", serving.waiting},
          {"in_flight", serving.in_flight},      {"nodes", serving.by_node}};
}

Json to_json(const Event& event) {
  Json out = {{"seq", event.seq}, {"time", event.time}, {"job", nullptr}, {"kind", event.kind}};
  if (event.job != 0) out["job"] = event.job;
  // One damaged row must not end the list, and with it every event stream, for ever.
  try {
    out["body"] = parse_json(event.body, fmt::format("event {}", event.seq), ErrorCode::data_loss);
  } catch (const Error& error) {
    out["body"] = {{"error", error.message()}};
  }
  return out;
}

}  // namespace ductile::cluster
