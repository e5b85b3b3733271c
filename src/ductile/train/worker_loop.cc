#include "ductile/train/worker_loop.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ductile/base/aligned_array.h"
#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/log.h"
#include "ductile/base/pages.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/writer.h"
#include "ductile/control/worker_protocol.h"
#include "ductile/link/addresses.h"
#include "ductile/link/membership_options.h"
#include "ductile/parallel/exchange.h"
#include "ductile/run/meters.h"
#include "ductile/run/progress.h"
#include "ductile/spec/methods.h"
#include "ductile/train/batch_orders.h"
#include "ductile/train/current_event.h"
#include "ductile/train/environment.h"
#include "ductile/train/exchange_layout.h"
#include "ductile/train/initial_weights.h"
#include "ductile/train/meeting.h"
#include "ductile/train/part_saver.h"
#include "ductile/train/plan_parts.h"
#include "ductile/train/recorder.h"
#include "ductile/train/replica.h"
#include "ductile/train/result.h"
#include "ductile/train/stage_memory.h"
#include "ductile/train/stage_trace.h"

namespace ductile::train {
namespace {

using namespace control;
using namespace std::chrono_literals;
using Json = nlohmann::json;

}  // namespace

class WorkerLoop::Impl {
 public:
  Impl(const WorkerInput& input, link::CommandSource& source)
      : input_(input),
        source_(source),
        recipe_(input.recipe ? input.recipe : recipe_of(input.job)),
        job_name_(link::job_name(input.folder.path())),
        orders_(input.folder.batch_file()) {}
  void run();
  void give_up(Generation generation);

 private:
  // ---- commands, as worker_protocol.h has them
  void on(const SendStatus&) {}
  void on(const Exit&) {}
  void on(const Restore& command);
  void on(const RunStep& command);
  void on(const CastVote& command);
  void on(const Apply& command);
  void on(const Abandon& command);
  void on(const WriteCheckpoint& command);

  void load();
  void enter(const std::shared_ptr<const GenerationPlan>& plan);
  void leave();
  void take_up();
  void restore_checkpoint();
  void bring_parts(const Restore& command);
  void gather_all_at(int rank);
  enum class CanSave { no, once, on_disk };  // as Restored has it
  CanSave make_savable(int rank);
  bool write_parts(const PartSaver::Shares& writers);
  void finish_step(const Apply& command);
  void record_trace(int64_t step);
  void record_memory();
  Restored restored(Generation generation, int64_t step, bool done, CanSave can_save = CanSave::no);
  bool end_in_parts();
  void lead();
  void evaluate();
  void evaluate_here();
  void note_finished_saves();
  void settled(Generation generation, int64_t step, CanSave can_save = CanSave::no);
  void sum_up();
  void tell_error();
  int64_t ordered_batch();
  int rank_of(WorkerId worker) const {
    return static_cast<int>(plan_->find(worker) - plan_->members.data());
  }
  bool leads() const { return !plan_->members.empty() && rank_of(source_.worker()) == 0; }

  const WorkerInput& input_;
  link::CommandSource& source_;
  const Recipe recipe_;
  const std::string job_name_;
  BatchOrders orders_;
  std::string order_trouble_;  // that was said last
  std::string trace_trouble_;  // as well
  Resident before_;            // what this process had before it made the job
  Generation memory_told_ = 0;
  std::unique_ptr<Replica> replica_;
  run::CostMeter cost_;               // of this process
  std::optional<Recorder> recorder_;  // of the leader
  std::unique_ptr<ckpt::CheckpointWriter> writer_;
  std::optional<PartSaver> parts_;  // where no worker has all of the state
  uint64_t saving_ = 0;             // the attempt under way; 0: none

  std::shared_ptr<const GenerationPlan> plan_ = std::make_shared<GenerationPlan>();
  std::span<const float> sum_;        // of the last step, in exchange_ or kept_sum_
  AlignedArray<float> kept_sum_;      // of a generation that is over
  int saver_ = -1;                    // the rank that is to be able to save after this step
  bool saves_alone_ = false;          // so all parts are to be there
  std::unique_ptr<Meeting> meeting_;  // of the step loop alone
  std::optional<Digests> digests_;    // of the last state of the job, by its leader

  std::mutex mutex_;  // of what give_up() looks at
  std::shared_ptr<parallel::Exchange> exchange_;
  Generation exchanging_ = 0;
};

void WorkerLoop::Impl::give_up(Generation generation) {
  const std::lock_guard lock(mutex_);
  if (exchange_ && exchanging_ <= generation) exchange_->fail("the step was given up");
}

void WorkerLoop::Impl::load() try {
  before_ = resident_now();
  replica_ = std::make_unique<Replica>(input_.job, recipe_, /*may_be_blank=*/true);
  writer_ = std::make_unique<ckpt::CheckpointWriter>(
      input_.folder.checkpoints(),
      ckpt::WriterOptions{.pending_tag = link::checkpoint_tag(source_.worker()),
                          .keep_memory = !replica_->shards().kept_where_read()});
  if (replica_->shards().kept_where_read())
    parts_.emplace(input_.folder.checkpoints(), source_.worker());
  source_.tell(Loaded{});
} catch (const std::exception&) {
  source_.tell(load_error_of_current());
}

void WorkerLoop::Impl::run() {
  load();
  bool leaving = false;
  while (true) {
    if (const int signal = input_.interrupted ? input_.interrupted() : 0;
        signal != 0 && !std::exchange(leaving, true))
      source_.tell(LeaveAsked{signal});
    note_finished_saves();
    const auto command = source_.next(saving_ != 0 ? 5ms : 100ms);
    if (!command) continue;
    if (const auto* exit = std::get_if<Exit>(&*command)) {
      log_line("told to exit: " + exit->reason);
      break;
    }
    try {
      std::visit([this](const auto& c) { on(c); }, *command);
    } catch (const std::exception&) {
      tell_error();
    }
  }
  try {
    if (writer_) writer_->wait();
    if (parts_) parts_->wait();
  } catch (const Error&) {  // a save that nobody waits for any more
  }
  if (recorder_) sum_up();
}

void WorkerLoop::Impl::tell_error() {
  WorkerEvent event = event_of_current(plan_->number);
  if (auto* lost = std::get_if<PeerLost>(&event)) {
    try {
      throw;
    } catch (const MeetingFailed& apart) {
      lost->suspects = apart.suspects;
    } catch (const std::exception&) {
      if (meeting_) lost->suspects = meeting_->lost();
    }
  }
  source_.tell(event);
}

// Meets the members of a new generation.
void WorkerLoop::Impl::enter(const std::shared_ptr<const GenerationPlan>& plan) {
  if (exchange_ && exchanging_ == plan->number) return;
  leave();
  plan_ = plan;
  MeetingOptions options;
  options.layout = exchange_layout(input_.job, *replica_, *plan);
  if (replica_->shards().kept_where_read()) give_back_freed();  // or the exchange takes it, too
  if (source_.abandoned(plan->number)) fail(ErrorCode::peer_lost, "given up before it began");
  options.job = job_name_;
  options.worker = source_.worker();
  options.address = input_.address;
  options.store = [this] { return *source_.store(); };
  options.deadline = std::chrono::ceil<std::chrono::milliseconds>(
      link::membership_options(input_.job).heartbeat_deadline);
  options.given_up = [this, number = plan->number] { return source_.abandoned(number); };
  options.log = log_line;
  auto meeting = std::make_unique<Meeting>(*plan, input_.secret, std::move(options));
  {
    const std::lock_guard lock(mutex_);
    exchange_ = meeting->exchange();
    exchanging_ = plan->number;
  }
  meeting_ = std::move(meeting);
  share_cores(input_.job.train, meeting_->place_here(), meeting_->workers_here());
  if (source_.abandoned(plan->number)) fail(ErrorCode::peer_lost, "given up while it began");
}

// The sum of a step that was voted for outlives the memory it was made in, where it is needed.
void WorkerLoop::Impl::leave() {
  if (!exchange_) return;
  if (sum_.data() != kept_sum_.data()) {
    kept_sum_ = AlignedArray<float>::uninitialized(std::ssize(sum_));
    for (const parallel::FloatRange& r : replica_->shards().needed_of(exchange_->layout()))
      std::copy(sum_.begin() + r.begin, sum_.begin() + r.end, kept_sum_.data() + r.begin);
  }
  sum_ = kept_sum_.span();
  {
    const std::lock_guard lock(mutex_);
    exchange_ = nullptr;
  }
  meeting_ = nullptr;
  replica_->leave();
}

void WorkerLoop::Impl::on(const Restore& command) {
  enter(command.plan);
  if (from_outside(command.self)) recorder_.reset();  // its lines go back, too
  switch (command.self.source) {
    case StateSource::keep:
    case StateSource::apply_voted:  // it was told to Apply before
      break;
    case StateSource::peer:
      replica_->shards().hold({});
      break;
    case StateSource::checkpoint:
      try {
        restore_checkpoint();
      } catch (const std::exception&) {
        source_.tell(restore_event_of_current(plan_->number));
        return;
      }
      break;
    case StateSource::initial:
      if (replica_->step() > 0 || !replica_->state().optimizer->holds_all()) {
        replica_ = std::make_unique<Replica>(input_.job, recipe_, /*may_be_blank=*/true);
      }
      break;
  }
  bring_parts(command);
  if (command.self.source == StateSource::initial)
    begin_with_initial_weights(*replica_, input_.job, input_.folder);
  take_up();
  settled(plan_->number, plan_->start);
}

void WorkerLoop::Impl::restore_checkpoint() {
  const parallel::ShardedUpdate& shards = replica_->shards();
  Replica::Blocks blocks{{0, shards.num_blocks()}};
  if (all_read_checkpoint(*plan_))
    blocks = shards.spread(exchange_->layout().cut).held.at(static_cast<size_t>(exchange_->rank()));
  replica_->restore(ckpt::Checkpoint::open(input_.folder.checkpoints(), plan_->start), blocks);
}

// All members together: what each holds goes to where this generation wants it. What was held stays
// until the first step is applied, unless it is on disk.
void WorkerLoop::Impl::bring_parts(const Restore& command) {
  parallel::ShardedUpdate& shards = replica_->shards();
  shards.enter(exchange_->layout(), exchange_->rank());
  if (command.self.source == StateSource::peer) {
    replica_->receive_state(*exchange_, rank_of(command.self.feeder), plan_->start);
  }
  std::vector<Replica::Blocks> held;
  for (const Member& m : plan_->members) {
    if (m.source == StateSource::peer && m.feeder == source_.worker()) {
      replica_->send_state(*exchange_, rank_of(m.worker));
    }
    held.push_back(from_outside(m) ? Replica::Blocks{{0, shards.num_blocks()}} : blocks_of(m.held));
  }
  replica_->transfer(*exchange_, held, shards.layout().held);
  if (from_outside(command.self)) {
    shards.hold(shards.layout().held[static_cast<size_t>(exchange_->rank())]);
  }
}

// All members together, whose state is that of the layout.
void WorkerLoop::Impl::gather_all_at(int rank) {
  parallel::ShardedUpdate& shards = replica_->shards();
  const auto& held = shards.layout().held;
  auto wanted = held;
  wanted[static_cast<size_t>(rank)] = {{0, shards.num_blocks()}};
  replica_->transfer(*exchange_, held, wanted);
}

// All members together, whose state is that of the layout. Returns whether this worker can save
// now, though it does not have all of it. Where one saves alone all stand still, and may wait.
WorkerLoop::Impl::CanSave WorkerLoop::Impl::make_savable(int rank) {
  const auto writers =
      parts_ && !replica_->shards().layout().whole ? PartSaver::writers(*replica_) : std::nullopt;
  if (!writers || (saves_alone_ && !write_parts(*writers))) {
    gather_all_at(rank);
    return CanSave::no;
  }
  if (!saves_alone_) parts_->write(*replica_, *writers, *plan_);
  if (exchange_->rank() != rank) return CanSave::no;
  return saves_alone_ ? CanSave::on_disk : CanSave::once;
}

// All members together. Returns whether the parts of all are durable.
bool WorkerLoop::Impl::write_parts(const PartSaver::Shares& writers) {
  parts_->wait();
  exchange_->largest(0);
  parts_->look_now();  // a save of an earlier step, whose parts are all there now
  note_finished_saves();
  parts_->write(*replica_, writers, *plan_);
  return exchange_->largest(parts_->finish() ? 0 : 1) == 0;
}

Restored WorkerLoop::Impl::restored(Generation generation, int64_t step, bool done,
                                    CanSave can_save) {
  const parallel::ShardedUpdate& shards = replica_->shards();
  const bool savable = can_save != CanSave::no, on_disk = can_save == CanSave::on_disk;
  return {generation, step, done, shards.num_blocks(), parts_of(shards.held()), savable, on_disk};
}

// Once per generation, all members together, with the state before its first step.
void WorkerLoop::Impl::take_up() {
  if (!leads()) recorder_.reset();
  if (recorder_) recorder_->set_generation(plan_->number);
  // A lost leader may have left an evaluation undone, or told only some of the members.
  if (exchange_->largest(replica_->evaluation_due() ? 1 : 0) > 0) evaluate();
  replica_->host(exchange_->layout(), exchange_->rank(), exchange_.get());
  if (leads()) lead();
}

// The state before `step` is complete. If it is the last one, all members are here, and nobody says
// that it is done before the weights and the figures are on disk: the leader may be lost meanwhile.
void WorkerLoop::Impl::settled(Generation generation, int64_t step, CanSave can_save) {
  const bool done = replica_->done();
  if (done && end_in_parts()) {
    can_save = leads() ? CanSave::on_disk : CanSave::no;
  } else if (done) {
    gather_all_at(0);
    if (leads()) {
      // The save of the result, which is tried for a minute, writes the weights, too, where there
      // will be one: where the last step was done just now.
      const bool saved_next = input_.job.checkpoint.at_end && step > plan_->start;
      digests_ = write_result(*replica_, input_.folder.model_file(), saved_next);
      sum_up();
    }
    exchange_->largest(0);
  }
  source_.tell(restored(generation, step, done, can_save));
}

// All members together, none of whom needs all of the state: their parts of the last checkpoint are
// durable then, which the leader may join, and the rest is as above. False where that does not suit
// the job, or a disk refuses something: the leader alone, with all of the state, tries again.
bool WorkerLoop::Impl::end_in_parts() {
  if (!parts_ || replica_->shards().layout().whole || !replica_->deploys_in_parts()) return false;
  const auto writers = PartSaver::writers(*replica_);
  if (!writers) return false;
  const bool began_so = replica_->step() == plan_->start;
  if (!began_so || !begins_from_checkpoint(*plan_)) {
    // Parts that nobody wants would stay on the disk; who asks for them all the same gathers all.
    const bool asked_for = input_.job.checkpoint.at_end || (!began_so && saves_alone_);
    if (asked_for ? !write_parts(*writers) : began_so) return false;
  }
  bool refused = false;
  try {
    digests_ = write_result_in_parts(*replica_, *exchange_, *writers, input_.folder.model_file());
    if (leads()) sum_up();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::unavailable) throw;
    log_line(e.what());
    refused = true;
  }
  return exchange_->largest(refused ? 1 : 0) == 0;
}

// Whoever leads keeps the run's books; a new leader goes on with those of the one before.
void WorkerLoop::Impl::lead() {
  if (!recorder_) {
    const bool resumed = plan_->start > 0 || plan_->number > 1;
    recorder_.emplace(input_.folder, *replica_, resumed, input_.progress_fd, plan_->number,
                      [this] { return source_.job_cost(); });
    if (resumed) recorder_->make_up();
  }
  recorder_->started(static_cast<int64_t>(plan_->members.size()));
}

// What is ordered from outside the run; a file that says nothing orderly is no reason to end it.
int64_t WorkerLoop::Impl::ordered_batch() {
  try {
    return orders_.wish(replica_->updates());
  } catch (const Error& error) {
    if (std::exchange(order_trouble_, error.message()) != error.message())
      run::offer_line(input_.progress_fd, run::Message{"warning", error.message()});
    return 0;
  }
}

void WorkerLoop::Impl::on(const RunStep& command) {
  enter(command.plan);
  replica_->gather_weights(*exchange_);
  replica_->verify(*exchange_);
  if (spec::batch_is_ordered(input_.job)) replica_->wish_batch(ordered_batch());
  const std::span<const comm::LeafRange> nodes = exchange_->nodes();
  for (size_t i = 0; i < nodes.size(); ++i) {
    Replica::Ready ready;
    if (exchange_->sums_early() && replica_->sum_begin() == 0 && i + 1 == nodes.size()) {
      ready = [this](int64_t begin) { exchange_->ready(begin); };
    }
    replica_->compute(nodes[i].size(), exchange_->partial(i), ready);
  }
  sum_ = replica_->reduce(*exchange_);
  kept_sum_ = {};
  const auto own = static_cast<size_t>(exchange_->rank());
  source_.tell(
      Reduced{plan_->number, command.step, parts_of(replica_->shards().layout().held[own])});
}

void WorkerLoop::Impl::on(const CastVote& command) {
  // One word for both wishes: that to stop, and below it the rank that saves, plus one.
  constexpr int kRankBits = 16;
  constexpr uint64_t kAtLeader = (1u << kRankBits) - 1;
  uint64_t wish = command.stop << kRankBits;
  if (command.gather == CastVote::Gather::at_leader) wish |= kAtLeader;
  if (command.gather == CastVote::Gather::here)
    wish |= static_cast<uint64_t>(exchange_->rank() + 1);
  wish = exchange_->largest(wish);
  saves_alone_ = (wish & kAtLeader) == kAtLeader;
  saver_ = saves_alone_ ? 0 : static_cast<int>(wish & kAtLeader) - 1;
  source_.tell(AllVoted{command.generation, command.step, wish >> kRankBits});
}

void WorkerLoop::Impl::on(const Apply& command) {
  replica_->apply(sum_);
  try {
    finish_step(command);
  } catch (const std::exception&) {
    // The step is applied all the same; what was left undone is made up for in the next generation.
    source_.tell(restored(command.generation, command.step + 1, false));
    throw;
  }
}

void WorkerLoop::Impl::finish_step(const Apply& command) {
  if (recorder_) {
    if (replica_->line()) recorder_->log(*replica_->line());
    recorder_->committed();
    recorder_->show_now_and_then();
  }
  // A member that catches up in a new generation does not talk to the old one any more.
  if (!exchange_ || exchanging_ != command.generation) {
    source_.tell(restored(command.generation, command.step + 1, false));
    return;
  }
  if (is_traced(input_.job, replica_->step() - 1)) record_trace(replica_->step() - 1);
  if (spec::is_pipelined(input_.job) && memory_told_ != plan_->number) record_memory();
  // What needs whole weights or the whole state, while all members are there.
  if (replica_->evaluation_due()) evaluate();
  const int saver = std::exchange(saver_, -1);
  const CanSave can_save = saver >= 0 && !replica_->done() ? make_savable(saver) : CanSave::no;
  settled(command.generation, command.step + 1, can_save);
}

// All members together. A full disk costs the record of the step and nothing else.
void WorkerLoop::Impl::record_trace(int64_t step) {
  const auto recorded = gather_trace(*exchange_, replica_->trace_of(step), step);
  if (!recorded) return;
  try {
    run::append_trace(input_.folder, *recorded);
  } catch (const Error& e) {
    if (std::exchange(trace_trouble_, e.message()) != e.message())
      run::offer_line(input_.progress_fd, run::Message{"warning", e.message()});
  }
}

// All members together, once in a generation: after its first step all hold what they hold in it.
void WorkerLoop::Impl::record_memory() {
  memory_told_ = plan_->number;
  replica_->tidy();
  const auto all = gather_memory(*exchange_, memory_here(*replica_, *exchange_, before_));
  if (all && recorder_) recorder_->event("memory", {{"step", replica_->step()}, {"members", *all}});
}

// All members together: the leader evaluates and tells the others. Some may know the result
// already.
void WorkerLoop::Impl::evaluate() {
  replica_->gather(*exchange_);
  if (!leads()) {
    replica_->follow_evaluation();
    const Json result =
        parse_json(parallel::receive_text(*exchange_, 0), "the evaluation", ErrorCode::data_loss);
    if (replica_->evaluation_due()) replica_->record(Evaluation::from_json(result));
    return;
  }
  if (replica_->evaluation_due()) evaluate_here();
  replica_->end_evaluation();
  const std::string result = dump_json(replica_->last()->to_json());
  for (int r = 1; r < exchange_->layout().num_workers(); ++r)
    parallel::send_text(*exchange_, r, result);
}

void WorkerLoop::Impl::on(const Abandon& command) {
  leave();
  source_.tell(Abandoned{command.generation});
}

// A new leader's recorder makes up for what it does without one.
void WorkerLoop::Impl::evaluate_here() {
  if (recorder_)
    recorder_->evaluate(*replica_);
  else
    replica_->record(replica_->evaluate([](int64_t) {}));
}

void WorkerLoop::Impl::on(const WriteCheckpoint& command) {
  try {
    // Nobody saves the last step again: what a lost leader left undone belongs to it.
    if (replica_->last_evaluation_due()) evaluate_here();
    if (recorder_) recorder_->flush();
    const bool holds_all = replica_->state().optimizer->holds_all();
    // The leader may have found no room for it.
    if (replica_->done() && holds_all)
      replica_->write_model(input_.folder.model_file(), replica_->deployed());
    Json state = replica_->values();
    state["cost"] = run::to_json(source_.job_cost().value_or(cost_.read()));
    if (parts_) parts_->give_up();  // of an attempt before
    if (parts_ && parts_->step() == replica_->step() && !holds_all) {
      parts_->join(std::move(state));
    } else if (!holds_all) {
      return source_.tell(SaveFailed{command.attempt, "no parts of it were written", true});
    } else {
      writer_->save(replica_->step(), state, replica_->state().tensors());
    }
    saving_ = command.attempt;
  } catch (const std::exception& e) {
    source_.tell(SaveFailed{command.attempt, e.what()});
  }
}

void WorkerLoop::Impl::note_finished_saves() {
  if (!writer_) return;
  const auto next = [this] {
    auto result = writer_->take_result();
    return result || !parts_ ? result : parts_->take_result(plan_->number);
  };
  while (const auto report = next()) {
    if (recorder_) recorder_->saved(*report);
    const uint64_t attempt = std::exchange(saving_, 0);
    if (report->error.empty()) {
      source_.tell(Saved{attempt, report->step, save_figures(*report)});
    } else {
      source_.tell(SaveFailed{attempt, report->error, parts_ && parts_->parts_lost()});
    }
  }
}

// What the run has come to by what this leader knows. How the run ended is the controller's to say:
// this worker may have been replaced, or may leave a run that goes on.
void WorkerLoop::Impl::sum_up() {
  const std::string_view status = !replica_->done()            ? "unfinished"
                                  : replica_->target_reached() ? "target_reached"
                                                               : "done";
  Json figures = recorder_->summary(status);
  if (replica_->done() && digests_) {
    figures["digest"] = digests_->state;
    figures["weights_digest"] = digests_->weights;
  }
  recorder_->event("summary", figures);
  recorder_->flush();
  recorder_->show(run::Phase::train);
}

WorkerLoop::WorkerLoop(const WorkerInput& input, link::CommandSource& source)
    : impl_(std::make_unique<Impl>(input, source)) {}

WorkerLoop::~WorkerLoop() = default;

void WorkerLoop::run() { impl_->run(); }

void WorkerLoop::give_up(control::Generation generation) { impl_->give_up(generation); }

}  // namespace ductile::train
