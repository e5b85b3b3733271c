#include "ductile/train/stage_runner.h"

#include <algorithm>
#include <numeric>
#include <sstream>
#include <utility>

#include <fmt/ranges.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>

#include "ductile/base/aligned_array.h"
#include "ductile/base/error.h"
#include "ductile/base/pages.h"
#include "ductile/base/rng.h"
#include "ductile/nn/evaluates_whole.h"
#include "ductile/nn/threads.h"
#include "ductile/parallel/tensor_tree.h"
#include "ductile/spec/stage_orders.h"
#include "ductile/train/data_form.h"
#include "ductile/train/evaluate.h"
#include "ductile/train/planned_model.h"

namespace ductile::train {
namespace {

using nn::OperatorGraph;
using parallel::Pipeline;

int find_operator(const OperatorGraph& operators, const std::string& name, const char* option) {
  const auto& ops = operators.operators();
  const auto found = std::ranges::find(ops, name, &nn::Operator::name);
  if (found == ops.end()) {
    fail(ErrorCode::invalid_argument,
         "{} names operator \"{}\", which the model does not have; plan the graph of this model",
         option, name);
  }
  return static_cast<int>(found - ops.begin());
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> out;
  for (std::string word; in >> word;) out.push_back(word);
  return out;
}

// The loss is the trainer's, so a planner may not know of it: it is where the logits are.
void place_loss(const OperatorGraph& operators, Pipeline& pipeline) {
  const auto loss = static_cast<int>(operators.operators().size()) - 1;
  for (const Pipeline::Stage& s : pipeline.stages) {
    if (std::ranges::find(s.ops, loss) != s.ops.end()) return;
  }
  const int logits = operators.operators().back().inputs.front().op;
  for (Pipeline::Stage& s : pipeline.stages) {
    if (std::ranges::find(s.ops, logits) != s.ops.end()) s.ops.push_back(loss);
  }
}

void cut_evenly(const OperatorGraph& operators, size_t num_stages, Pipeline& pipeline) {
  pipeline.stages.resize(num_stages);
  const size_t n = operators.operators().size();
  for (size_t i = 0; i < n; ++i) {
    pipeline.stages[i * num_stages / n].ops.push_back(static_cast<int>(i));
  }
}

// The canonical sum of so many virtual ranks that all have `values`.
at::Tensor sum_of_equal(std::span<float> values, int64_t count) {
  const at::Tensor leaf = at::from_blob(values.data(), {std::ssize(values)}, at::kFloat);
  parallel::TensorTree tree;
  for (int64_t i = 0; i < count; ++i) tree.push(leaf.clone());
  return tree.sum();
}

// Those in which the parameter lies.
parallel::BlockRange blocks_with(const FlatModel::Entry& parameter) {
  constexpr int64_t kBlock = optim::kBlockFloats;
  return {parameter.offset / kBlock, (parameter.offset + parameter.size + kBlock - 1) / kBlock};
}

parallel::BlockRange blocks_with(const FlatModel::Entry& parameter,
                                 const parallel::TensorSplit::Slice& slice) {
  if (slice.dim != 0) return blocks_with(parameter);  // it has some of every row
  const int64_t row = parameter.size / slice.whole.size(0);
  FlatModel::Entry rows = parameter;
  rows.offset += slice.begin * row;
  rows.size = slice.size() * row;
  return blocks_with(rows);
}

// Zeros of the parameter's shape that take memory only where they are written.
at::Tensor zeros_like_untouched(const FlatModel::Entry& parameter) {
  const auto zeros = std::make_shared<AlignedArray<float>>(untouched_zeros<float>(parameter.size));
  return at::from_blob(
      zeros->span().data(), parameter.shape, [zeros](void*) {}, at::kFloat);
}

DataForm form_of_job(const spec::JobOptions& job, const Ingredients& ingredients) {
  return DataForm::of(job, ingredients.train_set->info(), ingredients.augment);
}

// A captured model takes some numbers of samples alone: the first step would find out.
void check_captured(const spec::JobOptions& job, const nn::Model& model, const Pipeline& pipeline) {
  const std::vector<int64_t> captured = nn::numbers_of_samples(model);
  if (captured.empty()) return;
  const int64_t samples =
      job.train.batch_size / pipeline.num_micro_batches / job.train.pipelined.replicas;
  for (size_t s = 0; s < pipeline.stages.size(); ++s) {
    const int64_t own = samples / pipeline.stages[s].replicas;
    if (std::ranges::find(captured, own) != captured.end()) continue;
    fail(ErrorCode::invalid_argument,
         "stage {} computes {} samples at once, and model.library = \"{}\" was captured for {}; "
         "plan with a --micro-batch that gives each replica as many, or capture the model with "
         "--shares that name {}",
         s, own, job.model.library, fmt::join(captured, ", "), own);
  }
}

// Of the model for which the job's plan was made.
parallel::TensorSplit split_of_job(const spec::JobOptions& job, const Ingredients& ingredients) {
  const OperatorGraph operators =
      nn::training_operators(*ingredients.model, job.train.label_smoothing);
  if (!job.train.pipelined.model.empty())
    check_planned_model(job, operators, form_of_job(job, ingredients));
  const Pipeline pipeline = pipeline_of_job(job, operators);
  check_captured(job, *ingredients.model, pipeline);
  return parallel::split_tensors(operators, pipeline, job.train.pipelined.tensor);
}

// One forward, one backward, behind as many forward tasks as there are stages from here on.
std::vector<spec::Task> one_forward_one_backward(int64_t from_here, int64_t micro_batches) {
  const int64_t ahead = std::min(from_here, micro_batches);
  std::vector<spec::Task> out(static_cast<size_t>(ahead), spec::Task::forward);
  for (int64_t m = 0; m < micro_batches; ++m) {
    out.push_back(spec::Task::backward);
    if (m + ahead < micro_batches) out.push_back(spec::Task::forward);
  }
  return out;
}

// The rank of each part of the pipeline that is run: of replicas their number; else several stages
// of it may be one part of a divided stage.
std::vector<int> ranks_of_parts(const parallel::TensorSplit& split) {
  if (!split.pipeline.is_replicated()) return split.parts;
  std::vector<int> out(parallel::parts_of(split.pipeline).size());
  std::iota(out.begin(), out.end(), 0);
  return out;
}

// That of the first replica of each operator's stage.
std::vector<int> first_ranks(const std::vector<parallel::StagePart>& parts,
                             const std::vector<int>& ranks, const std::vector<int>& stage_of) {
  std::vector<int> out;
  for (const int stage : stage_of) {
    const auto first = std::ranges::find(parts, stage, &parallel::StagePart::stage);
    out.push_back(ranks[static_cast<size_t>(first - parts.begin())]);
  }
  return out;
}

}  // namespace

Pipeline pipeline_of_job(const spec::JobOptions& job, const OperatorGraph& operators) {
  const spec::PipelinedOptions& options = job.train.pipelined;
  Pipeline out;
  out.num_micro_batches = options.micro_batches;
  out.exact = job.train.pipeline_exact;
  if (options.stages.empty()) {
    cut_evenly(operators, static_cast<size_t>(spec::num_stages(job)), out);
  }
  for (const std::string& names : options.stages) {
    Pipeline::Stage& stage = out.stages.emplace_back();
    for (const std::string& name : words(names)) {
      stage.ops.push_back(find_operator(operators, name, "train.pipelined.stages"));
    }
  }
  place_loss(operators, out);
  for (size_t s = 0; s < options.stage_replicas.size(); ++s) {
    out.stages.at(s).replicas = static_cast<int>(options.stage_replicas[s]);
  }
  for (const std::string& name : options.recompute) {
    const int op = find_operator(operators, name, "train.pipelined.recompute");
    for (Pipeline::Stage& s : out.stages) {
      if (std::ranges::find(s.ops, op) != s.ops.end()) s.recompute.push_back(op);
    }
  }
  const auto num_stages = static_cast<int64_t>(out.stages.size());
  for (int64_t s = 0; s < num_stages; ++s) {
    std::vector<spec::Task>& order = out.stages[static_cast<size_t>(s)].order;
    if (options.orders.empty()) {
      order = one_forward_one_backward(num_stages - s, options.micro_batches);
    } else {
      order = spec::order_from_letters(options.orders[static_cast<size_t>(s)], static_cast<int>(s),
                                       3 * options.micro_batches);
    }
    out.split = out.split || std::ranges::find(order, spec::Task::backward_weight) != order.end();
  }
  parallel::check(out, operators);
  return out;
}

std::string fault_of_stages(const spec::JobOptions& job) {
  const Ingredients ingredients = blank_ingredients(job, recipe_of(job));
  try {
    (void)split_of_job(job, ingredients);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    return error.what();
  }
  return "";
}

StageRunner::StageRunner(const spec::JobOptions& job, Ingredients& ingredients, FlatModel& flat)
    : job_(job),
      ingredients_(ingredients),
      flat_(flat),
      split_(split_of_job(job, ingredients)),
      operators_(split_.graph),
      pipeline_(split_.pipeline),
      parts_(parallel::parts_of(pipeline_)),
      part_ranks_(ranks_of_parts(split_)),
      num_ranks_(spec::pipeline_ranks(job)),
      num_replicas_(job.train.pipelined.replicas),
      stage_of_(parallel::stages_of_operators(pipeline_, operators_)),
      rank_of_(first_ranks(parts_, part_ranks_, stage_of_)) {
  for (size_t s = 0; s < pipeline_.stages.size(); ++s) {
    const int rank = split_.parts[s];
    for (const int op : pipeline_.stages[s].ops) {
      const nn::Operator& o = operators_.operators()[static_cast<size_t>(op)];
      for (const nn::NamedTensor& p : o.parameters) owners_.try_emplace(p.name, rank);
      for (const nn::NamedTensor& b : o.buffers) buffer_owners_.try_emplace(b.name, rank);
    }
  }
  std::vector<bool> stage_reads(pipeline_.stages.size(), false);
  for (size_t op = 0; op < stage_of_.size(); ++op) {
    for (const nn::Source& source : operators_.operators()[op].inputs) {
      if (source.op == nn::kModelInput) stage_reads[static_cast<size_t>(stage_of_[op])] = true;
    }
  }
  reads_samples_.resize(static_cast<size_t>(num_ranks_), false);
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (stage_reads[static_cast<size_t>(parts_[i].stage)])
      reads_samples_[static_cast<size_t>(part_ranks_[i])] = true;
  }
}

StageRunner::~StageRunner() = default;

std::vector<StageRunner::Blocks> StageRunner::for_each_pipeline(std::vector<Blocks> by_rank) const {
  std::vector<Blocks> out;
  for (int64_t r = 0; r < num_replicas_; ++r) {
    for (const Blocks& blocks : by_rank) out.push_back(parallel::Optimizer::merged(blocks));
  }
  return out;
}

std::vector<StageRunner::Blocks> StageRunner::blocks_read() const {
  std::map<std::string, parallel::BlockRange> blocks;
  for (const FlatModel::Entry& p : flat_.parameters()) {
    blocks[p.name] = blocks_with(p);
    const auto slices = split_.slices.find(p.name);
    if (slices == split_.slices.end()) continue;
    for (const auto& slice : slices->second) blocks[slice.name] = blocks_with(p, slice);
  }
  std::vector<Blocks> by_stage(pipeline_.stages.size());
  for (size_t op = 0; op < stage_of_.size(); ++op) {
    Blocks& of_stage = by_stage[static_cast<size_t>(stage_of_[op])];
    const nn::Operator& o = operators_.operators()[op];
    for (const nn::NamedTensor& p : o.parameters) {
      const auto found = blocks.find(p.name);
      if (found == blocks.end()) {
        fail(
            ErrorCode::invalid_argument,
            "operator {} declares parameter {}, which the model does not have; without its weights "
            "a worker cannot run it: set train.shard_optimizer = false, or name them alike",
            o.name, p.name);
      }
      of_stage.push_back(found->second);
    }
  }
  std::vector<Blocks> by_rank(static_cast<size_t>(num_ranks_));
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Blocks& own = by_stage[static_cast<size_t>(parts_[i].stage)];
    Blocks& of_rank = by_rank[static_cast<size_t>(part_ranks_[i])];
    of_rank.insert(of_rank.end(), own.begin(), own.end());
  }
  return for_each_pipeline(std::move(by_rank));
}

std::vector<StageRunner::Blocks> StageRunner::blocks_summed() const {
  if (pipeline_.is_replicated()) return blocks_read();  // each adds what its own operators have
  std::vector<Blocks> by_rank(static_cast<size_t>(num_ranks_));
  for (const FlatModel::Entry& p : flat_.parameters()) {
    if (const auto owner = owners_.find(p.name); owner != owners_.end()) {
      by_rank[static_cast<size_t>(owner->second)].push_back(blocks_with(p));
    }
    const auto slices = split_.slices.find(p.name);
    if (slices == split_.slices.end()) continue;
    for (const auto& slice : slices->second) {
      by_rank[static_cast<size_t>(owners_.at(slice.name))].push_back(blocks_with(p, slice));
    }
  }
  return for_each_pipeline(std::move(by_rank));
}

nn::OperatorGraph StageRunner::forward_operators() const {
  const auto& ops = operators_.operators();
  nn::OperatorGraph out;
  out.add_first_of(operators_, ops.size() - 1);
  out.set_results({ops.back().inputs.front()});  // what the loss reads first
  return out;
}

void StageRunner::host(const parallel::ExchangeLayout& layout, int rank,
                       parallel::Exchange* exchange) {
  leave();
  rank_ = rank;
  exchange_ = exchange;
  // Which may refuse these pipelines by what all of their operators make: before the first step, as
  // from there on a worker may have given back the weights of other stages.
  if (pipeline_.exact || pipeline_.is_replicated()) prepare();
  hosts_ = hosts_of_ranks(layout.cut);
  if (exchange == nullptr) return;
  parallel::ReceiveMemory memory = exchange->receive_memory();
  if (!memory.bytes.empty()) memory_ = std::make_shared<parallel::MessageMemory>(std::move(memory));
}

// What the pipelines received lies in the exchange's memory, which is then no longer needed.
void StageRunner::leave() {
  pipelines_.clear();
  memory_ = nullptr;
  exchange_ = nullptr;
}

comm::LeafRange StageRunner::parts() const {
  comm::LeafRange out{0, 0};
  for (int64_t rank = 0; rank < std::ssize(hosts_); ++rank) {
    if (!hosted(rank) || !reads_samples_[static_cast<size_t>(rank % num_ranks_)]) continue;
    const int64_t first = rank / num_ranks_ * pipeline_.num_micro_batches;
    if (out.size() == 0) out.begin = first;
    out.end = first + pipeline_.num_micro_batches;
  }
  return out;
}

// Once for a generation, and again when other parameters are trained than before.
void StageRunner::make_pipelines() {
  split_.follow();
  std::vector<bool> trained;
  for (const nn::Operator& op : operators_.operators()) {
    for (const nn::NamedTensor& p : op.parameters) trained.push_back(p.tensor.requires_grad());
  }
  if (!pipelines_.empty() && trained == trained_) return;
  trained_ = std::move(trained);
  prepare();
  pipelines_.clear();
  pipelines_.resize(static_cast<size_t>(num_replicas_));
  parallel::PipelineHost::Placement placement;
  placement.rank = rank_;
  placement.communicator = exchange_ != nullptr ? exchange_->messages() : nullptr;
  placement.forms = forms_;
  placement.shares = shares_;
  placement.memory = memory_;
  // Each has tags of its own, and all workers give it the same ones.
  const uint32_t tags = parallel::PipelineHost::num_tags(operators_, pipeline_);
  if (int64_t{tags} * num_replicas_ + parallel::Exchange::kFirstTag >= int64_t{1} << 24) {
    fail(ErrorCode::invalid_argument, "train.pipelined.replicas = {}: too many; {} fit",
         num_replicas_, (int64_t{1} << 24) / tags - 1);
  }
  for (int64_t r = 0; r < num_replicas_; ++r) {
    placement.hosts = hosts_of_parts(r, hosts_);
    if (std::ranges::find(placement.hosts, rank_) == placement.hosts.end()) continue;
    placement.first_tag = parallel::Exchange::kFirstTag + static_cast<uint32_t>(r) * tags;
    pipelines_[static_cast<size_t>(r)] =
        std::make_unique<parallel::PipelineHost>(operators_, pipeline_, placement);
  }
}

std::map<int64_t, StageRunner::Part> StageRunner::run(
    int64_t pipeline, std::span<const data::Batch* const> micro_batches, const FigureList& figures,
    uint64_t seed, double loss_scale, parallel::Trace* trace) {
  make_pipelines();
  parallel::PipelineHost& host = *pipelines_.at(static_cast<size_t>(pipeline));
  parallel::PipelineHost::Step step;
  const bool plain = pipeline == 0 || pipeline_.exact;
  step.seed = plain ? seed : mix(seed, static_cast<uint64_t>(pipeline));
  step.first_rank = pipeline * pipeline_.num_micro_batches;
  step.draws = &draws_;
  step.loss_scale = loss_scale;
  parallel::Trace recorded;
  step.trace = pipeline == 0 && trace != nullptr ? &recorded : nullptr;
  int64_t samples = 0;
  for (const data::Batch* batch : micro_batches) {
    step.inputs.emplace_back();
    if (batch == nullptr) continue;
    step.inputs.back() = inputs_of(*batch);
    step.inputs.back().push_back(labels_of(*batch));
    samples += batch->num_samples;
  }
  const std::vector<nn::Tensors> results = host.run(step);
  if (step.trace != nullptr) split_.add_trace(recorded, *trace);
  const auto loss = static_cast<size_t>(operators_.results().front().op);
  std::map<int64_t, Part> out;
  const bool replicated = pipeline_.is_replicated();
  for (int own = 0; own < num_ranks_; ++own) {
    const int64_t rank = pipeline * num_ranks_ + own;
    if (!hosted(rank)) continue;
    Part& part = out[rank] = replicated ? part_of_replica(own, host) : part_of(own, host);
    part.figures.resize(static_cast<size_t>(figures.size()));
    const bool makes_loss = replicated ? parts_[static_cast<size_t>(own)].stage == stage_of_[loss]
                                       : own == rank_of_[loss];
    if (!makes_loss) continue;
    set_figures(replicated ? host.outcome(own).results : results, samples,
                pipeline_.stages[static_cast<size_t>(stage_of_[loss])].replicas, figures,
                part.figures);
  }
  host.forget();
  return out;
}

StageRunner::Part StageRunner::part_of(int rank, const parallel::PipelineHost& pipeline) const {
  return {gradients_of(rank, pipeline), buffers_of(rank, pipeline), {}};
}

// A replica contributes all that its operators have. Running statistics become the mean over the
// stage's replicas: the first one has those before the step, and all add their part of how far
// theirs have moved from there, so that what does not move keeps its bits.
StageRunner::Part StageRunner::part_of_replica(int part,
                                               const parallel::PipelineHost& pipeline) const {
  const parallel::PipelineHost::PartOutcome& found = pipeline.outcome(part);
  Part out;
  for (const FlatModel::Entry& parameter : flat_.parameters()) {
    const auto own = found.gradients.find(parameter.name);
    out.gradients.push_back(own != found.gradients.end() ? own->second.add_(0) : at::Tensor());
  }
  const parallel::StagePart& own = parts_[static_cast<size_t>(part)];
  const int replicas = pipeline_.stages[static_cast<size_t>(own.stage)].replicas;
  const std::span<float> now = flat_.buffer_values();
  out.buffers.assign(now.size(), 0.0F);
  for (const FlatModel::Entry& buffer : flat_.buffers()) {
    const std::span<float> before =
        now.subspan(static_cast<size_t>(buffer.offset), static_cast<size_t>(buffer.size));
    float* const place = out.buffers.data() + buffer.offset;
    const auto moved = found.buffers.find(buffer.name);
    if (moved == found.buffers.end()) {  // of another stage, or of no operator
      if (part == 0 && !buffer_owners_.contains(buffer.name)) std::ranges::copy(before, place);
      continue;
    }
    const at::Tensor values = moved->second.contiguous();
    const float* const after = values.data_ptr<float>();
    for (size_t i = 0; i < before.size(); ++i) {
      const float from = own.replica == 0 ? before[i] : 0.0F;
      place[i] = replicas == 1 ? after[i] + 0.0F
                               : from + (after[i] - before[i]) / static_cast<float>(replicas);
    }
  }
  return out;
}

// -0 becomes 0, as where something else is added; an exact sum adds -0 instead, so it stays.
std::vector<at::Tensor> StageRunner::gradients_of(int rank,
                                                  const parallel::PipelineHost& pipeline) const {
  std::vector<at::Tensor> out;
  for (const FlatModel::Entry& parameter : flat_.parameters()) {
    if (const auto slices = split_.slices.find(parameter.name); slices != split_.slices.end()) {
      out.push_back(gradient_of_slices(rank, parameter, slices->second, pipeline));
      continue;
    }
    const auto owner = owners_.find(parameter.name);
    const auto found = pipeline.gradients().find(parameter.name);
    const bool is_own = (owner == owners_.end() ? 0 : owner->second) == rank;
    at::Tensor& part = out.emplace_back();
    if (is_own && found != pipeline.gradients().end()) {
      part = pipeline_.exact ? found->second : found->second.add_(0);
    } else if (!is_own && pipeline_.exact) {
      part = at::scalar_tensor(-0.0, at::kFloat).expand(parameter.shape);
    }
  }
  return out;
}

// Of the whole parameter: zeros but for what the rank has of it, and these take no memory.
at::Tensor StageRunner::gradient_of_slices(int rank, const FlatModel::Entry& parameter,
                                           const Slices& slices,
                                           const parallel::PipelineHost& pipeline) const {
  const at::NoGradGuard no_grad;
  at::Tensor whole;
  for (const parallel::TensorSplit::Slice& slice : slices) {
    const auto found = pipeline.gradients().find(slice.name);
    if (owners_.at(slice.name) != rank || found == pipeline.gradients().end()) continue;
    if (!whole.defined()) whole = zeros_like_untouched(parameter);
    whole.narrow(slice.dim, slice.begin, slice.size()).copy_(found->second.add_(0));
  }
  return whole;
}

std::vector<float> StageRunner::buffers_of(int rank, const parallel::PipelineHost& pipeline) const {
  const std::span<float> now = flat_.buffer_values();
  std::vector<float> out(now.size(), pipeline_.exact ? -0.0F : 0.0F);
  for (const FlatModel::Entry& buffer : flat_.buffers()) {
    const auto owner = buffer_owners_.find(buffer.name);
    if ((owner == buffer_owners_.end() ? 0 : owner->second) != rank) continue;
    const auto offset = static_cast<size_t>(buffer.offset);
    const std::span<float> values = now.subspan(offset, static_cast<size_t>(buffer.size));
    const auto place = out.begin() + buffer.offset;
    if (!pipeline_.exact) {
      std::ranges::transform(values, place, [](float value) { return value + 0.0F; });
      continue;
    }
    // What no operator has, no micro-batch changes.
    const auto summed = pipeline.buffers().find(buffer.name);
    const at::Tensor sum = summed != pipeline.buffers().end()
                               ? summed->second.contiguous()
                               : sum_of_equal(values, pipeline_.num_micro_batches);
    std::copy_n(sum.data_ptr<float>(), buffer.size, place);
  }
  return out;
}

// Of a stage that has so many replicas, one of which has these results.
void StageRunner::set_figures(const std::vector<nn::Tensors>& results, int64_t samples,
                              int replicas, const FigureList& figures,
                              std::vector<float>& out) const {
  const nn::OneThread alone;
  float loss = 0;
  parallel::TensorTree losses;
  int64_t correct = 0, predictions = 0;
  for (const nn::Tensors& result : results) {
    const auto mean = result[0].mean().item<float>();
    loss += mean;
    losses.push(at::scalar_tensor(mean, at::kFloat));
    correct += result[1].item<int64_t>();
    predictions += result[2].item<int64_t>();
  }
  const auto set = [&](std::string_view name, auto value) {
    out[figures.place(name)] = static_cast<float>(value);
  };
  if (replicas > 1) loss /= static_cast<float>(replicas);
  set(kLoss, pipeline_.exact ? losses.sum().item<float>() : loss);
  set(kCorrect, correct);
  set(kPredictions, predictions);
  set(kSamplesForward, samples / replicas);
  set(kSamplesBackward, samples / replicas);
}

}  // namespace ductile::train
