#include "ductile/spec/without_effect.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include <fmt/format.h>

#include "ductile/spec/methods.h"
#include "ductile/spec/name_rules.h"
#include "ductile/spec/optimizers.h"

namespace ductile::spec {
namespace {

using Given = const JobOptions&;
using Names = std::initializer_list<std::string_view>;

bool is_one(std::string_view name, Names names) {
  return std::ranges::find(names, name) != names.end();
}

bool trains_by(Given job, Names rules) { return is_one(job.optimizer.name, rules); }

// A model of the user's may read any option.
bool models_read(Given job, Names names) {
  return !job.model.library.empty() || is_one(job.model.name, {"custom", "python"}) ||
         is_one(job.model.name, names);
}

bool has_resnet(Given job) { return job.model.name.starts_with("resnet"); }

// Who reads an option, or all options of a section. Of several rows for one option the first one
// counts that does not read it, so a section stands before what is in it.
struct Reader {
  std::string_view path;
  bool (*reads)(Given);
  std::string_view with;
};

constexpr Reader kReaders[] = {
    {"data.tokens", [](Given j) { return j.data.format == "tokens"; }, "data.format = \"tokens\""},
    {"data.synthetic", [](Given j) { return j.data.format == "synthetic"; },
     "data.format = \"synthetic\""},
    {"augment.pad_mode", [](Given j) { return j.augment.pad > 0; }, "an augment.pad above 0"},
    {"augment.flip_mode", [](Given j) { return j.augment.flip; }, "augment.flip = true"},
    {"augment.min_scale", [](Given j) { return j.augment.random_resized_crop; },
     "augment.random_resized_crop = true"},
    {"augment.max_ratio", [](Given j) { return j.augment.random_resized_crop; },
     "augment.random_resized_crop = true"},

    {"model.hidden",
     [](Given j) {
       return models_read(j, {"mlp", "dlrm", "candle-uno"});
     },
     "model.name = \"mlp\", \"dlrm\" or \"candle-uno\""},
    {"model.width",
     [](Given j) {
       return has_resnet(j) || models_read(j, {"cnn", "airbench", "unet"});
     },
     "model.name = \"cnn\", \"airbench\" or a ResNet"},
    {"model.layers",
     [](Given j) {
       return models_read(j, {"gpt", "mmt"});
     },
     "model.name = \"gpt\" or \"mmt\""},
    {"model.heads",
     [](Given j) {
       return models_read(j, {"gpt", "mmt"});
     },
     "model.name = \"gpt\" or \"mmt\""},
    {"model.dim",
     [](Given j) {
       return models_read(j, {"gpt", "mmt", "dlrm"});
     },
     "model.name = \"gpt\", \"mmt\" or \"dlrm\""},
    {"model.vocab_size", [](Given j) { return models_read(j, {"gpt"}); }, "model.name = \"gpt\""},
    {"model.dropout",
     [](Given j) {
       return models_read(j, {"gpt", "mmt"});
     },
     "model.name = \"gpt\" or \"mmt\""},
    {"model.activation", [](Given j) { return models_read(j, {"airbench"}); },
     "model.name = \"airbench\""},
    {"model.convolutions", [](Given j) { return models_read(j, {"airbench"}); },
     "model.name = \"airbench\""},
    {"model.later_width", [](Given j) { return models_read(j, {"airbench"}); },
     "model.name = \"airbench\""},

    {"optimizer.momentum",
     [](Given j) {
       return trains_by(j, {"sgd", "lars", "muon", "neumann"});
     },
     "optimizer.name = \"sgd\", \"lars\", \"muon\" or \"neumann\""},
    {"optimizer.sgd",
     [](Given j) {
       return trains_by(j, {"sgd"}) || (trains_by(j, {"muon"}) && j.optimizer.muon.rest == "sgd");
     },
     "optimizer.name = \"sgd\", or \"muon\" with optimizer.muon.rest = \"sgd\""},
    {"optimizer.adam", [](Given j) { return reads_adam(j.optimizer); },
     "optimizer.name = \"adam\", \"adamw\", \"nadamw\", \"ademamix\", \"schedule_free\", \"lamb\", "
     "or \"muon\" with optimizer.muon.rest = \"adamw\""},
    {"optimizer.lars", [](Given j) { return trains_by(j, {"lars"}); }, "optimizer.name = \"lars\""},
    {"optimizer.nadamw", [](Given j) { return trains_by(j, {"nadamw"}); },
     "optimizer.name = \"nadamw\""},
    {"optimizer.ademamix", [](Given j) { return trains_by(j, {"ademamix"}); },
     "optimizer.name = \"ademamix\""},
    {"optimizer.muon", [](Given j) { return trains_by(j, {"muon"}); }, "optimizer.name = \"muon\""},
    {"optimizer.muon.rest_momentum", [](Given j) { return j.optimizer.muon.rest == "sgd"; },
     "optimizer.muon.rest = \"sgd\""},
    {"optimizer.neumann", [](Given j) { return trains_by(j, {"neumann"}); },
     "optimizer.name = \"neumann\""},
    {"optimizer.nlcg", [](Given j) { return trains_by(j, {"nlcg"}); }, "optimizer.name = \"nlcg\""},
    {"optimizer.nlcg.line_search_every",
     [](Given j) { return j.optimizer.nlcg.line_search == "step"; },
     "optimizer.nlcg.line_search = \"step\""},
    {"optimizer.nlcg.threshold", [](Given j) { return j.optimizer.nlcg.line_search != "none"; },
     "an optimizer.nlcg.line_search other than \"none\""},

    {"schedule", [](Given j) { return j.train.rate_control != "lrtuner"; },
     "a train.rate_control other than \"lrtuner\", which finds the learning rate by itself"},
    {"schedule.warmup_start",
     [](Given j) { return j.schedule.warmup_epochs > 0 || j.schedule.name == "one_cycle"; },
     "a schedule.warmup_epochs above 0"},
    {"schedule.final_fraction",
     [](Given j) {
       return !is_one(j.schedule.name, {"constant", "step"});
     },
     "a schedule that falls to the end of the run"},
    {"schedule.step", [](Given j) { return j.schedule.name == "step"; },
     "schedule.name = \"step\""},
    {"schedule.polynomial", [](Given j) { return j.schedule.name == "polynomial"; },
     "schedule.name = \"polynomial\""},
    {"schedule.one_cycle", [](Given j) { return j.schedule.name == "one_cycle"; },
     "schedule.name = \"one_cycle\""},
    {"schedule.one_cycle.peak_at", [](Given j) { return j.schedule.warmup_epochs == 0; },
     "schedule.warmup_epochs = 0; the peak is at the end of the warm-up"},
    {"schedule.knee", [](Given j) { return j.schedule.name == "knee"; },
     "schedule.name = \"knee\""},
    {"schedule.knee.explore_share", [](Given j) { return j.schedule.knee.explore_epochs == 0; },
     "schedule.knee.explore_epochs = 0"},
    {"schedule.trapezoid", [](Given j) { return j.schedule.name == "trapezoid"; },
     "schedule.name = \"trapezoid\""},

    {"train.selective", selects_samples, "train.method = \"selective\" or \"stale_selective\""},
    {"train.selective.precision",
     [](Given j) { return j.train.selective.precision != j.train.precision; },
     "a train.precision other than that"},
    {"train.selective.stale_epochs", [](Given j) { return j.train.method == "stale_selective"; },
     "train.method = \"stale_selective\""},
    {"train.infobatch", [](Given j) { return j.train.method == "infobatch"; },
     "train.method = \"infobatch\""},
    {"train.graded", [](Given j) { return j.train.method == "graded"; },
     "train.method = \"graded\""},
    {"train.pipelined", [](Given j) { return is_pipelined(j); }, "train.method = \"pipelined\""},
    {"train.lrtuner", [](Given j) { return j.train.rate_control == "lrtuner"; },
     "train.rate_control = \"lrtuner\""},
    {"train.noise",
     [](Given j) {
       return is_one(j.train.rate_control, {"noise", "goodput"});
     },
     "train.rate_control = \"noise\" or \"goodput\""},
    {"train.noise.factor", [](Given j) { return j.train.rate_control == "noise"; },
     "train.rate_control = \"noise\""},
    {"train.shard_copies", [](Given j) { return j.train.shard_optimizer; },
     "train.shard_optimizer = true"},
    {"train.loss_scale", [](Given j) { return j.train.precision == "fp16"; },
     "train.precision = \"fp16\""},
    {"train.statistics_batches",
     [](Given j) {
       return trains_by(j, {"neumann", "schedule_free"});
     },
     "optimizer.name = \"neumann\" or \"schedule_free\""},

    {"eval.views_share", [](Given j) { return j.eval.views != "one"; },
     "an eval.views other than \"one\""},
    {"tune", [](Given j) { return j.tune.online; }, "tune.online = true"},
    {"tune.patience", [](Given j) { return j.tune.retunings > 0; }, "a tune.retunings above 0"},
    {"target.value", [](Given j) { return !j.target.metric.empty(); }, "a target.metric"},
};

bool stands_for(const Reader& reader, std::string_view path) {
  return path.starts_with(reader.path) &&
         (path.size() == reader.path.size() || path[reader.path.size()] == '.');
}

void add_unread(Given job, const OptionSet& options, std::vector<std::string>& out) {
  for (const OptionField& field : options.fields()) {
    const std::string value = ductile::to_toml(field.ref);
    if (field.origin.is_default() || value == ductile::to_toml(field.default_value)) continue;
    if (const auto needed = needed_to_read(job, field.path)) {
      out.push_back(fmt::format("{} = {} ({}) has no effect: it is read with {}", field.path, value,
                                field.origin.text, *needed));
    }
  }
}

void add_late_schedules(Given job, std::vector<std::string>& out) {
  const ScheduleOptions& o = job.schedule;
  const auto epochs = static_cast<double>(job.train.epochs);
  if (job.train.rate_control == "lrtuner") return;
  const KneeOptions& knee = o.knee;
  const bool by_epochs = knee.explore_epochs > 0;
  const double explore = by_epochs ? knee.explore_epochs : knee.explore_share * epochs;
  if (o.name == "knee" && o.warmup_epochs + explore >= epochs) {
    out.push_back(fmt::format(
        "schedule.knee.explore_{} = {} after schedule.warmup_epochs = {}: the learning "
        "rate does not fall, since train.epochs = {}",
        by_epochs ? "epochs" : "share", by_epochs ? knee.explore_epochs : knee.explore_share,
        o.warmup_epochs, job.train.epochs));
  }
  if (o.name == "trapezoid" && o.trapezoid.decay == 0)
    out.push_back("schedule.trapezoid.decay = 0: the learning rate does not fall");
  const double room = 1 - o.warmup_epochs / epochs;  // a share of the run, as the decay is
  if (o.name == "trapezoid" && o.trapezoid.decay > room + 1e-9) {
    out.push_back(fmt::format(
        "schedule.trapezoid.decay = {} begins before the end of schedule.warmup_epochs = {}: the "
        "learning rate falls in the last {:g} of the run only",
        o.trapezoid.decay, o.warmup_epochs, std::max(room, 0.0)));
  }
  if (o.name != "step") return;
  for (const int64_t milestone : o.step.milestones) {
    if (milestone < job.train.epochs) continue;
    out.push_back(
        fmt::format("schedule.step.milestones has {}, which is never reached, since train.epochs "
                    "= {}",
                    milestone, job.train.epochs));
  }
}

void add_late_choices(Given job, std::vector<std::string>& out) {
  const TrainOptions& o = job.train;
  const auto epochs = static_cast<double>(o.epochs);
  const auto every_sample = [&](const std::string& why) {
    out.push_back(
        fmt::format("train.method = \"{}\" trains on every sample here: {}", o.method, why));
  };
  if (weighs_samples(job)) {
    // The first epoch shows the losses, and the second may skip samples.
    const double end = o.method == "graded" ? o.graded.end : o.infobatch.end;
    if (end * epochs < 2) {
      every_sample(fmt::format(
          "the second epoch is the first one that may skip any, and it is behind train.{}.end = {} "
          "of train.epochs = {}",
          o.method, end, o.epochs));
    }
  }
  if (!selects_samples(job)) return;
  if (o.selective.length == "epochs" && o.selective.first_epochs >= o.epochs) {
    every_sample(fmt::format("train.selective.first_epochs = {} and train.epochs = {}",
                             o.selective.first_epochs, o.epochs));
  } else if (o.selective.start == o.selective.end) {
    every_sample(fmt::format("train.selective.start and train.selective.end are both {}",
                             o.selective.start));
  } else if (o.selective.interrupt == 1) {
    every_sample("train.selective.interrupt = 1 leaves no update with a choice");
  }
}

void add_late_rules(Given job, std::vector<std::string>& out) {
  const OptimizerOptions& o = job.optimizer;
  const auto epochs = static_cast<double>(job.train.epochs);
  if (o.name == "neumann" && o.neumann.warmup_epochs >= epochs) {
    out.push_back(fmt::format(
        "optimizer.neumann.warmup_epochs = {} and train.epochs = {}: the run is plain SGD to its "
        "end",
        o.neumann.warmup_epochs, job.train.epochs));
  }
  for (const NameRule& rule : name_rules(o.freeze, "optimizer.freeze", 0)) {
    if (rule.value < epochs) continue;
    out.push_back(fmt::format(
        "optimizer.freeze has \"{}:{}\", which freezes nothing, since train.epochs = {}", rule.name,
        rule.value, job.train.epochs));
  }
  if (job.train.rate_control == "noise" && most_batch(job) < 2 * job.train.batch_size) {
    out.push_back(
        fmt::format("train.rate_control = \"noise\" doubles the batch, and twice "
                    "train.batch_size = {} is more than train.noise.max_batch = {}: it never grows",
                    job.train.batch_size, job.train.noise.max_batch));
  }
  if (job.train.eval_every_epochs > 0) return;
  constexpr std::string_view kOnlyOne =
      "and with train.eval_every_epochs = 0 the only one is at its end";
  if (!job.target.metric.empty())
    out.push_back(fmt::format("target.metric ends the run at an evaluation, {}", kOnlyOne));
  if (job.tune.online && job.tune.retunings > 0)
    out.push_back(fmt::format("tune.retunings = {}: another search begins after an evaluation, {}",
                              job.tune.retunings, kOnlyOne));
}

}  // namespace

std::optional<std::string_view> needed_to_read(std::span<const JobOptions> jobs,
                                               std::string_view option) {
  for (const Reader& reader : kReaders)
    if (stands_for(reader, option) && std::ranges::none_of(jobs, reader.reads)) return reader.with;
  return std::nullopt;
}

std::optional<std::string_view> needed_to_read(const JobOptions& job, std::string_view option) {
  return needed_to_read(std::span(&job, 1), option);
}

std::vector<std::string> without_effect(const JobOptions& job, const OptionSet& options) {
  std::vector<std::string> out;
  add_unread(job, options, out);
  add_late_schedules(job, out);
  add_late_choices(job, out);
  add_late_rules(job, out);
  return out;
}

}  // namespace ductile::spec
