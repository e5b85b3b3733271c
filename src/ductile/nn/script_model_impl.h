#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/nn/model.h"
#include "ductile/nn/operators.h"

// A PyTorch module that `ductile capture --model` wrote (ductile/_cells.py): its operators as
// TorchScript, which libtorch runs without Python. model.library of a job names the file, in place
// of a shared library. custom_model.cc alone includes this.
namespace ductile::nn {

// As PyTorch runs it in Python: operator by operator, without the fusions of TorchScript, which
// round otherwise.
inline c10::IValue call_script(const torch::jit::Method& method,
                               std::vector<c10::IValue> arguments) {
  const torch::jit::GraphOptimizerEnabledGuard as_written(false);
  return method(std::move(arguments));
}

class ScriptModel final : public Model, public DeclaresOperators {
 public:
  static constexpr const char* kDescription = "ductile.json";  // in the archive

  ScriptModel(const std::filesystem::path& file, torch::jit::Module module,
              const nlohmann::json& description)
      : file_(file.string()), module_(std::move(module)), evaluate_(module_.get_method(kEvaluate)) {
    const JsonFields fields(description, file_);
    int64_t number = 0;
    for (const nlohmann::json& item : fields.array("parameters")) {
      const JsonFields parameter(item, file_);
      weights_.push_back(
          {parameter.text("name"),
           register_parameter(parameter.text("name"), value("parameter", number++),
                              parameter.boolean("norm"), parameter.boolean("frozen"))});
    }
    number = 0;
    for (const nlohmann::json& item : fields.array("buffers")) {
      const auto name = item.get<std::string>();
      statistics_.push_back({name, register_buffer(name, value("buffer", number++))});
    }
    for (const nlohmann::json& item : fields.array("ops")) add(JsonFields(item, file_));
    graph_.set_results({source(fields.array("result"))});
  }

  at::Tensor forward(const at::Tensor& x) override {
    if (training()) return graph_.run(std::span(&x, 1)).front();
    std::vector<c10::IValue> arguments = {x};
    for (const NamedTensor& t : weights_) arguments.emplace_back(t.tensor);
    for (const NamedTensor& t : statistics_) arguments.emplace_back(t.tensor);
    return call_script(evaluate_, std::move(arguments)).toTensor();
  }

  const OperatorGraph& operators() const override { return graph_; }

 private:
  static constexpr const char* kEvaluate = "evaluate";
  static constexpr int64_t kMost = 1 << 20;  // operators, tensors

  // For inputs of these shapes.
  struct Cell {
    torch::jit::Method method;
    std::vector<std::vector<int64_t>> shapes;
    int64_t samples;
  };

  at::Tensor value(const char* kind, int64_t number) const {
    return module_.attr(fmt::format("{}{}", kind, number)).toTensor().clone();
  }

  static Source source(const nlohmann::json& pair) {
    return {pair.at(0).get<int>(), pair.at(1).get<int>()};
  }

  static std::vector<NamedTensor> picked(const JsonFields& op, const char* key,
                                         const std::vector<NamedTensor>& from) {
    std::vector<NamedTensor> out;
    for (const nlohmann::json& index : op.array(key)) out.push_back(from.at(index.get<size_t>()));
    return out;
  }

  void add(const JsonFields& fields) {
    Operator op;
    op.name = fields.text("name");
    op.kind = fields.text("kind");
    op.num_outputs = static_cast<int>(fields.integer("outputs", 1, kMost));
    op.random = fields.boolean("random");
    for (const nlohmann::json& input : fields.array("inputs")) op.inputs.push_back(source(input));
    op.parameters = picked(fields, "parameters", weights_);
    op.buffers = picked(fields, "buffers", statistics_);
    std::vector<Cell> cells;
    for (const nlohmann::json& item : fields.array("methods")) {
      const JsonFields method(item, file_);
      cells.push_back({module_.get_method(method.text("name")),
                       method.at("shapes").get<std::vector<std::vector<int64_t>>>(),
                       method.integer("samples", 1, int64_t{1} << 40)});
    }
    std::vector<at::Tensor> held;
    for (const NamedTensor& t : op.parameters) held.push_back(t.tensor);
    for (const NamedTensor& t : op.buffers) held.push_back(t.tensor);
    op.run = [this, name = op.name, cells = std::move(cells),
              held = std::move(held)](std::span<const at::Tensor> in) {
      std::vector<c10::IValue> arguments(in.begin(), in.end());
      arguments.insert(arguments.end(), held.begin(), held.end());
      const c10::IValue made = call_script(fitting(name, cells, in).method, std::move(arguments));
      Tensors out;
      for (const c10::IValue& v : made.toTupleRef().elements()) out.push_back(v.toTensor());
      return out;
    };
    graph_.add(std::move(op));
  }

  const Cell& fitting(const std::string& name, const std::vector<Cell>& cells,
                      std::span<const at::Tensor> in) const {
    std::string known;
    for (const Cell& cell : cells) {
      bool fits = true;
      for (size_t i = 0; i < in.size(); ++i) fits = fits && in[i].sizes() == cell.shapes[i];
      if (fits) return cell;
      known += fmt::format("{}{}", known.empty() ? "" : ", ", cell.samples);
    }
    fail(
        ErrorCode::invalid_argument,
        "model.library = \"{}\": operator {} was captured for {} samples at once, and now it is "
        "given others, or samples of another shape; capture the model with --shares that name each "
        "micro-batch (train.batch_size, divided among virtual ranks or micro-batches)",
        file_, name, known);
  }

  const std::string file_;
  torch::jit::Module module_;
  torch::jit::Method evaluate_;
  std::vector<NamedTensor> weights_, statistics_;  // handles
  OperatorGraph graph_;
};

// Whether the file is there and is an archive, and no shared library.
inline bool is_script_model(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  char begin[4] = {};
  in.read(begin, sizeof begin);
  return std::string_view(begin, sizeof begin) == std::string_view("PK\3\4", 4);
}

// Makes the model, which begins with the weights in the file, whatever the seed. Throws
// invalid_argument for a file that `ductile capture` did not write, and for a precision other than
// fp32. In training mode a forward pass throws invalid_argument for a number of samples that was
// not captured.
inline std::unique_ptr<Model> load_script_model(const std::filesystem::path& file,
                                                const ModelArgs& args) {
  if (args.precision != "fp32") {
    fail(ErrorCode::invalid_argument,
         "train.precision = \"{}\": the operators of model.library = \"{}\" were captured in fp32; "
         "set it to \"fp32\"",
         args.precision, file.string());
  }
  torch::jit::ExtraFilesMap extra = {{ScriptModel::kDescription, ""}};
  try {
    torch::jit::Module module = torch::jit::load(file.string(), c10::nullopt, extra);
    const nlohmann::json description =
        parse_json(extra.at(ScriptModel::kDescription), file.string(), ErrorCode::invalid_argument);
    const JsonFields fields(description, file.string());
    if (fields.text("format") != "ductile.model") throw std::runtime_error("another format");
    (void)fields.integer("version", 1, 1);
    return std::make_unique<ScriptModel>(file, std::move(module), description);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    const std::string_view text = e.what();
    fail(ErrorCode::invalid_argument,
         "model.library = \"{}\" is neither a shared library nor a model that ductile capture "
         "--model "
         "wrote ({})",
         file.string(), text.substr(0, text.find('\n')));
  }
}

}  // namespace ductile::nn
