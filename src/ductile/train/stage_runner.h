#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ductile/data/loader.h"
#include "ductile/nn/operators.h"
#include "ductile/parallel/exchange.h"
#include "ductile/parallel/pipeline.h"
#include "ductile/spec/job.h"
#include "ductile/train/flat_model.h"
#include "ductile/train/ingredients.h"
#include "ductile/train/step_method.h"

namespace ductile::train {

// The pipeline of a job: train.pipelined on the operators of its model, with the loss. Throws
// invalid_argument that names the option and the operator or stage.
parallel::Pipeline pipeline_of_job(const spec::JobOptions& job, const nn::OperatorGraph& operators);

// Runs the virtual ranks of a job whose ranks are stages of its model: those that one worker hosts,
// which take turns. Every worker holds all weights. What a rank contributes is the gradients of the
// parameters and the running statistics of its operators, with zeros for all others, so the sum
// over the ranks is the whole. A parameter of several stages is the first one's.
//
// One thread at a time. Nothing but the model's running statistics changes.
class StageRunner {
 public:
  // The arguments outlive this object.
  StageRunner(const spec::JobOptions& job, Ingredients& ingredients, FlatModel& flat);
  ~StageRunner();

  // As RankRunner::host().
  void host(const parallel::ExchangeLayout& layout, int rank, parallel::Exchange* exchange);
  // Whether a hosted stage reads samples or labels.
  bool reads_samples() const;

  struct Part {
    std::vector<at::Tensor> gradients;  // as of FlatModel::gradients()
    std::vector<float> buffers, figures;
  };
  // Of one step, by virtual rank. Micro-batches may be nullptr where no hosted stage reads samples.
  // After an error host() must be called next. `trace`: what the hosted stages do is added there;
  // nullptr: it is not recorded.
  std::map<int64_t, Part> run(std::span<const data::Batch* const> micro_batches,
                              const FigureList& figures, uint64_t seed, double loss_scale,
                              parallel::Trace* trace);

 private:
  void make_host();
  void set_figures(const std::vector<nn::Tensors>& results, int64_t samples,
                   const FigureList& figures, std::vector<float>& out) const;

  const spec::JobOptions& job_;
  Ingredients& ingredients_;
  FlatModel& flat_;
  const nn::OperatorGraph operators_;
  const parallel::Pipeline pipeline_;
  const std::vector<int> stage_of_;                    // by operator
  std::map<std::string, int> owners_, buffer_owners_;  // stages, by name
  std::vector<int> hosts_;                             // workers, by stage
  int rank_ = 0;
  parallel::Exchange* exchange_ = nullptr;
  std::map<nn::Source, parallel::TensorForm> forms_;
  std::vector<bool> trained_;  // parameters, as host_ was made for
  std::unique_ptr<parallel::PipelineHost> host_;
};

}  // namespace ductile::train
