#include "ductile/nn/operators.h"

#include <map>
#include <memory>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "ductile/base/error.h"
#include "ductile/nn/kernels/product.h"
#include "ductile/nn/model.h"
#include "ductile/nn/testing/several_inputs.h"

namespace ductile::nn {
namespace {

constexpr Source kInput{kModelInput, 0};

ModelArgs small(std::string_view model) {
  ModelArgs args;
  args.options.name = model;
  args.options.hidden = {7, 9};
  args.options.layers = 2;
  args.options.heads = 2;
  args.options.dim = 16;
  args.seed = 3;
  if (model == "gpt") {
    args.info = {0, 0, 0, 11, 8};
  } else if (const auto inputs = testing::inputs_for(model); !inputs.empty()) {
    args.info = {0, 0, 0, 10, 0, inputs};
  } else {
    args.info = {3, 32, 32, 10, 0};
  }
  return args;
}

Tensors inputs_for(std::string_view model, int64_t batch) {
  at::manual_seed(11);
  if (model == "gpt") return {at::randint(11, {batch, 8}, at::kLong)};
  if (const auto inputs = testing::inputs_for(model); !inputs.empty()) {
    return testing::tensors_for(inputs, batch);
  }
  return {at::randn({batch, 3, 32, 32})};
}

at::Tensor labels_for(std::string_view model, int64_t batch) {
  if (model == "gpt") return at::randint(11, {batch, 8}, at::kLong);
  if (model == "unet") return at::randint(10, {batch, 32, 32}, at::kLong);
  return at::randint(10, {batch}, at::kLong);
}

TEST(Operators, EveryBuiltInModelDeclaresItselfAndItsWeights) {
  for (const ModelEntry& entry : model_table()) {
    const auto model = make_model(small(entry.name));
    const OperatorGraph graph = operators_of(*model);
    EXPECT_GT(graph.operators().size(), 2U) << entry.name;
    std::set<std::string> names, parameters, buffers;
    std::map<std::string, int> writers;
    for (const Operator& op : graph.operators()) {
      EXPECT_TRUE(names.insert(op.name).second) << op.name;
      for (const NamedTensor& p : op.parameters) parameters.insert(p.name);
      for (const NamedTensor& b : op.buffers) ++writers[b.name];
    }
    for (const NamedTensor& p : model->parameters()) {
      EXPECT_TRUE(parameters.contains(p.name)) << entry.name << ": nobody reads " << p.name;
    }
    for (const NamedTensor& b : model->buffers()) {
      EXPECT_EQ(writers[b.name], 1) << entry.name << ": " << b.name;
    }
  }
}

// An operator that reads what it does not declare would keep its old bits here.
TEST(Operators, ReadOnlyTheWeightsThatTheyDeclare) {
  for (const ModelEntry& entry : model_table()) {
    const auto model = make_model(small(entry.name));
    const OperatorGraph graph = operators_of(*model);
    const Tensors x = inputs_for(entry.name, 2);
    model->train(false);
    std::vector<Tensors> made;
    for (const Operator& op : graph.operators()) {
      Tensors in;
      for (const Source& s : op.inputs) {
        in.push_back((s.op == kModelInput ? x[s.output] : made[s.op][s.output]).detach());
      }
      made.push_back(op.run(in));
      std::vector<at::Tensor> own;
      for (const NamedTensor& p : op.parameters) {
        if (!p.frozen) own.push_back(p.tensor);
      }
      if (made.back()[0].requires_grad()) made.back()[0].sum().backward();
      for (const NamedTensor& p : model->parameters()) {
        bool declared = false;
        for (const at::Tensor& t : own) declared |= t.is_same(p.tensor);
        EXPECT_EQ(p.tensor.grad().defined(), declared) << op.name << " and " << p.name;
        at::Tensor handle = p.tensor;
        handle.mutable_grad() = at::Tensor();
      }
      for (at::Tensor& t : made.back()) t = t.detach();
    }
    EXPECT_TRUE(at::equal(made.back()[0], forward(*model, x))) << entry.name;
  }
}

// The operator with the columns [begin, end) alone.
at::Tensor columns_alone(const Operator& op, const Tensors& in, int64_t begin, int64_t end) {
  Tensors slices;
  for (size_t i = 0; i < op.parameters.size(); ++i) {
    const at::Tensor& whole = op.parameters[i].tensor;
    const int dim = op.columns.dims[i];
    slices.push_back(dim < 0 ? whole : whole.narrow(dim, begin, end - begin));
  }
  return op.columns.run(in, slices, begin);
}

TEST(Operators, ColumnsHaveTheBitsThatTheyHaveInTheWholeOperator) {
  const at::NoGradGuard no_grad;
  int with_columns = 0;
  for (const ModelEntry& entry : model_table()) {
    const auto model = make_model(small(entry.name));
    const OperatorGraph graph = operators_of(*model);
    const Tensors x = inputs_for(entry.name, 3);
    model->train(false);
    std::vector<Tensors> made;
    for (const Operator& op : graph.operators()) {
      Tensors in;
      for (const Source& s : op.inputs) {
        in.push_back(s.op == kModelInput ? x[s.output] : made[s.op][s.output]);
      }
      made.push_back(op.run(in));
      if (!op.columns.run) continue;
      ++with_columns;
      ASSERT_EQ(op.columns.dims.size(), op.parameters.size()) << op.name;
      const at::Tensor& whole = made.back()[0];
      const int64_t number = whole.size(-1);
      for (const int64_t parts : {2, 3}) {
        Tensors pieces;
        for (int64_t p = 0; p < parts; ++p) {
          pieces.push_back(columns_alone(op, in, number * p / parts, number * (p + 1) / parts));
        }
        const at::Tensor joined = at::cat(pieces, -1);
        EXPECT_TRUE(kernels::product_supported() ? at::equal(joined, whole)
                                                 : at::allclose(joined, whole, 1e-5, 1e-6))
            << entry.name << ", " << op.name << " in " << parts;
      }
    }
  }
  EXPECT_GE(with_columns, 20);
}

TEST(Operators, TheLossIsTheLastOne) {
  for (const ModelEntry& entry : model_table()) {
    const auto model = make_model(small(entry.name));
    Tensors all = inputs_for(entry.name, 2);
    const at::Tensor labels = labels_for(entry.name, 2);
    const OperatorGraph graph = training_operators(*model, 0.1);
    EXPECT_EQ(graph.operators().back().name, kLossOperator);
    EXPECT_EQ(graph.num_inputs(), static_cast<int>(all.size()) + 1);
    model->train(false);
    const LossOutput want = model->loss(forward(*model, all), labels, 0.1);
    all.push_back(labels);
    const Tensors got = graph.run(all);
    EXPECT_TRUE(at::equal(got[0], want.losses)) << entry.name;
    EXPECT_EQ(got[1].item<int64_t>(), want.correct);
    EXPECT_EQ(got[2].item<int64_t>(), want.predictions);
  }
}

class Plain : public Model {
 public:
  Plain() { weight_ = register_parameter("weight", at::ones({3})); }
  at::Tensor forward(const at::Tensor& x) override { return x * weight_; }

 private:
  at::Tensor weight_;
};

TEST(Operators, AModelThatDeclaresNoneIsOneOperator) {
  Plain model;
  const OperatorGraph graph = operators_of(model);
  ASSERT_EQ(graph.operators().size(), 1U);
  EXPECT_EQ(graph.operators()[0].kind, "opaque");
  EXPECT_EQ(graph.operators()[0].parameters[0].name, "weight");
  const at::Tensor x = at::randn({2, 3});
  EXPECT_TRUE(at::equal(graph.run(std::span(&x, 1))[0], model.forward(x)));
}

Operator adding(std::string name, std::vector<Source> inputs) {
  Operator op;
  op.name = std::move(name);
  op.kind = "add";
  op.inputs = std::move(inputs);
  op.run = [](std::span<const at::Tensor> in) {
    at::Tensor sum = in[0];
    for (size_t i = 1; i < in.size(); ++i) sum = sum + in[i];
    return Tensors{sum};
  };
  return op;
}

TEST(Operators, SeveralInputsAndReaders) {
  OperatorGraph graph;
  const int a = graph.add(adding("a", {kInput, {kModelInput, 1}}));
  const int b = graph.add(adding("b", {{a, 0}, {a, 0}, kInput}));
  graph.set_results({{b, 0}, {a, 0}});
  const std::vector<at::Tensor> inputs = {at::ones({2}), at::full({2}, 3.0)};
  const Tensors out = graph.run(inputs);
  EXPECT_EQ(out[0][0].item<double>(), 9);
  EXPECT_EQ(out[1][0].item<double>(), 4);
  EXPECT_THROW(graph.run(std::span(inputs).first(1)), Error);
  EXPECT_EQ(graph.find("b"), b);
  EXPECT_THROW(graph.find("c"), Error);
}

// The shortcut gives something else here, so that it can be seen.
TEST(Operators, AShortcutIsTakenWhereNobodyElseReadsWhatItLeavesOut) {
  const at::Tensor x = at::ones({2});
  const auto result = [&](const std::vector<Source>& inputs_of_b, bool is_result) {
    OperatorGraph graph;
    const int a = graph.add(adding("a", {kInput, kInput}));
    const int b = graph.add(adding("b", inputs_of_b));
    const int c = graph.add(adding("c", {{b, 0}, kInput}));
    graph.add_shortcut(a,
                       [](std::span<const at::Tensor> in) { return Tensors{in[0] + in[1] + 99}; });
    std::vector<Source> results = {{c, 0}};
    if (is_result) results.push_back({a, 0});
    graph.set_results(results);
    return graph.run(std::span(&x, 1))[0][0].item<double>();
  };
  EXPECT_EQ(result({{0, 0}}, false), 1 + 1 + 99 + 1);
  EXPECT_EQ(result({{0, 0}}, true), 1 + 1 + 1) << "it is a result, too";
  EXPECT_EQ(result({{0, 0}, {0, 0}}, false), 2 + 2 + 1) << "it is read twice";
  EXPECT_EQ(result({{0, 0}, kInput}, false), 2 + 1 + 1) << "something else is read, too";
}

TEST(Operators, ShortcutsStayWhereTheLossIsAdded) {
  const auto model = make_model(small("cnn"));
  const OperatorGraph declared = operators_of(*model), graph = training_operators(*model, 0);
  int shortcuts = 0;
  for (size_t i = 0; i < graph.operators().size(); ++i) {
    const bool is_there = graph.shortcut(static_cast<int>(i)) != nullptr;
    EXPECT_EQ(is_there, graph.operators()[i].kind == "conv_bn") << graph.operators()[i].name;
    EXPECT_EQ(is_there, declared.shortcut(static_cast<int>(i)) != nullptr);
    shortcuts += is_there ? 1 : 0;
  }
  EXPECT_EQ(shortcuts, 2);
  OperatorGraph first;  // of which the second one has no pool behind it
  first.add_first_of(graph, 3);
  first.set_results({{2, 0}});
  EXPECT_NE(first.shortcut(0), nullptr);
  EXPECT_EQ(first.shortcut(2), nullptr);
}

// Pools are done together with what is in front of them: whole models have the bits of their
// operators one after the other.
TEST(Operators, OneAfterTheOtherHaveTheBitsOfTheWholeModel) {
  for (const bool training : {true, false}) {
    const auto whole = make_model(small("cnn")), parts = make_model(small("cnn"));
    whole->train(training);
    parts->train(training);
    const Tensors inputs = inputs_for("cnn", 5);
    const at::Tensor of_whole = whole->forward(inputs[0]);
    const OperatorGraph graph = operators_of(*parts);
    at::Tensor x = inputs[0];
    for (const Operator& op : graph.operators()) {  // a chain
      ASSERT_EQ(op.inputs.size(), 1U);
      x = op.run(std::span(&x, 1))[0];
    }
    EXPECT_TRUE(of_whole.equal(x)) << training;
    of_whole.pow(2).sum().backward();
    x.pow(2).sum().backward();
    const auto a = whole->parameters(), b = parts->parameters();
    for (size_t i = 0; i < a.size(); ++i)
      EXPECT_TRUE(a[i].tensor.grad().equal(b[i].tensor.grad())) << a[i].name << training;
    const auto c = whole->buffers(), d = parts->buffers();
    for (size_t i = 0; i < c.size(); ++i) EXPECT_TRUE(c[i].tensor.equal(d[i].tensor)) << c[i].name;
  }
}

TEST(Operators, ATensorIsFreedBehindItsLastReader) {
  OperatorGraph graph;
  const int a = graph.add(adding("a", {kInput, kInput}));
  const int b = graph.add(adding("b", {{a, 0}, kInput}));
  c10::weak_intrusive_ptr<c10::TensorImpl> first(
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>{});
  bool freed = false;
  Operator keep = adding("b2", {{b, 0}});
  keep.run = [&](std::span<const at::Tensor> in) {
    freed = first.expired();
    return Tensors{in[0].clone()};
  };
  Operator note = adding("a2", {{a, 0}});
  note.run = [&](std::span<const at::Tensor> in) {
    first = c10::weak_intrusive_ptr<c10::TensorImpl>(in[0].getIntrusivePtr());
    return Tensors{in[0].clone()};
  };
  graph.add(std::move(note));
  const int last = graph.add(std::move(keep));
  graph.set_results({{last, 0}});
  const at::Tensor x = at::ones({4});
  graph.run(std::span(&x, 1));
  EXPECT_TRUE(freed);
}

TEST(Operators, RefuseWhatIsNotThere) {
  OperatorGraph graph;
  graph.add(adding("a", {kInput}));
  EXPECT_THROW(graph.add(adding("a", {kInput})), Error);
  EXPECT_THROW(graph.add(adding("b", {{1, 0}})), Error);
  EXPECT_THROW(graph.add(adding("b", {{0, 1}})), Error);
  EXPECT_THROW(graph.set_results({{3, 0}}), Error);
}

}  // namespace
}  // namespace ductile::nn
