#include <cmath>
#include <string>
#include <utility>

#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/ones.h>

#include "ductile/base/error.h"
#include "ductile/nn/attention_impl.h"
#include "ductile/nn/init.h"
#include "ductile/nn/layer_norm.h"
#include "ductile/nn/operator_model.h"
#include "ductile/nn/precision.h"
#include "ductile/nn/zoo_impl.h"

// Shapes: B batch, T tokens, D width, H heads, V vocabulary.
namespace ductile::nn {
namespace {

// Hugging Face's Conv1D: weight [I, O], the transpose of nn.Linear's.
struct Conv1D {
  at::Tensor weight, bias;
};

struct LayerNorm {
  at::Tensor weight, bias;
};

class Gpt : public OperatorModel {
 public:
  explicit Gpt(const ModelArgs& args)
      : OperatorModel(args),
        dim_(args.options.dim),
        heads_(args.options.heads),
        dropout_(args.options.dropout),
        context_(args.info.sequence_length) {
    const std::string wte = "transformer.wte.weight", wpe = "transformer.wpe.weight";
    wte_ = add_parameter(wte, init_normal({args.vocab_size(), dim_}, kStd, seed(), wte));
    wpe_ = add_parameter(wpe, init_normal({context_, dim_}, kStd, seed(), wpe));
    future_ = at::ones({context_, context_}, at::kBool).triu(1);
    const bool random = dropout_ > 0;
    Source h = add(
        "transformer.wte", "embedding", {input()}, {wte_, wpe_},
        [this](Inputs x) { return embed(x[0]); }, random);
    // Layers that write into the residual stream begin smaller (the paper, section 2.3).
    const double out_std = kStd / std::sqrt(2.0 * static_cast<double>(args.options.layers));
    for (int64_t i = 0; i < args.options.layers; ++i) {
      const std::string at = "transformer.h." + std::to_string(i) + ".";
      h = add_attention(at, out_std, h, random);
      h = add_mlp(at, out_std, h, random);
    }
    const LayerNorm ln_f = add_norm("transformer.ln_f");
    finish(add("transformer.ln_f", "linear", {h}, {ln_f.weight, ln_f.bias, wte_},
               [this, ln_f](Inputs x) { return ops::linear(norm(ln_f, x[0]), wte_, {}); }));
  }

  void set_options(const spec::ModelOptions& options) override { dropout_ = options.dropout; }

 private:
  static constexpr double kStd = 0.02;
  static constexpr double kEps = 1e-5;

  Conv1D add_conv1d(const std::string& name, int64_t in, int64_t out, double stddev) {
    const std::string weight = name + ".weight";
    return {add_parameter(weight, init_normal({in, out}, stddev, seed(), weight)),
            add_parameter(name + ".bias", init_constant({out}, 0))};
  }

  LayerNorm add_norm(const std::string& name) {
    return {add_norm_parameter(name + ".weight", init_constant({dim_}, 1)),
            add_norm_parameter(name + ".bias", init_constant({dim_}, 0))};
  }

  // x + proj(attention(ln_1(x)))
  Source add_attention(const std::string& at, double out_std, Source x, bool random) {
    const LayerNorm ln = add_norm(at + "ln_1");
    const Conv1D attn = add_conv1d(at + "attn.c_attn", dim_, 3 * dim_, kStd);
    const Conv1D proj = add_conv1d(at + "attn.c_proj", dim_, dim_, out_std);
    const Source qkv = add_normed(at + "attn.c_attn", ln, attn, x);
    const Source attended = add(
        at + "attn", "attention", {qkv}, {}, [this](Inputs in) { return attend(in[0]); }, random);
    const auto project = [this](Inputs in, Inputs weights, int64_t begin) {
      return beside(in[0], drop(ops::affine(in[1], weights[0], weights[1])), begin);
    };
    return add_columns(at + "attn.c_proj", {x, attended}, {proj.weight, proj.bias},
                       {{1, 0}, project}, random);
  }

  // x + proj(gelu(fc(ln_2(x))))
  Source add_mlp(const std::string& at, double out_std, Source x, bool random) {
    const LayerNorm ln = add_norm(at + "ln_2");
    const Conv1D fc = add_conv1d(at + "mlp.c_fc", dim_, 4 * dim_, kStd);
    const Conv1D proj = add_conv1d(at + "mlp.c_proj", 4 * dim_, dim_, out_std);
    const Source inner = add_normed(at + "mlp.c_fc", ln, fc, x);
    const auto project = [this](Inputs in, Inputs weights, int64_t begin) {
      const at::Tensor active = cast(at::gelu(widened(in[1]), "tanh"));
      return beside(in[0], drop(ops::affine(active, weights[0], weights[1])), begin);
    };
    return add_columns(at + "mlp.c_proj", {x, inner}, {proj.weight, proj.bias}, {{1, 0}, project},
                       random);
  }

  Source add_normed(std::string name, const LayerNorm& ln, const Conv1D& layer, Source x) {
    const auto run = [this](Inputs in, Inputs weights, int64_t) {
      return ops::affine(norm({weights[0], weights[1]}, in[0]), weights[2], weights[3]);
    };
    return add_columns(std::move(name), {x}, {ln.weight, ln.bias, layer.weight, layer.bias},
                       {{-1, -1, 1, 0}, run});
  }

  at::Tensor embed(const at::Tensor& tokens_BT) const {
    const int64_t tokens = tokens_BT.size(1);
    if (tokens > context_) {
      fail(ErrorCode::invalid_argument, "{} tokens a sample, but the model has {} positions",
           tokens, context_);
    }
    return drop(
        cast(at::embedding(widened(wte_), tokens_BT).add(widened(wpe_).slice(0, 0, tokens))));
  }

  // Columns of the residual stream: what they were, and what a layer adds.
  static at::Tensor beside(const at::Tensor& x, const at::Tensor& y, int64_t begin) {
    return columns_of(x, begin, y.size(-1)).add(y);
  }

  at::Tensor norm(const LayerNorm& layer, const at::Tensor& x) const {
    return cast(ops::layer_norm(x.to(layer.weight.scalar_type()), layer.weight, layer.bias, kEps));
  }

  at::Tensor drop(const at::Tensor& x) const { return dropped(x, training() ? dropout_ : 0); }

  // Causal.
  at::Tensor attend(const at::Tensor& qkv) const {
    const int64_t tokens = qkv.size(1);
    const at::Tensor future_TT = future_.to(qkv.device()).slice(0, 0, tokens).slice(1, 0, tokens);
    return multi_head_attention(qkv, heads_, future_TT, training() ? dropout_ : 0);
  }

  int64_t dim_, heads_;
  double dropout_;
  int64_t context_;
  at::Tensor wte_, wpe_;  // [V, D], [positions, D]
  at::Tensor future_;     // [positions, positions]: what each position may not see
};

}  // namespace

std::unique_ptr<Model> make_gpt(const ModelArgs& args) {
  if (args.info.sequence_length < 1) {
    fail(ErrorCode::invalid_argument,
         "model.name = \"gpt\" reads tokens; use data.format = \"tokens\"");
  }
  if (args.options.dim % args.options.heads != 0) {
    fail(ErrorCode::invalid_argument, "model.dim = {} is not divisible by model.heads = {}",
         args.options.dim, args.options.heads);
  }
  return std::make_unique<Gpt>(args);
}

}  // namespace ductile::nn
