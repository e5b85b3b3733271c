// DLRM and CANDLE-Uno: a branch for each input, joined, and dense layers on top.
#include <cmath>
#include <string>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>

#include "ductile/base/error.h"
#include "ductile/nn/init.h"
#include "ductile/nn/operator_model.h"
#include "ductile/nn/precision.h"
#include "ductile/nn/zoo_impl.h"

namespace ductile::nn {
namespace {

class Towers : public OperatorModel {
 public:
  explicit Towers(const ModelArgs& args) : OperatorModel(args), widths_(args.options.hidden) {
    std::vector<Source> ends;
    int64_t joined = 0;
    for (size_t i = 0; i < args.info.inputs.size(); ++i) {
      const spec::SampleInput& in = args.info.inputs[i];
      const std::string name = "branches." + std::to_string(i);
      const Source x = input(static_cast<int>(i));
      if (in.is_numbers()) {
        ends.push_back(add_table(name, in, args.options.dim, x));
        joined += in.length * args.options.dim;
      } else {
        ends.push_back(add_tower(name, in.length, x));
        joined += widths_.empty() ? in.length : widths_.back();
      }
    }
    const Source all = add("concat", "concat", ends, {}, [this](Inputs in) {
      return cast(at::cat(at::TensorList(in.data(), in.size()), 1));
    });
    const Source top = add_tower("top", joined, all);
    finish(add_dense(
        "head", add_linear("head", widths_.empty() ? joined : widths_.back(), args.num_classes()),
        top, false));
  }

 private:
  Source add_tower(const std::string& name, int64_t in, Source x) {
    for (size_t l = 0; l < widths_.size(); ++l) {
      const std::string layer = name + "." + std::to_string(l);
      x = add_dense(layer, add_linear(layer, in, widths_[l]), x, true);
      in = widths_[l];
    }
    return x;
  }

  // The rows of all indices, one after another. First values as in the paper's program.
  Source add_table(const std::string& name, const spec::SampleInput& in, int64_t width, Source x) {
    const std::string weight = name + ".weight";
    const double bound = 1 / std::sqrt(static_cast<double>(in.range));
    const at::Tensor table =
        add_parameter(weight, init_uniform({in.range, width}, bound, seed(), weight));
    return add(name, "embedding", {x}, {table}, [this, table](Inputs inputs) {
      return cast(at::embedding(widened(table), inputs[0]).flatten(1));
    });
  }

  const std::vector<int64_t> widths_;
};

// `tables`: whether indices are read, too.
void require_inputs(const ModelArgs& args, bool tables, const char* example) {
  using Kind = spec::SampleInput::Kind;
  const char* const what = tables ? "vectors and indices" : "vectors";
  if (args.info.inputs.empty()) {
    fail(ErrorCode::invalid_argument,
         "model.name = \"{}\" reads several inputs, {}; use data.format = \"synthetic\" with "
         "data.synthetic.inputs such as {}",
         args.options.name, what, example);
  }
  for (const spec::SampleInput& input : args.info.inputs) {
    if (input.kind == Kind::vector || (tables && input.kind == Kind::indices)) continue;
    fail(ErrorCode::invalid_argument,
         "model.name = \"{}\" reads {}, and an input is \"{}\"; set data.synthetic.inputs to "
         "such as {}",
         args.options.name, what, spec::to_texts({input}).front(), example);
  }
}

}  // namespace

std::unique_ptr<Model> make_dlrm(const ModelArgs& args) {
  require_inputs(args, true, "[\"7*vector:64\", \"7*indices:4:1000\"]");
  return std::make_unique<Towers>(args);
}

std::unique_ptr<Model> make_candle_uno(const ModelArgs& args) {
  require_inputs(args, false, "[\"7*vector:64\"]");
  return std::make_unique<Towers>(args);
}

}  // namespace ductile::nn
