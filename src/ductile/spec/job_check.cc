#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/spec/datasets.h"
#include "ductile/spec/job.h"
#include "ductile/spec/job_check_impl.h"
#include "ductile/spec/live_options.h"
#include "ductile/spec/methods.h"
#include "ductile/spec/models.h"
#include "ductile/spec/name_rules.h"
#include "ductile/spec/optimizers.h"
#include "ductile/spec/sample_inputs.h"
#include "ductile/spec/without_effect.h"

namespace ductile::spec {
namespace {

// To the kernel a path ends there, and other files than were named would be read.
void check_paths(const JobOptions& job, const Bad& bad) {
  for (const auto& [name, path] :
       {std::pair("data.path", &job.data.path), std::pair("data.test_path", &job.data.test_path),
        std::pair("model.library", &job.model.library),
        std::pair("python.object", &job.python.object)})
    if (path->find('\0') != std::string::npos)
      bad(fmt::format("{} has a zero byte, which no path has", name));
}

// Bias corrections divide by 1 - beta^t.
void check_betas(const OptimizerOptions& optimizer, const Bad& bad) {
  if (!reads_adam(optimizer)) return;
  const auto refuse = [&](const char* name) {
    bad(
        fmt::format("optimizer.adam.{0} = 1 forgets nothing and learns nothing, and {1} divides by "
                    "1 - {0}; choose a value below 1",
                    name, optimizer.name));
  };
  if (optimizer.adam.beta1 == 1 && optimizer.name != "schedule_free") refuse("beta1");
  if (optimizer.adam.beta2 == 1) refuse("beta2");
}

void check_selection(const JobOptions& job, const Bad& bad) {
  if (selects_samples(job) && job.train.bn_group > 1) {
    bad(
        fmt::format("train.method = \"{}\" needs train.bn_group = 1, and it is {}: the last batch "
                    "of an epoch does not fill all members of a group",
                    job.train.method, job.train.bn_group));
  }
  if (selects_samples(job) && job.train.selective.start > job.train.selective.end) {
    bad(fmt::format("train.selective.start = {} is after train.selective.end = {}",
                    job.train.selective.start, job.train.selective.end));
  }
}

void check_batch(const JobOptions& job, const Bad& bad) {
  if (job.train.batch_size % batch_parts(job) != 0) {
    const bool several = is_pipelined(job) && job.train.pipelined.replicas > 1;
    bad(fmt::format("train.batch_size = {} is not divisible by {} = {}", job.train.batch_size,
                    several             ? "train.pipelined.replicas x train.pipelined.micro_batches"
                    : is_pipelined(job) ? "train.pipelined.micro_batches"
                                        : "train.virtual_ranks",
                    batch_parts(job)));
  }
}

// The data of several inputs for each sample, and the models that read them.
void check_synthetic(const JobOptions& job, const Bad& bad) {
  const ModelHelp* model = models().find(job.model.name);
  const bool several = model != nullptr && model->input == ModelInput::several;
  const bool synthetic = job.data.format == "synthetic";
  if (several != synthetic && job.model.library.empty()) {
    bad(
        fmt::format("model.name = \"{}\" and data.format = \"{}\" do not fit: mmt, dlrm and "
                    "candle-uno read the several inputs of data.format = \"synthetic\", and the "
                    "other models one input",
                    job.model.name, job.data.format));
  }
  if (!synthetic) return;
  if (job.data.synthetic.inputs.empty()) {
    bad("data.format = \"synthetic\" needs data.synthetic.inputs, for example "
        "[\"7*vector:64\", \"7*indices:4:1000\"] for dlrm, [\"7*vector:64\"] for candle-uno, "
        "[\"4*tokens:32:64\"] for mmt");
  }
  sample_inputs(job.data.synthetic.inputs);
  if (job.eval.views != "one") {
    bad(fmt::format("eval.views = \"{}\" are views of images, and data.format is \"synthetic\"",
                    job.eval.views));
  }
}

void check_model(const JobOptions& job, const Bad& bad) {
  if ((job.model.name == "gpt") != (job.data.format == "tokens") && job.model.library.empty()) {
    bad(
        fmt::format("model.name = \"{}\" and data.format = \"{}\" do not fit: gpt reads tokens, "
                    "the other models read images",
                    job.model.name, job.data.format));
  }
  if ((job.model.name == "gpt" || job.model.name == "mmt") &&
      job.model.dim % job.model.heads != 0) {
    bad(fmt::format("model.dim = {} is not divisible by model.heads = {}", job.model.dim,
                    job.model.heads));
  }
  if (job.model.name == "custom" && job.model.library.empty()) {
    bad("model.name = \"custom\" needs model.library, the file that holds the model: a shared "
        "library, or what ductile capture --model wrote");
  }
  if (job.model.name != "custom" && !job.model.library.empty()) {
    bad(
        fmt::format("model.library = \"{}\" holds the model of model.name = \"custom\", but "
                    "model.name is \"{}\"; say which one is meant",
                    job.model.library, job.model.name));
  }
}

void check_parameters(const OptimizerOptions& o, const Bad& bad) {
  for (const NameRule& rule : name_rules(o.lr_factors, "optimizer.lr_factors")) {
    if (rule.value == 0) {
      bad(
          fmt::format("optimizer.lr_factors has \"{0}:0\"; to leave these parameters as they are, "
                      "set optimizer.freeze = [\"{0}\"]",
                      rule.name));
    }
  }
  const std::vector<NameRule> frozen = name_rules(o.freeze, "optimizer.freeze", 0);
  const RuleTraits* rule = rule_traits(o.name);
  if (!o.lr_factors.empty() && !(rule != nullptr && rule->lr_factors)) {
    bad(
        fmt::format("optimizer.lr_factors does not fit optimizer.name = \"{}\", which has one rate "
                    "for all parameters or finds its own for each",
                    o.name));
  }
  if (!frozen.empty() && rule != nullptr && !rule->freezes) {
    bad(fmt::format(
        "optimizer.freeze does not fit optimizer.name = \"{}\", which evaluates weights "
        "that it computes for all parameters",
        o.name));
  }
}

void check_schedule(const JobOptions& job, const Bad& bad) {
  if (job.train.rate_control == "lrtuner") return;  // it reads none
  if (job.schedule.name == "step" && job.schedule.step.milestones.empty()) {
    bad("schedule.name = \"step\" needs schedule.step.milestones, for example [100, 150]");
  }
  if (job.schedule.warmup_epochs > static_cast<double>(job.train.epochs)) {
    bad(fmt::format("schedule.warmup_epochs = {} is longer than train.epochs = {}",
                    job.schedule.warmup_epochs, job.train.epochs));
  }
}

// Whether train.noise.max_batch counts.
void check_noise_control(const JobOptions& job, const Bad& bad) {
  if (!may_enlarge(job)) return;
  if (job.train.virtual_ranks < 2) {
    bad(fmt::format(
        "train.rate_control = \"{}\" needs train.virtual_ranks of at least 2: the noise "
        "is measured by how the gradients of the virtual ranks differ",
        job.train.rate_control));
  }
  const int64_t most = job.train.noise.max_batch;
  if (most > 0 && most < job.train.batch_size) {
    bad(
        fmt::format("train.noise.max_batch = {} is below train.batch_size = {}, with which the "
                    "job begins",
                    most, job.train.batch_size));
  }
}

// Methods that choose their samples plan with train.batch_size; what would change it in the middle
// of a run is refused before the run.
void check_batch_stays(const JobOptions& job, const Bad& bad) {
  const TrainOptions& o = job.train;
  // A run that counts updates would be at another epoch with another batch.
  const bool at_most = selects_samples(job) && !counts_updates(job);
  const bool the_same = counts_updates(job) || weighs_samples(job);
  if (!at_most && !the_same) return;
  if (may_enlarge(job) && o.noise.max_batch != o.batch_size) {
    bad(fmt::format(
        "train.rate_control = \"{}\" enlarges the batch, and train.method = \"{}\" "
        "needs train.batch_size = {} {}; choose another rate control or another method",
        o.rate_control, o.method, o.batch_size, at_most ? "as the largest one" : "in every step"));
  }
  if (!job.tune.online) return;
  for (const int64_t size : job.tune.batch_size) {
    if (size == o.batch_size || (at_most && size < o.batch_size)) continue;
    bad(fmt::format(
        "tune.batch_size: {} does not fit train.method = \"{}\", which needs train.batch_size = {} "
        "{}; leave tune.batch_size empty, or choose another method{}",
        size, o.method, o.batch_size, at_most ? "as the largest one" : "in every step",
        counts_updates(job) ? ", or train.selective.length = \"epochs\"" : ""));
  }
}

void check_averages(const TrainOptions& train, const Bad& bad) {
  if (static_cast<float>(train.ema_decay) == 1) {
    bad("train.ema_decay = 1 would evaluate the first weights for ever; choose a value below 1, "
        "for "
        "example 0.999, or 0 for no average");
  }
  if (train.ema_decay > 0 && train.tail_average > 0) {
    bad("train.ema_decay and train.tail_average both say what is evaluated; set one of them to 0");
  }
}

// A Python job brings model, data and loss; options of ours that shape these would say nothing.
void check_python(const JobOptions& job, const Bad& bad) {
  const bool is_python = !job.python.object.empty();
  if ((job.model.name == "python") != is_python || (job.data.format == "python") != is_python) {
    bad(
        fmt::format("model.name = \"{}\", data.format = \"{}\" and python.object = \"{}\" do not "
                    "fit: a Python job has \"python\" in the first two, and a class in the third; "
                    "`ductile train FILE.py:CLASS` sets all of them",
                    job.model.name, job.data.format, job.python.object));
  }
  const bool own_rule = job.optimizer.name == "python";
  if (own_rule && !is_python) {
    bad("optimizer.name = \"python\" is the optimizer() of a Python job, and this is none; name "
        "one of Ductile's rules");
  }
  if (!is_python) return;
  const TrainOptions& o = job.train;
  const auto refuse = [&](bool present, std::string_view option, std::string_view instead) {
    if (present) bad(fmt::format("{} does not fit a Python job: {}", option, instead));
  };
  refuse(o.method == "pipelined", "train.method = \"pipelined\"",
         "Ductile cannot cut its model into stages; set it to \"plain\"");
  refuse(o.selective.half_resolution, "train.selective.half_resolution",
         "Ductile does not see its images; set it to false");
  refuse(o.selective.precision != "training", "train.selective.precision",
         "its weights are float32; set it to \"training\"");
  refuse(o.precision != "fp32", fmt::format("train.precision = \"{}\"", o.precision),
         "its weights are float32; use torch.autocast in loss(), and set it to \"fp32\"");
  refuse(o.bn_group > 1, fmt::format("train.bn_group = {}", o.bn_group),
         "its batch norm layers know of one rank alone; set it to 1");
  refuse(o.label_smoothing > 0, "train.label_smoothing", "write it in loss()");
  refuse(job.eval.views != "one", fmt::format("eval.views = \"{}\"", job.eval.views),
         "Ductile does not see its images; set it to \"one\"");
  if (!own_rule) return;
  const auto contradicts = [&](bool present, std::string_view option, std::string_view instead) {
    if (present) bad(fmt::format("{} does not fit the job's own optimizer(): {}", option, instead));
  };
  contradicts(o.shard_optimizer, "train.shard_optimizer",
              "every worker runs all of it; set it to false");
  contradicts(o.rate_control != "schedule",
              fmt::format("train.rate_control = \"{}\"", o.rate_control),
              "its learning rate is its own; set it to \"schedule\"");
  contradicts(job.tune.online, "tune.online", "its hyperparameters are its own; set it to false");
}

// Of the options that are found while training.
void check_tune(const JobOptions& job, const Bad& bad) {
  const TuneOptions& o = job.tune;
  if (!o.online) return;
  if (job.train.shard_optimizer) {
    bad("tune.online = true needs the whole state on every worker; set train.shard_optimizer = "
        "false");
  }
  if (job.train.max_steps > 0) {
    bad("tune.online = true: trials take steps, too, so train.max_steps has no clear meaning; set "
        "it to 0, and train.epochs to the length of the run");
  }
  if (job.train.rate_control != "schedule") {
    bad(
        fmt::format("tune.online = true and train.rate_control = \"{}\" both choose the "
                    "hyperparameters; switch one of them off",
                    job.train.rate_control));
  }
  // Rates of trials are multiples of it, which for the smallest doubles would not be finite.
  if (static_cast<float>(job.optimizer.lr) == 0) {
    bad(
        fmt::format("tune.online = true needs an optimizer.lr above 0, and {} is none in fp32, in "
                    "which weights are trained; 1e-6 is a small one",
                    job.optimizer.lr));
  }
  struct Range {
    const char* name;
    const std::vector<double>& values;
    double below;  // what the largest value has to stay below
    bool log;
  };
  for (const Range& r : {Range{"lr", o.lr, INFINITY, true}, Range{"momentum", o.momentum, 1, false},
                         Range{"weight_decay", o.weight_decay, INFINITY, true}}) {
    const std::vector<double>& v = r.values;
    if (v.empty()) continue;
    const bool is_range = v.size() == 2 && v[0] <= v[1] && v[1] < r.below;
    if (!is_range || v[0] < 0 || (r.log && v[0] == 0)) {
      bad(fmt::format("tune.{} is the least and the largest value{}, for example [{}]", r.name,
                      r.log ? ", above 0" : ", below 1", r.log ? "1e-4, 1.0" : "0, 0.99"));
    }
  }
  const bool takes_momentum = !o.momentum.empty() && o.momentum.back() > 0;
  if (takes_momentum && job.optimizer.name == "sgd" &&
      static_cast<float>(job.optimizer.momentum) == 0) {
    bad("tune.momentum needs an optimizer.momentum above 0, for example 0.9: a run of sgd that "
        "begins without one has no buffer for it");
  }
  if (!o.momentum.empty() && needed_to_read(job, "optimizer.momentum") &&
      needed_to_read(job, "optimizer.adam.beta1")) {
    bad(
        fmt::format("tune.momentum: optimizer.name = \"{}\" reads neither optimizer.momentum nor "
                    "optimizer.adam.beta1, so all trials would have the same; leave it out",
                    job.optimizer.name));
  }
  for (const int64_t size : o.batch_size) {
    if (size < 1 || size % job.train.virtual_ranks != 0) {
      bad(fmt::format("tune.batch_size: {} is not a multiple of train.virtual_ranks = {}", size,
                      job.train.virtual_ranks));
    }
  }
  for (const auto& [name, values] :
       {std::pair("batch_size", o.batch_size), std::pair("staleness", o.staleness)}) {
    for (auto v = values.begin(); v != values.end(); ++v)
      if (std::find(values.begin(), v, *v) != v)
        bad(fmt::format("tune.{}: {} is there twice; leave one of them out", name, *v));
  }
  for (const TunedOption& tuned : tuned_options(job)) {
    if (tuned.option->key == "optimizer.adam.beta1" && !o.momentum.empty())
      bad("tune.momentum chooses optimizer.adam.beta1, too; leave one of them out");
  }
  if (o.lr.empty() && o.momentum.empty() && o.weight_decay.empty() && o.batch_size.empty() &&
      o.staleness.empty() && o.options.empty()) {
    bad("tune.online = true, but there is nothing to tune; set tune.lr = [1e-5, 1]");
  }
}

}  // namespace

bool is_pipelined(const JobOptions& job) { return job.train.method == "pipelined"; }

bool looks_otherwise(const JobOptions& job) {
  const std::string& own = job.train.selective.precision;
  return selects_samples(job) && own != "training" && own != job.train.precision;
}

bool selects_samples(const JobOptions& job) {
  return job.train.method == "selective" || job.train.method == "stale_selective";
}

bool counts_updates(const JobOptions& job) {
  return selects_samples(job) && job.train.selective.length == "updates";
}

bool weighs_samples(const JobOptions& job) {
  return job.train.method == "infobatch" || job.train.method == "graded";
}

bool may_enlarge(const JobOptions& job) {
  return job.train.rate_control == "noise" || batch_is_ordered(job);
}

bool batch_is_ordered(const JobOptions& job) { return job.train.rate_control == "goodput"; }

int64_t most_batch(const JobOptions& job) {
  return job.train.noise.max_batch > 0 ? job.train.noise.max_batch : 8 * job.train.batch_size;
}

int64_t most_staleness(const JobOptions& job) {
  int64_t most = job.train.staleness;
  if (job.tune.online)
    for (const int64_t staleness : job.tune.staleness) most = std::max(most, staleness);
  return most;
}

int64_t batch_parts(const JobOptions& job) {
  const PipelinedOptions& o = job.train.pipelined;
  return is_pipelined(job) ? o.replicas * o.micro_batches : job.train.virtual_ranks;
}

int64_t pipeline_ranks(const JobOptions& job) {
  return job.train.virtual_ranks / job.train.pipelined.replicas;
}

int64_t num_stages(const JobOptions& job) {
  const PipelinedOptions& o = job.train.pipelined;
  if (!o.tensor.empty()) return std::ssize(o.tensor);
  return o.stage_replicas.empty() ? pipeline_ranks(job) : std::ssize(o.stage_replicas);
}

bool divides_tensors(const JobOptions& job) {
  return std::ranges::any_of(job.train.pipelined.tensor, [](int64_t parts) { return parts > 1; });
}

bool any_cut_will_do(const JobOptions& job) {
  if (!job.train.pipelined.stage_replicas.empty() || divides_tensors(job)) return false;
  return job.train.pipelined.replicas == 1 || job.train.pipeline_exact ||
         std::has_single_bit(static_cast<uint64_t>(num_stages(job)));
}

int64_t num_gradients(const JobOptions& job) {
  if (!is_pipelined(job)) return job.train.virtual_ranks;
  return job.train.pipeline_exact ? batch_parts(job) : job.train.pipelined.replicas;
}

void check(const JobOptions& job) {
  const auto bad = [](const std::string& text) { throw Error(ErrorCode::invalid_argument, text); };
  check_batch(job, bad);
  check_paths(job, bad);
  check_pipelines(job, bad);
  if (job.train.virtual_ranks % job.train.bn_group != 0) {
    bad(fmt::format("train.virtual_ranks = {} is not divisible by train.bn_group = {}",
                    job.train.virtual_ranks, job.train.bn_group));
  }
  check_selection(job, bad);
  check_betas(job.optimizer, bad);
  if (job.train.wire != "fp32" && job.train.reduction != "fast") {
    bad(fmt::format(
        "train.wire = \"{0}\" needs train.reduction = \"fast\": the canonical sum is the "
        "same on every placement of the workers, so it cannot round what leaves a host",
        job.train.wire));
  }
  const DatasetHelp* format = datasets().find(job.data.format);
  if (format != nullptr && format->needs_path && job.data.path.empty()) {
    bad(fmt::format("data.format = \"{}\" needs data.path", job.data.format));
  }
  if (format != nullptr && !format->needs_path && !job.data.path.empty()) {
    bad(
        fmt::format("data.path = \"{}\" is not read with data.format = \"{}\"; set data.format to "
                    "the format of what lies there, or leave data.path empty",
                    job.data.path, job.data.format));
  }
  if (job.augment.random_resized_crop && job.augment.crop == 0) {
    bad("augment.random_resized_crop needs augment.crop, the side of the result");
  }
  if (job.augment.mean.size() != job.augment.std.size()) {
    bad(fmt::format(
        "augment.mean has {} values and augment.std has {}; give one per channel in both",
        job.augment.mean.size(), job.augment.std.size()));
  }
  const auto needs_whole_weights = [&](const std::string& option) {
    if (job.train.shard_optimizer) {
      bad(option + " needs whole weights on every worker; set train.shard_optimizer = false");
    }
  };
  if (job.train.rate_control == "lrtuner") needs_whole_weights("train.rate_control = \"lrtuner\"");
  if (job.train.staleness > 0) {
    needs_whole_weights(fmt::format("train.staleness = {}", job.train.staleness));
  }
  check_averages(job.train, bad);
  check_noise_control(job, bad);
  check_tune(job, bad);
  check_batch_stays(job, bad);
  check_schedule(job, bad);
  if (job.optimizer.muon.coefficients.size() != 3) {
    bad(fmt::format("optimizer.muon.coefficients has {} values; give three: a, b and c",
                    job.optimizer.muon.coefficients.size()));
  }
  check_parameters(job.optimizer, bad);
  check_synthetic(job, bad);
  check_model(job, bad);
  check_python(job, bad);
  if (job.eval.views != "one" && job.data.format == "tokens") {
    bad(fmt::format("eval.views = \"{}\" are views of images, and data.format is \"tokens\"",
                    job.eval.views));
  }
  if (job.target.metric == "perplexity" && job.data.format != "tokens") {
    bad(
        fmt::format("target.metric = \"perplexity\" is a measure of language models, and "
                    "data.format is \"{}\"; images have \"accuracy\" and \"loss\"",
                    job.data.format));
  }
}

}  // namespace ductile::spec
