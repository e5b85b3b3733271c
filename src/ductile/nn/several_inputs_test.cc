// The models of several inputs: what they refuse, and that their branches are side by side.
#include "ductile/nn/testing/several_inputs.h"

#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "ductile/base/error.h"
#include "ductile/nn/operators.h"

namespace ductile::nn {
namespace {

ModelArgs several(std::string_view model, std::vector<spec::SampleInput> inputs) {
  ModelArgs args;
  args.options.name = model;
  args.options.layers = 2;
  args.options.heads = 2;
  args.options.dim = 8;
  args.options.hidden = {7, 9};
  args.info = {0, 0, 0, 4, 0, std::move(inputs)};
  return args;
}

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    return e.message();
  }
  return "nothing thrown";
}

constexpr const char* kModels[] = {"mmt", "dlrm", "candle-uno"};

// A plan can give each branch a stage of its own only if none reads another.
TEST(SeveralInputs, EachBranchReadsItsOwnInputAlone) {
  for (const char* name : kModels) {
    const auto model = make_model(several(name, testing::inputs_for(name)));
    const OperatorGraph graph = operators_of(*model);
    std::vector<std::set<int>> reads;  // model inputs, by operator
    for (const Operator& op : graph.operators()) {
      std::set<int>& own = reads.emplace_back();
      for (const Source& s : op.inputs) {
        if (s.op == kModelInput) {
          own.insert(s.output);
        } else {
          own.insert(reads[static_cast<size_t>(s.op)].begin(),
                     reads[static_cast<size_t>(s.op)].end());
        }
      }
      if (op.name.starts_with("branches.")) {
        EXPECT_EQ(own, std::set<int>{op.name[9] - '0'}) << name << ": " << op.name;
      }
    }
    EXPECT_EQ(reads.back().size(), static_cast<size_t>(graph.num_inputs())) << name;
  }
}

TEST(SeveralInputs, EveryInputCounts) {
  for (const char* name : kModels) {
    const auto inputs = testing::inputs_for(name);
    const auto model = make_model(several(name, inputs));
    const Tensors x = testing::tensors_for(inputs, 3);
    const at::Tensor before = forward(*model, x);
    for (size_t i = 0; i < x.size(); ++i) {
      Tensors other = x;
      other[i] = inputs[i].is_numbers() ? x[i].add(1).remainder(inputs[i].range) : x[i].add(1);
      EXPECT_FALSE(at::equal(before, forward(*model, other))) << name << " input " << i;
    }
  }
}

TEST(SeveralInputs, OfAnotherKindAreRefusedByName) {
  const auto make = [](const char* name, const std::vector<std::string>& inputs) {
    return refusal([&] { make_model(several(name, spec::sample_inputs(inputs))); });
  };
  for (const char* name : kModels) {
    EXPECT_NE(make(name, {}).find("data.synthetic.inputs"), std::string::npos) << make(name, {});
  }
  EXPECT_NE(make("mmt", {"vector:3"}).find("\"vector:3\""), std::string::npos);
  EXPECT_NE(make("dlrm", {"tokens:3:9"}).find("\"tokens:3:9\""), std::string::npos);
  EXPECT_NE(make("candle-uno", {"indices:3:9"}).find("\"indices:3:9\""), std::string::npos);
  EXPECT_EQ(make("dlrm", {"indices:3:9"}), "nothing thrown");
}

class OneInput : public Model {
 public:
  at::Tensor forward(const at::Tensor& x) override { return x; }
};

TEST(SeveralInputs, AModelGetsAsManyAsItReads) {
  const auto inputs = testing::inputs_for("dlrm");
  const auto model = make_model(several("dlrm", inputs));
  const Tensors x = testing::tensors_for(inputs, 3);
  EXPECT_NE(refusal([&] { model->forward(x[0]); }).find("reads 4 inputs"), std::string::npos);
  OneInput one;
  EXPECT_TRUE(at::equal(forward(one, std::span(x).first(1)), x[0]));
  EXPECT_NE(refusal([&] { forward(one, x); }).find("4 inputs for a model that reads one"),
            std::string::npos);
}

}  // namespace
}  // namespace ductile::nn
