#include <cmath>
#include <string>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>

#include "ductile/base/error.h"
#include "ductile/nn/attention_impl.h"
#include "ductile/nn/init.h"
#include "ductile/nn/layer_norm.h"
#include "ductile/nn/operator_model.h"
#include "ductile/nn/precision.h"
#include "ductile/nn/zoo_impl.h"

// Shapes: B batch, T tokens, D width, V range of the tokens.
namespace ductile::nn {
namespace {

// More operators than this take minutes to list.
constexpr int64_t kMostBlocks = 4096;

class Mmt : public OperatorModel {
 public:
  explicit Mmt(const ModelArgs& args)
      : OperatorModel(args),
        dim_(args.options.dim),
        heads_(args.options.heads),
        dropout_(args.options.dropout) {
    std::vector<Source> ends;
    for (size_t i = 0; i < args.info.inputs.size(); ++i) {
      ends.push_back(add_branch(static_cast<int>(i), args.info.inputs[i], args.options.layers));
    }
    const Linear head =
        add_linear("head", dim_ * static_cast<int64_t>(ends.size()), args.num_classes());
    const auto run = [this](Inputs in, Inputs weights, int64_t) {
      std::vector<at::Tensor> means;
      for (const at::Tensor& x_BTD : in)
        means.push_back(cast(widened(x_BTD).mean(at::IntArrayRef{1})));
      return ops::linear(at::cat(means, 1), weights[0], weights[1]);
    };
    finish(add_columns("head", ends, {head.weight, head.bias}, {{0, 0}, run}));
  }

  void set_options(const spec::ModelOptions& options) override { dropout_ = options.dropout; }

 private:
  static constexpr double kStd = 0.02;
  static constexpr double kEps = 1e-5;

  struct EncoderNorm {
    at::Tensor weight, bias;
  };

  Source add_branch(int number, const spec::SampleInput& tokens, int64_t layers) {
    const std::string at = "branches." + std::to_string(number) + ".";
    const std::string position = at + "position", embed = at + "embed.weight";
    const at::Tensor wpe =
        add_parameter(position, init_normal({tokens.length, dim_}, kStd, seed(), position));
    const at::Tensor wte =
        add_parameter(embed, init_normal({tokens.range, dim_}, kStd, seed(), embed));
    Source h =
        add(at + "embed", "embedding", {input(number)}, {wte, wpe}, [this, wte, wpe](Inputs in) {
          return cast(at::embedding(widened(wte), in[0]).add(widened(wpe)));
        });
    for (int64_t l = 0; l < layers; ++l) {
      h = add_layer(at + "layers." + std::to_string(l) + ".", h);
    }
    return h;
  }

  EncoderNorm add_norm(const std::string& name) {
    return {add_norm_parameter(name + ".weight", init_constant({dim_}, 1)),
            add_norm_parameter(name + ".bias", init_constant({dim_}, 0))};
  }

  // x + out_proj(attention(norm1(x))), and then x + linear2(relu(linear1(norm2(x)))); registered in
  // PyTorch's order.
  Source add_layer(const std::string& at, Source x) {
    const bool random = dropout_ > 0;
    const std::string in_proj = at + "self_attn.in_proj_";
    Linear qkv;
    const double bound = std::sqrt(6.0 / static_cast<double>(4 * dim_));  // Xavier, of [3D, D]
    qkv.weight = add_parameter(in_proj + "weight",
                               init_uniform({3 * dim_, dim_}, bound, seed(), in_proj + "weight"));
    qkv.bias = add_parameter(in_proj + "bias", init_constant({3 * dim_}, 0));
    const Linear out = add_linear(at + "self_attn.out_proj", dim_, dim_);
    const Linear linear1 = add_linear(at + "linear1", dim_, 4 * dim_);
    const Linear linear2 = add_linear(at + "linear2", 4 * dim_, dim_);
    const EncoderNorm norm1 = add_norm(at + "norm1"), norm2 = add_norm(at + "norm2");

    const Source projected =
        add_columns(at + "self_attn.in_proj", {x}, {qkv.weight, qkv.bias, norm1.weight, norm1.bias},
                    {{0, 0, -1, -1}, after_norm()});
    const Source attended = add(
        at + "self_attn", "attention", {projected}, {},
        [this](Inputs in) { return multi_head_attention(in[0], heads_, {}, share()); }, random);
    const Source y = add_columns(at + "self_attn.out_proj", {x, attended}, {out.weight, out.bias},
                                 {{0, 0}, onto_residual()}, random);
    const auto inner = [this, run = after_norm()](Inputs in, Inputs weights, int64_t begin) {
      return dropped(relu(run(in, weights, begin)), share());
    };
    const Source wide =
        add_columns(at + "linear1", {y}, {linear1.weight, linear1.bias, norm2.weight, norm2.bias},
                    {{0, 0, -1, -1}, inner}, random);
    return add_columns(at + "linear2", {y, wide}, {linear2.weight, linear2.bias},
                       {{0, 0}, onto_residual()}, random);
  }

  using RunColumns = decltype(Columns::run);

  // A layer of the normalised input: its weight and bias, and those of the norm.
  RunColumns after_norm() const {
    return [this](Inputs in, Inputs weights, int64_t) {
      return ops::linear(norm({weights[2], weights[3]}, in[0]), weights[0], weights[1]);
    };
  }

  // The first input, and what a layer makes of the second.
  RunColumns onto_residual() const {
    return [this](Inputs in, Inputs weights, int64_t begin) {
      const at::Tensor y = dropped(ops::linear(in[1], weights[0], weights[1]), share());
      return columns_of(in[0], begin, y.size(-1)).add(y);
    };
  }

  at::Tensor norm(const EncoderNorm& layer, const at::Tensor& x) const {
    return cast(ops::layer_norm(x.to(layer.weight.scalar_type()), layer.weight, layer.bias, kEps));
  }

  double share() const { return training() ? dropout_ : 0; }

  int64_t dim_, heads_;
  double dropout_;
};

}  // namespace

std::unique_ptr<Model> make_mmt(const ModelArgs& args) {
  for (const spec::SampleInput& input : args.info.inputs) {
    if (input.kind == spec::SampleInput::Kind::tokens) continue;
    fail(ErrorCode::invalid_argument,
         "model.name = \"mmt\" reads tokens, and an input is \"{}\"; write \"tokens:LENGTH:RANGE\" "
         "in "
         "data.synthetic.inputs",
         spec::to_texts({input}).front());
  }
  if (args.info.inputs.empty()) {
    fail(ErrorCode::invalid_argument,
         "model.name = \"mmt\" reads several inputs; use data.format = \"synthetic\" with "
         "data.synthetic.inputs such as [\"4*tokens:32:64\"]");
  }
  if (args.options.dim % args.options.heads != 0) {
    fail(ErrorCode::invalid_argument, "model.dim = {} is not divisible by model.heads = {}",
         args.options.dim, args.options.heads);
  }
  const auto blocks = static_cast<int64_t>(args.info.inputs.size()) * args.options.layers;
  if (blocks > kMostBlocks) {
    fail(ErrorCode::invalid_argument,
         "model.layers = {} for each of {} inputs are {} blocks; at most {} are made",
         args.options.layers, args.info.inputs.size(), blocks, kMostBlocks);
  }
  return std::make_unique<Mmt>(args);
}

}  // namespace ductile::nn
