#include "ductile/nn/custom_model.h"

#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include "ductile/base/error.h"
#include "ductile/nn/flops.h"
#include "ductile/nn/init.h"
#include "ductile/nn/operators.h"
#include "ductile/nn/threads.h"

namespace ductile::nn {
namespace {

ModelArgs args_for(const std::string& library) {
  ModelArgs args;
  args.options.name = "custom";
  args.options.library = library;
  args.info = {1, 12, 12, 10, 0};
  return args;
}

std::string refusal(const std::string& library, ErrorCode code) {
  try {
    make_model(args_for(library));
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code);
    return e.message();
  }
  return "nothing thrown";
}

struct Step {
  double loss;
  std::vector<NamedTensor> parameters;
};

// Some steps of plain gradient descent on one batch.
Step descend(Model& model, int steps) {
  const at::Tensor x = init_normal({8, 1, 12, 12}, 1, 5, "x");
  const at::Tensor labels = at::arange(8, at::kLong);
  Step step;
  for (int i = 0; i < steps; ++i) {
    seed_step(static_cast<uint64_t>(i));
    const at::Tensor loss = model.loss(model.forward(x), labels, 0).losses.mean();
    step.loss = loss.item<double>();
    step.parameters = model.parameters();
    for (NamedTensor& p : step.parameters) p.tensor.mutable_grad() = at::Tensor();
    loss.backward();
    for (NamedTensor& p : step.parameters) {
      p.tensor.detach().sub_(p.tensor.grad().mul(0.05));
    }
  }
  return step;
}

class Library : public ::testing::TestWithParam<const char*> {};

TEST_P(Library, TrainsAndIsTheSameFromTheSameSeed) {
  at::manual_seed(1);
  const auto one = make_model(args_for(GetParam()));
  at::manual_seed(2);
  const auto two = make_model(args_for(GetParam()));
  const double first = descend(*one, 1).loss;
  const Step a = descend(*one, 60);
  EXPECT_LT(a.loss, 0.8 * first);
  descend(*two, 1);
  const Step b = descend(*two, 60);
  EXPECT_EQ(a.loss, b.loss);
  for (size_t i = 0; i < a.parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(a.parameters[i].tensor, b.parameters[i].tensor)) << a.parameters[i].name;
  }
}

TEST_P(Library, NamesNormLayersAndRunningStatistics) {
  const auto model = make_model(args_for(GetParam()));
  size_t norms = 0;
  for (const NamedTensor& p : model->parameters()) {
    norms += p.is_norm;
    EXPECT_EQ(p.is_norm, p.name.find("bn.") != std::string::npos || p.name.starts_with("norm."))
        << p.name;
  }
  EXPECT_EQ(model->buffers().size(), norms);
  EXPECT_GT(norms, 0u);
}

INSTANTIATE_TEST_SUITE_P(Examples, Library,
                         ::testing::Values(CUSTOM_MODEL, TORCH_MODEL, SEQUENTIAL_MODEL));

TEST(CustomModel, ASequentialGivesItsChildrenAsOperatorsAndOtherModulesAreOne) {
  const auto model = make_model(args_for(SEQUENTIAL_MODEL));
  const OperatorGraph graph = operators_of(*model);
  std::vector<std::string> names, kinds;
  std::vector<size_t> parameters, buffers;
  for (const Operator& op : graph.operators()) {
    names.push_back(op.name);
    kinds.push_back(op.kind);
    parameters.push_back(op.parameters.size());
    buffers.push_back(op.buffers.size());
    for (const NamedTensor& p : op.parameters) EXPECT_TRUE(p.name.starts_with(op.name + "."));
  }
  using Strings = std::vector<std::string>;
  using Numbers = std::vector<size_t>;
  EXPECT_EQ(names, (Strings{"flatten", "hidden", "norm", "relu", "dropout", "out"}));
  EXPECT_EQ(kinds, (Strings{"Flatten", "Linear", "BatchNorm1d", "ReLU", "Dropout", "Linear"}));
  EXPECT_EQ(parameters, (Numbers{0, 2, 2, 0, 0, 2}));
  EXPECT_EQ(buffers, (Numbers{0, 0, 2, 0, 0, 0}));
  for (size_t i = 0; i < names.size(); ++i) {
    ASSERT_EQ(graph.operators()[i].inputs.size(), 1U);
    EXPECT_EQ(graph.operators()[i].inputs[0], (Source{static_cast<int>(i) - 1, 0}));
  }
  EXPECT_EQ(operators_of(*make_model(args_for(TORCH_MODEL))).operators().size(), 1U);
}

TEST(CustomModel, MadeOfOurOperatorsTrainsInLowPrecision) {
  for (const char* precision : {"bf16", "fp16"}) {
    ModelArgs args = args_for(CUSTOM_MODEL);
    args.precision = precision;
    const auto model = make_model(args);
    const double first = descend(*model, 1).loss;
    EXPECT_LT(descend(*model, 20).loss, first) << precision;
  }
}

TEST(CustomModel, IsThreadInvariantWhereItsLibrarySaysSoAlone) {
  EXPECT_TRUE(thread_invariant(args_for(CUSTOM_MODEL).options));
  EXPECT_FALSE(thread_invariant(args_for(TORCH_MODEL).options));
}

// A library has its own copy of our operators.
TEST(CustomModel, ItsOperationsAreCounted) {
  const at::Tensor sample = at::zeros({1, 1, 12, 12});
  EXPECT_EQ(forward_flops(*make_model(args_for(CUSTOM_MODEL)), sample),
            2.0 * (36 * 16 * 9 + 36 * 16 * 16 * 9 + 16 * 10));
  EXPECT_EQ(forward_flops(*make_model(args_for(TORCH_MODEL)), sample), 2.0 * (144 * 32 + 32 * 10));
}

TEST(CustomModel, TorchModulesRefuseLowPrecisionWithTheRemedy) {
  ModelArgs args = args_for(TORCH_MODEL);
  args.precision = "bf16";
  try {
    make_model(args);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(e.message().find("train.precision = \"fp32\""), std::string::npos) << e.message();
  }
}

TEST(CustomModel, RefusesWhatIsNoModelAndSaysWhatToDo) {
  EXPECT_NE(refusal("no/such.so", ErrorCode::not_found).find("no such file"), std::string::npos);
  const std::string text = ::testing::TempDir() + "not_a_library.so";
  std::ofstream(text) << "text";
  EXPECT_NE(refusal(text, ErrorCode::invalid_argument).find("cannot be loaded"), std::string::npos);
  EXPECT_NE(
      refusal(text, ErrorCode::invalid_argument).find("ductile capture FILE.py:CLASS --model"),
      std::string::npos);
  EXPECT_NE(refusal(EMPTY_LIBRARY, ErrorCode::invalid_argument).find("DUCTILE_EXPORT_MODEL"),
            std::string::npos);
  EXPECT_NE(refusal(OLD_ABI, ErrorCode::invalid_argument).find("another version of Ductile"),
            std::string::npos);
  EXPECT_NE(refusal("", ErrorCode::invalid_argument).find("needs model.library"),
            std::string::npos);
}

}  // namespace
}  // namespace ductile::nn
