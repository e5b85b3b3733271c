#include "ductile/train/ingredients.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>

#include "ductile/base/error.h"
#include "ductile/data/augment.h"
#include "ductile/data/formats.h"
#include "ductile/data/loader.h"
#include "ductile/nn/first_values.h"
#include "ductile/nn/flops.h"
#include "ductile/train/data_form.h"
#include "ductile/train/evaluate.h"
#include "ductile/train/own_update.h"
#include "ductile/train/probing.h"
#include "ductile/train/staleness.h"
#include "ductile/train/task_method.h"

namespace ductile::train {
namespace {

// The model is made for the training set, and evaluated on the test set.
void check_test_set(const spec::JobOptions& job, const data::DatasetInfo& train,
                    const data::DatasetInfo& test) {
  const int64_t classes =
      std::max({train.num_classes, job.model.num_classes, train.tokens ? job.model.vocab_size : 0});
  if (test.tokens == train.tokens && test.inputs == train.inputs &&
      test.channels == train.channels && test.num_classes <= classes) {
    return;
  }
  const auto text = [](const data::DatasetInfo& set) {
    if (!set.inputs.empty())
      return fmt::format("{}, inputs {} and {} classes", set.format,
                         fmt::join(spec::to_texts(set.inputs), ", "), set.num_classes);
    return set.tokens ? fmt::format("{}, token numbers below {}", set.format, set.num_classes)
                      : fmt::format("{}, {} channels and {} classes", set.format, set.channels,
                                    set.num_classes);
  };
  fail(ErrorCode::invalid_argument,
       "the test set ({}) does not fit the training set ({}): both have to hold samples of one "
       "kind, and the model an output for each class (model.num_classes, model.vocab_size)",
       text(test), text(train));
}

// Samples from all over the training set, which may be sorted.
void initialize(nn::Model& model, const Ingredients& given, const spec::JobOptions& job) {
  const int64_t size = given.train_set->info().size;
  const int64_t count = std::min(model.num_initial_samples(), size);
  if (count == 0) return;
  data::LoaderTask task;
  task.seed = static_cast<uint64_t>(job.seed);
  task.training = false;
  task.channels_last = false;
  spec::LoaderOptions options = job.loader;
  options.prefetch = 1;
  data::Loader loader(given.train_set, given.augment, options, task);
  std::vector<int64_t> indices(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) indices[static_cast<size_t>(i)] = i * size / count;
  model.initialize(input_of(*loader.fetch(indices, 0)));
}

void check_size(const spec::JobOptions& job, const data::DatasetInfo& train) {
  if (train.size >= job.train.batch_size) return;
  fail(ErrorCode::invalid_argument,
       "train.batch_size = {} is larger than the training set, which has {} samples",
       job.train.batch_size, train.size);
}

// Some methods and rate controls name the samples of a step.
void check_numbers(const Ingredients& given, const spec::JobOptions& job) {
  const auto needs = [&](bool present, std::string_view option, std::string_view value,
                         std::string_view without) {
    if (!present || given.task->order() != SampleOrder::own) return;
    fail(ErrorCode::invalid_argument,
         "{} = \"{}\" chooses samples by their numbers, and those of train_data() have none, since "
         "it is a stream or has a sampler of its own; give a map-style Dataset without a sampler, "
         "of a part of one a torch.utils.data.Subset, or set {} = \"{}\"",
         option, value, option, without);
  };
  needs(job.train.method != "plain", "train.method", job.train.method, "plain");
  for (const std::string_view name : {"examined", "selected", "reweighted"}) {
    if (job.train.method == "plain" || std::ranges::count(given.task->metrics(), name) == 0)
      continue;
    fail(ErrorCode::invalid_argument,
         "the job has a metric \"{}\", which is also what train.method = \"{}\" counts; give it "
         "another name",
         name, job.train.method);
  }
  needs(given.rate_control->probing().has_value(), "train.rate_control", job.train.rate_control,
        "schedule");
}

// All that a job with a task of its own has in common with others.
void complete_rest(Ingredients& given, const spec::JobOptions& job) {
  if (!given.make_optimizer) {
    given.make_optimizer = [options = job.optimizer](const optim::ParamLayout& layout) {
      return optim::make_optimizer(options, layout);
    };
  }
  if (!given.rate_control) given.rate_control = optim::make_rate_control(job);
  if (!given.method) given.method = make_step_method(job);
  given.method = with_staleness(std::move(given.method), job);
  given.method = with_probes(std::move(given.method), *given.rate_control, job);
  if (given.task) {
    check_numbers(given, job);
    given.method = make_task_method(std::move(given.method), *given.task);
  }
  given.method->prepare(job, given);
}

// The model was made in the precision of the training. Where it cannot be made in that of the
// looks, its own message would name the wrong option.
std::unique_ptr<nn::Model> make_look_model(
    const std::function<std::unique_ptr<nn::Model>(const std::string&)>& make_in,
    const spec::JobOptions& job) {
  const std::string& precision = job.train.selective.precision;
  try {
    return make_in(precision);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::invalid_argument) throw;
    fail(ErrorCode::invalid_argument,
         "train.selective.precision = \"{}\": the model computes in {} and cannot be made in {}; "
         "set train.selective.precision = \"training\"",
         precision, job.train.precision, precision);
  }
}

}  // namespace

Ingredients complete(Ingredients given, const spec::JobOptions& job) {
  if (given.task) {
    if (job.target.metric == "accuracy" &&
        std::ranges::find(given.task->metrics(), "accuracy") == given.task->metrics().end()) {
      fail(ErrorCode::invalid_argument,
           "target.metric = \"accuracy\", and the job's metrics have no accuracy; name it among "
           "them, or choose target.metric = \"loss\"");
    }
    check_size(job, given.train_info());
    given.model = given.task->make_model(static_cast<uint64_t>(job.seed));
    if (job.optimizer.name == "python") {
      OwnUpdate* const own = given.task->own_update();
      if (own == nullptr)
        fail(ErrorCode::invalid_argument,
             "optimizer.name = \"python\", and the job's class has no method optimizer(); write "
             "one, or name an update rule of Ductile's");
      given.make_optimizer = [own, model = given.model.get()](const optim::ParamLayout& layout) {
        return make_own_optimizer(*own, *model, layout);
      };
    }
    complete_rest(given, job);
    return given;
  }
  if (!given.train_set) given.train_set = data::open_dataset(job.data, data::Split::train);
  if (!given.test_set) given.test_set = data::open_dataset(job.data, data::Split::test);
  const data::DatasetInfo& info = given.train_set->info();
  check_test_set(job, info, given.test_set->info());
  if (info.images()) {
    given.augment = data::resolve_augment(job.augment, info);
    data::check_crop(given.augment, info);
  }
  check_size(job, info);
  const DataForm form = DataForm::of(job, info, given.augment);
  if (!given.model) {
    const auto make_in = [model = job.model, info = form.model,
                          seed = static_cast<uint64_t>(job.seed)](const std::string& precision) {
      return nn::make_model(model, info, precision, seed);
    };
    const auto make = [make_in, precision = job.train.precision] { return make_in(precision); };
    given.model = make();
    if (spec::looks_otherwise(job)) given.look_model = make_look_model(make_in, job);
    // One from a file of its user's may draw its first values in another way.
    if (job.model.library.empty()) given.make_model = make;
  }
  if (spec::looks_otherwise(job) && !given.look_model) {
    fail(ErrorCode::invalid_argument,
         "train.selective.precision = \"{}\" needs a second model, and the program brings its own "
         "alone; set the option to \"training\", or hand in a look_model of that precision",
         job.train.selective.precision);
  }
  initialize(*given.model, given, job);
  if (given.flops_per_sample == 0)
    // 0 where it cannot be told. Sizes matter, so the sample may be blank.
    given.flops_per_sample = nn::forward_flops(*given.model, form.blank_inputs(1)).value_or(0);
  complete_rest(given, job);
  return given;
}

bool lies_channels_last(const spec::JobOptions& job, nn::Model& model) {
  return job.train.memory_format == "auto" ? model.prefers_channels_last()
                                           : job.train.memory_format == "channels_last";
}

Recipe recipe_of(const spec::JobOptions& job) {
  return [job] { return complete({}, job); };
}

Ingredients blank_ingredients(const spec::JobOptions& job, const Recipe& recipe) {
  if (spec::is_pipelined(job) && job.train.shard_optimizer && !job.train.pipeline_exact &&
      job.train.pipelined.stage_replicas.empty() && job.model.library.empty()) {
    const nn::FirstValues none;
    Ingredients given = recipe();
    if (given.make_model && given.model->num_initial_samples() == 0) return given;
  }
  return recipe();
}

}  // namespace ductile::train
