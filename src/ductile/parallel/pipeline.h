#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ductile/comm/communicator.h"
#include "ductile/nn/operators.h"
#include "ductile/parallel/stage_executor.h"
#include "ductile/parallel/trace.h"
#include "ductile/spec/stage_orders.h"

namespace ductile::parallel {

class AllocationCount;
class MessageMemory;  // message_memory.h
struct Piece;         // stage_parts_impl.h

// A plan as the runtime sees it: stages of the model's operators, and each stage's order of tasks,
// which is obeyed and never decided here.
struct Pipeline {
  struct Stage {
    std::vector<int> ops, recompute;  // numbers in the model's graph of operators
    std::vector<spec::Task> order;
    // They share each micro-batch: each does all tasks on an equal, consecutive part of its
    // samples, in their order.
    int replicas = 1;
  };
  int64_t num_micro_batches = 1;
  bool split = false;  // W tasks sum the weights' gradients
  bool exact = false;  // micro-batches count as virtual ranks (stage_executor.h, exact.h)
  std::vector<Stage> stages;

  // Whether a stage has several replicas.
  bool is_replicated() const;
};

// One replica of one stage: what a worker hosts. Those of a pipeline, stage by stage.
struct StagePart {
  int stage = 0, replica = 0;
};
std::vector<StagePart> parts_of(const Pipeline& pipeline);

// Throws invalid_argument that names stage or operator: where an operator is in no stage or in two,
// the stages form a cycle, an order lacks tasks, has too many, or one before what it needs, or the
// orders wait for one another.
void check(const Pipeline& pipeline, const nn::OperatorGraph& operators);

// The stage of each operator. Throws invalid_argument where one is in no stage or in two.
std::vector<int> stages_of_operators(const Pipeline& pipeline, const nn::OperatorGraph& operators);

// A tensor that one stage makes and another reads: it is sent once, and so is its gradient.
struct Transfer {
  nn::Source source;
  int from = 0, to = 0;
  int reader = 0;         // the last operator of `to` that reads it
  bool gradient = false;  // a gradient comes back, if its type has one
};
std::vector<Transfer> transfers_of(const Pipeline& pipeline, const nn::OperatorGraph& operators);

// How a tensor lies in memory while it travels.
struct TensorForm {
  std::vector<int64_t> sizes, strides;
  at::ScalarType type{};
};
using TensorForms = std::map<nn::Source, TensorForm>;
// Of all outputs of all operators, by one pass over a micro-batch, which leaves the model's
// buffers as they were. So lengths of messages are known beforehand, and tensors lie alike for
// every placement.
TensorForms tensor_forms(const nn::OperatorGraph& operators, const nn::Tensors& inputs);
// The same of a replica's part of the micro-batch, for each number of replicas above 1 that a stage
// has. Throws invalid_argument where they do not divide its samples.
std::map<int, TensorForms> share_forms(const nn::OperatorGraph& operators, const Pipeline& pipeline,
                                       const nn::Tensors& inputs);

// Throws invalid_argument, naming the operator, where a tensor that travels between stages of
// different numbers of replicas does not have the samples first and in their order: some samples by
// themselves make other rows of it than among all. Found by two passes over values drawn in the
// form of `inputs`, a micro-batch, which leave the model's buffers as they were. What draws random
// numbers, has running statistics or reads whole numbers is taken to keep the samples where they
// are. The weights of all operators have to be there.
void check_samples_first(const nn::OperatorGraph& operators, const Pipeline& pipeline,
                         const nn::Tensors& inputs);

// The parts of a pipeline that one worker hosts, on one model; they are its stages where none has
// several replicas. Those of one worker take turns; a worker that hosts all of them is the serial
// executor of the plan, whose bits are those of every other placement: each part's tasks are the
// same, and parts meet in tensors alone.
//
// Between workers, tensors travel as messages of `communicator`, on receives that are posted before
// they are needed, one for each transfer and direction: its sender's credit. If run() throws, the
// communicator is finished, and is to be destroyed before this object, in whose tensors messages
// may still arrive. The step can then be run again by other hosts; the caller puts the model's
// buffers back before.
//
// Stages with other numbers of replicas meet in ranges of samples: a tensor's first dimension is
// their number, or as many rows for each of them, in their order. Whoever reads it puts the ranges
// of all senders together, and gradients go back likewise. Each replica draws random numbers of its
// own, normalises batches by its own samples, and begins with the running statistics before the
// step. The replicas' gradients are not added here: outcome() has those of each.
class PipelineHost {
 public:
  struct Placement {
    std::vector<int> hosts;                      // the rank of each part: parts_of()
    int rank = 0;                                // this worker's
    comm::Communicator* communicator = nullptr;  // not needed where all hosts are this rank
    TensorForms forms;                           // of tensor_forms()
    uint32_t first_tag = 0;                      // of the messages: num_tags() from here on
    std::map<int, TensorForms> shares = {};      // of share_forms()
    // For what comes from other ranks; nullptr, or where it is full: libtorch's own.
    std::shared_ptr<MessageMemory> memory = nullptr;
    // For tests of memory: what a task sends is held until its end, and the next one begins once
    // all of it is out, so that what a stage holds does not depend on how fast others take it. Over
    // a transport that keeps messages until then, and for those of 1 MiB at most, which wait for no
    // credit.
    bool settles = false;
  };
  // `operators` outlives this object; its results are those of nn::training_operators. Throws
  // invalid_argument where pipeline and placement do not fit, or a tensor that is cut by samples
  // has none.
  PipelineHost(const nn::OperatorGraph& operators, Pipeline pipeline, Placement placement);
  ~PipelineHost();
  static uint32_t num_tags(const nn::OperatorGraph& operators, const Pipeline& pipeline);
  // By rank, the bytes of a MessageMemory that has room for all that comes from other ranks in a
  // step, whichever parameters are trained. That is more than is there at a time, as a rule, but
  // what is handed on as it came stays until it is taken there. Ranks that nothing comes to are
  // left out. Several placements are of pipelines that run one after the other, and lend the same
  // blocks as far as these are of the same sizes. Only hosts, forms and shares of them count.
  static std::map<int, size_t> receive_bytes(const nn::OperatorGraph& operators,
                                             const Pipeline& pipeline,
                                             std::span<const Placement> placements);

  struct Step {
    // [micro-batch][input of the model]; inputs that no hosted stage reads may be undefined.
    std::vector<nn::Tensors> inputs;
    uint64_t seed = 0;      // of operators that draw random numbers
    double loss_scale = 1;  // gradients are those of this times a micro-batch's mean loss, summed
    // Of an exact pipeline: which virtual rank the first micro-batch is; and what all operators
    // draw, if any does (draws_of), which outlives the call.
    int64_t first_rank = 0;
    const Draws* draws = nullptr;
    // What each hosted stage does, and the memory that it takes, is added to it; nullptr: nobody
    // looks at a clock.
    Trace* trace = nullptr;
  };
  // Runs one iteration. Returns the model's results for each micro-batch if the stage that makes
  // the first of them is hosted here, or else nothing; of a replicated pipeline nothing.
  std::vector<nn::Tensors> run(const Step& step);

  // Of the last run, by name: the parameters of hosted stages, tied ones summed over all stages, in
  // falling order of operators. Parameters that got no gradient are not there.
  const std::map<std::string, at::Tensor>& gradients() const { return gradients_; }
  // Of the last run of an exact pipeline, by name: the buffers of hosted stages, summed over the
  // micro-batches. The model has those of before the run.
  const std::map<std::string, at::Tensor>& buffers() const { return buffers_; }
  // Of the last run of a replicated pipeline, what one hosted part came to. Gradients are those of
  // the mean over a whole micro-batch's samples, so the sum over a stage's replicas, and of a tied
  // weight over its stages, is the gradient. Buffers are those after the last micro-batch; the
  // model has those of before the run.
  struct PartOutcome {
    std::map<std::string, at::Tensor> gradients, buffers;  // by name
    std::vector<nn::Tensors> results;                      // as run() returns them
  };
  const PartOutcome& outcome(int part) const { return outcomes_.at(part); }
  // Lets go what the last run has left.
  void forget();

 private:
  enum Direction : uint8_t { kForward, kGradient };
  struct Message {
    size_t piece = 0;
    Direction direction = kForward;
    auto operator<=>(const Message&) const = default;
  };
  struct Mail;
  struct HostedStage;

  const TensorForm& form_of(int stage, const nn::Source& source) const;
  void host(const StagePart& part, int number);
  void start(const Step& step);
  bool sends_back(size_t piece) const;
  bool come_in_rows(const std::vector<size_t>& pieces, const TensorForm& form) const;
  void post(const std::vector<size_t>& pieces, Direction direction, int64_t micro_batch,
            const TensorForm& form);
  at::Tensor take(const std::vector<size_t>& pieces, Direction direction, int64_t micro_batch,
                  const TensorForm& form);
  void give(const std::vector<size_t>& pieces, Direction direction, int64_t micro_batch,
            const at::Tensor& tensor);
  std::vector<Message> awaited(const HostedStage& stage) const;
  bool ready(const HostedStage& stage) const;
  void wait() const;
  void works(const HostedStage& stage);
  int64_t now() const;
  int64_t note(TraceInterval::Kind kind, const HostedStage& stage, int64_t begin);
  void note_wait(int64_t begin);
  void do_task(HostedStage& stage, const Step& step);
  nn::Tensors gather_inputs(HostedStage& stage, int64_t micro_batch, const Step& step,
                            int64_t& begin);
  void forward(HostedStage& stage, int64_t micro_batch, const Step& step);
  void backward(HostedStage& stage, int64_t micro_batch, const Step& step);
  void sum_gradients();
  void sum_buffers();
  void keep_outcomes();
  using Parts = std::map<std::string, std::map<int, nn::Tensors>>;  // of parameters, by operator
  void exchange_tied(Parts& parts, const std::map<std::string, std::set<int>>& holders,
                     const std::map<std::string, const at::Tensor*>& tensors);

  const nn::OperatorGraph& operators_;
  Pipeline pipeline_;
  Placement placement_;
  std::vector<Transfer> transfers_;
  std::vector<Piece> pieces_;
  std::vector<int> stage_of_;  // by operator, as wants_
  std::vector<bool> wants_;    // StageExecutor::wants_gradient()
  std::vector<std::unique_ptr<HostedStage>> stages_;
  std::unique_ptr<Mail> mail_;
  std::map<std::string, at::Tensor> gradients_, buffers_;
  std::map<int, PartOutcome> outcomes_;
  Trace* trace_ = nullptr;  // of the run under way, as count_
  AllocationCount* count_ = nullptr;
  int64_t clock_offset_ = 0;  // from the steady clock to nanoseconds since 1970
};

}  // namespace ductile::parallel
