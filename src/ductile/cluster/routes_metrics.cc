// The route of Prometheus. However many jobs there are, the number of series stays the same, but
// for those of the jobs that hold devices, of which there are no more than devices.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ductile/cluster/metrics_impl.h"
#include "ductile/cluster/routes_impl.h"
#include "ductile/cluster/why_impl.h"

namespace ductile::cluster {
namespace {

void write_jobs(Request& request, MetricsText& out) {
  const auto counts = request.reader.count_by_phase();
  out.begin("ductile_jobs", "gauge", "Jobs by phase.");
  for (const Phase phase : {Phase::queued, Phase::running, Phase::paused, Phase::finished,
                            Phase::failed, Phase::cancelled}) {
    const auto found = counts.find(phase);
    out.sample({{"phase", to_string(phase)}},
               found == counts.end() ? 0 : static_cast<double>(found->second));
  }
  if (request.view() == nullptr) return;
  out.begin("ductile_live_jobs", "gauge",
            "Jobs that have not ended, by what is done with them, and why.");
  for (const auto& [cause, count] : request.view()->counts())
    out.sample({{"state", to_string(cause.moment)}, {"reason", to_string(cause.cause)}},
               static_cast<double>(count));
}

void write_devices_of_jobs(const std::vector<Holder>& holders, MetricsText& out) {
  std::map<JobId, std::pair<const Holder*, int64_t>> jobs;
  for (const Holder& holder : holders) {
    auto& [first, devices] = jobs[holder.job];
    first = &holder;
    devices += holder.devices;
  }
  if (jobs.empty()) return;
  out.begin("ductile_job_devices", "gauge", "Devices that a job holds.");
  for (const auto& [id, job] : jobs) {
    const auto& [holder, devices] = job;
    out.sample({{"job", std::to_string(id)},
                {"name", holder->name},
                {"team", holder->team},
                {"tier", holder->tier}},
               static_cast<double>(devices));
  }
}

void write_gpus(const LiveView& view, const std::vector<Holder>& holders, MetricsText& out) {
  int64_t usable = 0, held = 0;
  const std::map<JobId, int64_t> gpus = view.gpus();
  for (const auto& [node, hardware] : view.hardware()) {
    usable += hardware.usable_gpus;
    held += held_gpus(holders, gpus, node);
  }
  out.begin("ductile_gpus", "gauge", "GPUs of all nodes that jobs may have.");
  out.sample({}, static_cast<double>(usable));
  out.begin("ductile_gpus_held", "gauge", "GPUs that jobs hold.");
  out.sample({}, static_cast<double>(held));
}

void write_devices(Request& request, MetricsText& out) {
  std::map<NodeState, int64_t> nodes, devices;
  for (const NodeRecord& node : request.reader.nodes()) {
    ++nodes[node.state];
    devices[node.state] += node.devices;
  }
  int64_t held = 0;
  const std::vector<Holder> holders = request.reader.holders();
  for (const Holder& holder : holders) held += holder.devices;
  const auto write = [&](std::string_view name, std::string_view help, auto& counts) {
    out.begin(name, "gauge", help);
    for (const NodeState state : {NodeState::up, NodeState::away, NodeState::lost})
      out.sample({{"state", to_string(state)}}, static_cast<double>(counts[state]));
  };
  write("ductile_nodes", "Nodes by state.", nodes);
  write("ductile_devices", "Devices by the state of their nodes.", devices);
  out.begin("ductile_devices_held", "gauge", "Devices that jobs hold.");
  out.sample({}, static_cast<double>(held));
  write_devices_of_jobs(holders, out);
  if (request.view() != nullptr) write_gpus(*request.view(), holders, out);
}

void write_service(Request& request, MetricsText& out) {
  const QueueFigures queue = request.queue();
  out.begin("ductile_commits_total", "counter", "Transactions of the store that were committed.");
  out.sample({}, static_cast<double>(queue.commits));
  out.begin("ductile_changes_waiting", "gauge", "Changes that wait for the disk of the store.");
  out.sample({}, static_cast<double>(queue.waiting));
  out.begin("ductile_events_total", "counter", "Events recorded.");
  out.sample({}, static_cast<double>(request.reader.last_event()));
  if (request.view() == nullptr) return;
  out.begin("ductile_store_refuses", "gauge",
            "1 for what keeps the service from writing to its store now.");
  const auto [refused, text] = request.view()->refusal();
  for (const StoreFault fault : {StoreFault::full, StoreFault::busy, StoreFault::read_only,
                                 StoreFault::failing, StoreFault::missing, StoreFault::none})
    out.sample({{"fault", fault == StoreFault::none ? "other" : to_string(fault)}},
               !text.empty() && fault == refused ? 1 : 0);
  const RoundFigures rounds = request.view()->rounds();
  out.begin("ductile_rounds_total", "counter", "Decisions of the scheduler.");
  out.sample({}, static_cast<double>(rounds.count));
  out.begin("ductile_round_seconds_total", "counter", "Time that all of them took.");
  out.sample({}, rounds.seconds);
  out.begin("ductile_last_round_seconds", "gauge", "Time that the last of them took.");
  out.sample({}, rounds.last);
  out.begin("ductile_last_turn_seconds", "gauge",
            "The same with all that goes with it, in which the service does nothing else: looking "
            "at each job before, giving and taking devices after.");
  out.sample({}, rounds.last_turn);
}

// A series for each service that runs: these are few.
void write_serving(Request& request, MetricsText& out) {
  if (request.view() == nullptr) return;
  const std::map<JobId, ServingFigures> services = request.view()->serving();
  if (services.empty()) return;
  const auto write = [&](std::string_view name, std::string_view type, std::string_view help,
                         auto value) {
    out.begin(name, type, help);
    for (const auto& [id, figures] : services)
      out.sample({{"job", std::to_string(id)}, {"name", figures.name}},
                 static_cast<double>(value(figures)));
  };
  using F = const ServingFigures&;
  write("ductile_service_replicas", "gauge", "Replicas of a service that answer.",
        [](F f) { return f.ready; });
  out.begin("ductile_service_node_replicas", "gauge",
            "The same on each node, where a service has several.");
  for (const auto& [id, figures] : services)
    for (const auto& [node, replicas] : figures.by_node)
      out.sample({{"job", std::to_string(id)}, {"name", figures.name}, {"node", node}},
                 static_cast<double>(replicas));
  write("ductile_service_requests_total", "counter", "Requests that came to a service.",
        [](F f) { return f.arrived; });
  write("ductile_service_answers_total", "counter", "Requests that a replica answered.",
        [](F f) { return f.answered; });
  write("ductile_service_retries_total", "counter", "Requests that went to another replica.",
        [](F f) { return f.retried; });
  write("ductile_service_waiting", "gauge", "Requests that wait for a replica.",
        [](F f) { return f.waiting; });
  write("ductile_service_requests_per_second", "gauge", "Requests that come now.",
        [](F f) { return f.load; });
  write("ductile_service_replica_requests_per_second", "gauge",
        "Requests that one replica can answer; 0: not known yet.", [](F f) { return f.rate; });
}

}  // namespace

Answer show_metrics(Request& request) {
  MetricsText out;
  {
    const auto at_once = request.reader.at_once();  // what is held is held by jobs that run
    write_jobs(request, out);
    write_devices(request, out);
  }
  write_service(request, out);
  write_serving(request, out);
  request.counts().write(out);
  write_process_metrics(out);
  Answer answer;
  answer.type = "text/plain; version=0.0.4; charset=utf-8";
  answer.body = out.text();
  return answer;
}

}  // namespace ductile::cluster
