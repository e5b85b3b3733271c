#include "ductile/trials/setup.h"

#include <algorithm>
#include <cmath>
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
#include "ductile/page/numbers.h"
#include "ductile/spec/without_effect.h"
#include "ductile/tune/trial_policy.h"

namespace ductile::trials {
namespace {

using Json = nlohmann::json;

// What a trial is measured by has to be the same for all of them, and a trial that looked for
// hyperparameters of its own would train more than the epochs that it counts.
constexpr std::string_view kFixed[] = {"name",          "seed",         "runs",
                                       "data.",         "train.epochs", "train.max_steps",
                                       "target.",       "checkpoint.",  "train.eval_every_epochs",
                                       "train.threads", "eval.",        "tune."};

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
  for (const Json& value : values_of(d, where)) options.set(assignment(d.name, value), where + ":");
}

// A job with values of the space, and which of them: of each dimension the place among values_of().
struct Tried {
  spec::JobOptions job;
  std::vector<size_t> chosen;
};

// The job with each two values of two dimensions, and of the others the first one: what reads an
// option depends on two others at most (optimizer.name and optimizer.muon.rest).
std::vector<Tried> tried_jobs(const tune::Space& space, const spec::JobOptions& job) {
  const std::vector<tune::Dimension>& dimensions = space.dimensions();
  std::vector<std::vector<std::string>> values;
  spec::JobOptions changed = job;
  OptionSet options(changed);
  for (const tune::Dimension& d : dimensions) {
    values.emplace_back();
    for (const Json& value : values_of(d, d.name))
      values.back().push_back(assignment(d.name, value));
    options.set(values.back()[0]);
  }
  std::vector<Tried> out;
  const auto each = [&](size_t d, const auto& then) {
    for (size_t v = 0; v < values[d].size(); ++v) {
      options.set(values[d][v]);
      then(v);
    }
    options.set(values[d][0]);
  };
  for (size_t a = 0; a < values.size(); ++a) {
    each(a, [&](size_t of_a) {
      std::vector<size_t> chosen(values.size(), 0);
      chosen[a] = of_a;
      out.push_back({changed, chosen});
      for (size_t b = a + 1; b < values.size(); ++b) {
        each(b, [&](size_t of_b) {
          chosen[b] = of_b;
          out.push_back({changed, chosen});
        });
        chosen[b] = 0;
      }
    });
  }
  return out;
}

// What one of the jobs would need in order to read the option; only those of which `which` is true.
template <typename Which>
std::optional<std::string_view> needed_by(const std::vector<Tried>& tried,
                                          const std::string& option, const Which& which) {
  std::vector<spec::JobOptions> jobs;
  for (const Tried& t : tried)
    if (which(t)) jobs.push_back(t.job);
  return spec::needed_to_read(jobs, option);
}

void check_read(const tune::Space& space, const spec::JobOptions& job, std::string_view source) {
  const std::vector<Tried> tried = tried_jobs(space, job);
  for (const tune::Dimension& d : space.dimensions()) {
    const auto needed = needed_by(tried, d.name, [](const Tried&) { return true; });
    if (!needed) continue;
    fail(
        ErrorCode::invalid_argument,
        "{}: space.\"{}\": no trial would read this option, so it would change nothing: it is read "
        "with {}",
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

double first_run(const Setup& setup, const spec::JobOptions& job) {
  const auto full = static_cast<double>(job.train.epochs);
  const double unit = std::min(job.train.eval_every_epochs, full);
  double values = 1;
  if (setup.policy == "mltuner")
    values = std::clamp(std::floor(full / (4 * unit) + tune::kRounding),
                        static_cast<double>(kValuesOfASlope), static_cast<double>(kValuesOfATrial));
  return std::min(std::max(values * unit, std::min(1.0, tune::kFirstLook * full)), full);
}

std::string no_short_runs(const Setup& setup, const spec::JobOptions& job) {
  const auto full = static_cast<double>(job.train.epochs);
  const double first = first_run(setup, job);
  const bool has_rungs =
      setup.policy == "halving" || setup.policy == "hyperband" || setup.policy == "asha";
  if (setup.policy == "full" || first < full) {
    const double eta = tune::PolicyOptions().halving.eta;
    if (!has_rungs || eta * first <= full * (1 + tune::kRounding)) return "";
    return fmt::format(
        "policy = \"{}\" ends no trial early, since a first run has {:g} epochs or more, and "
        "those that go on have {:g} times as many, which is more than the {:g} of a run; set a "
        "smaller train.eval_every_epochs, such as {:g}",
        setup.policy, first, eta, full, full / 10);
  }
  return fmt::format(
      "policy = \"{}\" ends no trial early, since the first evaluations by which it could come at "
      "the end of a run, which has {:g} epochs; set a smaller train.eval_every_epochs, such as "
      "{:g}",
      setup.policy, full, full / 10);
}

void check_metric(const Setup& setup, const spec::JobOptions& job) {
  if (setup.metric == "perplexity" && job.data.format != "tokens")
    fail(ErrorCode::invalid_argument,
         "metric = \"perplexity\" is a measure of language models, and data.format is \"{}\"; "
         "images have \"accuracy\" and \"loss\"",
         job.data.format);
}

void check_search(const Setup& setup, const spec::JobOptions& job) {
  const bool forecasts = tune::searchers().at(setup.searcher).forecasts;
  if (tune::trial_policies().at(setup.policy).needs_forecasts && !forecasts) {
    std::vector<std::string> policies;
    for (const tune::PolicyEntry& policy : tune::trial_policies())
      if (!policy.needs_forecasts) policies.push_back(fmt::format("policy={}", policy.name));
    std::vector<std::string> searchers;
    for (const tune::SearcherEntry& searcher : tune::searchers())
      if (searcher.forecasts) searchers.push_back(fmt::format("searcher={}", searcher.name));
    fail(ErrorCode::invalid_argument,
         "policy = \"{}\" takes a searcher that forecasts curves ({}), and searcher = \"{}\" does "
         "not; policies that take it: {}",
         setup.policy, fmt::join(searchers, ", "), setup.searcher, fmt::join(policies, ", "));
  }
  const auto epochs = static_cast<double>(job.train.epochs);
  const double unit = std::min(job.train.eval_every_epochs, epochs);
  if (setup.policy == "mltuner" && epochs < kValuesOfASlope * unit)
    fail(ErrorCode::invalid_argument,
         "policy = \"mltuner\" compares how fast trials improve, which takes {} evaluations, and a "
         "run of this job has {:.0f}: set a smaller train.eval_every_epochs, or choose another "
         "policy",
         kValuesOfASlope, std::floor(epochs / unit));
}

void check_budget(const Setup& setup, const spec::JobOptions& job) {
  const double least = std::min(job.train.eval_every_epochs, static_cast<double>(job.train.epochs));
  if (setup.budget > 0 && setup.budget < least)
    fail(ErrorCode::invalid_argument,
         "budget = {:g} epochs: the first evaluation comes after {:g} epochs, so no trial would "
         "have a value; give it more, or set a smaller train.eval_every_epochs",
         setup.budget, least);
}

std::vector<std::string> read_by_some(const tune::Space& space, const spec::JobOptions& job) {
  const std::vector<Tried> tried = tried_jobs(space, job);
  std::vector<std::string> out;
  for (const tune::Dimension& d : space.dimensions()) {
    for (size_t c = 0; c < space.size(); ++c) {
      const tune::Dimension& choice = space.dimensions()[c];
      if (choice.kind != tune::Kind::choice || choice.name == d.name) continue;
      std::vector<std::string> without;
      for (size_t v = 0; v < choice.choices.size(); ++v) {
        const auto has_it = [&](const Tried& t) { return t.chosen[c] == v; };
        if (needed_by(tried, d.name, has_it)) without.push_back(choice.choices[v]);
      }
      // Where it reads nothing with any of them, another dimension is what matters.
      if (without.empty() || without.size() == choice.choices.size()) continue;
      out.push_back(fmt::format("space.\"{}\" changes nothing in trials with {} = {}", d.name,
                                choice.name, fmt::join(without, " or ")));
    }
  }
  return out;
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
  if (assignment.find('=') == std::string::npos)
    fail(ErrorCode::invalid_argument, "--tune {}: write key=value, for example budget=40",
         to_utf8(assignment));
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

bool has_built_in_model(const spec::JobOptions& job) {
  return job.model.library.empty() && job.python.object.empty();
}

std::optional<tune::Setting> setting_of(const tune::Space& space, const spec::JobOptions& job) {
  spec::JobOptions own = job, other = job;
  OptionSet options(own), chosen(other);
  tune::Setting out;
  for (const tune::Dimension& d : space.dimensions()) {
    const OptionField* field = options.find(d.name);
    if (field == nullptr) return std::nullopt;
    if (d.kind != tune::Kind::choice) {
      const auto* real = std::get_if<double*>(&field->ref);
      const auto* whole = std::get_if<int64_t*>(&field->ref);
      if (real == nullptr && whole == nullptr) return std::nullopt;
      out.push_back(real != nullptr ? **real : static_cast<double>(**whole));
      continue;
    }
    const std::string value = to_toml(field->ref);
    const auto is_own = [&](const std::string& choice) {
      chosen.set(assignment(d.name, parse_json(choice)));
      return to_toml(chosen.find(d.name)->ref) == value;
    };
    const auto at = std::ranges::find_if(d.choices, is_own);
    if (at == d.choices.end()) return std::nullopt;
    out.push_back(static_cast<double>(at - d.choices.begin()));
  }
  if (!space.contains(out)) return std::nullopt;
  return out;
}

std::vector<std::string> assignments(const tune::Space& space, const tune::Setting& setting) {
  std::vector<std::string> out;
  const Json values = space.values(setting);
  for (const auto& [name, value] : values.items()) out.push_back(assignment(name, value));
  return out;
}

std::vector<std::string> shown(const tune::Space& space, const tune::Setting& setting) {
  std::vector<std::string> out;
  const Json values = space.values(setting);
  for (const auto& [name, value] : values.items())
    out.push_back(value.is_number_float()
                      ? fmt::format("{}={}", name, page::as_setting(value.get<double>()))
                      : assignment(name, value));
  return out;
}

}  // namespace ductile::trials
