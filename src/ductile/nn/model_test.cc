#include "ductile/nn/model.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/nn/first_values.h"
#include "ductile/nn/init.h"
#include "ductile/nn/operators.h"
#include "ductile/nn/testing/several_inputs.h"
#include "ductile/spec/models.h"

namespace ductile::nn {
namespace {

// The twin of hashed() in testdata/make_goldens.py: values in [-0.5, 0.5).
at::Tensor hashed(std::string_view name, at::IntArrayRef shape) {
  uint32_t h = 0x811C9DC5;
  for (unsigned char c : name) h = (h ^ c) * 0x01000193;
  at::Tensor t = at::empty(shape, at::kDouble);
  double* values = t.data_ptr<double>();
  for (int64_t i = 0; i < t.numel(); ++i) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + h;
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 16)) * 0x846CA68Bu;
    x ^= x >> 16;
    values[i] = x / 4294967296.0 - 0.5;
  }
  return t;
}

at::Tensor golden_weight(const std::string& name, at::IntArrayRef shape) {
  if (name.ends_with("bn3.weight")) return hashed(name, shape).mul(0.12).add(0.3);
  if (shape.size() == 1) {
    const bool scale = name.ends_with(".weight");
    return hashed(name, shape).mul(0.4).add(scale ? 1.0 : 0.0);
  }
  int64_t fan = 1;
  for (size_t i = 1; i < shape.size(); ++i) fan *= shape[i];
  return hashed(name, shape).mul(std::sqrt(24.0 / static_cast<double>(fan)));
}

// Relative to the largest reference value.
void expect_near(const at::Tensor& got, const std::vector<double>& want, double tolerance,
                 const std::string& what) {
  const at::Tensor g = got.detach().to(at::kDouble).contiguous().flatten();
  ASSERT_EQ(static_cast<size_t>(g.numel()), want.size()) << what;
  double scale = 1e-12;
  for (double w : want) scale = std::max(scale, std::abs(w));
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(g.data_ptr<double>()[i], want[i], tolerance * scale) << what << " at " << i;
  }
}

ModelArgs args_for(const std::string& model) {
  ModelArgs args;
  args.options.name = model;
  args.seed = 7;
  if (model == "airbench-deep") {
    args.options.name = "airbench";
    args.options.width = 16;
    args.options.later_width = 24;
    args.options.convolutions = 3;
    args.info = {3, 32, 32, 10, 0};
    return args;
  }
  if (model == "gpt") {
    args.options.layers = 2;
    args.options.heads = 2;
    args.options.dim = 16;
    args.info = {0, 0, 0, 11, 8};
  } else if (const auto inputs = testing::inputs_for(model); !inputs.empty()) {
    args.options.layers = 2;
    args.options.heads = 2;
    args.options.dim = 8;
    args.options.hidden = {7, 9};
    args.info = {0, 0, 0, 4, 0, inputs};
  } else if (model == "cnn") {
    args.info = {1, 28, 28, 10, 0};
  } else if (model == "mlp") {
    args.options.hidden = {7, 9};
    args.info = {3, 6, 5, 4, 0};
  } else {
    const bool large = model == "resnet18" || model == "resnet50" || model == "airbench";
    const int64_t side = large ? 32 : 16;
    args.info = {3, side, side, 10, 0};
  }
  return args;
}

struct Batch {
  Tensors x;
  at::Tensor labels;
};

// The twin of several() in testdata/make_goldens.py.
Tensors hashed_inputs(const std::vector<spec::SampleInput>& inputs, int64_t samples,
                      at::ScalarType type) {
  Tensors out;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor h = hashed("input" + std::to_string(i), {samples, inputs[i].length});
    out.push_back(inputs[i].is_numbers()
                      ? h.add(0.5).mul(static_cast<double>(inputs[i].range)).floor().to(at::kLong)
                      : h.mul(std::sqrt(12.0)).to(type));
  }
  return out;
}

Batch batch_for(const ModelArgs& args, at::IntArrayRef shape, bool channels_last = true,
                at::ScalarType type = at::kFloat) {
  Batch b;
  const auto classes = static_cast<double>(args.info.num_classes);
  if (!args.info.inputs.empty()) {
    b.x = hashed_inputs(args.info.inputs, shape[0], type);
    b.labels = at::arange(shape[0], at::kLong).remainder(args.info.num_classes);
  } else if (args.info.sequence_length > 0) {
    b.x = {hashed("input", shape).add(0.5).mul(classes).floor().to(at::kLong)};
    b.labels = hashed("labels", shape).add(0.5).mul(classes).floor().to(at::kLong);
  } else {
    b.x = {hashed("input", shape).mul(std::sqrt(12.0)).to(type)};
    if (channels_last) b.x[0] = b.x[0].contiguous(at::MemoryFormat::ChannelsLast);
    if (args.options.name == "unet") {
      const std::vector<int64_t> pixels = {shape[0], shape[2], shape[3]};
      b.labels = hashed("labels", pixels).add(0.5).mul(classes).floor().to(at::kLong);
      return b;
    }
    b.labels = at::arange(shape[0], at::kLong).remainder(args.info.num_classes);
  }
  return b;
}

std::vector<int64_t> small_shape(const ModelArgs& args) {
  if (!args.info.inputs.empty()) return {4};
  if (args.info.sequence_length > 0) return {3, 6};
  return {4, args.info.channels, args.info.height, args.info.width};
}

double train_step(Model& model, const Batch& b) {
  seed_step(99);
  for (NamedTensor& p : model.parameters()) p.tensor.mutable_grad() = at::Tensor();
  const at::Tensor loss = model.loss(forward(model, b.x), b.labels, 0.1).losses.mean();
  loss.backward();
  return loss.item<double>();
}

// ---- against PyTorch -----------------------------------------------------------------------

std::vector<nlohmann::json> goldens() {
  std::ifstream in(DUCTILE_SOURCE_DIR "/src/ductile/nn/testdata/goldens.json");
  return nlohmann::json::parse(in).get<std::vector<nlohmann::json>>();
}

// In double, by ATen's operators, the models themselves are held to PyTorch's double results; in
// float, our kernels in them, as far as rounding lets.
enum class How { fp64, channels_last, contiguous };

class Golden : public ::testing::TestWithParam<std::tuple<size_t, How>> {};

TEST_P(Golden, NamesOutputsGradientsAndStatisticsAreThoseOfPyTorch) {
  const auto [index, how] = GetParam();
  const nlohmann::json all = goldens();
  ASSERT_LT(index, all.size());
  const nlohmann::json golden = all[index];
  const std::string name = golden["model"];
  const bool fp64 = how == How::fp64;
  const at::ScalarType type = fp64 ? at::kDouble : at::kFloat;
  const bool deep = name.starts_with("resnet18") || name == "resnet50";
  const double tolerance = fp64 ? 1e-9 : deep ? 1e-3 : 2e-4;
  // In float, a ReLU whose input is almost zero may open on one side only, which deep gradients
  // feel.
  const double grad_tolerance = !fp64 && name.starts_with("resnet") ? 2e-2 : tolerance;
  ModelArgs args = args_for(name);
  if (fp64) args.precision = "fp64";
  const auto model = make_model(args);
  const auto parameters = model->parameters();
  ASSERT_EQ(parameters.size(), golden["parameters"].size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const nlohmann::json& want = golden["parameters"][i];
    ASSERT_EQ(parameters[i].name, want["name"].get<std::string>());
    ASSERT_EQ(parameters[i].tensor.sizes().vec(), want["shape"].get<std::vector<int64_t>>());
    // As the trainer does: new storage under the model's tensors.
    parameters[i].tensor.set_data(
        golden_weight(parameters[i].name, parameters[i].tensor.sizes()).to(type));
  }
  for (NamedTensor& buffer : model->buffers()) buffer.tensor.set_data(buffer.tensor.to(type));
  const std::vector<int64_t> shape = golden["input"];
  const Batch b = batch_for(args, shape, how != How::contiguous, type);
  const at::Tensor logits = forward(*model, b.x);
  const LossOutput loss = model->loss(logits, b.labels, 0.1);
  loss.losses.mean().backward();
  expect_near(logits, golden["logits"], tolerance, "logits");
  expect_near(loss.losses, golden["losses"], tolerance, "losses");
  for (size_t i = 0; i < parameters.size(); ++i) {
    const nlohmann::json& want = golden["parameters"][i];
    const at::Tensor grad = parameters[i].tensor.grad();
    EXPECT_EQ(want["grad_norm"].is_null(), parameters[i].frozen) << parameters[i].name;
    if (parameters[i].frozen) continue;
    ASSERT_TRUE(grad.defined()) << parameters[i].name;
    const double norm = want["grad_norm"];
    const double probe = grad.to(at::kDouble)
                             .mul(hashed("probe" + parameters[i].name, grad.sizes()))
                             .sum()
                             .item<double>();
    EXPECT_NEAR(grad.to(at::kDouble).norm().item<double>(), norm,
                grad_tolerance * norm + (fp64 ? 1e-12 : 1e-7))
        << parameters[i].name;
    EXPECT_NEAR(probe, want["grad_probe"].get<double>(),
                grad_tolerance * norm + (fp64 ? 1e-12 : 1e-7))
        << parameters[i].name;
  }
  const auto buffers = model->buffers();
  ASSERT_EQ(buffers.size(), golden["buffers"].size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    const nlohmann::json& want = golden["buffers"][i];
    ASSERT_EQ(buffers[i].name, want["name"].get<std::string>());
    const at::Tensor v = buffers[i].tensor.to(at::kDouble);
    EXPECT_NEAR(v.mul(hashed("probe" + buffers[i].name, v.sizes())).sum().item<double>(),
                want["probe"].get<double>(),
                tolerance * want["norm"].get<double>() + (fp64 ? 1e-12 : 1e-6))
        << buffers[i].name;
  }
  model->train(false);
  expect_near(forward(*model, b.x), golden["eval_logits"], tolerance, "logits in evaluation");
}

// Not gpt and mmt: their norms and softmax are float by design.
INSTANTIATE_TEST_SUITE_P(InDouble, Golden,
                         ::testing::Combine(::testing::Range<size_t>(0, 9),
                                            ::testing::Values(How::fp64)));
INSTANTIATE_TEST_SUITE_P(SeveralInputsInDouble, Golden,
                         ::testing::Combine(::testing::Range<size_t>(10, 12),
                                            ::testing::Values(How::fp64)));
INSTANTIATE_TEST_SUITE_P(Zoo, Golden,
                         ::testing::Combine(::testing::Range<size_t>(0, 13),
                                            ::testing::Values(How::channels_last,
                                                              How::contiguous)));

// ---- what every model keeps ------------------------------------------------------------------

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const ModelEntry& e : model_table()) all.emplace_back(e.name);
  return all;
}

class Conformance : public ::testing::TestWithParam<std::string> {};

TEST_P(Conformance, NamesAreUniqueAndTensorsAreLeavesInTheRightType) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    ModelArgs args = args_for(GetParam());
    args.precision = precision;
    const auto model = make_model(args);
    const at::ScalarType low = args.precision == "bf16"   ? at::kBFloat16
                               : args.precision == "fp16" ? at::kHalf
                                                          : at::kFloat;
    std::set<std::string> seen;
    for (const NamedTensor& p : model->parameters()) {
      EXPECT_TRUE(seen.insert(p.name).second) << p.name;
      EXPECT_TRUE(p.tensor.is_leaf()) << p.name;
      EXPECT_NE(p.tensor.requires_grad(), p.frozen) << p.name;
      EXPECT_EQ(p.tensor.scalar_type(), p.is_norm ? at::kFloat : low) << p.name;
      EXPECT_TRUE(p.tensor.is_contiguous()) << p.name;
    }
    for (const NamedTensor& b : model->buffers()) {
      EXPECT_TRUE(seen.insert(b.name).second) << b.name;
      EXPECT_FALSE(b.tensor.requires_grad()) << b.name;
      EXPECT_EQ(b.tensor.scalar_type(), at::kFloat) << b.name;
    }
  }
}

TEST_P(Conformance, EveryParameterGetsAFiniteGradientOfItsTypeInEveryPrecision) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    ModelArgs args = args_for(GetParam());
    args.precision = precision;
    const auto model = make_model(args);
    train_step(*model, batch_for(args, small_shape(args)));
    for (const NamedTensor& p : model->parameters()) {
      const at::Tensor grad = p.tensor.grad();
      EXPECT_NE(grad.defined(), p.frozen) << precision << " " << p.name;
      if (p.frozen) continue;
      ASSERT_TRUE(grad.defined()) << precision << " " << p.name;
      EXPECT_EQ(grad.scalar_type(), p.tensor.scalar_type()) << precision << " " << p.name;
      EXPECT_TRUE(grad.to(at::kFloat).isfinite().all().item<bool>()) << precision << " " << p.name;
    }
  }
}

TEST_P(Conformance, RepeatedRunsAreBitEqualWhateverTheGlobalSeed) {
  ModelArgs args = args_for(GetParam());
  args.options.dropout = 0.1;
  const Batch b = batch_for(args, small_shape(args));
  at::manual_seed(1);
  const auto one = make_model(args);
  at::manual_seed(2);
  const auto two = make_model(args);
  EXPECT_EQ(train_step(*one, b), train_step(*two, b));
  const auto p = one->parameters(), q = two->parameters();
  for (size_t i = 0; i < p.size(); ++i) {
    EXPECT_TRUE(at::equal(p[i].tensor, q[i].tensor)) << p[i].name;
    if (p[i].frozen) continue;
    EXPECT_TRUE(at::equal(p[i].tensor.grad(), q[i].tensor.grad())) << p[i].name;
  }
  args.seed = 8;
  EXPECT_NE(train_step(*make_model(args), b), train_step(*one, b));
}

TEST_P(Conformance, TrainingAndEvaluationDifferWhereTheyShould) {
  ModelArgs args = args_for(GetParam());
  args.options.dropout = 0.2;
  const Batch b = batch_for(args, small_shape(args));
  const auto model = make_model(args);
  seed_step(1);
  const at::Tensor training = forward(*model, b.x).detach().clone();
  std::vector<at::Tensor> before;
  for (const NamedTensor& t : model->buffers()) before.push_back(t.tensor.clone());
  model->train(false);
  const at::Tensor evaluation = forward(*model, b.x);
  const bool plain = GetParam() == "mlp" || GetParam() == "dlrm" || GetParam() == "candle-uno";
  EXPECT_EQ(at::equal(training, evaluation), plain);
  EXPECT_TRUE(at::equal(evaluation, forward(*model, b.x)));
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(at::equal(before[i], model->buffers()[i].tensor)) << "evaluation wrote a buffer";
  }
}

TEST_P(Conformance, TheTableStatesTheNumberOfParameters) {
  for (const spec::ModelHelp& help : spec::models()) {
    if (help.name != GetParam()) continue;
    ModelArgs args;
    args.options.name = help.name;
    if (help.input == spec::ModelInput::several) {  // the table's reference in words
      const std::string mmt = "4*tokens:32:64", vectors = "7*vector:64";
      args.info = {0,
                   0,
                   0,
                   help.name == "dlrm" ? 2 : 10,
                   0,
                   spec::sample_inputs(help.name == "mmt" ? std::vector{mmt}
                                       : help.name == "dlrm"
                                           ? std::vector{vectors, std::string("7*indices:4:1000")}
                                           : std::vector{vectors})};
    } else if (help.input == spec::ModelInput::tokens) {
      args.info = {0, 0, 0, 256, 128};
    } else if (help.reference.starts_with("28x28x1")) {
      args.info = {1, 28, 28, 10, 0};
    } else if (help.reference.starts_with("32x32x3")) {
      args.info = {3, 32, 32, 10, 0};
    } else if (help.reference.starts_with("64x64x3")) {
      args.info = {3, 64, 64, 4, 0};
    } else {
      args.info = {3, 224, 224, 1000, 0};
    }
    int64_t count = 0;
    for (const NamedTensor& p : make_model(args)->parameters()) {
      if (!p.frozen) count += p.tensor.numel();
    }
    EXPECT_EQ(count, help.num_parameters);
  }
}

// What a worker does that is to hold a part of a model.
TEST_P(Conformance, HandsOverTheFirstValuesThatAreWantedAndKeepsNone) {
  ModelArgs args = args_for(GetParam());
  for (const char* precision : {"fp32", "bf16"}) {
    args.precision = precision;
    const std::vector<NamedTensor> whole = make_model(args)->parameters();
    for (const size_t part : {size_t{0}, size_t{1}}) {
      std::set<std::string, std::less<>> wanted;
      for (size_t i = part; i < whole.size(); i += 2) wanted.insert(whole[i].name);
      std::map<std::string, at::Tensor> taken;
      std::vector<NamedTensor> kept;
      {
        const FirstValues first(
            [&](std::string_view name) { return wanted.contains(name); },
            [&](const std::string& name, const at::Tensor& value) { taken[name] = value.clone(); });
        kept = make_model(args)->parameters();
      }
      EXPECT_EQ(taken.size(), wanted.size());
      ASSERT_EQ(kept.size(), whole.size());
      for (size_t i = 0; i < whole.size(); ++i) {
        const at::Tensor have = kept[i].tensor, want = whole[i].tensor;
        EXPECT_EQ(kept[i].name, whole[i].name);
        EXPECT_TRUE(kept[i].blank && !whole[i].blank) << whole[i].name;
        EXPECT_TRUE(have.sizes() == want.sizes()) << whole[i].name;
        EXPECT_EQ(have.scalar_type(), want.scalar_type()) << whole[i].name;
        EXPECT_EQ(have.requires_grad(), want.requires_grad()) << whole[i].name;
        EXPECT_EQ(have.count_nonzero().item<int64_t>(), 0) << whole[i].name;
        if (wanted.contains(whole[i].name)) {
          EXPECT_TRUE(at::equal(taken.at(whole[i].name), want.detach())) << whole[i].name;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Zoo, Conformance, ::testing::ValuesIn(names()), [](const auto& info) {
  std::string name = info.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

// ---- the rest ----------------------------------------------------------------------------------

TEST(Init, DependsOnSeedNameAndPlaceAloneAndHasItsMoments) {
  at::set_num_threads(1);
  const at::Tensor one = init_normal({100, 100}, 0.5, 3, "w");
  at::set_num_threads(2);
  EXPECT_TRUE(at::equal(one, init_normal({100, 100}, 0.5, 3, "w")));
  EXPECT_FALSE(at::equal(one, init_normal({100, 100}, 0.5, 3, "v")));
  EXPECT_FALSE(at::equal(one, init_normal({100, 100}, 0.5, 4, "w")));
  EXPECT_NEAR(one.mean().item<double>(), 0, 0.02);
  EXPECT_NEAR(one.std().item<double>(), 0.5, 0.02);
  const at::Tensor uniform = init_uniform({20000}, 0.3, 3, "w");
  EXPECT_NEAR(uniform.std().item<double>(), 0.3 / std::sqrt(3.0), 0.005);
  EXPECT_GE(uniform.min().item<double>(), -0.3);
  EXPECT_LT(uniform.max().item<double>(), 0.3);
}

TEST(Loss, CountsWhatIsRightAndAveragesTokens) {
  const ModelArgs args = args_for("gpt");
  const auto model = make_model(args);
  at::Tensor logits = at::empty({2, 3, 11}).zero_();
  logits[0][1][4] = 5;
  const at::Tensor labels = at::empty({2, 3}, at::kLong).fill_(4);
  const LossOutput out = model->loss(logits, labels, 0);
  EXPECT_EQ(out.correct, 1);
  EXPECT_EQ(out.predictions, 6);
  const double flat = std::log(11.0), peaked = std::log(10 + std::exp(5.0)) - 5;
  expect_near(out.losses, {(2 * flat + peaked) / 3, flat}, 1e-6, "losses");
}

// The same network, written down in ATen's operators.
at::Tensor plain_unet(Model& model, const at::Tensor& x) {
  std::map<std::string, at::Tensor> p;
  for (const NamedTensor& t : model.parameters()) p[t.name] = t.tensor;
  const auto block = [&](const std::string& name, const std::string& index, const at::Tensor& in) {
    const at::Tensor w = p.at(name + ".conv" + index + ".weight");
    const at::Tensor y =
        at::conv2d(in, w, {}, at::IntArrayRef{1, 1}, {w.size(2) / 2, w.size(2) / 2});
    return at::batch_norm(y, p.at(name + ".bn" + index + ".weight"),
                          p.at(name + ".bn" + index + ".bias"), {}, {}, true, 0.1, 1e-5, false)
        .relu();
  };
  std::vector<at::Tensor> levels;
  at::Tensor h = x;
  for (const char* name : {"down1", "down2", "down3", "down4"}) {
    if (!levels.empty()) h = at::max_pool2d(h, {2, 2}, {2, 2});
    h = block(name, "2", block(name, "1", h));
    levels.push_back(h);
  }
  for (int level = 3; level >= 1; --level) {
    const std::string name = "up" + std::to_string(level);
    h = block(name, "0", h);
    h = h.repeat_interleave(2, 2).repeat_interleave(2, 3);
    h = block(name, "2", block(name, "1", at::cat({levels[level - 1], h}, 1)));
  }
  return at::conv2d(h, p.at("head.weight"), p.at("head.bias"));
}

TEST(UNet, EqualsPlainOperatorsAndLearnsAClassForEachPixel) {
  ModelArgs args = args_for("unet");
  args.precision = "fp64";
  const auto model = make_model(args);
  const Batch b = batch_for(args, {2, 3, 24, 16});
  const at::Tensor x = b.x[0].to(at::kDouble), logits = model->forward(x);
  const at::Tensor want = plain_unet(*model, x);
  ASSERT_EQ(logits.sizes(), at::IntArrayRef({2, 10, 24, 16}));
  EXPECT_LT((logits - want).abs().max().item<double>(), 1e-12);

  const LossOutput out = model->loss(logits, b.labels, 0.1);
  const at::Tensor want_losses =
      at::cross_entropy_loss(want, b.labels, {}, at::Reduction::None, -100, 0.1).mean({1, 2});
  EXPECT_LT((out.losses - want_losses).abs().max().item<double>(), 1e-12);
  EXPECT_EQ(out.predictions, 2 * 24 * 16);
  EXPECT_EQ(out.correct, at::argmax(want, 1).eq(b.labels).sum().item<int64_t>());

  const auto gradients = [&](const at::Tensor& losses) {
    std::vector<at::Tensor> all;
    for (NamedTensor& p : model->parameters()) p.tensor.mutable_grad() = at::Tensor();
    losses.dot(at::tensor({0.3, 0.9}, at::kDouble)).backward();
    for (NamedTensor& p : model->parameters()) all.push_back(p.tensor.grad());
    return all;
  };
  const auto got = gradients(out.losses), expected = gradients(want_losses);
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_LT((got[i] - expected[i]).abs().max().item<double>(), 1e-11)
        << model->parameters()[i].name;
}

TEST(MakeModel, RefusesWhatDoesNotFitAndNamesTheRemedy) {
  const auto message = [](const ModelArgs& args) -> std::string {
    try {
      make_model(args);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      return e.message();
    }
    return "nothing thrown";
  };
  ModelArgs args = args_for("resnet20");
  args.options.name = "resnet21";
  EXPECT_NE(message(args).find("did you mean \"resnet20\""), std::string::npos) << message(args);
  args = args_for("cnn");
  args.info = args_for("gpt").info;
  EXPECT_NE(message(args).find("reads images"), std::string::npos) << message(args);
  args.options.name = "gpt";
  args.info = args_for("cnn").info;
  EXPECT_NE(message(args).find("data.format = \"tokens\""), std::string::npos) << message(args);
  args = args_for("gpt");
  args.options.heads = 3;
  EXPECT_NE(message(args).find("not divisible"), std::string::npos) << message(args);
  args = args_for("unet");
  args.info.width = 20;
  EXPECT_NE(message(args).find("multiples of 8"), std::string::npos) << message(args);
  args = args_for("airbench");
  args.options.width = 12;
  EXPECT_NE(message(args).find("model.width = 12"), std::string::npos) << message(args);
  args.options.width = 16;
  args.options.later_width = 20;
  EXPECT_NE(message(args).find("model.later_width = 20"), std::string::npos) << message(args);
  args = args_for("cnn");
  args.precision = "fp8";
  EXPECT_NE(message(args).find("fp32, bf16 or fp16"), std::string::npos) << message(args);
  args = args_for("cnn");
  args.info.num_classes = 0;
  EXPECT_NE(message(args).find("model.num_classes"), std::string::npos) << message(args);
}

TEST(Gpt, ReadsShorterSamplesAndRefusesLongerOnes) {
  const ModelArgs args = args_for("gpt");
  const auto model = make_model(args);
  EXPECT_EQ(model->forward(batch_for(args, {2, 3}).x[0]).sizes(), at::IntArrayRef({2, 3, 11}));
  EXPECT_THROW(model->forward(batch_for(args, {2, 9}).x[0]), Error);
}

TEST(Gpt, SeesNoFutureTokens) {
  const ModelArgs args = args_for("gpt");
  const auto model = make_model(args);
  const at::Tensor x = batch_for(args, {1, 6}).x[0];
  const at::Tensor one = model->forward(x).slice(1, 0, 4).clone();
  x[0][4] = (x[0][4].item<int64_t>() + 1) % 11;
  EXPECT_TRUE(at::equal(one, model->forward(x).slice(1, 0, 4)));
}

}  // namespace
}  // namespace ductile::nn
