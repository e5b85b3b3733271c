#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/clock.h"
#include "ductile/cluster/commit_queue.h"
#include "ductile/cluster/engine_impl.h"
#include "ductile/cluster/front_impl.h"
#include "ductile/cluster/http_server.h"
#include "ductile/cluster/job_runner_impl.h"
#include "ductile/cluster/nodes_impl.h"
#include "ductile/cluster/page_access.h"
#include "ductile/cluster/scheduler.h"
#include "ductile/cluster/service.h"
#include "ductile/cluster/service_spec_impl.h"
#include "ductile/cluster/spec_reader_impl.h"
#include "ductile/cluster/store_writer_impl.h"
#include "ductile/cluster/trusted_time_impl.h"
#include "ductile/cluster/why_impl.h"
#include "ductile/server/launcher.h"

namespace ductile::cluster {

// The service itself: service_serving.cc is about jobs that answer requests, service_order.cc about
// those that begin after others, service_plans.cc about those by stages, service.cc goes from what
// is granted to what is held,
// service_follow.cc follows what the store, its users and its nodes say, and tells them what
// becomes of it and what was learnt; service_stop.cc is its end.
class Service::Impl {
 public:
  Impl(net::Loop& loop, ServiceOptions options);
  ~Impl();

  void stop(std::function<void()> on_stopped);

  uint16_t port() const { return http_->port(); }
  std::string page_link();
  const std::string& address() const { return address_; }

 private:
  using Counts = std::vector<int64_t>;  // by node

  // A job that has not ended.
  struct Live {
    JobRecord record;
    Work work;
    std::string application;       // application_of(work)
    std::vector<TrainPlan> plans;  // of a job by stages; of several one is kept when it begins
    double arrival = 0;  // as schedule_time(); no later job's is earlier, however clocks are set
    fs::path run;
    std::set<JobId> after;     // that are to finish before it begins
    spec::Allocation granted;  // what the policy wants it to hold
    std::string why;           // of this grant
    spec::Allocation asked;    // what its workers were told to take
    int waits = 0;             // for devices, one after the other
    bool starting = false, stopping = false;
    // Which nodes it has to leave, and why, where that is what it ends or moves for; else empty.
    std::string leaves;
    bool unsaid = false;                // what the store says of why it waits is out of date
    std::optional<net::Deadline> said;  // when it was written last, since it waits
    net::Loop::Timer rest;              // after a start that failed: until it is tried again
    int redone = 0;                     // how often its result found no room
    // Where the steps of the present workers were counted from.
    int64_t generation = -1, pauses = 0;
    JobProgress::Told first{};
    bool measured = false;  // since then, once at least
    // The speed that was noted last, and on how many devices it was measured.
    int64_t noted_devices = 0;
    double noted_speed = 0;
    double rate = 0;                 // steps per second of the present workers; 0: not measured
    double save = 0;                 // seconds of its longest save here; 0: none was seen yet
    int64_t batch = 0, ordered = 0;  // that it trains with, and that was ordered last; 0: none
    std::unique_ptr<Front> front;    // of a service job that has run and is not paused
    std::unique_ptr<JobRunner> runner;
  };

  void open_interface();
  SpecReader::Read checked_work(const Submission& s, nlohmann::json& spec, const Principal& who);
  void offer_access();
  void take_up(JobRecord record);
  void admit(Live& live);  // to those that the policy decides about
  std::string await_earlier(Live& live);
  void go_on_after(JobId id, const std::string& name, Phase phase);
  void recall();    // what the last service had learnt
  void remember();  // the same, for the next one
  void remember_now();
  void prune();  // what need not be kept any more
  double known_time();
  void tell_of_backup();
  void count_beyond_old_runs();
  void recall_run(JobRecord& record);
  void recall_command(JobRecord& record);
  Retention retention_at(double wall);
  void go_on();  // with what ran when the last service ended
  void look();   // at what the store says anew
  void look_at_events();
  void look_at_drains();
  void await_drains(std::chrono::milliseconds wait);  // until one begins or ends
  void look_at_nodes();
  void look_at_hardware();
  spec::Allocation held_before(JobId id, Counts& left);
  void follow_wish(Live& live);
  void follow_devices(Live& live, const Submission& wanted);
  void measure(Live& live);
  void open_front(Live& live, const ServeSpec& spec);
  size_t connections_of_front(JobId id) const;
  void close_front(Live& live);
  FrontMemory kept_front(JobId id);
  void end_replicas(const Live& live);
  void look_at_leftovers();
  void follow_load(Live& live);
  void follow_reload(Live& live, const Event& event);
  void reload_as_asked(Live& live);  // before it had a front
  void note_load(Live& live);
  int64_t least_devices(const Live& live) const;
  void follow_batch(Live& live);
  void order_batch(Live& live);
  void note_speed(Live& live, double speed, const JobProgress& progress);
  void keep_in_place(Live& live);
  void decide();
  void settle();
  double time_to_leave(int32_t node) const;
  std::string why_to_leave(int32_t node) const;
  std::string nodes_to_leave(const Live& live) const;
  bool has_enough_to_stay(const Live& live) const;
  bool keeps_the_rest(const Live& live, const Counts& has) const;
  std::optional<net::Deadline> stays_until(const Live& live) const;
  bool approach(Live& live, Counts& free);
  bool restores_mark();
  void begin(Live& live, const spec::Allocation& devices);
  std::optional<size_t> plan_of_run(const Live& live) const;
  void keep_plan(Live& live, size_t chosen);
  void keep_plan_of_run(Live& live);
  void settle_plan(Live& live, const spec::Allocation& devices);
  std::string plan_text(const Live& live);
  void show_pipelines(const Live& live);
  void start_runner(Live& live, const spec::Allocation& devices);
  void resize(Live& live, const spec::Allocation& devices);
  void preempt(Live& live);
  void let_rest(Live& live, const std::string& why);
  void ended(JobId id, RunnerEnd end);
  void end(JobId id, Phase phase, const std::string& reason, std::optional<int64_t> exit_code = {});
  void say(Live& live, const std::string& reason);
  void write_reasons();
  void write_reasons_in(std::chrono::milliseconds wait);
  LiveState state_of(const Live& live) const;
  void show();        // to those who ask: what each job is doing
  void show_claim();  // and for whom a node is kept
  void decide_soon();
  void end_if_idle();
  bool store_takes_nothing();
  void end_anyway();
  void give_up(const Error& error);
  void follow_demand();
  Counts held(const Live& live) const;
  Counts free_devices() const;
  bool finds_gpus(Live& live);
  double schedule_time() const;  // seconds since 1970 that never go back

  net::Loop& loop_;
  const ServiceOptions options_;
  const spec::Cluster cluster_;
  Store store_;
  CommitQueue queue_;
  StoreWriter writer_{loop_, queue_};
  Reader reader_;
  const RunsFolder runs_;
  net::Deadline next_mark_{};           // when its mark may be looked for again
  SpecReader specs_;                    // also of the interface's threads
  TrustedTime clock_{known_time()};     // before anything new is written
  double clock_kept_ = clock_.known();  // in the store
  bool clock_doubted_ = false;
  const std::unique_ptr<Engine> engine_;
  Nodes nodes_;
  Scheduler scheduler_;
  LiveView view_;
  std::map<JobId, Live> live_;
  std::set<JobId> ending_;                    // have ended, and the store does not say so yet
  std::map<JobId, std::set<JobId>> later_{};  // what is to begin after a job that has not ended
  Revision seen_ = 0;
  int64_t hardware_seen_ = 0;                           // of the changes of nodes_
  std::map<std::string, std::string> drain_reasons_{};  // by node that is drained
  double arrived_ = 0;                                  // of the last job
  const double began_ = wall_seconds();
  const net::Deadline began_steady_ = loop_.now();
  net::Deadline decided_ = began_steady_;  // when the last round ended
  net::Clock::duration turn_{};            // and how long it took
  bool stopping_ = false, gave_up_ = false;
  bool forgets_ = false;  // what it has learnt is too much to be kept; that was said
  std::function<void()> on_stopped_;
  std::optional<net::Deadline> unwritten_since_;  // by a service that ends, and has no job left
  std::string prune_trouble_;                     // that was said
  std::vector<std::unique_ptr<server::Launcher>> leftovers_;  // processes that are about to end
  net::Loop::Timer remember_, prune_, round_, look_again_, decide_soon_, settle_soon_, show_soon_,
      say_soon_, drains_, leftovers_timer_, stop_soon_, stop_end_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  PageAccess page_;
  std::string address_;
  std::unique_ptr<Api> api_;
  std::unique_ptr<HttpServer> http_;  // ends first: nothing asks any more
};

}  // namespace ductile::cluster
