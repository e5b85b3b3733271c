#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full.h>
#include <c10/core/ScalarType.h>
#include <c10/util/accumulate.h>

#include "ductile/base/error.h"
#include "ductile/parallel/allocation_count.h"
#include "ductile/parallel/pipeline.h"
#include "ductile/parallel/tensor_tree.h"

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

// The bytes of a dense tensor.
std::span<std::byte> bytes_of(const at::Tensor& t) {
  return {static_cast<std::byte*>(t.data_ptr()), t.nbytes()};
}

at::Tensor zeros(const TensorForm& form) {
  return at::empty_strided(form.sizes, form.strides, at::TensorOptions(form.type)).zero_();
}

// The same values as they travel. Within a worker too, so that a placement changes no kernel's
// choice.
at::Tensor as_sent(const at::Tensor& t, const TensorForm& form) {
  if (t.sizes() == form.sizes && t.strides() == form.strides && t.scalar_type() == form.type) {
    return t;
  }
  if (t.sizes() != form.sizes) {
    fail(ErrorCode::conflict,
         "a tensor between stages has other sizes than the first one: {} "
         "values, not {}",
         t.numel(), c10::multiply_integers(form.sizes));
  }
  const at::NoGradGuard no_grad;
  return at::empty_strided(form.sizes, form.strides, t.options().dtype(form.type)).copy_(t);
}

// What operators have of a parameter, by row: of an exact pipeline a row for each micro-batch,
// where several hold the parameter, else one. They are added from the last operator on.
at::Tensor sum_of_row(const std::map<int, Tensors>& of_op, size_t row) {
  at::Tensor sum;
  for (auto part = of_op.rbegin(); part != of_op.rend(); ++part) {
    if (part->second.size() <= row || !part->second[row].defined()) continue;
    sum = sum.defined() ? sum.add(part->second[row]) : part->second[row];
  }
  return sum;
}

}  // namespace

// What travels between stages: within this worker by hand, else by messages.
struct PipelineHost::Mail {
  using Key = Message;

  Mail(const std::vector<Transfer>& transfers, const Placement& placement)
      : transfers(transfers), placement(placement) {}

  // The rank at the other end.
  int peer(const Key& key, bool sends) const {
    const Transfer& t = transfers[key.transfer];
    const int stage = (key.direction == kForward) == sends ? t.to : t.from;
    return placement.hosts[static_cast<size_t>(stage)];
  }
  uint32_t tag(const Key& key) const {
    return placement.first_tag + static_cast<uint32_t>(key.transfer) * 2 +
           static_cast<uint32_t>(key.direction);
  }

  void post(const Key& key, int64_t micro_batch) {
    const int from = peer(key, false);
    if (from == placement.rank) return;
    const TensorForm& form = placement.forms.at(transfers[key.transfer].source);
    Receive& r = posted[key];
    // Storage of its own: what an operator saved of an earlier one must not change.
    r.tensor = at::empty_strided(form.sizes, form.strides, at::TensorOptions(form.type));
    r.micro_batch = micro_batch;
    r.work = placement.communicator->start_receive(from, tag(key), bytes_of(r.tensor));
  }

  bool ready(const Key& key, int64_t micro_batch) const {
    const auto found = posted.find(key);
    if (found == posted.end()) return here.contains({key, micro_batch});
    return found->second.work.done();
  }

  // Whether another worker brings or takes it.
  bool travels(const Key& key) const {
    const Transfer& t = transfers[key.transfer];
    return placement.hosts[static_cast<size_t>(t.from)] !=
           placement.hosts[static_cast<size_t>(t.to)];
  }

  // False if no message is to bring it.
  bool wait_a_little(const Key& key) const {
    const auto found = posted.find(key);
    if (found == posted.end()) return false;
    (void)found->second.work.wait_for(std::chrono::microseconds(200));
    return true;
  }

  // The next tensor of a transfer; posts the receive of the one behind it.
  at::Tensor take(const Key& key, int64_t micro_batch, int64_t num_micro_batches) {
    const auto found = posted.find(key);
    if (found == posted.end()) return here.extract({key, micro_batch}).mapped();
    DUCTILE_CHECK(found->second.micro_batch == micro_batch, "micro-batch {} instead of {}",
                  found->second.micro_batch, micro_batch);
    found->second.work.wait();
    at::Tensor taken = std::move(found->second.tensor);
    if (micro_batch + 1 < num_micro_batches) post(key, micro_batch + 1);
    return taken;
  }

  // What has been taken at the other end is not held any longer.
  void let_go() {
    while (!sent.empty() && sent.front().first.done()) {
      sent.front().first.wait();  // throws what ended it
      sent.pop_front();
    }
  }

  void give(const Key& key, int64_t micro_batch, const at::Tensor& tensor) {
    const int to = peer(key, true);
    if (to == placement.rank) {
      here[{key, micro_batch}] = tensor;
      return;
    }
    let_go();
    sent.emplace_back(placement.communicator->start_send(to, tag(key), bytes_of(tensor)), tensor);
  }

  void finish() {
    for (const auto& [work, tensor] : sent) work.wait();
    sent.clear();
    posted.clear();
    DUCTILE_CHECK(here.empty(), "{} tensors that no stage took", here.size());
  }

  struct Receive {
    comm::Engine::Work work;
    at::Tensor tensor;
    int64_t micro_batch = 0;
  };
  const std::vector<Transfer>& transfers;
  const Placement& placement;
  std::map<std::pair<Key, int64_t>, at::Tensor> here;
  std::map<Key, Receive> posted;
  std::deque<std::pair<comm::Engine::Work, at::Tensor>> sent;
};

struct PipelineHost::HostedStage {
  HostedStage(const OperatorGraph& operators, const Pipeline& pipeline,
              const Pipeline::Stage& stage)
      : order(stage.order),
        executor(operators, stage.ops, {pipeline.split, pipeline.exact, stage.recompute}) {}

  const std::vector<Task>& order;
  StageExecutor executor;
  int number = 0;
  // Of the executor's inputs and outputs: the transfers that bring or take each.
  std::vector<std::vector<size_t>> arrivals, departures;
  std::map<int64_t, int64_t> samples;  // bytes of the model's inputs, by micro-batch
  size_t next = 0;                     // task
  int64_t done[3] = {};                // of each kind
  bool finished() const { return next == order.size(); }
  Task task() const { return order[next]; }
  int64_t micro_batch() const { return done[static_cast<size_t>(task())]; }
};

PipelineHost::PipelineHost(const OperatorGraph& operators, Pipeline pipeline, Placement placement)
    : operators_(operators), pipeline_(std::move(pipeline)), placement_(std::move(placement)) {
  check(pipeline_, operators_);
  transfers_ = transfers_of(pipeline_, operators_);
  stage_of_ = stages_of_operators(pipeline_, operators_);
  wants_ = StageExecutor::wants_gradient(operators_);
  if (placement_.hosts.size() != pipeline_.stages.size()) {
    fail(ErrorCode::invalid_argument, "{} hosts for {} stages", placement_.hosts.size(),
         pipeline_.stages.size());
  }
  for (size_t s = 0; s < pipeline_.stages.size(); ++s) {
    const int host = placement_.hosts[s];
    const bool exists = placement_.communicator != nullptr
                            ? host >= 0 && host < placement_.communicator->size()
                            : host == placement_.rank;
    if (!exists) {
      fail(ErrorCode::invalid_argument, "stage {} lies on rank {}, which this worker cannot reach",
           s, host);
    }
    if (!hosted(static_cast<int>(s))) continue;
    stages_.push_back(std::make_unique<HostedStage>(operators_, pipeline_, pipeline_.stages[s]));
    HostedStage& stage = *stages_.back();
    stage.number = static_cast<int>(s);
    stage.arrivals.resize(stage.executor.inputs().size());
    stage.departures.resize(stage.executor.outputs().size());
    for (size_t t = 0; t < transfers_.size(); ++t) {
      const Transfer& transfer = transfers_[t];
      const auto place = [&](const std::vector<Source>& in) {
        return static_cast<size_t>(std::ranges::find(in, transfer.source) - in.begin());
      };
      if (transfer.to == stage.number) stage.arrivals[place(stage.executor.inputs())].push_back(t);
      if (transfer.from == stage.number) {
        stage.departures[place(stage.executor.outputs())].push_back(t);
      }
    }
  }
}

PipelineHost::~PipelineHost() = default;

// A transfer has two directions; what several operators hold has one message for each of them.
uint32_t PipelineHost::num_tags(const OperatorGraph& operators, const Pipeline& pipeline) {
  size_t tags = transfers_of(pipeline, operators).size() * 2;
  for (const Operator& op : operators.operators()) tags += op.parameters.size();
  return static_cast<uint32_t>(tags);
}

std::vector<Tensors> PipelineHost::run(const Step& step) {
  if (static_cast<int64_t>(step.inputs.size()) != pipeline_.num_micro_batches) {
    fail(ErrorCode::invalid_argument, "inputs of {} micro-batches; the plan has {}",
         step.inputs.size(), pipeline_.num_micro_batches);
  }
  gradients_.clear();
  buffers_.clear();
  mail_ = std::make_unique<Mail>(transfers_, placement_);
  std::optional<AllocationCount::Watch> watch;
  const auto count = step.trace != nullptr ? std::make_shared<AllocationCount>() : nullptr;
  count_ = count.get();
  if (count) watch.emplace(count);
  for (auto& stage : stages_) {
    works(*stage);
    stage->next = 0;
    stage->samples.clear();
    std::ranges::fill(stage->done, 0);
    stage->executor.clear();
    stage->executor.set_seed(step.seed, step.first_rank, step.draws);
    for (const auto& of_input : stage->arrivals) {
      for (const size_t t : of_input) mail_->post({t, kForward}, 0);
    }
    for (const auto& of_output : stage->departures) {
      for (const size_t t : of_output) {
        if (sends_back(t)) mail_->post({t, kGradient}, 0);
      }
    }
  }
  std::vector<Tensors> results;
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
      do_task(**next, step, results);
    }
  }
  for (const auto& stage : stages_) {
    if (count) step.trace->memory[stage->number] = count->most_of(stage->number);
  }
  watch.reset();
  count_ = nullptr;
  sum_gradients();
  if (pipeline_.exact) sum_buffers();
  mail_->finish();
  return results;
}

// What is allocated from now on belongs to the stage.
void PipelineHost::works(const HostedStage& stage) {
  if (count_ != nullptr) count_->begin(stage.number);
}

// Nanoseconds since 1970; 0 where nobody wants to know.
int64_t PipelineHost::now() const {
  if (trace_ == nullptr) return 0;
  return clock_offset_ + nanoseconds_of(std::chrono::steady_clock::now());
}

// What the stage has done since `begin` for its present task. Returns the present time.
int64_t PipelineHost::note(TraceInterval::Kind kind, const HostedStage& stage, int64_t begin) {
  if (trace_ == nullptr) return 0;
  const int64_t end = now();
  trace_->intervals.push_back({kind, stage.number, stage.micro_batch(), begin, end});
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
    if (!stage->finished()) {
      all.push_back({kWait, stage->number, stage->micro_batch(), begin, end});
    }
  }
}

// Whether the gradient of a transfer travels.
bool PipelineHost::sends_back(size_t transfer) const {
  const Transfer& t = transfers_[transfer];
  return t.gradient && c10::isFloatingType(placement_.forms.at(t.source).type);
}

// What the stage's next task waits for.
std::vector<PipelineHost::Message> PipelineHost::awaited(const HostedStage& stage) const {
  std::vector<Message> out;
  if (stage.finished()) return out;
  if (stage.task() == Task::forward) {
    for (const auto& of_input : stage.arrivals) {
      for (const size_t t : of_input) out.push_back({t, kForward});
    }
  } else if (stage.task() == Task::backward) {
    for (const auto& of_output : stage.departures) {
      for (const size_t t : of_output) {
        if (sends_back(t)) out.push_back({t, kGradient});
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

// No hosted stage could go on just now. Returns when one can, or may.
void PipelineHost::wait() const {
  for (const auto& stage : stages_) {
    if (stage->finished()) continue;
    bool waits = false;
    for (const Message& m : awaited(*stage)) {
      if (mail_->ready(m, stage->micro_batch())) continue;
      if (mail_->wait_a_little(m)) return;
      waits = true;
    }
    if (!waits) return;  // what it waited for has come meanwhile
  }
  DUCTILE_CHECK(false, "stages wait for one another, though check() passed their orders");
}

void PipelineHost::do_task(HostedStage& stage, const Step& step, std::vector<Tensors>& results) {
  const int64_t micro_batch = stage.micro_batch();
  const Task task = stage.task();
  mail_->let_go();
  works(stage);
  if (task == Task::forward) {
    forward(stage, micro_batch, step, results);
  } else if (task == Task::backward) {
    backward(stage, micro_batch, step);
  } else {
    const int64_t begin = now();
    stage.executor.backward_weights(micro_batch);
    note(TraceInterval::Kind::weights, stage, begin);
  }
  if (count_ != nullptr && task == (pipeline_.split ? Task::backward_weight : Task::backward)) {
    count_->add(stage.number, -std::exchange(stage.samples[micro_batch], 0));
  }
  ++stage.done[static_cast<size_t>(task)];
  ++stage.next;
}

void PipelineHost::forward(HostedStage& stage, int64_t micro_batch, const Step& step,
                           std::vector<Tensors>& results) {
  Tensors inputs;
  int64_t begin = now();
  bool travels = false;
  const std::vector<Source>& sources = stage.executor.inputs();
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].op == kModelInput) {
      const Tensors& given = step.inputs[static_cast<size_t>(micro_batch)];
      const auto number = static_cast<size_t>(sources[i].output);
      if (number >= given.size()) {
        fail(ErrorCode::invalid_argument,
             "micro-batch {} has no input {} of the model, which stage {} reads", micro_batch,
             number, stage.number);
      }
      inputs.push_back(given[number]);
      if (count_ != nullptr) {
        stage.samples[micro_batch] += static_cast<int64_t>(given[number].nbytes());
      }
    } else {
      const Message message{stage.arrivals[i].front(), kForward};
      travels = travels || mail_->travels(message);
      inputs.push_back(mail_->take(message, micro_batch, pipeline_.num_micro_batches));
    }
  }
  if (count_ != nullptr) count_->add(stage.number, stage.samples[micro_batch]);
  if (travels) begin = note(TraceInterval::Kind::transfer, stage, begin);
  const Tensors outputs = stage.executor.forward(micro_batch, std::move(inputs));
  begin = note(TraceInterval::Kind::forward, stage, begin);
  travels = false;
  Tensors of_model(operators_.results().size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Source& source = stage.executor.outputs()[i];
    for (const size_t t : stage.departures[i]) {
      travels = travels || mail_->travels({t, kForward});
      mail_->give({t, kForward}, micro_batch, as_sent(outputs[i], placement_.forms.at(source)));
    }
    for (size_t r = 0; r < of_model.size(); ++r) {
      if (operators_.results()[r] == source) of_model[r] = outputs[i];
    }
  }
  if (travels) note(TraceInterval::Kind::transfer, stage, begin);
  if (of_model.front().defined()) results.push_back(std::move(of_model));
}

void PipelineHost::backward(HostedStage& stage, int64_t micro_batch, const Step& step) {
  const std::vector<Source>& sources = stage.executor.outputs();
  std::vector<std::vector<StageExecutor::Gradient>> gradients(sources.size());
  int64_t begin = now();
  bool travels = false;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i] == operators_.results().front()) {
      // Of the mean of the losses, as autograd has it.
      const TensorForm& form = placement_.forms.at(sources[i]);
      const at::Tensor of_mean = at::full(form.sizes, step.loss_scale, at::TensorOptions(form.type))
                                     .div(static_cast<double>(c10::multiply_integers(form.sizes)));
      gradients[i].push_back({of_mean, static_cast<int>(operators_.operators().size())});
    }
    for (const size_t t : stage.departures[i]) {
      if (!sends_back(t)) continue;
      travels = travels || mail_->travels({t, kGradient});
      gradients[i].push_back({mail_->take({t, kGradient}, micro_batch, pipeline_.num_micro_batches),
                              transfers_[t].reader});
    }
  }
  if (travels) begin = note(TraceInterval::Kind::transfer, stage, begin);
  const auto found = stage.executor.backward(micro_batch, std::move(gradients));
  begin = note(TraceInterval::Kind::backward, stage, begin);
  travels = false;
  for (size_t i = 0; i < found.size(); ++i) {
    for (const size_t t : stage.arrivals[i]) {
      if (!sends_back(t)) continue;
      travels = travels || mail_->travels({t, kGradient});
      const TensorForm& form = placement_.forms.at(transfers_[t].source);
      const at::Tensor& value = found[i].value;
      mail_->give({t, kGradient}, micro_batch,
                  value.defined() ? as_sent(value, form) : zeros(form));
    }
  }
  if (travels) note(TraceInterval::Kind::transfer, stage, begin);
}

// The sums of each parameter, over all operators that hold it. Stages that share a parameter send
// each other what their operators have, so that all add the same in the same order.
void PipelineHost::sum_gradients() {
  const auto& ops = operators_.operators();
  Parts parts;
  std::map<std::string, std::set<int>> holders;  // ranks
  std::map<std::string, const at::Tensor*> tensors;
  for (size_t op = 0; op < ops.size(); ++op) {
    if (!wants_[op]) continue;
    for (const nn::NamedTensor& p : ops[op].parameters) {
      if (!p.tensor.requires_grad()) continue;
      holders[p.name].insert(placement_.hosts[static_cast<size_t>(stage_of_[op])]);
      parts[p.name][static_cast<int>(op)] = {};
      tensors[p.name] = &p.tensor;
    }
  }
  for (const auto& stage : stages_) {
    for (const int op : stage->executor.ops()) {
      const Tensors sums = stage->executor.weight_gradients(op);
      for (size_t i = 0; i < sums.size(); ++i) {
        const auto of_op = parts.find(ops[static_cast<size_t>(op)].parameters[i].name);
        if (of_op == parts.end()) continue;  // it is not trained
        if (pipeline_.exact && of_op->second.size() > 1) {
          of_op->second[op] = stage->executor.weight_parts(op, i);
        } else if (sums[i].defined()) {
          of_op->second[op] = {sums[i]};
        }
      }
    }
  }
  exchange_tied(parts, holders, tensors);
  const at::NoGradGuard no_grad;
  for (const auto& [name, of_op] : parts) {
    if (!holders[name].contains(placement_.rank)) continue;
    at::Tensor sum;
    if (pipeline_.exact && of_op.size() > 1) {
      TensorTree tree;
      for (size_t m = 0; m < static_cast<size_t>(pipeline_.num_micro_batches); ++m) {
        const at::Tensor row = sum_of_row(of_op, m);
        if (!row.defined()) continue;
        tree.push(row.to(sum_type(row.scalar_type()), /*non_blocking=*/false, /*copy=*/true));
      }
      sum = tree.sum();
    } else {
      sum = sum_of_row(of_op, 0);
    }
    if (sum.defined()) gradients_[name] = sum;
  }
}

void PipelineHost::sum_buffers() {
  for (const auto& stage : stages_) {
    for (const int op : stage->executor.ops()) {
      const Tensors sums = stage->executor.buffer_sums(op);
      const Operator& o = operators_.operators()[static_cast<size_t>(op)];
      for (size_t i = 0; i < sums.size(); ++i) buffers_[o.buffers[i].name] = sums[i];
    }
  }
}

void PipelineHost::forget() {
  gradients_.clear();
  buffers_.clear();
  for (const auto& stage : stages_) stage->executor.clear();
}

void PipelineHost::exchange_tied(Parts& parts, const std::map<std::string, std::set<int>>& holders,
                                 const std::map<std::string, const at::Tensor*>& tensors) {
  struct Awaited {
    int host;
    uint32_t tag;
    Tensors* rows;
  };
  std::vector<Awaited> awaited;
  const auto num_rows = static_cast<size_t>(pipeline_.exact ? pipeline_.num_micro_batches : 1);
  auto tag = placement_.first_tag + static_cast<uint32_t>(transfers_.size()) * 2;
  for (auto& [name, of_op] : parts) {
    const std::set<int>& ranks = holders.at(name);
    for (auto& [op, rows] : of_op) {
      const uint32_t own_tag = tag++;  // the same on all ranks
      if (ranks.size() < 2 || !ranks.contains(placement_.rank)) continue;
      const int host = placement_.hosts[static_cast<size_t>(stage_of_[static_cast<size_t>(op)])];
      const at::Tensor& like = *tensors.at(name);
      const at::TensorOptions type(pipeline_.exact ? like.scalar_type()
                                                   : sum_type(like.scalar_type()));
      rows.resize(num_rows);
      if (host != placement_.rank) {
        for (at::Tensor& row : rows) row = at::empty(like.sizes(), type);
        awaited.push_back({host, own_tag, &rows});
        continue;
      }
      const at::NoGradGuard no_grad;
      for (at::Tensor& row : rows) {
        // Where nothing came, an exact sum gets what changes nothing, not even the sign of a zero.
        row = row.defined() ? row.contiguous()
                            : at::full(like.sizes(), pipeline_.exact ? -0.0 : 0.0, type);
        for (const int rank : ranks) {
          if (rank == host) continue;
          mail_->sent.emplace_back(
              placement_.communicator->start_send(rank, own_tag, bytes_of(row)), row);
        }
      }
    }
  }
  for (size_t m = 0; m < num_rows; ++m) {
    std::vector<comm::Engine::Work> received;
    for (const Awaited& a : awaited) {
      received.push_back(
          placement_.communicator->start_receive(a.host, a.tag, bytes_of((*a.rows)[m])));
    }
    for (const comm::Engine::Work& work : received) work.wait();
  }
}

}  // namespace ductile::parallel
