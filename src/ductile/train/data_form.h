#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/dtype.h"
#include "ductile/data/dataset.h"
#include "ductile/nn/model.h"
#include "ductile/spec/job.h"

namespace ductile::train {

// Under which model.safetensors holds it.
inline constexpr const char* kDataFormKey = "ductile.data";
// Under which it holds the digest of its weights. Files of earlier versions have none.
inline constexpr const char* kWeightsDigestKey = "ductile.digest";

// What the inputs and outputs of a job's model are. model.safetensors keeps it beside the weights,
// so that a trained model can be used where its training data are not.
struct DataForm {
  bool tokens = false;
  nn::ModelInfo model;                   // what the model is made for
  std::vector<std::string> class_names;  // may be empty
  spec::AugmentOptions augment;          // resolved against the training set; of images alone
  // The short side of the training images; 0 if they had several, or if an earlier version wrote
  // this.
  int64_t short_side = 0;

  // `augment` resolved. Throws invalid_argument if the model of the job cannot have the classes of
  // the data.
  static DataForm of(const spec::JobOptions& job, const data::DatasetInfo& train,
                     const spec::AugmentOptions& augment);
  nlohmann::json to_json() const;
  // Throws data_loss, which begins with `what`.
  static DataForm from_json(const nlohmann::json& value, std::string_view what);

  bool images() const { return !tokens && model.inputs.empty(); }
  Shape sample_shape() const;  // images [C, H, W], tokens [T]; of several inputs that of the first
  // Blank samples, as the model reads them, contiguous.
  std::vector<at::Tensor> blank_inputs(int64_t count) const;
  // How images from elsewhere, of any size, are prepared for an evaluation, as large as the model
  // reads them (data/augment.h).
  spec::AugmentOptions augment_for_others() const;
};

}  // namespace ductile::train
