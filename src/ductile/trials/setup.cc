#include "ductile/trials/setup.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <toml++/toml.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/text.h"
#include "ductile/base/toml.h"
#include "ductile/spec/without_effect.h"
#include "ductile/tune/trial_policy.h"

namespace ductile::trials {
namespace {

using Json = nlohmann::json;

// What a trial is measured by has to be the same for all of them.
constexpr std::string_view kFixed[] = {"name",         "seed",         "runs",
                                       "data.",        "train.epochs", "train.max_steps",
                                       "target.",      "checkpoint.",  "train.eval_every_epochs",
                                       "train.threads"};

bool is_fixed(std::string_view option) {
  return std::ranges::any_of(kFixed, [&](std::string_view f) {
    return f.ends_with('.') ? option.starts_with(f) : option == f;
  });
}

// The optimizer() of a Python job says all that these options would say.
bool is_said_by_program(std::string_view option, const spec::JobOptions& job) {
  return job.optimizer.name == "python" && option != "optimizer.clip_norm" &&
         (option.starts_with("optimizer.") || option.starts_with("schedule."));
}

// As --set and TOML take it.
std::string assignment(const std::string& name, const Json& value) {
  return fmt::format("{}={}", name, dump_json(value));
}

// The ends of a dimension, or each of its choices.
std::vector<Json> values_of(const tune::Dimension& d, const std::string& where) {
  std::vector<Json> values;
  if (d.kind == tune::Kind::choice) {
    for (const std::string& choice : d.choices)
      values.push_back(parse_json(choice, where, ErrorCode::invalid_argument));
  } else if (d.kind == tune::Kind::integer) {
    values = {static_cast<int64_t>(d.low), static_cast<int64_t>(d.high)};
  } else {
    values = {d.low, d.high};
  }
  return values;
}

// Tries the ends of a dimension, and each of its choices, on a copy of the job.
void check(const tune::Dimension& d, const spec::JobOptions& job, std::string_view source) {
  const std::string where = fmt::format("{}: space.\"{}\"", source, to_utf8(d.name));
  spec::JobOptions copy = job;
  OptionSet options(copy);
  const OptionField* field = options.find(d.name);
  if (field == nullptr) {
    std::vector<std::string> names;
    for (const OptionField& f : options.fields()) names.push_back(f.path);
    const auto near = nearest_name(d.name, names);
    fail(ErrorCode::invalid_argument, "{}: the job has no such option{}", where,
         near ? fmt::format("; did you mean \"{}\"?", *near) : "");
  }
  if (is_fixed(d.name)) {
    fail(ErrorCode::invalid_argument,
         "{}: this option is the same in all trials, which could not be compared otherwise", where);
  }
  if (is_said_by_program(d.name, job)) {
    fail(ErrorCode::invalid_argument,
         "{}: the option says nothing, since the job has an optimizer() of its own, so all trials "
         "would be equal; leave one of the two out",
         where);
  }
  const bool whole = std::holds_alternative<int64_t*>(field->ref);
  if (d.kind == tune::Kind::real && whole)
    fail(ErrorCode::invalid_argument, "{}: the option is a whole number; add kind = \"integer\"",
         where);
  for (const Json& value : values_of(d, where)) {
    try {
      options.set(assignment(d.name, value), where);
    } catch (Error& e) {
      throw e.with_context(where);
    }
  }
}

// What is tuned is read by the job, or by the job with a value of another dimension (which may be
// the rule).
void check_read(const tune::Space& space, const spec::JobOptions& job, std::string_view source) {
  std::vector<spec::JobOptions> jobs = {job};
  for (const tune::Dimension& d : space.dimensions()) {
    for (const Json& value : values_of(d, d.name)) {
      jobs.push_back(job);
      OptionSet(jobs.back()).set(assignment(d.name, value), source);
    }
  }
  for (const tune::Dimension& d : space.dimensions()) {
    const auto needed = spec::needed_to_read(jobs, d.name);
    if (!needed) continue;
    fail(ErrorCode::invalid_argument,
         "{}: space.\"{}\": the job does not read this option, so all trials would be equal: it is "
         "read with {}",
         source, to_utf8(d.name), *needed);
  }
}

void check(const Tuning& tuning, const spec::JobOptions& job, std::string_view source) {
  if (tuning.space.size() == 0)
    fail(ErrorCode::invalid_argument,
         "{}: there is nothing to tune; add a table such as [space.\"optimizer.lr\"] with low and "
         "high",
         source);
  for (const tune::Dimension& d : tuning.space.dimensions()) check(d, job, source);
  check_read(tuning.space, job, source);
  if (job.tune.online)
    fail(
        ErrorCode::invalid_argument,
        "tune.online = true: each trial would look for hyperparameters of its own; set tune.online "
        "= false, or run the job once with `ductile train`");
  if (job.train.max_steps > 0)
    fail(ErrorCode::invalid_argument,
         "train.max_steps = {}: trials are compared by epochs; set train.max_steps = 0 and "
         "train.epochs",
         job.train.max_steps);
  if (job.train.eval_every_epochs <= 0)
    fail(ErrorCode::invalid_argument,
         "train.eval_every_epochs = 0: a trial is judged by its evaluations; set it to 1, or to a "
         "fraction");
}

}  // namespace

void check_metric(const Setup& setup, const spec::JobOptions& job) {
  if (setup.metric == "perplexity" && job.data.format != "tokens")
    fail(ErrorCode::invalid_argument,
         "metric = \"perplexity\" is a measure of language models, and data.format is \"{}\"; "
         "images have \"accuracy\" and \"loss\"",
         job.data.format);
}

void check_budget(const Setup& setup, const spec::JobOptions& job) {
  const double least = std::min(job.train.eval_every_epochs, static_cast<double>(job.train.epochs));
  if (setup.budget > 0 && setup.budget < least)
    fail(ErrorCode::invalid_argument,
         "budget = {:g} epochs: the first evaluation comes after {:g} epochs, so no trial would "
         "have a value; give it more, or set a smaller train.eval_every_epochs",
         setup.budget, least);
}

void describe(Describer& d, Setup& o) {
  d.field("metric", o.metric, "what trials are judged by")
      .one_of({"accuracy", "loss", "perplexity"});
  d.field("policy", o.policy, "which trial gets more epochs next").one_of(tune::trial_policies());
  d.field("searcher", o.searcher, "which setting is tried next").one_of(tune::searchers());
  d.field("budget", o.budget,
          "epochs of all trials together, before the best one is run to its end; 0 = ten full runs")
      .range(0, 1e9);
  d.field("at_once", o.at_once, "trials that run side by side; 0 = one per core").range(0, 4096);
  d.field("seed", o.seed, "seed of the search").at_least(0);
  d.field("finish", o.finish, "run the best trial to its last epoch");
}

void set_option(Setup& setup, const std::string& assignment) {
  OptionSet options(setup);
  const std::string key = assignment.substr(0, assignment.find('='));
  const std::string last = key.substr(key.rfind('.') + 1);
  spec::JobOptions job;
  if (options.find(last) == nullptr && OptionSet(job).find(key) != nullptr) {
    const std::string tuned = fmt::format(
        "to have it chosen, add a table [space.\"{}\"] to a tuning file (--space FILE); ", key);
    fail(
        ErrorCode::invalid_argument,
        "--tune {}: {} is an option of the job, and --tune sets those of the tuner; {}to set it in "
        "all trials, write --set {}",
        to_utf8(assignment), key, is_fixed(key) ? "" : tuned, to_utf8(assignment));
  }
  options.set(assignment, "--tune");
}

Tuning read_tuning(std::string_view toml, std::string_view source, const spec::JobOptions& job) {
  std::ostringstream text;
  text << toml::json_formatter(parse_toml(toml, source));
  Json value = parse_json(text.str(), source, ErrorCode::invalid_argument);
  Json space = Json::object();
  if (const auto at = value.find("space"); at != value.end()) {
    space = std::move(*at);
    value.erase(at);
  }
  if (!space.is_object())
    fail(ErrorCode::invalid_argument, "{}: space is a table with one table per option", source);
  for (const auto& [key, item] : value.items()) {
    if (!item.is_object()) continue;
    fail(ErrorCode::invalid_argument,
         "{}: unknown table [{}]; what is tuned stands in tables such as [space.\"optimizer.lr\"]",
         source, to_utf8(key));
  }
  Setup setup;
  OptionSet(setup).read_json(value, source);
  Tuning tuning{setup, tune::Space::from_json(space, fmt::format("{}: space", source))};
  check(tuning, job, source);
  return tuning;
}

Tuning default_tuning(const spec::JobOptions& job) {
  using tune::Dimension;
  using tune::Kind;
  using tune::Scale;
  const std::string& rule = job.optimizer.name;
  if (rule == "python") {
    fail(ErrorCode::invalid_argument,
         "what is tuned by default (learning rate, weight decay) is said by the job's own "
         "optimizer(), so all trials would be equal; name other options with --space FILE, such as "
         "train.batch_size, or leave optimizer() out, and one of Ductile's rules is tuned");
  }
  const bool sgd = rule == "sgd" || rule == "lars" || rule == "neumann";
  std::vector<Dimension> dimensions;
  if (job.train.rate_control != "lrtuner") {  // which finds it by itself
    dimensions.push_back({"optimizer.lr", Kind::real, Scale::log, 1e-5, sgd ? 10.0 : 1.0});
  }
  if (sgd || rule == "muon") {
    // Nesterov's form is refused without a momentum, which a grid would begin with.
    const double least = rule == "sgd" && job.optimizer.sgd.nesterov ? 0.1 : 0;
    dimensions.push_back({"optimizer.momentum", Kind::real, Scale::linear, least, 0.99});
  }
  dimensions.push_back({"optimizer.weight_decay", Kind::real, Scale::log, 1e-6, 0.3});
  Tuning tuning{{}, tune::Space(std::move(dimensions))};
  check(tuning, job, "the default space");
  return tuning;
}

std::vector<std::string> assignments(const tune::Space& space, const tune::Setting& setting) {
  std::vector<std::string> out;
  const Json values = space.values(setting);
  for (const auto& [name, value] : values.items()) out.push_back(assignment(name, value));
  return out;
}

}  // namespace ductile::trials
