// The routes that pages are made of: how the cluster is used, and what a job shows of itself.
#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/options.h"
#include "ductile/base/paths.h"
#include "ductile/cluster/curve_cache.h"
#include "ductile/cluster/ledger.h"
#include "ductile/cluster/routes_impl.h"
#include "ductile/run/folder.h"
#include "ductile/spec/job.h"

namespace ductile::cluster {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostLog = 64 << 10;

const std::string& run_of(const JobRecord& job) {
  if (job.run.empty())
    fail(ErrorCode::not_found, "job {} has not begun; it leaves nothing to look at yet", job.id);
  return job.run;
}

// How long the text is without a character at its end of which the rest is still to come: alone
// neither part of it would be text.
size_t whole_characters(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto c = static_cast<unsigned char>(text[text.size() - back]);
    const size_t length = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    if (c >= 0xc2 && c <= 0xf4 && length > back) return text.size() - back;
    if (c < 0x80 || c >= 0xc0) break;
  }
  return text.size();
}

// The end of a file of the job's run, or what follows the cursor.
Answer part_of_file(Request& request, const char* name) {
  const fs::path run = run_of(request.reader.find(request.argument));
  if (kind_of(run) == FileKind::none)
    fail(ErrorCode::not_found, "{}: no such run directory", run.string());
  const fs::path file = run / name;
  std::error_code error;
  int64_t size = 0;
  // Nothing else is opened: it could keep the reader waiting, as a pipe does.
  if (!fs::is_regular_file(file, error))
    return json_answer({{"from", 0}, {"next", 0}, {"size", 0}, {"text", ""}});
  size = static_cast<int64_t>(fs::file_size(file, error));
  int64_t from = request.number("from", std::max<int64_t>(0, size - kMostLog), 0, INT64_MAX);
  if (from > size) from = 0;  // the file was removed, or had reached its limit: it was begun anew
  std::string text(static_cast<size_t>(std::min(size - from, kMostLog)), '\0');
  std::ifstream in(file, std::ios::binary);
  in.seekg(from);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(0, in.gcount())));
  text.resize(whole_characters(text));
  const int64_t next = from + static_cast<int64_t>(text.size());
  return json_answer({{"from", from}, {"next", next}, {"size", size}, {"text", text}});
}

// What teams are entitled to, and the devices that they hold, by team.
Json entitlements(Request& request, const std::map<std::string, int64_t>& held) {
  Json out = Json::array();
  const LiveView* view = request.view();
  if (view == nullptr) return out;
  std::set<std::string> names;
  for (const auto& [team, devices] : view->quotas()) names.insert(team);
  for (const auto& [team, part] : view->shares()) names.insert(team);
  for (const std::string& name : names) {
    const auto devices = held.find(name);
    Json team = {{"team", name}, {"devices", devices == held.end() ? 0 : devices->second}};
    if (const auto quota = view->quotas().find(name); quota != view->quotas().end())
      team["quota"] = quota->second;
    if (const auto gpus = view->gpu_quotas().find(name); gpus != view->gpu_quotas().end())
      team["gpu_quota"] = gpus->second;
    if (const auto share = view->shares().find(name); share != view->shares().end())
      team["share"] = share->second;
    out.push_back(std::move(team));
  }
  return out;
}

}  // namespace

Answer show_overview(Request& request) {
  Json out = {{"principal", request.call.principal.name},
              {"role", to_string(request.call.principal.role)},
              {"team", request.call.principal.team},
              {"now", request.now()},
              {"event", nullptr},
              {"policy", request.policy()},
              {"jobs", Json::object()}};
  {
    const auto at_once = request.reader.at_once();  // what is counted is as after this event
    out["event"] = request.reader.last_event();
    for (const auto& [phase, count] : request.reader.count_by_phase())
      out["jobs"][std::string(to_string(phase))] = count;
  }
  if (request.view() != nullptr) {
    const auto [fault, text] = request.view()->refusal();
    if (!text.empty()) out["store"] = {{"fault", to_string(fault)}, {"text", text}};
  }
  return json_answer(out);
}

Answer show_allocations(Request& request) {
  const double now = request.now();
  const auto since =
      static_cast<double>(request.number("since", static_cast<int64_t>(now) - 3600, 0, INT64_MAX));
  Json out = {{"now", now}, {"spans", Json::array()}};
  std::vector<HeldSpan> spans;  // written without the ledger, which others wait for
  request.with_ledger([&](const Ledger& ledger) { spans = ledger.spans(since); });
  for (const HeldSpan& span : spans) {
    Json shown = {{"job", span.job},
                  {"node", span.node},
                  {"devices", span.devices},
                  {"from", span.from},
                  {"to", nullptr}};
    if (span.to) shown["to"] = *span.to;
    out["spans"].push_back(std::move(shown));
  }
  return json_answer(out);
}

Answer show_accounts(Request& request) {
  struct Account {
    std::map<Phase, int64_t> jobs;
    int64_t devices = 0;
    double device_seconds = 0;
  };
  std::map<std::tuple<std::string, std::string, std::string>, Account> accounts;
  const double now = request.now();
  request.with_ledger([&](const Ledger& ledger) {
    const auto at_once = request.reader.at_once();  // what a job holds is counted for its phase
    const auto held = request.reader.all_holdings();
    request.reader.for_each_owner([&](const Reader::JobOwner& job) {
      Account& account = accounts[{job.team, job.tier, job.owner}];
      ++account.jobs[job.phase];
      account.device_seconds += ledger.device_seconds(job.id, now);
      if (const auto found = held.find(job.id); found != held.end())
        for (const Holding& h : found->second) account.devices += h.devices;
    });
  });
  Json out = {{"accounts", Json::array()}};
  std::map<std::string, int64_t> held_by;  // teams: devices
  for (const auto& [key, account] : accounts) {
    held_by[std::get<0>(key)] += account.devices;
    Json jobs = Json::object();
    for (const auto& [phase, count] : account.jobs) jobs[std::string(to_string(phase))] = count;
    out["accounts"].push_back({{"team", std::get<0>(key)},
                               {"tier", std::get<1>(key)},
                               {"owner", std::get<2>(key)},
                               {"jobs", jobs},
                               {"devices", account.devices},
                               {"device_seconds", account.device_seconds}});
  }
  out["teams"] = entitlements(request, held_by);
  return json_answer(out);
}

Answer show_curves(Request& request) {
  const JobRecord job = request.reader.find(request.argument);
  const std::string& run = run_of(job);
  // Only training measures something that is known here.
  const auto [version, text] = job.submission.kind != "train"
                                   ? CurveCache::Curves{"none", R"({"steps":0,"panels":[]})"}
                                   : request.curves().of(run::RunFolder::open(run).path());
  Answer out;
  out.body = fmt::format("{{\"version\":{},\"curves\":{}}}", dump_json(nlohmann::json(version)),
                         request.text("known") == version ? "null" : text);
  return out;
}

Answer show_log(Request& request) { return part_of_file(request, "worker.log"); }

Answer show_metric_lines(Request& request) { return part_of_file(request, "metrics.jsonl"); }

Answer show_options(Request& request) {
  const JobRecord job = request.reader.find(request.argument);
  const nlohmann::json spec = parse_json(
      request.reader.spec(job.id), fmt::format("the spec of job {}", job.id), ErrorCode::data_loss);
  spec::JobOptions options;
  OptionSet set(options);  // knows the defaults from what it is made of
  set.read_toml_text(JsonFields(spec, "spec").text("job"), "spec.job", Moved::follow);
  Json out = {{"options", Json::object()}, {"changed", Json::array()}};
  for (const OptionField& field : set.fields()) {
    const std::string value = to_toml(field.ref);
    out["options"][field.path] = value;
    if (value != to_toml(field.default_value)) out["changed"].push_back(field.path);
  }
  return json_answer(out);
}

Answer show_openapi(Request&) { return json_answer(openapi()); }

Answer make_page_link(Request& request) { return json_answer({{"link", request.link()}}); }

}  // namespace ductile::cluster
