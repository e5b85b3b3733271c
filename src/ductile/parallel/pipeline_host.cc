#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <ATen/ops/full.h>
#include <c10/core/ScalarType.h>
#include <c10/util/accumulate.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/parallel/allocation_count.h"
#include "ductile/parallel/pipeline.h"
#include "ductile/parallel/pipeline_mail_impl.h"

namespace ductile::parallel {
namespace {

using nn::kModelInput;
using nn::Operator;
using nn::OperatorGraph;
using nn::Source;
using nn::Tensors;
using spec::Task;

template <class TimePoint>
int64_t nanoseconds_of(TimePoint time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

PipelineHost::PipelineHost(const OperatorGraph& operators, Pipeline pipeline, Placement placement)
    : operators_(operators), pipeline_(std::move(pipeline)), placement_(std::move(placement)) {
  check(pipeline_, operators_);
  transfers_ = transfers_of(pipeline_, operators_);
  stage_of_ = stages_of_operators(pipeline_, operators_);
  wants_ = StageExecutor::wants_gradient(operators_);
  pieces_ = pieces_of(pipeline_, transfers_);
  const std::vector<StagePart> parts = parts_of(pipeline_);
  if (placement_.hosts.size() != parts.size()) {
    fail(ErrorCode::invalid_argument, "{} hosts for {} replicas of stages", placement_.hosts.size(),
         parts.size());
  }
  for (size_t p = 0; p < parts.size(); ++p) {
    const int rank = placement_.hosts[p];
    const bool exists = placement_.communicator != nullptr
                            ? rank >= 0 && rank < placement_.communicator->size()
                            : rank == placement_.rank;
    if (!exists) {
      fail(ErrorCode::invalid_argument,
           "replica {} of stage {} lies on rank {}, which this worker cannot reach",
           parts[p].replica, parts[p].stage, rank);
    }
    if (rank == placement_.rank) host(parts[p], static_cast<int>(p));
  }
  for (Piece& piece : pieces_) {
    const Transfer& t = transfers_[piece.transfer];
    const std::string& maker = operators_.operators()[static_cast<size_t>(t.source.op)].name;
    const auto replicas = [&](int stage) {
      return pipeline_.stages[static_cast<size_t>(stage)].replicas;
    };
    set_form(piece, form_of(t.from, t.source), replicas(t.from), form_of(t.to, t.source),
             replicas(t.to), fmt::format("output {} of operator {}", t.source.output, maker));
  }
  for (const auto& stage : stages_) {
    stage->lends = stage->buffers && std::ranges::count_if(stages_, [&](const auto& other) {
                                       return other->number == stage->number;
                                     }) > 1;
  }
}

void PipelineHost::host(const StagePart& part, int number) {
  const Pipeline::Stage& of = pipeline_.stages[static_cast<size_t>(part.stage)];
  stages_.push_back(std::make_unique<HostedStage>(operators_, pipeline_, of));
  HostedStage& stage = *stages_.back();
  stage.number = part.stage;
  stage.replica = part.replica;
  stage.part = number;
  stage.arrivals.resize(stage.executor.inputs().size());
  stage.departures.resize(stage.executor.outputs().size());
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    const auto place = [&](const std::vector<Source>& in) {
      const Source& source = transfers_[piece.transfer].source;
      return static_cast<size_t>(std::ranges::find(in, source) - in.begin());
    };
    if (piece.to == number) stage.arrivals[place(stage.executor.inputs())].push_back(i);
    if (piece.from != number) continue;
    auto& of_output = stage.departures[place(stage.executor.outputs())];
    if (of_output.empty() || pieces_[of_output.back().front()].transfer != piece.transfer) {
      of_output.emplace_back();
    }
    of_output.back().push_back(i);
  }
}

// How a tensor lies where the stage has it, which is a replica's part of it.
const TensorForm& PipelineHost::form_of(int stage, const Source& source) const {
  const int replicas = pipeline_.stages[static_cast<size_t>(stage)].replicas;
  return (replicas == 1 ? placement_.forms : placement_.shares.at(replicas)).at(source);
}

PipelineHost::~PipelineHost() = default;

// A piece has two directions; what several operators hold has one message for each of them.
uint32_t PipelineHost::num_tags(const OperatorGraph& operators, const Pipeline& pipeline) {
  size_t tags = pieces_of(pipeline, transfers_of(pipeline, operators)).size() * 2;
  for (const Operator& op : operators.operators()) tags += op.parameters.size();
  return static_cast<uint32_t>(tags);
}

// All parts stand before their first task, with receives posted.
void PipelineHost::start(const Step& step) {
  for (auto& stage : stages_) {
    works(*stage);
    stage->next = 0;
    stage->samples.clear();
    stage->results.clear();
    std::ranges::fill(stage->done, 0);
    if (stage->buffers) stage->buffers->begin();
    stage->executor.clear();
    const auto replica = static_cast<uint64_t>(stage->replica);
    stage->executor.set_seed(replica == 0 ? step.seed : mix(step.seed, replica), step.first_rank,
                             step.draws);
    for (size_t i = 0; i < stage->arrivals.size(); ++i) {
      if (stage->arrivals[i].empty()) continue;  // the model's
      post(stage->arrivals[i], kForward, 0, form_of(stage->number, stage->executor.inputs()[i]));
    }
    for (size_t i = 0; i < stage->departures.size(); ++i) {
      for (const auto& of_transfer : stage->departures[i]) {
        if (!sends_back(of_transfer.front())) continue;
        post(of_transfer, kGradient, 0, form_of(stage->number, stage->executor.outputs()[i]));
      }
    }
  }
}

std::vector<Tensors> PipelineHost::run(const Step& step) {
  if (static_cast<int64_t>(step.inputs.size()) != pipeline_.num_micro_batches) {
    fail(ErrorCode::invalid_argument, "inputs of {} micro-batches; the plan has {}",
         step.inputs.size(), pipeline_.num_micro_batches);
  }
  gradients_.clear();
  buffers_.clear();
  outcomes_.clear();
  mail_ = std::make_unique<Mail>(pieces_, placement_);
  std::optional<AllocationCount::Watch> watch;
  const auto count = step.trace != nullptr ? std::make_shared<AllocationCount>() : nullptr;
  count_ = count.get();
  if (count) watch.emplace(count);
  start(step);
  trace_ = step.trace;
  // The clock that is read may not step back while intervals are measured by it.
  clock_offset_ = trace_ == nullptr ? 0
                                    : nanoseconds_of(std::chrono::system_clock::now()) -
                                          nanoseconds_of(std::chrono::steady_clock::now());
  const auto finished = [](const auto& stage) { return stage->finished(); };
  while (!std::ranges::all_of(stages_, finished)) {
    const auto next = std::ranges::find_if(stages_, [&](const auto& s) { return ready(*s); });
    if (next == stages_.end()) {
      const int64_t begin = now();
      wait();
      note_wait(begin);
    } else {
      do_task(**next, step);
    }
  }
  for (const auto& stage : stages_) {
    if (count && stage->replica == 0) {
      step.trace->memory[stage->number] = count->most_of(stage->part);
    }
  }
  watch.reset();
  count_ = nullptr;
  std::vector<Tensors> results;
  if (pipeline_.is_replicated()) {
    keep_outcomes();
  } else {
    for (const auto& stage : stages_) {
      if (!stage->results.empty()) results = std::move(stage->results);
    }
    sum_gradients();
    if (pipeline_.exact) sum_buffers();
  }
  mail_->finish();
  return results;
}

// What is allocated from now on belongs to the stage.
void PipelineHost::works(const HostedStage& stage) {
  if (count_ != nullptr) count_->begin(stage.part);
}

// Nanoseconds since 1970; 0 where nobody wants to know.
int64_t PipelineHost::now() const {
  if (trace_ == nullptr) return 0;
  return clock_offset_ + nanoseconds_of(std::chrono::steady_clock::now());
}

// What the stage has done since `begin` for its present task. Returns the present time. Of several
// replicas the first one is recorded.
int64_t PipelineHost::note(TraceInterval::Kind kind, const HostedStage& stage, int64_t begin) {
  if (trace_ == nullptr) return 0;
  const int64_t end = now();
  if (stage.replica == 0) {
    trace_->intervals.push_back({kind, stage.number, stage.micro_batch(), begin, end});
  }
  return end;
}

// Every stage that is not done waits, if none can go on. Waits in a row are one: a task between
// them would be recorded, too.
void PipelineHost::note_wait(int64_t begin) {
  if (trace_ == nullptr) return;
  const int64_t end = now();
  constexpr auto kWait = TraceInterval::Kind::wait;
  std::vector<TraceInterval>& all = trace_->intervals;
  if (!all.empty() && all.back().kind == kWait) {
    const int64_t since = all.back().begin;
    for (auto i = all.rbegin(); i != all.rend() && i->kind == kWait && i->begin == since; ++i) {
      i->end = end;
    }
    return;
  }
  for (const auto& stage : stages_) {
    if (!stage->finished() && stage->replica == 0) {
      all.push_back({kWait, stage->number, stage->micro_batch(), begin, end});
    }
  }
}

// Whether the gradient of what a piece brings travels.
bool PipelineHost::sends_back(size_t piece) const {
  return transfers_[pieces_[piece].transfer].gradient &&
         c10::isFloatingType(pieces_[piece].form.type);
}

// What the stage's next task waits for.
std::vector<PipelineHost::Message> PipelineHost::awaited(const HostedStage& stage) const {
  std::vector<Message> out;
  if (stage.finished()) return out;
  if (stage.task() == Task::forward) {
    for (const auto& of_input : stage.arrivals) {
      for (const size_t p : of_input) out.push_back({p, kForward});
    }
  } else if (stage.task() == Task::backward) {
    for (const auto& of_output : stage.departures) {
      for (const auto& of_transfer : of_output) {
        if (!sends_back(of_transfer.front())) continue;
        for (const size_t p : of_transfer) out.push_back({p, kGradient});
      }
    }
  }
  return out;
}

bool PipelineHost::ready(const HostedStage& stage) const {
  if (stage.finished()) return false;
  return std::ranges::all_of(
      awaited(stage), [&](const Message& m) { return mail_->ready(m, stage.micro_batch()); });
}

// No hosted stage could go on just now. Returns when one can, or may: when a message has come that
// one of them waits for.
void PipelineHost::wait() const {
  std::vector<comm::Work> messages;
  for (const auto& stage : stages_) {
    if (stage->finished()) continue;
    bool waits = false;
    for (const Message& m : awaited(*stage)) {
      if (mail_->ready(m, stage->micro_batch())) continue;
      if (const comm::Work* const work = mail_->message(m)) messages.push_back(*work);
      waits = true;
    }
    if (!waits) return;  // what it waited for has come meanwhile
  }
  DUCTILE_CHECK(!messages.empty(),
                "stages wait for one another, though check() passed their orders");
  (void)comm::Work::wait_for_any(messages, std::chrono::seconds(1));
}

// Whether the pieces of a tensor of this form come straight to where they lie in it.
bool PipelineHost::come_in_rows(const std::vector<size_t>& pieces, const TensorForm& form) const {
  return !pieces_[pieces.front()].whole && lies_in_rows(form) &&
         std::ranges::any_of(pieces, [&](size_t p) {
           return mail_->travels({p, kForward});
         });
}

// Posts what a transfer brings to a part, in all its pieces.
void PipelineHost::post(const std::vector<size_t>& pieces, Direction direction, int64_t micro_batch,
                        const TensorForm& form) {
  if (!come_in_rows(pieces, form)) {
    for (const size_t p : pieces) mail_->post({p, direction}, micro_batch);
    return;
  }
  const at::Tensor all = mail_->blank(form);
  int64_t row = 0;
  for (const size_t p : pieces) {
    mail_->post({p, direction}, micro_batch, all.narrow(0, row, pieces_[p].rows));
    row += pieces_[p].rows;
  }
  mail_->in_rows[{pieces.front(), direction}] = all;
}

// What a transfer brings to a part, in all its pieces; posts the next one.
at::Tensor PipelineHost::take(const std::vector<size_t>& pieces, Direction direction,
                              int64_t micro_batch, const TensorForm& form) {
  Tensors taken;
  for (const size_t p : pieces) taken.push_back(mail_->take({p, direction}, micro_batch));
  at::Tensor out;
  if (pieces_[pieces.front()].whole) {
    out = taken.front();
  } else if (!come_in_rows(pieces, form)) {
    out = joined(taken, form);
  } else {
    const at::NoGradGuard no_grad;
    auto node = mail_->in_rows.extract({pieces.front(), direction});
    DUCTILE_CHECK(!node.empty(), "no receive of micro-batch {} was posted", micro_batch);
    out = std::move(node.mapped());
    int64_t row = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const int64_t rows = pieces_[pieces[i]].rows;
      if (!mail_->travels({pieces[i], direction})) out.narrow(0, row, rows).copy_(taken[i]);
      row += rows;
    }
  }
  taken.clear();
  if (micro_batch + 1 < pipeline_.num_micro_batches) {
    post(pieces, direction, micro_batch + 1, form);
  }
  return out;
}

void PipelineHost::give(const std::vector<size_t>& pieces, Direction direction, int64_t micro_batch,
                        const at::Tensor& tensor) {
  for (const size_t p : pieces) {
    const Piece& piece = pieces_[p];
    const int64_t row = direction == kForward ? piece.at_from : piece.at_to;
    const bool travels = mail_->travels({p, direction});
    mail_->give({p, direction}, micro_batch,
                piece.whole ? tensor : rows_of(tensor, row, piece.rows, travels));
  }
}

void PipelineHost::do_task(HostedStage& stage, const Step& step) {
  const int64_t micro_batch = stage.micro_batch();
  const Task task = stage.task();
  if (placement_.settles) mail_->settle();
  mail_->let_go();
  works(stage);
  if (stage.lends) stage.buffers->lend();
  if (task == Task::forward) {
    forward(stage, micro_batch, step);
  } else if (task == Task::backward) {
    backward(stage, micro_batch, step);
  } else {
    const int64_t begin = now();
    stage.executor.backward_weights(micro_batch);
    note(TraceInterval::Kind::weights, stage, begin);
  }
  if (stage.lends) stage.buffers->take_back();
  if (count_ != nullptr && task == (pipeline_.split ? Task::backward_weight : Task::backward)) {
    count_->add(stage.part, -std::exchange(stage.samples[micro_batch], 0));
  }
  ++stage.done[static_cast<size_t>(task)];
  ++stage.next;
}

// The stage's inputs; `begin` moves on where some have travelled.
Tensors PipelineHost::gather_inputs(HostedStage& stage, int64_t micro_batch, const Step& step,
                                    int64_t& begin) {
  Tensors inputs;
  bool travels = false;
  const std::vector<Source>& sources = stage.executor.inputs();
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].op != kModelInput) {
      for (const size_t p : stage.arrivals[i]) travels = travels || mail_->travels({p, kForward});
      inputs.push_back(
          take(stage.arrivals[i], kForward, micro_batch, form_of(stage.number, sources[i])));
      continue;
    }
    const Tensors& given = step.inputs[static_cast<size_t>(micro_batch)];
    const auto number = static_cast<size_t>(sources[i].output);
    if (number >= given.size()) {
      fail(ErrorCode::invalid_argument,
           "micro-batch {} has no input {} of the model, which stage {} reads", micro_batch, number,
           stage.number);
    }
    // A replica's part is a copy, which is counted where it is made, and the whole is there as
    // well.
    inputs.push_back(stage.replicas > 1 ? share_of(given[number], stage.replica, stage.replicas)
                                        : given[number]);
    if (count_ != nullptr) {
      stage.samples[micro_batch] += static_cast<int64_t>(given[number].nbytes());
    }
  }
  if (count_ != nullptr) count_->add(stage.part, stage.samples[micro_batch]);
  if (travels) begin = note(TraceInterval::Kind::transfer, stage, begin);
  return inputs;
}

void PipelineHost::forward(HostedStage& stage, int64_t micro_batch, const Step& step) {
  int64_t begin = now();
  Tensors inputs = gather_inputs(stage, micro_batch, step, begin);
  const Tensors outputs = stage.executor.forward(micro_batch, std::move(inputs));
  begin = note(TraceInterval::Kind::forward, stage, begin);
  bool travels = false;
  Tensors of_model(operators_.results().size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Source& source = stage.executor.outputs()[i];
    for (const auto& pieces : stage.departures[i]) {
      for (const size_t p : pieces) travels = travels || mail_->travels({p, kForward});
      give(pieces, kForward, micro_batch, as_sent(outputs[i], form_of(stage.number, source)));
    }
    for (size_t r = 0; r < of_model.size(); ++r) {
      if (operators_.results()[r] == source) of_model[r] = outputs[i];
    }
  }
  if (travels) note(TraceInterval::Kind::transfer, stage, begin);
  if (of_model.front().defined()) stage.results.push_back(std::move(of_model));
}

void PipelineHost::backward(HostedStage& stage, int64_t micro_batch, const Step& step) {
  const std::vector<Source>& sources = stage.executor.outputs();
  std::vector<std::vector<StageExecutor::Gradient>> gradients(sources.size());
  int64_t begin = now();
  bool travels = false;
  for (size_t i = 0; i < sources.size(); ++i) {
    const TensorForm& form = form_of(stage.number, sources[i]);
    if (sources[i] == operators_.results().front()) {
      // Of the mean of the losses, as autograd has it: those of all replicas.
      const int64_t losses = c10::multiply_integers(form.sizes) * stage.replicas;
      const at::Tensor of_mean = at::full(form.sizes, step.loss_scale, at::TensorOptions(form.type))
                                     .div(static_cast<double>(losses));
      gradients[i].push_back({of_mean, static_cast<int>(operators_.operators().size())});
    }
    for (const auto& pieces : stage.departures[i]) {
      if (!sends_back(pieces.front())) continue;
      for (const size_t p : pieces) travels = travels || mail_->travels({p, kGradient});
      gradients[i].push_back({take(pieces, kGradient, micro_batch, form),
                              transfers_[pieces_[pieces.front()].transfer].reader});
    }
  }
  if (travels) begin = note(TraceInterval::Kind::transfer, stage, begin);
  const auto found = stage.executor.backward(micro_batch, std::move(gradients));
  begin = note(TraceInterval::Kind::backward, stage, begin);
  travels = false;
  for (size_t i = 0; i < found.size(); ++i) {
    const std::vector<size_t>& pieces = stage.arrivals[i];
    if (pieces.empty() || !sends_back(pieces.front())) continue;
    for (const size_t p : pieces) travels = travels || mail_->travels({p, kGradient});
    const TensorForm& form = form_of(stage.number, stage.executor.inputs()[i]);
    const at::Tensor& value = found[i].value;
    give(pieces, kGradient, micro_batch, value.defined() ? as_sent(value, form) : zeros(form));
  }
  if (travels) note(TraceInterval::Kind::transfer, stage, begin);
}

}  // namespace ductile::parallel
