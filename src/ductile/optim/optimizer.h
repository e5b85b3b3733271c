#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/base/dtype.h"
#include "ductile/optim/hyper.h"
#include "ductile/optim/param_layout.h"
#include "ductile/spec/job.h"

namespace ductile::optim {

// What one step reads and writes. Every span covers the whole flat buffer of the layout
// (total_size() elements); an optional one may be empty instead. Buffers on 64-byte boundaries are
// fastest.
struct StepInput {
  std::span<float> weights;         // fp32 master weights, updated in place
  std::span<const float> gradient;  // summed gradient; gaps are never read
  Hyper hyper;
  double loss = 0;  // of the step's batch before the update; for rules that look at it
  // Where the run is before the step, for rules that change as it goes: passes over the training
  // data done (may be a fraction), and the share of the run done, from 0 to 1.
  double epoch = 0;
  double progress = 0;
  // Multiplies the gradient first: 1 / (virtual ranks * loss scale) and the clipping factor.
  float gradient_scale = 1;
  // If not empty, the new weights are also written here, rounded to nearest even, in the type
  // `half` (bf16 or f16), in the same pass over memory.
  std::span<uint16_t> half_weights = {};
  DType half = DType::bf16;
  // If not empty: ema += (1 - ema_decay) * (new weights - ema), in the same pass.
  std::span<float> ema = {};
  float ema_decay = 0;
};

// What the weights to evaluate are computed from, besides the state of the rule. The spans are as
// in StepInput.
struct EvaluationInput {
  std::span<const float> weights;
  std::span<const float> average = {};  // StepInput::ema
};

// An update rule with its state, on flat buffers laid out by a ParamLayout.
//
// The result is the same, bit for bit, for every number of OpenMP threads and every instruction
// set: elements are independent, rounding is plain IEEE (no contraction), and norms are summed in
// a fixed order over a fixed grid of blocks. Work is spread over the calling thread's OpenMP team
// (libtorch's own pool). One optimiser is used by one thread at a time.
//
// step() calls prepare() for all blocks in each round, then apply(), then finish(). A worker that
// owns only a part of the update (weight-update sharding, Xu et al. 2020, arXiv 2004.13336) calls
// these itself, for the blocks that it holds, and exchanges norm_sums() with its peers after each
// round. The result has the same bits as that of step(). Before apply() only norm_sums() has
// changed, so the step can still be given up.
class Optimizer {
 public:
  struct StateBuffer {
    std::string name;         // as torch.optim names it: momentum_buffer, exp_avg, exp_avg_sq
    std::span<float> values;  // owned by the optimiser; restore by writing
  };
  // The flat buffers cut into kBlock floats each (the last one shorter): [begin, end).
  struct BlockRange {
    int64_t begin = 0;
    int64_t end = 0;
    bool operator==(const BlockRange&) const = default;
  };
  static constexpr int64_t kBlock = kBlockFloats;
  // The same blocks as ranges that are ascending, not empty, and do not touch each other.
  static std::vector<BlockRange> merged(std::vector<BlockRange> ranges);
  // A number that a rule keeps from step to step; saved and restored like its buffers.
  struct Scalar {
    std::string name;
    double value = 0;
  };
  // A part of the weights to evaluate: `factor` times the state of this name. An empty name means
  // the trained weights.
  struct Term {
    std::string state;
    double factor = 1;
  };

  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Takes over the live options (spec/live_options.h) that this rule reads, for the steps from here
  // on. All others are those that it was made with; what Hyper has is not read from here.
  virtual void set_options(const spec::OptimizerOptions&) {}

  // One update of all parameters. Throws invalid_argument when a span has the wrong length.
  void step(const StepInput& in);

  // The passes before the update, for rules that need norms or dot products of whole tensors or of
  // all weights: each computes sums over the blocks. A round may use the sums of the one before.
  virtual int num_rounds() const { return 0; }
  virtual void prepare(const StepInput&, BlockRange, int /*round*/) {}
  // The sums that prepare() leaves: a fixed number per block, in block order. norm_sums_of() is the
  // part that belongs to a range of blocks. Both are empty for rules without rounds.
  std::span<double> norm_sums() { return norm_sums_; }
  virtual std::span<double> norm_sums_of(BlockRange blocks) = 0;
  // The last pass: the update itself, which uses the sums of all blocks. `blocks` must be held.
  virtual void apply(const StepInput& in, BlockRange blocks) = 0;
  // Ends the step, with the same `in`.
  void finish(const StepInput& in);

  int64_t num_blocks() const;
  int64_t num_steps() const { return num_steps_; }  // steps done; bias corrections depend on it
  void set_num_steps(int64_t n);                    // when a checkpoint is restored; n >= 0
  std::span<Scalar> scalars() { return scalars_; }  // restore by writing

  // Whether the blocks before `block` and those from it on may belong to different workers. Rules
  // that update whole matrices say no inside of one.
  virtual bool may_cut(int64_t /*block*/) const { return true; }

  // From now on the optimiser keeps state for these blocks only, and prepare() and apply() may be
  // called for these only. State that was held before stays; new state is zero. In the beginning
  // all blocks are held.
  virtual void hold(std::vector<BlockRange> ranges) = 0;
  // Ascending, not touching each other.
  virtual const std::vector<BlockRange>& held() const = 0;
  bool holds_all() const;
  // The state that belongs to `blocks`, which lie in one range of held(). The spans are valid until
  // hold().
  virtual std::vector<StateBuffer> state(BlockRange blocks) = 0;
  // The state of all total_size() floats; all blocks must be held.
  std::vector<StateBuffer> state() { return state({0, num_blocks()}); }
  virtual std::vector<std::string> state_names() const = 0;
  virtual size_t state_bytes() const = 0;  // of memory that the state takes

  // The weights that the rule means: a sum of these terms. Rules that train displaced weights, or
  // between an iterate and its average, have others than the trained ones.
  virtual std::vector<Term> evaluated() const { return {Term{}}; }
  // Whether weights other than the trained ones are to be evaluated and deployed. These are the
  // moving average, if one is kept (it averages the weights that the rule means), or else those
  // that the rule means.
  bool evaluates_other_weights(const EvaluationInput& in) const;
  // Whether the rule means others than the trained ones at some time of a run: before its first
  // step evaluated() need not say so.
  virtual bool means_others() const { return evaluates_other_weights({}); }
  // Writes these weights into `out`, a buffer of the layout, for `blocks`, which must be held.
  void evaluation_weights(const EvaluationInput& in, BlockRange blocks, std::span<float> out);

 protected:
  explicit Optimizer(const ParamLayout& layout) : layout_(layout) {}

  // What finish() does for scalars; num_steps() is still that before the step.
  virtual void end_step(const StepInput&) {}
  // A sum of the terms for n floats: `weights` and a buffer per term of `states`, which is ignored
  // for the trained weights.
  static void combine(std::span<const Term> terms, const float* weights,
                      std::span<const float* const> states, int64_t n, float* out);

  ParamLayout layout_;
  std::vector<double> norm_sums_;
  std::vector<Scalar> scalars_;

 private:
  int64_t num_steps_ = 0;
};

// A row of the table of rules; the rows are in spec/optimizers.h.
struct OptimizerEntry {
  std::string_view name;
  std::unique_ptr<Optimizer> (*make)(const spec::OptimizerOptions&, const ParamLayout&);
  std::string_view help;
};
Table<OptimizerEntry> optimizers();

// The rule named by options.name, with zeroed state. The members of Hyper are not read from the
// options, since they come with each step. Throws invalid_argument for an unknown name or
// impossible options.
std::unique_ptr<Optimizer> make_optimizer(const spec::OptimizerOptions& options,
                                          const ParamLayout& layout);

}  // namespace ductile::optim
