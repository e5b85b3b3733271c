#include "ductile/spec/live_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <variant>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/options.h"
#include "ductile/spec/methods.h"
#include "ductile/spec/optimizers.h"

namespace ductile::spec {
namespace {

using Job = const JobOptions&;

// ---- Who reads an option.

bool is_any_job(Job) { return true; }
bool has_our_loss(Job job) { return job.python.object.empty(); }
bool has_dropout(Job job) { return job.model.name == "gpt" || job.model.name == "mmt"; }
bool is_rule(Job job, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, job.optimizer.name) != names.end();
}
bool has_adam(Job job) { return reads_adam(job.optimizer); }
bool reads_lars(Job job) { return is_rule(job, {"lars"}); }
// Without a momentum decay at first its state has no place for what a decay remembers.
bool reads_nadamw(Job job) {
  return is_rule(job, {"nadamw"}) && job.optimizer.nadamw.momentum_decay > 0;
}
bool reads_ademamix(Job job) { return is_rule(job, {"ademamix"}); }
bool reads_muon(Job job) { return is_rule(job, {"muon"}); }
bool reads_muon_sgd(Job job) { return reads_muon(job) && job.optimizer.muon.rest == "sgd"; }
bool reads_neumann(Job job) { return is_rule(job, {"neumann"}); }
bool reads_nlcg(Job job) { return is_rule(job, {"nlcg"}); }
bool reads_selective(Job job) { return selects_samples(job); }
bool reads_infobatch(Job job) { return job.train.method == "infobatch"; }
bool reads_graded(Job job) { return job.train.method == "graded"; }

constexpr std::string_view kAll = "any optimizer.name of Ductile's";
constexpr std::string_view kAdam =
    "optimizer.name = adam, adamw, nadamw, ademamix, schedule_free, lamb, or muon with "
    "optimizer.muon.rest = \"adamw\"";
constexpr std::string_view kLars = "optimizer.name = \"lars\"";
constexpr std::string_view kNadamw =
    "optimizer.name = \"nadamw\" and an optimizer.nadamw.momentum_decay above 0";
constexpr std::string_view kAdemamix = "optimizer.name = \"ademamix\"";
constexpr std::string_view kMuon = "optimizer.name = \"muon\"";
constexpr std::string_view kMuonSgd = "optimizer.name = \"muon\" and optimizer.muon.rest = \"sgd\"";
constexpr std::string_view kNeumann = "optimizer.name = \"neumann\"";
constexpr std::string_view kNlcg = "optimizer.name = \"nlcg\"";
constexpr std::string_view kOwnLoss = "a loss of Ductile's, which a Python job has not";
constexpr std::string_view kSelective = "train.method = \"selective\" or \"stale_selective\"";
constexpr std::string_view kInfobatch = "train.method = \"infobatch\"";
constexpr std::string_view kGraded = "train.method = \"graded\"";
constexpr std::string_view kDropout = "model.name = \"gpt\" or \"mmt\"";

constexpr LiveScale kLinear = LiveScale::linear, kLog = LiveScale::log,
                    kLogToOne = LiveScale::log_to_one;

constexpr LiveOption kOptions[] = {
    {"optimizer.clip_norm", kLog, kAll, is_any_job},
    {"optimizer.adam.beta1", kLogToOne, kAdam, has_adam},
    {"optimizer.adam.beta2", kLogToOne, kAdam, has_adam},
    {"optimizer.adam.eps", kLog, kAdam, has_adam},
    {"optimizer.lars.trust_coefficient", kLog, kLars, reads_lars},
    {"optimizer.lars.eps", kLog, kLars, reads_lars},
    {"optimizer.nadamw.momentum_decay", kLog, kNadamw, reads_nadamw},
    {"optimizer.ademamix.alpha", kLinear, kAdemamix, reads_ademamix},
    {"optimizer.ademamix.beta3", kLogToOne, kAdemamix, reads_ademamix},
    {"optimizer.ademamix.warmup", kLinear, kAdemamix, reads_ademamix},
    {"optimizer.muon.steps", kLinear, kMuon, reads_muon},
    {"optimizer.muon.eps", kLog, kMuon, reads_muon},
    {"optimizer.muon.rest_lr", kLog, kMuon, reads_muon},
    {"optimizer.muon.rest_momentum", kLogToOne, kMuonSgd, reads_muon_sgd},
    {"optimizer.muon.renormalize_every", kLinear, kMuon, reads_muon},
    {"optimizer.neumann.alpha", kLog, kNeumann, reads_neumann},
    {"optimizer.neumann.beta", kLog, kNeumann, reads_neumann},
    {"optimizer.neumann.gamma", kLogToOne, kNeumann, reads_neumann},
    {"optimizer.neumann.mu_start", kLinear, kNeumann, reads_neumann},
    {"optimizer.nlcg.threshold", kLinear, kNlcg, reads_nlcg},
    {"train.label_smoothing", kLinear, kOwnLoss, has_our_loss, false, true},
    {"train.selective.beta", kLinear, kSelective, reads_selective, false, true},
    {"train.infobatch.ratio", kLinear, kInfobatch, reads_infobatch, true},
    {"train.infobatch.end", kLinear, kInfobatch, reads_infobatch, true},
    {"train.graded.beta", kLinear, kGraded, reads_graded, true},
    {"train.graded.floor", kLinear, kGraded, reads_graded, true},
    {"train.graded.unbias", kLinear, kGraded, reads_graded, true, true},
    {"train.graded.end", kLinear, kGraded, reads_graded, true},
    {"model.dropout", kLinear, kDropout, has_dropout, false, true},
};

// ---- What is refused.

// Why an option, or a section, is not live, or where its range is. The first that fits counts.
struct Fixed {
  std::string_view path, why;
};
constexpr Fixed kFixed[] = {
    {"optimizer.lr", "write tune.lr = [LEAST, LARGEST]"},
    {"optimizer.momentum", "write tune.momentum = [LEAST, LARGEST]"},
    {"optimizer.weight_decay", "write tune.weight_decay = [LEAST, LARGEST]"},
    {"train.batch_size", "write tune.batch_size with the sizes to choose from"},
    {"train.staleness", "write tune.staleness with the values to choose from"},
    {"augment", "the loader augments samples ahead of the steps that train on them"},
    {"data", "it says what is trained on"},
    {"loader", "it changes no result"},
    {"schedule", "it shapes the learning rate over the whole run, of which a trial is a part"},
    {"model", "it decides which weights there are"},
    {"eval", "trials are judged by their training loss, which does not depend on it"},
    {"train.ema_decay", "trials are judged by their training loss, which does not depend on it"},
    {"train.tail_average", "trials are judged by their training loss, which does not depend on it"},
};
constexpr std::string_view kOtherwise = "it stays as it is for the life of a run";

[[noreturn]] void refuse_fixed(std::string_view key) {
  std::string_view why = kOtherwise;
  for (const Fixed& fixed : kFixed) {
    const bool inside = key.starts_with(fixed.path) &&
                        (key.size() == fixed.path.size() || key[fixed.path.size()] == '.');
    if (!inside) continue;
    why = fixed.why;
    break;
  }
  std::vector<std::string_view> live;
  for (const LiveOption& option : kOptions) live.push_back(option.key);
  fail(ErrorCode::invalid_argument,
       "tune.options: {} is not an option that can be chosen here: {}; these can: {}", key, why,
       fmt::join(live, ", "));
}

bool read_number(std::string_view text, double& value) {
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  return !text.empty() && read.ec == std::errc() && read.ptr == end && std::isfinite(value);
}

// "KEY:LEAST:LARGEST"
std::string parse_range(const std::string& text, TunedOption& out) {
  const size_t second = text.rfind(':');
  const size_t first =
      second == std::string::npos || second == 0 ? std::string::npos : text.rfind(':', second - 1);
  const std::string_view all = text;
  if (first == std::string::npos || first == 0 ||
      !read_number(all.substr(first + 1, second - first - 1), out.least) ||
      !read_number(all.substr(second + 1), out.largest)) {
    fail(ErrorCode::invalid_argument,
         "tune.options has \"{}\"; write an option, its least and its largest value, for example "
         "\"optimizer.clip_norm:0.1:10\"",
         text);
  }
  return text.substr(0, first);
}

void check_bounds(const TunedOption& tuned, const OptionField& field) {
  const auto bad = [&](const std::string& what) {
    fail(ErrorCode::invalid_argument, "tune.options: {} from {} to {}: {}", field.path, tuned.least,
         tuned.largest, what);
  };
  if (tuned.least > tuned.largest) bad("the least value comes first");
  if (tuned.least < field.min || tuned.largest > field.max)
    bad(fmt::format("its values lie between {} and {}", field.min, field.max));
  if (tuned.option->scale == LiveScale::log && tuned.least <= 0)
    bad("it is searched on a logarithmic scale, so the least value is above 0");
  if (tuned.option->scale == LiveScale::log_to_one && tuned.largest >= 1)
    bad("it is searched by its distance from 1, so the largest value is below 1");
  if (tuned.whole &&
      (tuned.least != std::floor(tuned.least) || tuned.largest != std::floor(tuned.largest)))
    bad("it is a whole number");
}

const OptionField& field_of(const OptionSet& options, std::string_view key) {
  const OptionField* const field = options.find(key);
  DUCTILE_CHECK(field != nullptr, "the live option {} is no option", key);
  return *field;
}

}  // namespace

std::span<const LiveOption> live_options() { return kOptions; }

const LiveOption* find_live_option(std::string_view key) {
  const auto found = std::ranges::find(kOptions, key, &LiveOption::key);
  return found == std::end(kOptions) ? nullptr : &*found;
}

std::vector<TunedOption> tuned_options(const JobOptions& job) {
  JobOptions copy = job;
  OptionSet options(copy);
  std::vector<TunedOption> out;
  for (const std::string& text : job.tune.options) {
    TunedOption tuned;
    const std::string key = parse_range(text, tuned);
    tuned.option = find_live_option(key);
    if (tuned.option == nullptr && options.find(key) == nullptr)
      options.set(key + "=0", "tune.options");  // which says that there is none, and the nearest
    if (tuned.option == nullptr) refuse_fixed(key);
    if (std::ranges::find(out, tuned.option, &TunedOption::option) != out.end())
      fail(ErrorCode::invalid_argument, "tune.options has {} twice", key);
    if (!tuned.option->is_read(job)) {
      fail(ErrorCode::invalid_argument,
           "tune.options: {} is not read by this job, but only with {}; leave it out", key,
           tuned.option->reader);
    }
    const OptionField& field = field_of(options, key);
    tuned.whole = std::holds_alternative<int64_t*>(field.ref);
    check_bounds(tuned, field);
    out.push_back(tuned);
  }
  return out;
}

double live_value(const JobOptions& job, std::string_view key) {
  JobOptions copy = job;
  const OptionSet options(copy);
  const OptionField& field = field_of(options, key);
  if (const auto* whole = std::get_if<int64_t*>(&field.ref)) return static_cast<double>(**whole);
  return *std::get<double*>(field.ref);
}

JobOptions with_options(JobOptions job, const std::map<std::string, double>& values) {
  const OptionSet options(job);
  for (const auto& [key, value] : values) {
    if (find_live_option(key) == nullptr) {
      fail(ErrorCode::invalid_argument, "a step brings {} = {}, which is no option that may change",
           key, value);
    }
    const OptionField& field = field_of(options, key);
    if (!(value >= field.min && value <= field.max)) {
      fail(ErrorCode::invalid_argument, "a step brings {} = {}; its values lie between {} and {}",
           key, value, field.min, field.max);
    }
    if (const auto* whole = std::get_if<int64_t*>(&field.ref)) {
      **whole = static_cast<int64_t>(std::llround(value));
    } else {
      *std::get<double*>(field.ref) = value;
    }
  }
  return job;
}

}  // namespace ductile::spec
