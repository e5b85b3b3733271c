#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ductile/base/aligned_array.h"
#include "ductile/base/json_value.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/join.h"
#include "ductile/nn/model.h"
#include "ductile/optim/hyper.h"
#include "ductile/optim/loss_scaler.h"
#include "ductile/optim/optimizer.h"
#include "ductile/parallel/exchange.h"
#include "ductile/parallel/sharded_update.h"
#include "ductile/train/evaluate.h"
#include "ductile/train/flat_model.h"

namespace ductile::train {

// Training figures between two metric lines. They are part of the state, so that the lines of a
// resumed run equal those of an undisturbed one.
struct Window {
  std::map<std::string, double> sums;  // over updates: loss, correct, predictions, others by name
  int64_t updates = 0;

  // 0 where there was none.
  double sum(const std::string& name) const {
    const auto found = sums.find(name);
    return found == sums.end() ? 0 : found->second;
  }
  nlohmann::json to_json() const;
  static Window from_json(const nlohmann::json& value);
};

// What has been done, counted when it is done and never inferred. The counters are the same on
// every worker.
struct Counters {
  int64_t step = 0;  // protocol steps committed: updates, and evaluations of the loss between them
  int64_t updates = 0;  // of them, the steps of training; one that fp16 skipped counts
  int64_t cursor = 0;   // position in the stream of training samples (data/cursor.h)
  // The numbers of samples that ranks ran forward and backward, in all steps.
  int64_t samples_forward = 0, samples_backward = 0;
  double flops = 0;  // of these, in forward and backward; 0 where the model's are not known

  bool operator==(const Counters&) const = default;
};

// What a step method or a rate control keeps from step to step. It is part of the job's state, so
// it is saved, restored, sent, forked and hashed with it.
struct ExtraPart {
  nlohmann::json values = nlohmann::json::object();
  std::map<std::string, AlignedArray<float>> arrays;  // replicated: the same on every worker
};

class JobState;

// A constant copy of a state in memory, for example a branch of a tuner. It is cheap to copy:
// images share the pieces in which they are equal.
class StateImage {
 public:
  static constexpr size_t kPieceSize = 1 << 16;  // floats; the last piece of an array has fewer

  const nlohmann::json& values() const { return values_; }
  // The memory of the pieces that no other image holds.
  size_t own_bytes() const;

 private:
  friend class JobState;
  using Piece = std::shared_ptr<std::vector<float>>;  // not changed once the image is made

  static constexpr const char* kWeights = "weights";  // the array of the weights
  // A piece of an array, by its number, if it equals these values to the bit; else nullptr.
  Piece find(const std::string& array, size_t number, std::span<const float> values) const;

  nlohmann::json values_;
  std::vector<optim::Optimizer::BlockRange> held_;
  std::map<std::string, std::vector<Piece>> arrays_;
  std::map<std::string, StateImage> branches_;
};

// All of a job between two steps: the model's weights and running statistics, the optimiser, the
// moving averages, the loss scaler, counters, the hyperparameters of the next step, evaluations,
// and the parts that step methods and controls add. It can be saved, restored, sent to another
// worker, forked and hashed. All workers that hold the same state continue with the same bits.
//
// It only holds values: Replica and its step method decide how a step changes them. One thread.
class JobState {
 public:
  using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(const optim::ParamLayout&)>;

  // Takes over the model's tensors (flat_model.h). The model outlives this object.
  JobState(nn::Model& model, const spec::JobOptions& job, const MakeOptimizer& make_optimizer);

  // Gives a parameter of the model that is blank its first value.
  void set_blank(const std::string& parameter, const at::Tensor& value);

  FlatModel flat;
  std::unique_ptr<optim::Optimizer> optimizer;
  AlignedArray<float> average, buffer_average;  // empty where averaging is off
  optim::LossScaler scaler;
  Counters counters;
  optim::Hyper hyper;       // of the next step
  optim::Hyper last_hyper;  // of the last one
  Window window;
  // Of the metric line that the last step completed: whoever has the state can write the line that
  // a lost leader did not write. It decides nothing, and is outside the digest.
  std::optional<Window> line;
  std::optional<double> loss;             // of the last update
  std::map<std::string, double> figures;  // of the last update, by name
  int64_t evaluated_at = -1;              // updates done when the last evaluation was made
  int64_t evaluated_step = -1;            // steps done by then
  double evaluated_epoch = 0;             // passes over the training data done by then
  std::optional<Evaluation> last, best;

  // The part of this name; the first call makes an empty one.
  ExtraPart& extra(const std::string& name) { return extras_[name]; }
  const std::map<std::string, ExtraPart>& extras() const { return extras_; }
  // An array of `size` floats in such a part; a new one is zero. Throws conflict if there is one of
  // another size.
  std::span<float> extra_array(const std::string& part, const std::string& name, int64_t size);

  // The state without the tensors, as a checkpoint holds it.
  nlohmann::json values() const;
  void set_values(const nlohmann::json& values, int64_t step);

  // The tensors by name as views into the live arrays, valid until the next step:
  //   model/<parameter>                  fp32 master weights, PyTorch's names
  //   model/<buffer>                     running statistics
  //   optimizer/<state>/<parameter>      e.g. optimizer/momentum_buffer/conv1.weight
  //   average/<parameter or buffer>      their moving averages, where averaging is on
  //   extra/<part>/<array>               of step methods and controls
  //   branch/<name>/<array>/<number>     the pieces of a branch
  // So a checkpoint does not depend on how arrays are padded, sharded or spread over workers. If
  // the optimiser's state is spread over workers, this worker must hold all of it.
  std::vector<ckpt::TensorView> tensors();
  // Some of them: those of the parameters for which `parameters` is true, all of whose blocks are
  // held, and those that belong to no parameter if `others`.
  std::vector<ckpt::TensorView> tensors_of(const std::vector<bool>& parameters, bool others);
  // Elements [begin, begin + size) of parameter number `parameter`, whose blocks are held.
  struct Piece {
    size_t parameter = 0;
    int64_t begin = 0, size = 0;
  };
  // The names of the tensors of a parameter, whether they are held or not.
  std::vector<std::string> tensor_names(const FlatModel::Entry& parameter) const;
  // Adds these elements of the tensors of parameters, as tensors of their own, and what they are.
  void add_pieces(const std::vector<Piece>& pieces, std::vector<ckpt::TensorView>& tensors,
                  std::vector<ckpt::TensorPiece>& of);
  // Restores the tensors of a checkpoint, and `values`: its own, or, if an older version wrote it,
  // these converted to the present form. Throws invalid_argument, naming the tensor, if the
  // checkpoint belongs to another model (a tensor is missing, superfluous or of another shape).
  void restore(const ckpt::Checkpoint& checkpoint, const nlohmann::json& values);
  // The same for a worker that is to hold these blocks: of tensors of parameters it reads no more.
  void restore(const ckpt::Checkpoint& checkpoint, const nlohmann::json& values,
               const std::vector<optim::Optimizer::BlockRange>& blocks);

  // Sends the state to a worker that has none yet, which calls receive(). The blocks of weights,
  // averages and the optimiser's state are not sent: ShardedUpdate::transfer() moves them.
  void send(parallel::Exchange& exchange, int to, const nlohmann::json& job);
  // `check` gets the sender's job before anything is changed; receive() lets through what it
  // throws.
  void receive(parallel::Exchange& exchange, int from, int64_t step,
               const std::function<void(const nlohmann::json& job)>& check);

  // A copy of the state that this worker holds. Pieces that equal those of `like` are shared with
  // it, and pieces that equal those of the weights with these.
  StateImage fork(const StateImage* like = nullptr);
  // Takes the state of the image, to the bit.
  void take(const StateImage& image);

  // Branches are images that the state carries along by name: the trials of a tuner. They are
  // saved, sent, forked and hashed with it. A branch holds everything but the branches, the extra
  // part `apart`, and what counts for the whole job: the protocol step, and the samples and
  // operations that were run. All parts of the state must be held.
  void save_branch(const std::string& name, const std::string& apart);
  // Takes over the state of a branch, which stays.
  void take_branch(const std::string& name, const std::string& apart);
  void drop_branch(const std::string& name) { branches_.erase(name); }
  const std::map<std::string, StateImage>& branches() const { return branches_; }
  void drop_branches() { branches_.clear(); }

  // A hash of the whole state, to the bit (ckpt/digest.h), which equals that of a checkpoint of it.
  // There is none if this worker holds only a part of the state.
  std::optional<std::string> digest();

  // The weights to evaluate and deploy: the moving average, if one is kept, or else those that the
  // rule computes (Optimizer::evaluation_weights). Empty ones mean the trained weights. They are
  // valid for the blocks that this worker holds.
  struct EvaluationWeights {
    AlignedArray<float> computed;    // by the rule
    std::span<float> weights;        // the average in the state, or `computed`
    std::span<float> buffers;        // that belong to them: in the state, or `statistics`
    AlignedArray<float> statistics;  // computed for these weights
    bool of_the_rule = false;        // the optimiser's own, so no part of the state belongs to them
  };
  EvaluationWeights evaluation_weights();
  // The same as tensors under their plain names, for deployment.
  struct Deployed {
    EvaluationWeights weights;
    std::vector<ckpt::TensorView> views;  // into `weights`, or the state
  };
  Deployed deployed(EvaluationWeights weights);

 private:
  struct Array {
    std::string name;
    std::span<float> values;
  };
  std::vector<Array> arrays();  // flat, all that is held
  nlohmann::json branch_values() const;
  void make_branches(const nlohmann::json& values);
  void share_branches();
  struct NamedTensor {
    std::string name;
    Shape shape;
    std::span<float> values;
  };
  std::vector<NamedTensor> named();
  static void check_tensors(const ckpt::Checkpoint& checkpoint,
                            const std::vector<NamedTensor>& wanted);
  void read_blocks(const ckpt::Checkpoint& checkpoint, const optim::Optimizer::BlockRange& blocks);
  void add_parameter(const FlatModel::Entry& parameter, bool with_state,
                     std::vector<NamedTensor>& out);
  void add_others(std::vector<NamedTensor>& out);
  void begin_average(size_t parameter);
  std::vector<std::span<std::byte>> fed();

  std::map<std::string, ExtraPart> extras_;
  std::map<std::string, StateImage> branches_;
};

}  // namespace ductile::train
