// A worker without torch for the tests of the controller's host: real processes, real connections,
// real checkpoints; its model is one number that depends on every contribution of every step.
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/base/log.h"
#include "ductile/base/options.h"
#include "ductile/base/paths.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/writer.h"
#include "ductile/comm/tcp_transport.h"
#include "ductile/link/testing/test_model.h"
#include "ductile/link/worker_link.h"
#include "ductile/net/store_server.h"
#include "ductile/run/progress.h"
#include "ductile/server/host_agent.h"
#include "ductile/spec/job.h"

namespace ductile::server::testing {
namespace {

using namespace control;
using namespace link::testing;
using namespace std::chrono_literals;

constexpr double kSlow = 100;  // ms; a step takes so much longer while there is the file that
                               // $DUCTILE_TEST_SLOW_WHILE names

struct Arguments {
  fs::path run;
  WorkerId worker = 0;
  net::Address controller;
  net::Address store;
  std::string address = "127.0.0.1";
  std::string host;
  int progress_fd = -1;
  int64_t alone = 0;
};

Arguments parse(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i];
    const std::string value = argv[i + 1];
    if (key == "--run") a.run = value;
    if (key == "--worker") a.worker = std::stoull(value);
    if (key == "--controller") a.controller = net::Address::parse(value);
    if (key == "--store") a.store = net::Address::parse(value);
    if (key == "--address") a.address = value;
    if (key == "--alone") a.alone = std::stoll(value);
    if (key == "--host") a.host = value;
    if (key == "--progress-fd") a.progress_fd = std::stoi(value);
  }
  return a;
}

// As a worker whose interpreter has no torch: it has no link, only its progress pipe.
bool cannot_import(const Arguments& arguments, const nlohmann::json& test) {
  if (test.value("cannot_import", WorkerId{0}) != arguments.worker) return false;
  run::write_line(arguments.progress_fd,
                  run::Failed{ErrorCode::invalid_argument, "cannot import torch"});
  return true;
}

class Worker {
 public:
  Worker(const Arguments& arguments, const nlohmann::json& test)
      : arguments_(arguments),
        test_(test),
        secret_(net::Secret::load()),
        job_(link::job_name(arguments.run)),
        link_(options(), secret_) {}

  void run() {
    pause(test_.value("start_ms", 0.0));
    if (!arguments_.host.empty() && test_.value("sick_host", "") == arguments_.host) {
      link_.tell(JobError{"there are no samples here"});
    } else {
      link_.tell(Loaded{});
    }
    while (true) {
      auto command = link_.next();
      if (!command) continue;
      if (std::holds_alternative<Exit>(*command)) return;
      try {
        std::visit([this](const auto& c) { on(c); }, *command);
      } catch (const std::exception& e) {
        link_.tell(event_of(e, plan_->number));
      }
    }
  }

 private:
  link::WorkerLinkOptions options() {
    link::WorkerLinkOptions o;
    o.worker = {arguments_.worker, link::PeerAddress::here(arguments_.address).to_string(),
                std::chrono::milliseconds(test_.value("beat_ms", int64_t{50})),
                std::chrono::milliseconds(test_.at("lease_ms").get<int64_t>())};
    o.job = job_;
    o.controller = arguments_.controller;
    o.store = arguments_.store;
    o.run = arguments_.run;
    o.orphan_after = 15s;
    o.alone = std::chrono::seconds(arguments_.alone);
    o.log = [](const std::string& text) { log_line(text); };
    o.on_abandon = [this](Generation generation) {
      const std::lock_guard guard(mutex_);
      if (transport_ && connected_ <= generation) transport_->fail({{}, "the step was abandoned"});
    };
    return o;
  }

  // ---- commands
  void on(const SendStatus&) {}
  void on(const Exit&) {}
  void on(const Restore& command) {
    enter(command.plan);
    if (command.self.source == StateSource::peer) {
      const int feeder = rank_of(command.self.feeder);
      state_ = receive_all<State>({feeder}, tag(plan_->start, 3)).front();
    } else if (command.self.source == StateSource::checkpoint) {
      try {
        state_ = read_checkpoint(arguments_.run / "checkpoints", plan_->start);
      } catch (const std::exception& e) {
        link_.tell(restore_event_of(e, plan_->number));
        return;
      }
    } else if (command.self.source == StateSource::initial) {
      state_ = State{};
    }
    std::vector<int> to;
    for (const Member& member : plan_->members)
      if (member.source == StateSource::peer && member.feeder == arguments_.worker)
        to.push_back(rank_of(member.worker));
    send_all(to, tag(plan_->start, 3), state_);
    link_.tell(Restored{plan_->number, plan_->start, plan_->start == steps()});
  }
  void on(const RunStep& command) {
    enter(command.plan);
    if (test_.value("error_at", -1) == command.step)
      fail(ErrorCode::invalid_argument, "{}sample {} cannot be read",
           test_.value("odd_error", false) ? "\xff" : "", command.step);
    const RankRange& own = plan_->members[static_cast<size_t>(rank_)].ranks;
    pause(test_.at("step_ms").get<double>() + test_.value("work_ms", 0.0) *
                                                  static_cast<double>(own.size()) /
                                                  static_cast<double>(virtual_ranks()));
    if (is_slow()) pause(kSlow);
    std::vector<uint64_t> leaves(static_cast<size_t>(virtual_ranks()));
    const auto fill = [&](const RankRange& ranks, uint64_t state) {
      for (int64_t r = ranks.begin; r < ranks.end; ++r)
        leaves[static_cast<size_t>(r)] = leaf(state, command.step, r);
    };
    fill(own, state_.value);
    exchange_leaves(leaves, tag(command.step, 1));
    reduction_ = reduce(leaves);
    link_.tell(Reduced{plan_->number, command.step});
  }
  void on(const CastVote& command) {
    const std::vector<uint64_t> votes = exchange(command.stop, tag(command.step, 2));
    Generation stop = command.stop;
    for (const uint64_t vote : votes) stop = std::max<Generation>(stop, vote);
    link_.tell(AllVoted{command.generation, command.step, stop});
  }
  void on(const Apply& command) {
    state_ = {command.step + 1, apply(state_.value, reduction_)};
    run::offer_line(arguments_.progress_fd,
                    run::Message{"info", fmt::format("step {}", command.step + 1)});
    link_.tell(Restored{command.generation, command.step + 1, command.step + 1 == steps()});
  }
  void on(const Abandon& command) { link_.tell(Abandoned{command.generation}); }
  void on(const WriteCheckpoint& command) {
    try {
      write_checkpoint(arguments_.run / "checkpoints", state_,
                       link::checkpoint_tag(arguments_.worker));
      link_.tell(Saved{command.attempt, command.step});
    } catch (const Error& e) {
      link_.tell(SaveFailed{command.attempt, e.what()});
    }
  }

  // So a test can look at a job that would else be done before a busy machine lets it look.
  static bool is_slow() {
    static const char* const file = std::getenv("DUCTILE_TEST_SLOW_WHILE");
    return file != nullptr && ::access(file, F_OK) == 0;
  }

  // In place of what a processor would be busy with.
  static void pause(double milliseconds) {
    if (milliseconds <= 0) return;
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds));
  }

  // ---- communication
  static comm::Tag tag(int64_t step, int kind) { return static_cast<comm::Tag>(step * 4 + kind); }
  int64_t steps() const { return test_.at("steps"); }
  int64_t virtual_ranks() const { return test_.at("virtual_ranks"); }
  int size() const { return static_cast<int>(plan_->members.size()); }
  int rank_of(WorkerId worker) const {
    return static_cast<int>(plan_->find(worker) - plan_->members.data());
  }

  void enter(const std::shared_ptr<const GenerationPlan>& plan) {
    plan_ = plan;
    rank_ = rank_of(arguments_.worker);
    if (connected_ == plan->number) return;
    {
      const std::lock_guard guard(mutex_);
      transport_ = nullptr;
    }
    if (link_.abandoned(plan->number)) fail(ErrorCode::peer_lost, "abandoned before it began");
    const net::Deadline deadline = net::Clock::now() + 3s;
    const auto store = net::connect_store(*link_.store(), secret_, job_, deadline);
    comm::TcpOptions tcp;
    tcp.links = {arguments_.address};
    tcp.given_up = [this, number = plan->number] { return link_.abandoned(number); };
    std::shared_ptr<comm::Transport> transport =
        comm::connect_tcp({job_, plan->number, rank_, size()}, *store, secret_, tcp, deadline);
    {
      const std::lock_guard guard(mutex_);
      transport_ = std::move(transport);
      connected_ = plan->number;
    }
    if (link_.abandoned(plan->number)) fail(ErrorCode::peer_lost, "abandoned while it began");
  }

  void finish(std::deque<comm::Transfer>& transfers) {
    for (comm::Transfer& t : transfers)
      while (!t.settled()) transport_->progress(50ms);
    for (comm::Transfer& t : transfers)
      if (t.state != comm::Transfer::State::done) fail(ErrorCode::peer_lost, "a transfer failed");
  }

  template <class T>
  void send_all(const std::vector<int>& to, comm::Tag tag, const T& value) {
    std::deque<comm::Transfer> transfers(to.size());
    for (size_t i = 0; i < to.size(); ++i)
      transport_->send(to[i], tag, std::as_bytes(std::span(&value, 1)), transfers[i]);
    finish(transfers);
  }

  template <class T>
  std::vector<T> receive_all(const std::vector<int>& from, comm::Tag tag) {
    std::vector<T> values(from.size());
    std::deque<comm::Transfer> transfers(from.size());
    for (size_t i = 0; i < from.size(); ++i)
      transport_->receive(from[i], tag, std::as_writable_bytes(std::span(&values[i], 1)),
                          transfers[i]);
    finish(transfers);
    return values;
  }

  std::vector<int> peers() const {
    std::vector<int> others;
    for (int r = 0; r < size(); ++r)
      if (r != rank_) others.push_back(r);
    return others;
  }

  std::vector<uint64_t> exchange(uint64_t own, comm::Tag tag) {
    send_all(peers(), tag, own);
    return receive_all<uint64_t>(peers(), tag);
  }

  void exchange_leaves(std::vector<uint64_t>& leaves, comm::Tag tag) {
    const auto part = [&](int r) {
      const RankRange& ranks = plan_->members[static_cast<size_t>(r)].ranks;
      return std::span(leaves).subspan(static_cast<size_t>(ranks.begin),
                                       static_cast<size_t>(ranks.size()));
    };
    const std::vector<int> others = peers();
    std::deque<comm::Transfer> transfers(2 * others.size());
    for (size_t i = 0; i < others.size(); ++i) {
      transport_->send(others[i], tag, std::as_bytes(part(rank_)), transfers[2 * i]);
      transport_->receive(others[i], tag, std::as_writable_bytes(part(others[i])),
                          transfers[2 * i + 1]);
    }
    finish(transfers);
  }

  const Arguments arguments_;
  const nlohmann::json test_;
  const net::Secret secret_;
  const std::string job_;
  std::shared_ptr<const GenerationPlan> plan_ = std::make_shared<GenerationPlan>();
  int rank_ = 0;
  State state_;
  uint64_t reduction_ = 0;
  std::mutex mutex_;  // of transport_ and connected_, which the link's thread looks at
  std::shared_ptr<comm::Transport> transport_;
  Generation connected_ = 0;
  link::WorkerLink link_;  // last: its thread calls back
};

double from_environment(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atof(text) : otherwise;
}

// test.json of the run, or what the job says where a user's command started it. In milliseconds:
// a step takes step_ms, and each worker's share of work_ms; start_ms pass before a worker is ready;
// beat_ms lie between its heartbeats.
nlohmann::json test_of(const fs::path& run) {
  if (is_file(run / "test.json")) return nlohmann::json::parse(read_file(run / "test.json"));
  spec::JobOptions job;
  OptionSet(job).read_toml(run / "job.toml");
  return {{"steps", job.train.max_steps},
          {"virtual_ranks", job.train.virtual_ranks},
          {"step_ms", from_environment("DUCTILE_TEST_STEP_MS", 5)},
          {"work_ms", from_environment("DUCTILE_TEST_WORK_MS", 0)},
          {"start_ms", from_environment("DUCTILE_TEST_START_MS", 0)},
          {"beat_ms", static_cast<int64_t>(from_environment("DUCTILE_TEST_BEAT_MS", 50))},
          {"lease_ms", static_cast<int64_t>(from_environment("DUCTILE_TEST_LEASE_MS", 10000))}};
}

}  // namespace
}  // namespace ductile::server::testing

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  if (argc > 1 && std::string_view(argv[1]) == ductile::server::kHostAgent)
    return ductile::server::run_host_agent(STDIN_FILENO, STDOUT_FILENO);
  try {
    const auto arguments = ductile::server::testing::parse(argc, argv);
    const auto test = ductile::server::testing::test_of(arguments.run);
    if (ductile::server::testing::cannot_import(arguments, test)) return 2;
    ductile::server::testing::Worker(arguments, test).run();
    return 0;
  } catch (const std::exception& e) {
    ductile::log_line(std::string("worker: ") + e.what());
    return 3;
  }
}
