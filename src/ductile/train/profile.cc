#include "ductile/train/profile.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <fmt/ranges.h>

#include <ATen/ops/ones_like.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/data/loader.h"
#include "ductile/nn/evaluates_whole.h"
#include "ductile/nn/operators.h"
#include "ductile/parallel/allocation_count.h"
#include "ductile/parallel/stage_executor.h"
#include "ductile/spec/stage_state.h"
#include "ductile/train/evaluate.h"
#include "ductile/train/gradient_blocks_impl.h"
#include "ductile/train/ingredients.h"
#include "ductile/train/planned_model.h"
#include "ductile/train/state.h"

namespace ductile::train {
namespace {

using Json = nlohmann::json;
using nn::OperatorGraph;
using nn::Source;
using parallel::AllocationCount;
using parallel::StageExecutor;
using Gradients = std::vector<StageExecutor::Gradient>;

constexpr int64_t kMostShares = 64, kMostRounds = 10'000;

enum Pass { kForward, kBackward, kWeights };
constexpr std::array<const char*, 3> kPassNames = {"forward", "backward_input", "backward_weight"};

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

// Bytes of one operator at one share (graph::OpCost).
struct Bytes {
  int64_t held = 0;     // from its forward pass, until its backward pass
  int64_t waiting = 0;  // from its backward pass to the inputs to that to the weights
  int64_t forward = 0, backward = 0, backward_input = 0, backward_weight = 0;  // PassBytes
  int64_t both = 0;  // held by it and the next one where a stage does them at once; 0: none does
};

// What was measured of one operator at one share.
struct Cell {
  using Seconds = std::array<std::vector<double>, 3>;  // by Pass
  Seconds seconds;
  Seconds both;  // of it and the next one, where a stage does them at once
  Bytes bytes;
};

class Profiler {
 public:
  explicit Profiler(const OperatorGraph& operators)
      : operators_(operators), waits_(StageExecutor::leaves_weights(operators)) {
    for (size_t i = 0; i < size(); ++i) {
      const auto number = static_cast<int>(i);
      executors_.push_back(stage_of({number}, /*split=*/true));
      whole_.push_back(stage_of({number}, /*split=*/false));
      const bool second = i > 0 && together_.back() != nullptr && is_pair(i - 1);
      if (second) {
        together_.push_back(nullptr);
      } else {
        together_.push_back(is_pair(i) ? stage_of({number, number + 1}, /*split=*/true)
                                       : executors_.back());
      }
      any_pair_ = any_pair_ || second;
    }
  }

  size_t size() const { return operators_.operators().size(); }

  // One pass forward and back over a micro-batch, by the clock; cells by operator. Another one
  // where stages do some operators at once.
  void time(const nn::Tensors& inputs, std::vector<Cell>& cells) {
    time(executors_, inputs, cells, &Cell::seconds);
    if (any_pair_) time(together_, inputs, cells, &Cell::both);
  }

  // The same, by what `memory` says: once with weights' gradients made at once, and once with all
  // of them made when all others are there, as stages may do it.
  void count(const nn::Tensors& inputs, std::vector<Cell>& cells, AllocationCount& memory) {
    const auto counted = [&](size_t op, int64_t& most, const auto& call) {
      memory.begin(static_cast<int>(op));
      call();
      most = memory.peak();
    };
    for (auto* executors : {&whole_, &executors_}) {
      std::vector<int64_t> before;  // what operators once made and keep for good
      for (size_t op = 0; op < size(); ++op) before.push_back(memory.live_of(static_cast<int>(op)));
      forward(*executors, inputs,
              [&](size_t op, const auto& call) { counted(op, cells[op].bytes.forward, call); });
      for (size_t op = 0; op < size(); ++op) {
        Bytes& bytes = cells[op].bytes;
        bytes.held = std::max(int64_t{0}, memory.live_of(static_cast<int>(op)) - before[op]);
        bytes.forward = std::max(int64_t{0}, bytes.forward - bytes.held);
      }
      begin_backward();
      const bool split = executors == &executors_;
      for (size_t op = size(); op-- > 0;) {
        Bytes& bytes = cells[op].bytes;
        backward(*executors, op, &memory, [&](const auto& call) {
          counted(op, split ? bytes.backward_input : bytes.backward, call);
        });
      }
      for (size_t op = size(); op-- > 0 && split;) {
        Bytes& bytes = cells[op].bytes;
        if (!waits(op)) continue;
        const int64_t live = memory.live_of(static_cast<int>(op)) - before[op];
        bytes.waiting = std::max(int64_t{0}, live - outputs_of(op));
      }
      for (size_t op = size(); op-- > 0 && split;) {
        counted(op, cells[op].bytes.backward_weight, [&] { executors_[op]->backward_weights(0); });
      }
      end();
    }
  }

  // What two operators hold that a stage does at once.
  void count_pairs(const nn::Tensors& inputs, std::vector<Cell>& cells, AllocationCount& memory) {
    if (!any_pair_) return;
    forward(whole_, inputs, [&](size_t op, const auto& call) {
      call();
      if (!is_pair(op) || together_[op] == nullptr) return;
      StageExecutor& both = *together_[op];
      nn::Tensors given;
      for (const Source& source : both.inputs()) given.push_back(made_.at(source));
      const auto owner = static_cast<int>(op);
      memory.begin(owner);
      const int64_t before = memory.live_of(owner);
      both.forward(0, std::move(given));
      cells[op].bytes.both = memory.live_of(owner) - before;
      both.clear();
    });
    end();
  }

  // Whether some of its weights' gradients are a task of their own where the pass is split.
  bool waits(size_t op) const { return waits_[op]; }

  // Of the last run, the tensors between operators and their gradients: bytes of all samples
  // together.
  const std::map<GradientBlocks::Edge, double>& gradient_bytes() const { return blocks_.bytes(); }
  const std::map<Source, double>& bytes() const { return bytes_; }
  const std::map<Source, std::vector<int64_t>>& shapes() const { return shapes_; }

 private:
  using Executors = std::vector<std::shared_ptr<StageExecutor>>;

  std::shared_ptr<StageExecutor> stage_of(std::vector<int> ops, bool split) const {
    return std::make_shared<StageExecutor>(
        operators_, std::move(ops),
        parallel::StageExecutorOptions{.split = split, .recompute = {}});
  }
  // Whether a stage may do it and the next one at once. Whether these are then one to our kernels,
  // too, the shapes decide.
  bool is_pair(size_t op) const { return operators_.shortcut(static_cast<int>(op)) != nullptr; }

  template <class Call>
  static void timed(std::vector<double>& seconds, const Call& call) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }

  void time(const Executors& executors, const nn::Tensors& inputs, std::vector<Cell>& cells,
            Cell::Seconds Cell::*of) {
    forward(executors, inputs,
            [&](size_t op, const auto& call) { timed((cells[op].*of)[kForward], call); });
    begin_backward();
    for (size_t op = size(); op-- > 0;) {
      if (executors[op] == nullptr) continue;
      backward(executors, op, nullptr,
               [&](const auto& call) { timed((cells[op].*of)[kBackward], call); });
      timed((cells[op].*of)[kWeights], [&] { executors[op]->backward_weights(0); });
    }
    end();
  }

  // `watched`(operator, what to do) does it.
  template <class Watched>
  void forward(const Executors& executors, const nn::Tensors& inputs, const Watched& watched) {
    made_.clear();
    for (size_t i = 0; i < inputs.size(); ++i)
      made_[{nn::kModelInput, static_cast<int>(i)}] = inputs[i];
    for (size_t op = 0; op < size(); ++op) {
      if (executors[op] == nullptr) continue;
      StageExecutor& executor = *executors[op];
      nn::Tensors given, out;
      for (const Source& source : executor.inputs()) given.push_back(made_.at(source));
      watched(op, [&] { out = executor.forward(0, std::move(given)); });
      for (size_t i = 0; i < out.size(); ++i) {
        const Source& source = executor.outputs()[i];
        made_[source] = out[i];
        bytes_[source] = static_cast<double>(out[i].nbytes());
        shapes_[source] = out[i].sizes().vec();
        if (source == operators_.results().front())
          loss_gradient_ = at::ones_like(out[i]).div(static_cast<double>(out[i].numel()));
      }
    }
    made_.clear();
  }

  void begin_backward() {
    gradients_.clear();
    blocks_ = {};
    const Source loss = operators_.results().front();
    gradients_[loss] = {{loss_gradient_, 1 << 20}};
  }

  template <class Watched>
  void backward(const Executors& executors, size_t op, AllocationCount* memory,
                const Watched& watched) {
    StageExecutor& executor = *executors[op];
    std::vector<Gradients> given;
    // What lies between operators is no memory of any.
    if (memory != nullptr) memory->begin(static_cast<int>(size()));
    for (const Source& source : executor.outputs()) {
      given.push_back(std::move(gradients_[source]));
      gradients_.erase(source);
      if (memory != nullptr) add_up(given.back());
    }
    Gradients found;
    watched([&] { found = executor.backward(0, std::move(given)); });
    if (memory != nullptr) memory->begin(static_cast<int>(size()));
    blocks_.used(static_cast<int>(op));
    for (size_t i = 0; i < found.size(); ++i) {
      const Source& source = executor.inputs()[i];
      if (source.op == nn::kModelInput || !found[i].value.defined()) continue;
      if (memory != nullptr)
        found[i].value = blocks_.made({source, static_cast<int>(op)}, found[i].value);
      gradients_[source].push_back(found[i]);
    }
  }

  // As the executor does, which is then given one gradient: in falling order of readers.
  static void add_up(Gradients& gradients) {
    std::ranges::stable_sort(gradients, std::ranges::greater(), &StageExecutor::Gradient::reader);
    while (gradients.size() > 1) {
      gradients[0].value = gradients[0].value.add(gradients[1].value);
      gradients.erase(gradients.begin() + 1);
    }
  }

  // Bytes of what the operator made in the last run, as far as others read it.
  int64_t outputs_of(size_t op) const {
    double sum = 0;
    for (const auto& [source, bytes] : bytes_)
      if (source.op == static_cast<int>(op)) sum += bytes;
    return static_cast<int64_t>(sum);
  }

  void end() {
    for (const Executors* all : {&executors_, &whole_, &together_}) {
      for (const auto& executor : *all) {
        if (executor != nullptr) executor->clear();
      }
    }
    gradients_.clear();
  }

  const OperatorGraph& operators_;
  const std::vector<bool> waits_;
  Executors executors_, whole_;  // with weights' gradients apart, and with all at once
  Executors together_;           // as the first, but pairs as one, at the number of their first
  bool any_pair_ = false;
  GradientBlocks blocks_;
  std::map<Source, at::Tensor> made_;
  std::map<Source, Gradients> gradients_;
  std::map<Source, double> bytes_;
  std::map<Source, std::vector<int64_t>> shapes_;
  at::Tensor loss_gradient_;
};

// `captured`: the only numbers that the model takes, if it does not take all.
std::vector<int64_t> shares_of(const ProfileOptions& options, const std::vector<int64_t>& captured,
                               int64_t most) {
  std::vector<int64_t> out;
  if (options.shares.empty() && !captured.empty()) {
    for (const int64_t n : captured)
      if (n <= most) out.push_back(n);
    if (out.empty())
      fail(ErrorCode::invalid_argument,
           "model.library was captured for {} samples at once, and a batch has {} here; capture it "
           "with --shares {}, and with each micro-batch that is to be trained",
           fmt::join(captured, ", "), most, most);
    return out;
  }
  if (options.shares.empty()) {
    for (int64_t n = 1; n < most; n *= 2) out.push_back(n);
    out.push_back(most);
    return out;
  }
  for (const int64_t n : options.shares)
    if (n <= most) out.push_back(n);
  if (out.empty())
    fail(ErrorCode::invalid_argument,
         "--shares: all are larger than a batch, which has {} samples here", most);
  std::ranges::sort(out);
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

Json affine(const AffineFit& fit) {
  if (fit.fixed == 0) return fit.per_sample;
  return {{"fixed", fit.fixed}, {"per_sample", fit.per_sample}};
}

// Operators that hold the same parameter are one class.
std::vector<int> tied_classes(const OperatorGraph& operators) {
  std::map<std::string, int> owner;
  std::vector<int> out(operators.operators().size(), -1);
  for (size_t i = 0; i < out.size(); ++i) {
    for (const nn::NamedTensor& p : operators.operators()[i].parameters) {
      const auto [found, is_new] = owner.try_emplace(p.name, static_cast<int>(i));
      if (is_new) continue;
      const auto first = static_cast<size_t>(found->second);
      if (out[first] < 0) out[first] = found->second;
      out[i] = out[first];
    }
  }
  return out;
}

class Measurement {
 public:
  Measurement(const spec::JobOptions& job, const ProfileOptions& options)
      : job_(job),
        options_(options),
        ingredients_(recipe_of(job)()),
        state_(*ingredients_.model, job, ingredients_.make_optimizer),
        operators_(nn::training_operators(*ingredients_.model, job.train.label_smoothing)),
        profiler_(operators_) {
    state_.flat.refresh_half_weights();
    ingredients_.model->train(true);
    const int64_t most =
        std::min(job.train.batch_size, static_cast<int64_t>(ingredients_.train_set->info().size));
    for (const int64_t n : shares_of(options, nn::numbers_of_samples(*ingredients_.model), most)) {
      shares_.push_back(n);
      batches_.push_back(batch_of(n));
      inputs_.push_back(inputs_of(*batches_.back()));
      inputs_.back().push_back(labels_of(*batches_.back()));
    }
  }

  void run(const std::function<void(const Json&)>& row, const std::function<bool()>& interrupted) {
    cells_.assign(shares_.size(), std::vector<Cell>(profiler_.size()));
    for (size_t i = 0; i < shares_.size(); ++i) {  // which warms up, too
      auto memory = std::make_shared<AllocationCount>();
      const AllocationCount::Watch counted(memory);
      profiler_.count(inputs_[i], cells_[i], *memory);
      profiler_.count_pairs(inputs_[i], cells_[i], *memory);
      bytes_.push_back(profiler_.bytes());
      gradients_.push_back(profiler_.gradient_bytes());
    }
    for (int64_t round = 0; round < options_.rounds; ++round) {
      for (size_t i = 0; i < shares_.size(); ++i) {
        if (interrupted()) fail(ErrorCode::unavailable, "interrupted");
        profiler_.time(inputs_[i], cells_[i]);
      }
      row({{"share", static_cast<double>(round + 1) / static_cast<double>(options_.rounds)}});
    }
  }

  Json graph() const {
    const std::vector<int> tied = tied_classes(operators_);
    Json ops = Json::array(), edges = Json::array();
    for (size_t i = 0; i < profiler_.size(); ++i) {
      Json& op = ops.emplace_back(describe(i));
      if (tied[i] >= 0) op["tied"] = tied[i];
      for (const Source& source : operators_.operators()[i].inputs) {
        if (source.op == nn::kModelInput) continue;
        const AffineFit bytes = fit_bytes([&](size_t s) { return bytes_[s].at(source); });
        Json edge = {{"from", operators_.operators()[static_cast<size_t>(source.op)].name},
                     {"to", operators_.operators()[i].name},
                     {"output", source.output},
                     {"bytes", bytes.per_sample}};
        const AffineFit gradient = fit_bytes([&](size_t s) {
          const auto found = gradients_[s].find({source, static_cast<int>(i)});
          return found == gradients_[s].end() ? 0.0 : found->second;
        });
        if (gradient.per_sample != bytes.per_sample) edge["gradient_bytes"] = gradient.per_sample;
        if (are_one(static_cast<size_t>(source.op))) edge["fused"] = true;
        edges.push_back(std::move(edge));
      }
    }
    Json out = {
        {"format", "ductile.graph"},
        {"version", 1},
        {"name", job_.model.name},
        {"optimizer_factor",
         state_.optimizer->state_names().size()},  // arrays as large as the weights
        {"counted", true},
        {"model", spec::to_json(identity_of(
                      job_, operators_,
                      DataForm::of(job_, ingredients_.train_set->info(), ingredients_.augment)))},
        {"state_factor", spec::stage_state_factor(job_)},
        {"ops", std::move(ops)},
        {"edges", std::move(edges)}};
    const std::vector<int64_t> captured = nn::numbers_of_samples(*ingredients_.model);
    if (!captured.empty()) out["captured"] = captured;
    return out;
  }

 private:
  std::shared_ptr<const data::Batch> batch_of(int64_t samples) {
    data::LoaderTask task;
    task.seed = static_cast<uint64_t>(job_.seed);
    task.batch_size = samples;
    task.channels_last = lies_channels_last(job_, *ingredients_.model);
    data::Loader loader(ingredients_.train_set, ingredients_.augment, job_.loader, task);
    return loader.fetch(loader.indices_of(0, 0, samples), 0);
  }

  // Whether it and the next operator, done at once, hold as much less as what is between them
  // takes.
  bool are_one(size_t first) const {
    for (size_t s = 0; s < shares_.size(); ++s) {
      const Bytes& own = cells_[s][first].bytes;
      if (own.both == 0) return false;
      const auto spared =
          static_cast<double>(own.held + cells_[s][first + 1].bytes.held - own.both);
      if (spared < 0.9 * bytes_[s].at({static_cast<int>(first), 0})) return false;
    }
    return true;
  }

  // Of a pass; of two that are done at once its part of what both take then.
  double seconds(size_t s, size_t i, Pass pass) const {
    const auto alone = [&](size_t op) { return median(cells_[s][op].seconds[pass]); };
    const size_t first = i > 0 && are_one(i - 1) ? i - 1 : i;
    if (!are_one(first)) return alone(i);
    const double sum = alone(first) + alone(first + 1);
    return sum > 0 ? median(cells_[s][first].both[pass]) * alone(i) / sum : 0;
  }

  template <class Value>
  AffineFit fit_bytes(Value value) const {
    std::vector<MeasuredShare> measured;
    for (size_t s = 0; s < shares_.size(); ++s)
      measured.push_back({static_cast<double>(shares_[s]), value(s)});
    AffineFit fit = fit_affine(measured);
    fit.fixed = std::round(fit.fixed);
    fit.per_sample = std::ceil(fit.per_sample);
    return fit;
  }

  // Of an operator's pass (graph::MostBytes).
  Json most(size_t i, int64_t Bytes::*member) const {
    std::vector<MeasuredShare> measured;
    for (size_t s = 0; s < shares_.size(); ++s)
      measured.push_back(
          {static_cast<double>(shares_[s]), static_cast<double>(cells_[s][i].bytes.*member)});
    return most_bytes(measured);
  }

  // `given`: of the model's inputs that the operator reads, per sample.
  void put_bytes(size_t i, double given, Json& out) const {
    const auto fit = [&](int64_t Bytes::*member) {
      return fit_bytes([&](size_t s) { return static_cast<double>(cells_[s][i].bytes.*member); });
    };
    const AffineFit held = fit(&Bytes::held);
    out["activation_bytes"] = held.per_sample + given;
    if (held.fixed > 0) out["activation_fixed"] = held.fixed;
    if (given > 0) out["sample_bytes"] = given;
    if (profiler_.waits(i)) out["waiting_bytes"] = affine(fit(&Bytes::waiting));
    out["pass_bytes"] = {{"forward", most(i, &Bytes::forward)},
                         {"backward", most(i, &Bytes::backward)},
                         {"backward_input", most(i, &Bytes::backward_input)},
                         {"backward_weight", most(i, &Bytes::backward_weight)}};
    const AffineFit workspace = fit_bytes([&](size_t s) {
      const Bytes& b = cells_[s][i].bytes;
      return static_cast<double>(
          std::max({b.forward, b.backward, b.backward_input, b.backward_weight}));
    });
    if (workspace.fixed > 0 || workspace.per_sample > 0) out["workspace_bytes"] = affine(workspace);
  }

  Json describe(size_t i) const {
    const nn::Operator& op = operators_.operators()[i];
    Json out = {{"name", op.name}, {"kind", op.kind}, {"recomputable", true}};
    for (const Pass pass : {kForward, kBackward, kWeights}) {
      std::vector<MeasuredShare> measured;
      for (size_t s = 0; s < shares_.size(); ++s)
        measured.push_back({static_cast<double>(shares_[s]), seconds(s, i, pass)});
      out[kPassNames[pass]] = affine(fit_affine(measured));
    }
    double parameters = 0;
    for (const nn::NamedTensor& p : op.parameters)
      parameters += 4 * static_cast<double>(p.tensor.numel());  // gradients and state are fp32
    out["parameter_bytes"] = parameters;
    double given = 0;  // of the model's inputs, per sample: they stay until the last task
    for (const Source& source : op.inputs) {
      if (source.op != nn::kModelInput) continue;
      const at::Tensor& input = inputs_.back()[static_cast<size_t>(source.output)];
      given += static_cast<double>(input.nbytes()) / static_cast<double>(shares_.back());
    }
    put_bytes(i, std::ceil(given), out);
    const Source first{static_cast<int>(i), 0};
    if (bytes_.back().contains(first)) {
      out["output_bytes"] = fit_bytes([&](size_t s) { return bytes_[s].at(first); }).per_sample;
      const std::vector<int64_t>& shape = profiler_.shapes().at(first);
      if (shape.size() > 1) out["shape"] = std::vector<int64_t>(shape.begin() + 1, shape.end());
    }
    return out;
  }

  const spec::JobOptions& job_;
  const ProfileOptions& options_;
  Ingredients ingredients_;
  JobState state_;
  const OperatorGraph operators_;
  Profiler profiler_;
  std::vector<int64_t> shares_;
  std::vector<std::shared_ptr<const data::Batch>> batches_;
  std::vector<nn::Tensors> inputs_;
  std::vector<std::vector<Cell>> cells_;         // by share and operator
  std::vector<std::map<Source, double>> bytes_;  // by share
  std::vector<std::map<GradientBlocks::Edge, double>> gradients_;
};

}  // namespace

ProfileOptions ProfileOptions::from_json(const Json& value) {
  const JsonFields fields(value, "--profile");
  ProfileOptions out;
  out.rounds = fields.integer("rounds", 1, kMostRounds);
  for (const Json& item : fields.array("shares")) {
    if (!item.is_number_integer() || item.get<int64_t>() < 1)
      fail(ErrorCode::invalid_argument, "--shares: {} is no number of samples", dump_json(item));
    out.shares.push_back(item.get<int64_t>());
  }
  if (out.shares.size() > kMostShares)
    fail(ErrorCode::invalid_argument, "--shares: {} of them; at most {}", out.shares.size(),
         kMostShares);
  return out;
}

AffineFit fit_affine(std::span<const MeasuredShare> measured) {
  // Weights 1 / value^2: errors count by their share of the value.
  double w = 0, wx = 0, wy = 0, wxx = 0, wxy = 0;
  for (const MeasuredShare& m : measured) {
    const double weight = 1 / std::max(m.value * m.value, 1e-30);
    w += weight;
    wx += weight * m.samples;
    wy += weight * m.value;
    wxx += weight * m.samples * m.samples;
    wxy += weight * m.samples * m.value;
  }
  const double spread = w * wxx - wx * wx;
  if (measured.size() > 1 && spread > 1e-12 * w * wxx) {
    const AffineFit fit = {(wy * wxx - wx * wxy) / spread, (w * wxy - wx * wy) / spread};
    if (fit.fixed >= 0 && fit.per_sample >= 0) return fit;
    if (fit.per_sample < 0) return {wy / w, 0};
  }
  return {0, wxx > 0 ? wxy / wxx : 0};
}

Json most_bytes(std::span<const MeasuredShare> measured) {
  constexpr double kOff = 0.005, kFew = 64;  // of the value; bytes
  AffineFit fit = fit_affine(measured);
  fit.fixed = std::round(fit.fixed);
  fit.per_sample = std::ceil(fit.per_sample);
  const bool says_it = std::ranges::all_of(measured, [&](const MeasuredShare& m) {
    return std::abs(fit.at(m.samples) - m.value) <= kFew + m.samples + kOff * m.value;
  });
  if (says_it) return affine(fit);
  Json samples = Json::array(), bytes = Json::array();
  for (const MeasuredShare& m : measured) {
    samples.push_back(m.samples);
    bytes.push_back(m.value);
  }
  return {{"samples", std::move(samples)}, {"bytes", std::move(bytes)}};
}

Json profile(const spec::JobOptions& job, const ProfileOptions& options,
             const std::function<void(const Json&)>& row,
             const std::function<bool()>& interrupted) {
  Measurement measurement(job, options);
  measurement.run(row, interrupted);
  return measurement.graph();
}

}  // namespace ductile::train
