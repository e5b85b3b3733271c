#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ductile/comm/canonical.h"
#include "ductile/data/loader.h"
#include "ductile/nn/operators.h"
#include "ductile/parallel/draws.h"
#include "ductile/parallel/exchange.h"
#include "ductile/parallel/message_memory.h"
#include "ductile/parallel/pipeline.h"
#include "ductile/parallel/shards.h"
#include "ductile/parallel/tensor_split.h"
#include "ductile/spec/job.h"
#include "ductile/train/flat_model.h"
#include "ductile/train/ingredients.h"
#include "ductile/train/step_method.h"

namespace ductile::train {

// One pipeline of a job: train.pipelined on the operators of its model, with the loss. Throws
// invalid_argument that names the option and the operator or stage.
parallel::Pipeline pipeline_of_job(const spec::JobOptions& job, const nn::OperatorGraph& operators);

// What is wrong with train.pipelined for the job's model, in a sentence; empty: nothing. Throws
// where the model cannot be made here, as without its data. Where blank_ingredients() leaves the
// first weights out, the model takes no memory for them.
std::string fault_of_stages(const spec::JobOptions& job);

// Runs the virtual ranks of a job whose ranks are stages of its model, or parts of stages
// (tensor_split.h): those that one worker hosts, which take turns. Rank v is part v % P of pipeline
// v / P, where P is the number of parts of all stages; each pipeline has an equal part of the
// batch. Where stages have replicas of their own (train.pipelined.stage_replicas), there is one
// pipeline, and its ranks are the replicas, stage by stage. A rank reads the weights of its
// operators alone. What it contributes is the gradients of their parameters and their running
// statistics, with zeros for all others, so the sum over the ranks of a pipeline is the whole, and
// that over pipelines as many times their mean. A parameter of several stages is the first one's.
// Of replicas each contributes its own gradients, in which a micro-batch's mean is over all of its
// samples, also of a parameter that other stages hold; and its share of the mean over the stage's
// running statistics.
//
// With train.pipeline_exact the sum is that of the plain method, to the bit, where micro-batch m of
// pipeline r is virtual rank r * M + m: each pipeline sums its micro-batches' gradients and running
// statistics as leaves of the canonical tree, and what a rank does not own is -0, which added to
// anything leaves it as it is.
//
// One thread at a time. Nothing but the model's running statistics changes.
class StageRunner {
 public:
  // The arguments outlive this object. Throws invalid_argument for a pipeline that cannot be run,
  // and for a plan of another model (planned_model.h).
  StageRunner(const spec::JobOptions& job, Ingredients& ingredients, FlatModel& flat);
  ~StageRunner();

  // The blocks of the flat buffers, by virtual rank: those in which parameters of its operators
  // lie, and those to whose sum it contributes.
  using Blocks = std::vector<parallel::BlockRange>;
  std::vector<Blocks> blocks_read() const;
  std::vector<Blocks> blocks_summed() const;

  // The model as its ranks run it, without the loss; and, of each of its operators, the virtual
  // rank that evaluates it, in the first pipeline: its part of its stage, or that stage's first
  // replica.
  nn::OperatorGraph forward_operators() const;
  std::vector<int> ranks() const { return {rank_of_.begin(), rank_of_.end() - 1}; }

  // What a worker needs at most for the tensors that others send it
  // (ExchangeLayout::message_bytes), where worker r hosts the virtual ranks from cut[r] to
  // cut[r + 1]; the same on every worker.
  size_t message_bytes(std::span<const int64_t> cut);

  // As RankRunner::host() and leave().
  void host(const parallel::ExchangeLayout& layout, int rank, parallel::Exchange* exchange);
  void leave();
  // The parts of a batch (spec::batch_parts) that hosted stages read samples or labels of.
  comm::LeafRange parts() const;

  struct Part {
    std::vector<at::Tensor> gradients;  // as of FlatModel::gradients()
    std::vector<float> buffers, figures;
  };
  // Of one pipeline in one step, by virtual rank; workers take pipelines in rising order, so that
  // none waits for one that waits for it. Its micro-batches may be nullptr outside of parts().
  // After an error host() must be called next. `trace`: what the hosted stages of the first
  // pipeline do is added there; nullptr: it is not recorded.
  std::map<int64_t, Part> run(int64_t pipeline, std::span<const data::Batch* const> micro_batches,
                              const FigureList& figures, uint64_t seed, double loss_scale,
                              parallel::Trace* trace);

 private:
  bool hosted(int64_t rank) const { return hosts_[static_cast<size_t>(rank)] == rank_; }
  static std::vector<int> hosts_of_ranks(std::span<const int64_t> cut);
  std::vector<int> hosts_of_parts(int64_t pipeline, const std::vector<int>& hosts) const;
  nn::Tensors blank_inputs() const;
  void find_forms(const nn::Tensors& inputs);
  void prepare();
  void check_bits(const nn::Tensors& like) const;
  std::vector<Blocks> for_each_pipeline(std::vector<Blocks> by_rank) const;
  void make_pipelines();
  Part part_of(int rank, const parallel::PipelineHost& pipeline) const;
  Part part_of_replica(int part, const parallel::PipelineHost& pipeline) const;
  std::vector<at::Tensor> gradients_of(int rank, const parallel::PipelineHost& pipeline) const;
  using Slices = std::vector<parallel::TensorSplit::Slice>;
  at::Tensor gradient_of_slices(int rank, const FlatModel::Entry& parameter, const Slices& slices,
                                const parallel::PipelineHost& pipeline) const;
  std::vector<float> buffers_of(int rank, const parallel::PipelineHost& pipeline) const;
  void set_figures(const std::vector<nn::Tensors>& results, int64_t samples, int replicas,
                   const FigureList& figures, std::vector<float>& out) const;

  const spec::JobOptions& job_;
  Ingredients& ingredients_;
  FlatModel& flat_;
  const parallel::TensorSplit split_;
  const nn::OperatorGraph& operators_;  // of split_, as the pipeline
  const parallel::Pipeline& pipeline_;
  const std::vector<parallel::StagePart> parts_;       // of a pipeline
  const std::vector<int> part_ranks_;                  // of these, in their pipeline
  const int64_t num_ranks_, num_replicas_;             // of a pipeline; pipelines
  const std::vector<int> stage_of_, rank_of_;          // by operator; ranks in their pipeline
  std::map<std::string, int> owners_, buffer_owners_;  // ranks in their pipeline, by name
  std::vector<bool> reads_samples_;                    // by rank in the pipeline
  std::vector<int> hosts_;                             // workers, by virtual rank
  int rank_ = 0;
  parallel::Exchange* exchange_ = nullptr;
  std::shared_ptr<parallel::MessageMemory> memory_;  // in that of exchange_; nullptr: none
  bool prepared_ = false;
  parallel::TensorForms forms_;
  std::map<int, parallel::TensorForms> shares_;  // of replicas, by their number
  parallel::Draws draws_;                        // where the pipeline is exact
  std::vector<bool> trained_;                    // parameters, as pipelines_ were made for
  std::vector<std::unique_ptr<parallel::PipelineHost>> pipelines_;  // nullptr: nothing is hosted
};

}  // namespace ductile::train
