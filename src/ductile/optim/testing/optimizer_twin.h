#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ductile/optim/optimizer.h"

// What the tests of the update rules share: a model's buffers, and the rules as their papers state
// them.
namespace ductile::optim::testing {

using Vector = std::vector<double>;

// Weights, gradient and the optional outputs of one model, filled from a seed. Parameters whose
// name begins with "zero" have weights of 0.
struct Buffers {
  explicit Buffers(const ParamLayout& layout, uint64_t seed = 1);

  static float& at(std::vector<float>& v, const Segment& s, int64_t i) {
    return v[static_cast<size_t>(s.offset + i)];
  }
  void draw_gradient(uint64_t step);
  StepInput input(double lr);
  StepInput full_input(double lr, DType type = DType::bf16);

  ParamLayout layout;
  std::vector<float> weights, gradient;
  std::vector<uint16_t> half;
  std::vector<float> ema;
  Hyper hyper;
};

// Parameters of all kinds: matrices, filters, vectors, an empty one and a scalar.
ParamLayout example_layout(const spec::OptimizerOptions& o = {});

// As in step number `step` of a run of 100 in 10 epochs, whose loss goes up and down.
StepInput moved(StepInput in, uint64_t step);

// The rules with one tensor at a time, elements in plain loops, all in double.
class Twin {
 public:
  Twin(const spec::OptimizerOptions& options, const Buffers& buffers);

  void step(const StepInput& in);
  // The weights that the rule means.
  Vector meant() const;

  Vector w;

 private:
  void step_nlcg(const StepInput& in);
  void step_neumann(const StepInput& in);
  void muon(std::span<double> w_s, const Vector& g, std::span<double> m, const Segment& s,
            const Hyper& h);
  // The state of this name, zero at first.
  Vector& state(const std::string& name);

  spec::OptimizerOptions o_;
  ParamLayout layout_;
  int64_t steps_ = 0;
  std::map<std::string, Vector> state_;
  std::map<std::string, double> kept_;
};

// X after `steps` Newton-Schulz steps from matrix / (|matrix| + eps), by definition.
Vector newton_schulz(Vector matrix, int64_t rows, int64_t steps, std::span<const double> abc,
                     double eps);

}  // namespace ductile::optim::testing
