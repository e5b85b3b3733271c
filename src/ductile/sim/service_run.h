#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ductile/sched/cluster.h"
#include "ductile/sched/job.h"

namespace ductile::sim {

struct Application;

// An inference service of a workload.
struct ServiceSpec {
  // Seconds since its arrival, requests a second; linear in between, from the last point on again
  // from the first (a day's curve ends at 86400). One point: constant. Times rise from 0.
  std::vector<std::pair<double, double>> load = {{0, 1}};
  double replica_rate =
      10;                // requests a second of a replica on the slowest type of its application
  double latency = 0.5;  // seconds within which requests are to be answered
  int32_t replica_devices = 1;  // devices of a replica
  double seconds = 86400;       // its life; then it ends

  double load_at(double since) const;
  double peak(double from, double to) const;  // the most in that time
};

// How well a service did, over any time.
struct ServiceRecord {
  double requests = 0, on_time = 0;  // on time: answered within ServiceSpec::latency
  double latency_sum = 0;            // of requests answered while it kept up, s
  double kept_up = 0;                // those requests
  double overloaded_seconds = 0;     // more requests came than could be answered
  double attained() const { return requests > 0 ? on_time / requests : 1; }
};

// One service of a simulation: its replicas and what they answer (sched/queueing.h). Replicas that
// are new, on a node where there were none of it or beyond those there, answer once they have
// started; the others go on meanwhile. Requests that come while it cannot keep up count as late.
class ServiceRun {
 public:
  ServiceRun(const ServiceSpec& spec, const Application& app, std::span<const std::string> types,
             double arrival, double start_seconds);

  void set(double now, std::span<const sched::NodeShare> allocation, int32_t type);
  // From where the last call ended until `until`.
  void pass(double until);
  double ends_at() const { return arrival_ + spec_.seconds; }
  // For the scheduler, which expects the load of the next `ahead` seconds exactly.
  sched::ServiceView view(double now, double ahead, int32_t floor) const;

  const ServiceRecord& record() const { return total_; }
  // By hour since its arrival.
  std::span<const ServiceRecord> hours() const { return hours_; }
  int32_t ready(double now) const;  // replicas

 private:
  struct Part {  // replicas of one node that came together
    int32_t node, replicas;
    double ready_at;
  };

  const ServiceSpec& spec_;
  double arrival_, start_seconds_;
  std::vector<double> rate_;  // by type
  std::vector<Part> parts_;
  int32_t type_ = -1;
  double now_;
  ServiceRecord total_;
  std::vector<ServiceRecord> hours_;
};

}  // namespace ductile::sim
