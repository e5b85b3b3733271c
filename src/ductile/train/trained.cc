#include "ductile/train/trained.h"

#include <algorithm>
#include <cstdlib>
#include <span>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/digest.h"
#include "ductile/ckpt/safetensors.h"
#include "ductile/data/augment.h"
#include "ductile/optim/optimizer.h"
#include "ductile/run/history.h"
#include "ductile/run/lock.h"
#include "ductile/run/runs_mark.h"
#include "ductile/train/ingredients.h"
#include "ductile/train/staleness.h"
#include "ductile/train/statistics.h"

namespace ductile::train {
namespace {

// Where the weights are those of a version that did not keep it, or are not there, the training
// data tell.
DataForm form_of_data(const spec::JobOptions& job) {
  const auto train =
      open_training_data(job, "a run without sound final weights, or of an earlier version,");
  return DataForm::of(job, train->info(), data::resolve_augment(job.augment, train->info()));
}

DataForm form_of(const spec::JobOptions& job, const fs::path& weights) {
  const ckpt::SafetensorsFile file(weights);
  const auto found = file.metadata().find(kDataFormKey);
  if (found == file.metadata().end()) return form_of_data(job);
  const std::string what = fmt::format("{}: what it says of its data", weights.string());
  return DataForm::from_json(parse_json(found->second, what, ErrorCode::data_loss), what);
}

// For a checkpoint, which needs no final weights: they may be absent, or damaged.
DataForm form_beside(const spec::JobOptions& job, const fs::path& weights) try {
  return kind_of(weights) == FileKind::none ? form_of_data(job) : form_of(job, weights);
} catch (const Error& e) {
  if (e.code() != ErrorCode::data_loss) throw;
  return form_of_data(job);
}

std::vector<int64_t> checkpoint_steps(const run::RunFolder& folder) {
  std::vector<int64_t> steps;
  for (const auto& c : ckpt::list(folder.checkpoints())) {
    if (c.error.empty()) steps.push_back(c.step);
  }
  return steps;
}

// Calls read(), which reads the final weights; where they are damaged, the error says what to do.
template <class Read>
auto read_sound(const run::RunFolder& folder, Read read) {
  try {
    return read();
  } catch (const Error& e) {
    const std::vector<int64_t> steps = checkpoint_steps(folder);
    if (e.code() != ErrorCode::data_loss || steps.empty()) throw;
    fail(ErrorCode::data_loss,
         "{}; name a checkpoint: --checkpoint {}, or delete the file, and `ductile train --resume "
         "{}` writes it again",
         e.what(), fmt::join(steps, " or "), folder.path().string());
  }
}

// The number of the job of a service whose run this is; empty: it is none of a service's.
std::string job_of_service(const run::RunFolder& folder) {
  const std::string name = folder.name();  // NUMBER-NAME
  const size_t digits = name.find_first_not_of("0123456789");
  const bool is_numbered = digits != 0 && digits != std::string::npos && name[digits] == '-';
  if (!is_numbered) return "";
  const fs::path mark = run::runs_mark_file(folder.path().parent_path());
  return kind_of(mark) == FileKind::none ? "" : name.substr(0, digits);
}

// What gives an unfinished run its weights. In a service it is the service that trains it, and the
// process that holds the run, perhaps on another host, does other jobs besides; whether the job has
// ended the service alone knows.
std::string remedy_of(const run::RunFolder& folder) {
  if (const std::string job = job_of_service(folder); !job.empty())
    return fmt::format(
        "it is the run of job {0} of a service, and `ductile why {0}` says how far that is: what "
        "is submitted with --after {0} begins once it has finished; if it has ended before that, "
        "`ductile train --resume {1}` finishes its run",
        job, folder.path().string());
  if (const auto holder = run::lock_holder(folder.path()))
    return fmt::format("process {} trains it: wait for its end", holder->pid);
  return fmt::format("finish it with `ductile train --resume {}`", folder.path().string());
}

// The error with which a run ended that diverged; empty: it did not, or does not say so.
std::string divergence_of(const run::RunFolder& folder) try {
  const auto end = run::told_end(folder);
  const bool has_diverged = end && end->error.find("the run diverged") != std::string::npos;
  return has_diverged ? end->error : "";
} catch (const Error&) {  // its events cannot be read
  return "";
}

[[noreturn]] void fail_unfinished(const run::RunFolder& folder) {
  const std::string path = folder.path().string();
  const std::vector<int64_t> steps = checkpoint_steps(folder);
  const std::string divergence = divergence_of(folder);
  const std::string remedy =
      divergence.empty()
          ? remedy_of(folder)
          : fmt::format("it diverged, and would again if it was resumed: begin a new one ({})",
                        divergence);
  if (steps.empty())
    fail(ErrorCode::not_found, "{}: the run has neither final weights nor a checkpoint; {}", path,
         remedy);
  fail(ErrorCode::not_found,
       "{}: the run has no final weights{}; {}, or name a checkpoint: --checkpoint {}", path,
       divergence.empty() ? " yet" : "", remedy, fmt::join(steps, " or "));
}

}  // namespace

Trained::Trained(const run::RunFolder& folder, const spec::JobOptions& job,
                 std::optional<int64_t> checkpoint)
    : job_(job) {
  const fs::path weights = folder.model_file();
  if (!checkpoint && kind_of(weights) == FileKind::none) fail_unfinished(folder);
  form_ = checkpoint ? form_beside(job_, weights)
                     : read_sound(folder, [&] { return form_of(job_, weights); });
  model_ = nn::make_model(job_.model, form_.model, job_.train.precision,
                          static_cast<uint64_t>(job_.seed));
  state_.emplace(*model_, job_, [this](const optim::ParamLayout& layout) {
    return optim::make_optimizer(job_.optimizer, layout);
  });
  if (checkpoint) {
    read_checkpoint(folder, *checkpoint);
  } else {
    read_sound(folder, [&] { read_final(weights); });
  }
  state_->flat.refresh_half_weights();
  model_->train(false);
}

void Trained::read_final(const fs::path& path) {
  const ckpt::SafetensorsFile file(path);
  size_t used = 0;
  const auto read = [&](const FlatModel::Entry& entry, std::span<float> flat) {
    const ckpt::TensorInfo* found = file.find(entry.name);
    if (found == nullptr || found->dtype != DType::f32 || found->shape != entry.shape)
      fail(
          ErrorCode::invalid_argument,
          "{}: holds no tensor {} of shape [{}] in fp32, as the model of job.toml has; job.toml or "
          "model.library is not the one that was trained",
          path.string(), entry.name, fmt::join(entry.shape, ", "));
    const auto bytes = std::as_writable_bytes(
        flat.subspan(static_cast<size_t>(entry.offset), static_cast<size_t>(entry.size)));
    std::ranges::copy(file.bytes(*found), bytes.begin());
    ++used;
  };
  for (const FlatModel::Entry& p : state_->flat.parameters()) read(p, state_->flat.weights());
  for (const FlatModel::Entry& b : state_->flat.buffers()) read(b, state_->flat.buffer_values());
  if (used != file.tensors().size())
    fail(ErrorCode::invalid_argument,
         "{}: holds {} tensors, and the model of job.toml has {}; job.toml or model.library is not "
         "the one that was trained",
         path.string(), file.tensors().size(), used);
  const auto step = file.metadata().find("step");
  if (step != file.metadata().end()) step_ = std::atoll(step->second.c_str());
  const auto written = file.metadata().find(kWeightsDigestKey);
  if (written == file.metadata().end()) return;
  if (const std::string digest = weights_digest(); digest != written->second)
    fail(ErrorCode::data_loss,
         "{}: the weights are not those that were written (their digest is {}, and it was {})",
         path.string(), digest, written->second);
}

void Trained::read_checkpoint(const run::RunFolder& folder, int64_t step) {
  const ckpt::Checkpoint checkpoint = ckpt::Checkpoint::open(folder.checkpoints(), step);
  if (!checkpoint.state().contains("counters"))
    fail(ErrorCode::invalid_argument,
         "the checkpoint of step {0} is of an earlier version; `ductile train --resume {1}` writes "
         "one of this version",
         step, folder.path().string());
  nlohmann::json values = checkpoint.state();
  add_staleness_to_state(values, job_);
  if (!values.contains("evaluation"))  // of a version that counted evaluations in updates alone
    values["evaluation"] = {{"step", values.at("evaluated_at")}, {"epoch", 0.0}};
  state_->restore(checkpoint, values);
  JobState::EvaluationWeights other = state_->evaluation_weights();
  add_statistics(*state_, other, *model_, job_, form_.augment, [&] {
    const bool has_final = kind_of(folder.model_file()) != FileKind::none;
    return open_training_data(
        job_,
        fmt::format("the batch norm of a checkpoint of optimizer.name = \"{}\", whose running "
                    "statistics are in no checkpoint,",
                    job_.optimizer.name),
        has_final ? ", or leave --checkpoint out: the final weights have theirs" : "");
  });
  if (!other.weights.empty()) std::ranges::copy(other.weights, state_->flat.weights().begin());
  std::ranges::copy(other.buffers, state_->flat.buffer_values().begin());
  step_ = step;
}

std::string Trained::weights_digest() { return ckpt::tensors_digest(state_->deployed({}).views); }

std::shared_ptr<const data::Dataset> open_training_data(const spec::JobOptions& job,
                                                        std::string_view what,
                                                        std::string_view otherwise) try {
  return data::open_dataset(job.data, data::Split::train);
} catch (const Error& e) {
  if (e.code() != ErrorCode::not_found) throw;
  fail(e.code(),
       "{}; {} needs the training data of the run (data.path): put them, or a link to them, back "
       "there{}",
       e.what(), what, otherwise);
}

std::unique_ptr<data::Loader> load_samples(std::shared_ptr<const data::Dataset> samples,
                                           Origin origin, Trained& trained) {
  const spec::JobOptions& job = trained.job();
  const DataForm& form = trained.form();
  const bool own = origin == Origin::own;
  spec::LoaderOptions options = job.loader;
  // Of a JPEG that is in no cache only what is needed is decoded, which has not the same bits.
  if (!own) options.cache_mb = 0;
  data::LoaderTask plan;
  plan.batch_size =
      job.train.eval_batch_size > 0 ? job.train.eval_batch_size : job.train.batch_size;
  plan.training = false;
  plan.channels_last = lies_channels_last(job, trained.model());
  spec::AugmentOptions augment = form.augment;
  // Runs of earlier versions evaluate their own samples without the size of the training images.
  if (!own || form.short_side > 0) {
    augment = form.augment_for_others();
    plan.height = form.model.height;
    plan.width = form.model.width;
  }
  auto loader = std::make_unique<data::Loader>(std::move(samples), augment, options, plan);
  const Shape want = form.sample_shape(), got = loader->sample_shape();
  if (got != want)
    fail(ErrorCode::invalid_argument, "the samples are of shape [{}], and the model reads [{}]",
         fmt::join(got, ", "), fmt::join(want, ", "));
  return loader;
}

nlohmann::json describe_bad(const data::LoaderStats& stats) {
  nlohmann::json items = nlohmann::json::array();
  for (const data::BadItem& item : stats.bad_items)
    items.push_back({{"where", item.where}, {"what", item.what}});
  return {{"count", stats.bad_samples}, {"items", std::move(items)}};
}

}  // namespace ductile::train
