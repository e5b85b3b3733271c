#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "ductile/base/json_value.h"
#include "ductile/data/dataset.h"
#include "ductile/data/loader.h"
#include "ductile/nn/model.h"
#include "ductile/run/folder.h"
#include "ductile/spec/job.h"
#include "ductile/train/data_form.h"
#include "ductile/train/state.h"

namespace ductile::train {

// The model of a run with the weights that it evaluates and deploys, to be used. One thread.
class Trained {
 public:
  // With the final weights (model.safetensors), or those of the checkpoint of a step. Throws
  // not_found if there are none, data_loss if a file is damaged, and invalid_argument, naming the
  // tensor, if the weights are not those of the job's model.
  Trained(const run::RunFolder& folder, const spec::JobOptions& job,
          std::optional<int64_t> checkpoint);

  const spec::JobOptions& job() const { return job_; }
  const DataForm& form() const { return form_; }
  nn::Model& model() { return *model_; }
  FlatModel& flat() { return state_->flat; }
  int64_t step() const { return step_; }  // protocol steps done
  // Of the weights: equal to the run's "weights_digest" if they are its final ones.
  std::string weights_digest();

 private:
  void read_final(const fs::path& file);
  void read_checkpoint(const run::RunFolder& folder, int64_t step);

  spec::JobOptions job_;
  DataForm form_;
  std::unique_ptr<nn::Model> model_;
  std::optional<JobState> state_;  // its weights are those to be used
  int64_t step_ = 0;
};

// The training data of a run, for what cannot do without. Throws not_found, which says so, if they
// are gone: `what` needs them, and `otherwise` is another way out.
std::shared_ptr<const data::Dataset> open_training_data(const spec::JobOptions& job,
                                                        std::string_view what,
                                                        std::string_view otherwise = "");

// Whose samples they are: of the job's own sets, which are prepared as the run does, or others,
// each of which is prepared in a way that depends on no other sample.
enum class Origin : unsigned char { own, others };

// A loader of samples as the model evaluates them. Throws invalid_argument if their shape is
// another one than the model's.
std::unique_ptr<data::Loader> load_samples(std::shared_ptr<const data::Dataset> samples,
                                           Origin origin, Trained& trained);

// The samples that a loader left out: how many, and the first few.
nlohmann::json describe_bad(const data::LoaderStats& stats);

}  // namespace ductile::train
