#include "ductile/train/data_form.h"

#include <algorithm>

#include <ATen/ops/zeros.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/data/augment.h"

namespace ductile::train {

using Json = nlohmann::json;

DataForm DataForm::of(const spec::JobOptions& job, const data::DatasetInfo& train,
                      const spec::AugmentOptions& augment) {
  DataForm form;
  form.tokens = train.tokens;
  form.class_names = train.class_names;
  form.augment = augment;
  nn::ModelInfo& info = form.model;
  info.num_classes = job.model.num_classes > 0 ? job.model.num_classes : train.num_classes;
  info.inputs = train.inputs;
  if (train.tokens) {
    info.sequence_length = train.sequence_length;
    if (job.model.vocab_size > 0) info.num_classes = job.model.vocab_size;
  } else if (train.images()) {
    const Shape shape =
        data::Augmenter(augment, train, true, static_cast<uint64_t>(job.seed)).output_shape();
    info.channels = shape[0];
    info.height = shape[1];
    info.width = shape[2];
    form.short_side = std::min(train.height, train.width);
  }
  if (info.num_classes < train.num_classes && train.tokens) {
    fail(
        ErrorCode::invalid_argument,
        "the model has {} outputs, and the largest token of data.path = \"{}\" and of the held-out "
        "ones is {}; set a larger model.vocab_size (is data.tokens.type = \"{}\" right?)",
        info.num_classes, job.data.path, train.num_classes - 1, job.data.tokens.type);
  }
  if (info.num_classes < train.num_classes) {
    fail(ErrorCode::invalid_argument, "the model has {} outputs but the data has {} classes",
         info.num_classes, train.num_classes);
  }
  return form;
}

Json DataForm::to_json() const {
  spec::AugmentOptions options = augment;
  Json out = {{"tokens", tokens},
              {"channels", model.channels},
              {"height", model.height},
              {"width", model.width},
              {"num_classes", model.num_classes},
              {"sequence_length", model.sequence_length},
              {"class_names", class_names},
              {"short_side", short_side},
              {"augment", OptionSet(options).to_json()}};
  if (!model.inputs.empty()) out["inputs"] = spec::to_texts(model.inputs);
  return out;
}

DataForm DataForm::from_json(const Json& value, std::string_view what) try {
  DataForm form;
  form.tokens = value.at("tokens");
  form.model = {value.at("channels"), value.at("height"), value.at("width"),
                value.at("num_classes"), value.at("sequence_length")};
  form.model.inputs = spec::sample_inputs(value.value("inputs", std::vector<std::string>()));
  value.at("class_names").get_to(form.class_names);
  form.short_side = value.value("short_side", int64_t{0});
  OptionSet(form.augment).read_json(value.at("augment"), what, Moved::follow);
  return form;
} catch (const std::exception& e) {
  fail(ErrorCode::data_loss, "{}: {}", what, e.what());
}

spec::AugmentOptions DataForm::augment_for_others() const {
  // Without a crop the model reads images as large as those of the training set.
  const int64_t native = augment.crop == 0 ? std::min(model.height, model.width) : short_side;
  return data::evaluation_augment(augment, native);
}

std::vector<at::Tensor> DataForm::blank_inputs(int64_t count) const {
  std::vector<at::Tensor> out;
  for (const spec::SampleInput& input : model.inputs) {
    out.push_back(at::zeros({count, input.length}, input.is_numbers() ? at::kLong : at::kFloat));
  }
  if (!out.empty()) return out;
  Shape shape = sample_shape();
  shape.insert(shape.begin(), count);
  return {at::zeros(shape, tokens ? at::kLong : at::kFloat)};
}

Shape DataForm::sample_shape() const {
  if (!model.inputs.empty()) return {model.inputs.front().length};
  if (tokens) return {model.sequence_length};
  return {model.channels, model.height, model.width};
}

}  // namespace ductile::train
