#include "ductile/sim/report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ductile/base/json.h"
#include "ductile/sim/report_impl.h"

namespace ductile::sim {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostDeviceRows = 256;
constexpr size_t kMostPoints = 160;  // of a curve

// Whole numbers stay short on the page.
double tidy(double value) { return std::round(value * 1000) / 1000; }

// Bars [row, rows, from, to, job]: each node's devices are rows; a job takes the first free ones.
Json bars(const SimResult& result, const sched::Cluster& cluster, bool by_device) {
  std::vector<int64_t> first_row(cluster.nodes() + 1, 0);
  for (int32_t n = 0; n < cluster.nodes(); ++n)
    first_row[n + 1] = first_row[n] + (by_device ? cluster.node_devices[n] : 1);
  std::vector<std::vector<double>> free_at(cluster.nodes());
  for (int32_t n = 0; n < cluster.nodes(); ++n) free_at[n].assign(cluster.node_devices[n], 0);
  Json out = Json::array();
  for (const Segment& segment : result.timeline) {
    for (const sched::NodeShare& share : segment.allocation) {
      if (!by_device) {
        out.push_back(
            {first_row[share.node], 1, tidy(segment.from), tidy(segment.to), segment.job});
        continue;
      }
      int32_t left = share.devices;
      auto& devices = free_at[share.node];
      for (size_t d = 0; d < devices.size() && left > 0;) {
        if (devices[d] > segment.from + 1e-6) {
          ++d;
          continue;
        }
        size_t end = d;
        while (end < devices.size() && left > 0 && devices[end] <= segment.from + 1e-6) {
          devices[end++] = segment.to;
          --left;
        }
        out.push_back({first_row[share.node] + static_cast<int64_t>(d), end - d, tidy(segment.from),
                       tidy(segment.to), segment.job});
        d = end;
      }
    }
  }
  return out;
}

Json curve(const SimResult& result, const std::function<double(const RoundSample&)>& value) {
  Json out = Json::array();
  const size_t step = std::max<size_t>(1, result.rounds.size() / kMostPoints);
  for (size_t i = 0; i < result.rounds.size(); i += step) {
    double sum = 0;
    const size_t end = std::min(i + step, result.rounds.size());
    for (size_t k = i; k < end; ++k) sum += value(result.rounds[k]);
    out.push_back({tidy(result.rounds[i].time), tidy(sum / static_cast<double>(end - i))});
  }
  return out;
}

}  // namespace

namespace {

std::string as_text(std::string_view plain) {
  std::string out;
  for (const char c : plain) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else
      out += c;
  }
  return out;
}

}  // namespace

std::string report_html(const std::vector<ExperimentRun>& runs, const sched::Cluster& cluster,
                        std::string_view about) {
  Json data;
  const bool by_device = cluster.usable_devices() <= kMostDeviceRows;
  Json rows = Json::array();
  for (int32_t n = 0; n < cluster.nodes(); ++n)
    rows.push_back({fmt::format("{} {}", cluster.types[cluster.node_type[n]], n),
                    by_device ? cluster.node_devices[n] : 1});
  data["rows"] = rows;
  data["by_device"] = by_device;
  std::map<std::string, std::vector<Summary>> by_policy;
  std::vector<std::string> order;
  auto& list = data["runs"] = Json::array();
  for (const ExperimentRun& run : runs) {
    if (!by_policy.contains(run.result.policy)) order.push_back(run.result.policy);
    by_policy[run.result.policy].push_back(run.summary);
    Json jobs = Json::array();
    for (const JobResult& job : run.result.jobs)
      jobs.push_back({job.name, job.application + (job.served ? " (service)" : ""),
                      tidy(job.arrival), tidy(job.start), tidy(job.finish), job.restarts});
    Json faults = Json::array();
    for (const FaultEvent& fault : run.result.faults)
      if (fault.start && !fault.announce)
        faults.push_back({tidy(fault.time), to_string(fault.kind), fault.node});
    list.push_back({{"policy", run.result.policy},
                    {"workload", run.result.workload},
                    {"seed", run.seed},
                    {"mean", tidy(run.summary.mean)},
                    {"end", tidy(run.result.end)},
                    {"jobs", std::move(jobs)},
                    {"bars", bars(run.result, cluster, by_device)},
                    {"faults", std::move(faults)},
                    {"goodput", curve(run.result, [](const auto& r) { return r.goodput; })},
                    {"waiting", curve(run.result, [](const auto& r) { return r.waiting; })},
                    {"served", curve(run.result,
                                     [](const auto& r) {
                                       return r.load > 0 ? 100 * r.on_time / r.load : 100;
                                     })},
                    {"used", curve(run.result, [](const auto& r) {
                       return r.usable > 0 ? 100.0 * static_cast<double>(r.used) /
                                                 static_cast<double>(r.usable)
                                           : 0;
                     })}});
  }
  bool services = false, teams = false;
  auto& policies = data["policies"] = Json::array();
  for (const std::string& policy : order) {
    Json entry = to_json(average(by_policy[policy]));
    entry.erase("decision_seconds");  // measured: the page would differ from run to run
    entry.erase("decision_seconds_p99");
    // The table's columns are numbers of their own.
    const auto kept = [&](const char* tier, const char* column) {
      if (entry.contains("tiers") && entry["tiers"].contains(tier))
        entry[column] = entry["tiers"][tier]["kept"].get<double>() /
                        entry["tiers"][tier]["windows"].get<double>();
    };
    kept("premium", "premium_kept");
    kept("standard", "standard_kept");
    if (entry.contains("services")) {
      services = true;
      entry["on_time"] = entry["services"]["on_time"];
      entry["worst_hour"] = entry["services"]["worst_hour_on_time"];
    }
    teams |= entry.contains("teams");
    entry["policy"] = policy;
    policies.push_back(std::move(entry));
  }
  std::string text = dump_json(data);
  for (size_t at = 0; (at = text.find('<', at)) != std::string::npos; at += 6)
    text.replace(at, 1, "\\u003c");
  std::set<std::string> workloads;
  for (const ExperimentRun& run : runs) workloads.insert(run.result.workload);
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>Simulation: {} policies</title>\n<style>{}</style></head>\n<body><main>\n"
      "<header><div class=\"eyebrow\">Ductile simulation</div><h1>{} {} on {} devices</h1>\n"
      "<p class=\"about\">{} {}; {} nodes of {} type{}</p>{}</header>\n"
      "<section><h2>Policies</h2><div class=\"card scroll\"><table id=\"summary\"></table></div>"
      "</section>\n{}"
      "<section><h2>Completion times</h2><div class=\"panels\"><div class=\"panel\">"
      "<h3>Share of jobs done within</h3><svg id=\"cdf\"></svg></div><div class=\"panel\">"
      "<h3>By application, mean</h3><svg id=\"apps\"></svg></div></div></section>\n"
      "<section><div class=\"bar\"><h2>Over time</h2><span id=\"choice\"></span></div>"
      "<div class=\"panels\">"
      "<div class=\"panel\"><h3>Goodput, jobs an hour</h3><svg id=\"goodput\"></svg></div>"
      "<div class=\"panel\"><h3>Jobs waiting without a device</h3><svg id=\"waiting\"></svg></div>"
      "<div class=\"panel wide\"><h3>Devices in use, %</h3><svg id=\"used\"></svg></div>{}"
      "</div></section>\n"
      "<section><h2>Cluster</h2><p class=\"about\">{}; a bar is a job, its colour the "
      "application. Point at one for its name; drag to zoom, double-click to see all.</p>"
      "<div id=\"legend\"></div><div id=\"timelines\"></div></section>\n"
      "<div id=\"tip\" hidden></div>\n"
      "<noscript>The figures need a browser that runs scripts; the table is also in the JSON of "
      "<code>ductile sim --json</code>.</noscript>\n"
      "</main><script type=\"application/json\" id=\"data\">{}</script>\n<script>{}</script>"
      "</body></html>\n",
      order.size(), report::kStyle, order.size(), order.size() == 1 ? "policy" : "policies",
      cluster.usable_devices(), workloads.size(), workloads.size() == 1 ? "workload" : "workloads",
      cluster.nodes(), cluster.type_count(), cluster.type_count() == 1 ? "" : "s",
      about.empty() ? "" : fmt::format("<p class=\"about\">{}</p>", as_text(about)),
      teams ? "<section><h2>Teams</h2><div class=\"card scroll\"><table id=\"teams\"></table></div>"
              "</section>\n"
            : "",
      services ? "<div class=\"panel wide\"><h3>Requests of services answered on time, %</h3>"
                 "<svg id=\"served\"></svg></div>"
               : "",
      by_device ? "A row is a device" : "A row is a node", text, report::kScript);
}

}  // namespace ductile::sim
