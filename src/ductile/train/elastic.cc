#include "ductile/train/elastic.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <mutex>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ductile/base/error.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/writer.h"
#include "ductile/comm/arena.h"
#include "ductile/link/addresses.h"
#include "ductile/link/worker_link.h"
#include "ductile/net/secret.h"
#include "ductile/parallel/exchange.h"
#include "ductile/run/report.h"
#include "ductile/train/interrupt.h"
#include "ductile/train/recorder.h"
#include "ductile/train/replica.h"

namespace ductile::train {
namespace {

using namespace control;
using namespace std::chrono_literals;
using Json = nlohmann::json;

// Longest wait for the other members of a generation to come.
constexpr auto kMeeting = 10s;

class ElasticWorker {
 public:
  explicit ElasticWorker(const ElasticInput& input);
  void run();

 private:
  link::WorkerLinkOptions link_options();

  // ---- commands, as worker_protocol.h has them
  void on(const SendReport&) {}
  void on(const Exit&) {}
  void on(const Restore& command);
  void on(const Feed& command);
  void on(const RunStep& command);
  void on(const CastVote& command);
  void on(const Apply& command);
  void on(const Abandon& command);
  void on(const WriteCheckpoint& command);

  void enter(const std::shared_ptr<const GenerationPlan>& plan);
  void leave();
  void take_up();
  void read_checkpoint(int64_t step);
  void receive_state(int feeder);
  void lead();
  void evaluate_together();
  void note_finished_saves();
  void settled(Generation generation, int64_t step);
  void finish();
  void on_error(const Error& e);
  int rank_of(WorkerId worker) const {
    return static_cast<int>(plan_->find(worker) - plan_->members.data());
  }
  bool leads() const { return !plan_->members.empty() && rank_of(input_.worker) == 0; }

  const ElasticInput& input_;
  const net::Secret secret_;
  const std::string job_name_;
  std::unique_ptr<Replica> replica_;
  std::optional<Recorder> recorder_;  // of the leader
  std::unique_ptr<ckpt::CheckpointWriter> writer_;
  uint64_t saving_ = 0;  // the attempt under way; 0: none

  std::shared_ptr<const GenerationPlan> plan_ = std::make_shared<GenerationPlan>();
  std::span<const float> sum_;   // of the last step, in exchange_ or kept_sum_
  std::vector<float> kept_sum_;  // of a generation that is over
  std::shared_ptr<comm::Arena> arena_;

  std::mutex mutex_;  // of what the link's thread looks at
  std::shared_ptr<parallel::Exchange> exchange_;
  Generation exchanging_ = 0;
  Generation taken_up_ = 0;               // of the step loop alone
  std::optional<link::WorkerLink> link_;  // last: its thread calls back
};

ElasticWorker::ElasticWorker(const ElasticInput& input)
    : input_(input), secret_(net::Secret::load()), job_name_(link::job_name(input.folder.path())) {
  link_.emplace(link_options(), secret_);
}

link::WorkerLinkOptions ElasticWorker::link_options() {
  link::WorkerLinkOptions options;
  options.worker = {.worker = input_.worker, .address = "127.0.0.1"};
  options.job = job_name_;
  options.controller = input_.controller;
  options.run = input_.folder.path();
  options.log = [](const std::string& text) { std::cerr << text << std::endl; };
  options.on_abandon = [this](Generation generation) {
    const std::lock_guard lock(mutex_);
    if (exchange_ && exchanging_ <= generation) exchange_->fail("the step was given up");
  };
  return options;
}

void ElasticWorker::run() {
  try {
    replica_ = std::make_unique<Replica>(input_.job);
    writer_ = std::make_unique<ckpt::CheckpointWriter>(
        input_.folder.checkpoints(),
        ckpt::WriterOptions{.pending_tag = link::checkpoint_tag(input_.worker)});
    link_->tell(Loaded{});
  } catch (const Error& e) {
    link_->tell(JobError{e.what()});
  }
  bool leaving = false;
  while (true) {
    if (!leaving && pending_interrupt() != 0) {
      leaving = true;
      link_->tell(LeaveAsked{});
    }
    note_finished_saves();
    const auto command = link_->next(saving_ != 0 ? 5ms : 100ms);
    if (!command) continue;
    if (std::holds_alternative<Exit>(*command)) break;
    try {
      std::visit([this](const auto& c) { on(c); }, *command);
    } catch (const Error& e) {
      on_error(e);
    } catch (const std::exception& e) {
      link_->tell(JobError{e.what()});
    }
  }
  if (writer_) writer_->wait();
  if (replica_ && leads()) finish();
}

// A lost peer is for the protocol to settle; anything else would happen on every worker.
void ElasticWorker::on_error(const Error& e) {
  if (e.code() != ErrorCode::peer_lost && e.code() != ErrorCode::deadline) {
    link_->tell(JobError{e.what()});
    return;
  }
  PeerLost lost{plan_->number, {}, e.what()};
  const std::optional<comm::PeerLoss> loss = arena_ ? arena_->loss() : std::nullopt;
  if (loss) {
    for (const int rank : loss->ranks) {
      lost.suspects.push_back(plan_->members[static_cast<size_t>(rank)].worker);
    }
  }
  link_->tell(lost);
}

// Meets the members of a new generation.
void ElasticWorker::enter(const std::shared_ptr<const GenerationPlan>& plan) {
  if (exchange_ && exchanging_ == plan->number) return;
  leave();
  plan_ = plan;
  if (link_->abandoned(plan->number)) fail(ErrorCode::peer_lost, "given up before it began");
  parallel::ExchangeLayout layout{{0}, replica_->vector_size()};
  layout.reduction = input_.job.train.reduction == "fast" ? parallel::Reduction::fast
                                                          : parallel::Reduction::canonical;
  if (input_.job.train.wire != "fp32") {
    layout.wire = input_.job.train.wire == "bf16" ? DType::bf16 : DType::f16;
  }
  comm::ArenaOptions options;
  for (const Member& m : plan->members) {
    layout.cut.push_back(m.ranks.end);
    options.labels.push_back(static_cast<int>(m.worker));
  }
  options.region_bytes = parallel::arena_bytes(layout);
  options.generation = plan->number;
  // Who knows the name knows the secret.
  const net::Mac mac = secret_.mac(
      {std::as_bytes(std::span(std::string_view("arena"))), std::as_bytes(std::span(job_name_))});
  const std::string name =
      fmt::format("ductile-{}-{}", net::to_hex(std::span(mac).first(16)), plan->number);
  arena_ = comm::Arena::meet(name, rank_of(input_.worker), layout.num_workers(), options, kMeeting);
  std::shared_ptr<parallel::Exchange> exchange = parallel::make_exchange(arena_, layout);
  {
    const std::lock_guard lock(mutex_);
    exchange_ = std::move(exchange);
    exchanging_ = plan->number;
  }
  if (link_->abandoned(plan->number)) fail(ErrorCode::peer_lost, "given up while it began");
}

// The sum of a step that was voted for outlives the memory it was made in.
void ElasticWorker::leave() {
  if (!exchange_) return;
  if (sum_.data() != kept_sum_.data()) kept_sum_.assign(sum_.begin(), sum_.end());
  sum_ = kept_sum_;
  const std::lock_guard lock(mutex_);
  exchange_ = nullptr;
  arena_ = nullptr;
}

void ElasticWorker::on(const Restore& command) {
  enter(command.plan);
  switch (command.self.source) {
    case StateSource::keep:
      break;
    case StateSource::apply_voted:
      replica_->apply(sum_);
      break;
    case StateSource::peer:
      receive_state(rank_of(command.self.feeder));
      break;
    case StateSource::checkpoint:
      try {
        read_checkpoint(plan_->start);
      } catch (const Error& e) {
        link_->tell(RestoreFailed{plan_->number, e.what()});
        return;
      }
      break;
    case StateSource::initial:
      if (replica_->step() > 0) replica_ = std::make_unique<Replica>(input_.job);
      break;
  }
  take_up();
  settled(plan_->number, plan_->start);
}

// Once a generation, with the state before its first step.
void ElasticWorker::take_up() {
  if (taken_up_ == plan_->number) return;
  // An evaluation that a lost leader left undone: the same on every member, without words.
  if (replica_->evaluation_due()) replica_->record(replica_->evaluate([](int64_t) {}));
  const RankRange own = plan_->find(input_.worker)->ranks;
  replica_->host(own.begin, own.size());
  lead();
  taken_up_ = plan_->number;
}

// The state before `step` is complete. The result is on disk before anybody is told that it is the
// last one.
void ElasticWorker::settled(Generation generation, int64_t step) {
  const bool done = replica_->done();
  if (done && leads()) replica_->write_model(input_.folder.path() / "model.safetensors");
  link_->tell(Restored{generation, step, done});
}

void ElasticWorker::read_checkpoint(int64_t step) {
  const ckpt::LatestResult latest = ckpt::open_latest(input_.folder.checkpoints());
  if (!latest.checkpoint || latest.checkpoint->step() != step) {
    fail(ErrorCode::data_loss, "the checkpoint of step {} cannot be used{}{}", step,
         latest.refused.empty() ? "" : ": ", fmt::join(latest.refused, "; "));
  }
  replica_->restore(*latest.checkpoint);
}

// Whoever leads keeps the run's books; a new leader goes on with those of the one before.
void ElasticWorker::lead() {
  if (!leads()) {
    recorder_.reset();
    return;
  }
  const bool resumed = plan_->start > 0 || plan_->number > 1;
  if (!recorder_) {
    recorder_.emplace(input_.folder, *replica_, resumed, std::nullopt, input_.progress_fd);
  }
  recorder_->started(static_cast<int64_t>(plan_->members.size()), Json::array());
}

void ElasticWorker::on(const Feed& command) {
  enter(command.plan);
  const std::string state = replica_->state().dump();
  const uint64_t size = state.size();
  for (const WorkerId worker : command.to) {
    const int peer = rank_of(worker);
    exchange_->send(peer, std::as_bytes(std::span(&size, 1)));
    exchange_->send(peer, std::as_bytes(std::span(state)));
    for (const ckpt::TensorView& tensor : replica_->tensors()) exchange_->send(peer, tensor.bytes);
  }
}

void ElasticWorker::receive_state(int feeder) {
  uint64_t size = 0;
  exchange_->receive(feeder, std::as_writable_bytes(std::span(&size, 1)));
  std::string state(size, '\0');
  exchange_->receive(feeder, std::as_writable_bytes(std::span(state)));
  for (const std::span<std::byte> tensor : replica_->writable_tensors()) {
    exchange_->receive(feeder, tensor);
  }
  replica_->restore(plan_->start, Json::parse(state));
}

void ElasticWorker::on(const RunStep& command) {
  enter(command.plan);
  take_up();  // who has the state already is not told to restore it
  const std::span<const comm::LeafRange> nodes = exchange_->nodes();
  for (size_t i = 0; i < nodes.size(); ++i) {
    replica_->compute(nodes[i].size(), exchange_->partial(i));
  }
  sum_ = exchange_->reduce();
  link_->tell(Reduced{plan_->number, command.step});
}

void ElasticWorker::on(const CastVote& command) {
  const Generation stop = exchange_->largest(command.stop);
  link_->tell(AllVoted{command.generation, command.step, stop});
}

void ElasticWorker::on(const Apply& command) {
  replica_->apply(sum_);
  if (replica_->window_due()) {
    const Window window = replica_->take_window();
    if (recorder_) recorder_->log(window);
  }
  if (recorder_) recorder_->show_now_and_then();
  try {
    if (replica_->evaluation_due()) evaluate_together();
  } catch (const Error& e) {
    // The step is applied all the same; the evaluation is made up for in the next generation.
    link_->tell(Restored{command.generation, command.step + 1, false});
    throw;
  }
  settled(command.generation, command.step + 1);
}

// The leader evaluates and tells the others.
void ElasticWorker::evaluate_together() {
  Evaluation result;
  const auto bytes = std::as_writable_bytes(std::span(&result, 1));
  if (leads()) {
    result = recorder_->evaluate(*replica_);
    for (int r = 1; r < exchange_->layout().num_workers(); ++r) exchange_->send(r, bytes);
  } else {
    exchange_->receive(0, bytes);
    replica_->record(result);
  }
}

void ElasticWorker::on(const Abandon& command) {
  leave();
  link_->tell(Abandoned{command.generation});
}

void ElasticWorker::on(const WriteCheckpoint& command) {
  try {
    if (recorder_) recorder_->flush();
    Json state = replica_->state();
    state["cost"] = recorder_ ? run::to_json(recorder_->cost()) : Json();
    writer_->save(replica_->step(), state, replica_->tensors());
    saving_ = command.attempt;
  } catch (const Error& e) {
    link_->tell(SaveFailed{command.attempt, e.what()});
  }
}

void ElasticWorker::note_finished_saves() {
  if (!writer_) return;
  while (const auto report = writer_->take_report()) {
    if (recorder_) recorder_->checkpoint(*report);
    const uint64_t attempt = std::exchange(saving_, 0);
    if (report->error.empty()) {
      link_->tell(Saved{attempt, report->step});
    } else {
      link_->tell(SaveFailed{attempt, report->error});
    }
  }
}

// The controller has published the last checkpoint; what people look at is the leader's to write.
void ElasticWorker::finish() {
  if (!recorder_) return;
  const std::string_view status = !replica_->done()            ? "interrupted"
                                  : replica_->target_reached() ? "target_reached"
                                                               : "done";
  const Json summary = recorder_->summary(status);
  recorder_->event("end", summary);
  recorder_->flush();
  recorder_->show(run::Phase::train);
  run::write_report(input_.folder);
  run::write_line(input_.progress_fd, run::Done{summary});
}

}  // namespace

void train_elastic(const ElasticInput& input) { ElasticWorker(input).run(); }

}  // namespace ductile::train
