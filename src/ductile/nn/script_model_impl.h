#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/nn/evaluates_whole.h"
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

class ScriptModel final : public Model,
                          public DeclaresOperators,
                          public EvaluatesWhole,
                          public ForwardsSeveral,
                          public TakesSomeSamples {
 public:
  static constexpr const char* kDescription = "ductile.json";  // in the archive

  ScriptModel(const std::filesystem::path& file, torch::jit::Module module,
              const nlohmann::json& description)
      : file_(file.string()), module_(std::move(module)), evaluate_(module_.get_method(kEvaluate)) {
    const JsonFields fields(description, kDescription);
    num_inputs_ = fields.integer_or("inputs", 1, 1, kMost);
    int64_t number = 0;
    for (const nlohmann::json& item : fields.array("parameters")) {
      const JsonFields parameter(item, kDescription);
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
    for (const nlohmann::json& item : fields.array("ops")) add(JsonFields(item, kDescription));
    graph_.set_results({source(fields, "result", fields.at("result"), 0)});
  }

  at::Tensor forward(const at::Tensor& x) override { return forward_several(std::span(&x, 1)); }

  at::Tensor forward_several(std::span<const at::Tensor> inputs) override {
    if (training()) return graph_.run(inputs).front();
    std::vector<c10::IValue> arguments(inputs.begin(), inputs.end());
    for (const NamedTensor& t : weights_) arguments.emplace_back(t.tensor);
    for (const NamedTensor& t : statistics_) arguments.emplace_back(t.tensor);
    return call_script(evaluate_, std::move(arguments)).toTensor();
  }

  const OperatorGraph& operators() const override { return graph_; }
  int64_t num_inputs() const { return num_inputs_; }
  std::vector<int64_t> numbers_of_samples() const override {
    return {samples_.begin(), samples_.end()};
  }

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
    const std::string name = fmt::format("{}{}", kind, number);
    const at::Tensor held = module_.attr(name).toTensor();
    if (!held.defined() || held.layout() != at::kStrided || !held.device().is_cpu() ||
        held.scalar_type() != at::kFloat) {
      fail(ErrorCode::invalid_argument, "{} is no dense float32 tensor of the processor", name);
    }
    return held.clone();
  }

  // A pair: the number of an operator, and of its output. Operator -1 stands for the model's
  // inputs.
  Source source(const JsonFields& fields, const char* key, const nlohmann::json& pair,
                int64_t first = kModelInput) const {
    if (!pair.is_array() || pair.size() != 2) fields.wrong(key, "pairs of numbers", pair);
    const auto op = static_cast<int>(fields.as_integer(pair[0], key, first, kMost));
    const int64_t outputs = op == kModelInput ? num_inputs_ - 1 : kMost;
    return {op, static_cast<int>(fields.as_integer(pair[1], key, 0, outputs))};
  }

  static std::vector<NamedTensor> picked(const JsonFields& op, const char* key,
                                         const std::vector<NamedTensor>& from) {
    std::vector<NamedTensor> out;
    const int64_t last = static_cast<int64_t>(from.size()) - 1;
    for (const nlohmann::json& index : op.array(key)) {
      out.push_back(from[static_cast<size_t>(op.as_integer(index, key, 0, last))]);
    }
    return out;
  }

  // Of one operator. They are told apart by the shapes of its inputs.
  std::vector<Cell> cells_of(const JsonFields& op, const std::string& name, size_t inputs) const {
    std::vector<Cell> cells;
    std::set<std::vector<std::vector<int64_t>>> known;
    for (const nlohmann::json& item : op.array("methods")) {
      const JsonFields method(item, kDescription);
      auto shapes = method.array("shapes").get<std::vector<std::vector<int64_t>>>();
      if (shapes.size() != inputs) {
        fail(ErrorCode::invalid_argument, "operator {}: {} shapes of {} inputs", name,
             shapes.size(), inputs);
      }
      if (!known.insert(shapes).second) {
        fail(ErrorCode::invalid_argument, "operator {}: two methods for the same shapes", name);
      }
      cells.push_back({module_.get_method(method.text("name")), std::move(shapes),
                       method.integer("samples", 1, int64_t{1} << 40)});
    }
    if (cells.empty()) fail(ErrorCode::invalid_argument, "operator {}: no method", name);
    return cells;
  }

  void add(const JsonFields& fields) {
    Operator op;
    op.name = fields.text("name");
    op.kind = fields.text("kind");
    op.num_outputs = static_cast<int>(fields.integer("outputs", 1, kMost));
    op.random = fields.boolean("random");
    for (const nlohmann::json& input : fields.array("inputs")) {
      op.inputs.push_back(source(fields, "inputs", input));
    }
    op.parameters = picked(fields, "parameters", weights_);
    op.buffers = picked(fields, "buffers", statistics_);
    std::vector<Cell> cells = cells_of(fields, op.name, op.inputs.size());
    std::set<int64_t> of_all;  // that each operator so far takes
    for (const Cell& cell : cells)
      if (graph_.operators().empty() || samples_.contains(cell.samples))
        of_all.insert(cell.samples);
    samples_ = std::move(of_all);
    std::vector<at::Tensor> held;
    for (const NamedTensor& t : op.parameters) held.push_back(t.tensor);
    for (const NamedTensor& t : op.buffers) held.push_back(t.tensor);
    op.run = [this, name = op.name, cells = std::move(cells),
              held = std::move(held)](std::span<const at::Tensor> in) {
      if (!training()) {
        fail(ErrorCode::internal,
             "model.library = \"{}\": operator {} is that of training; in evaluation the module "
             "runs as a whole",
             file_, name);
      }
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
  int64_t num_inputs_ = 1;
  torch::jit::Module module_;
  torch::jit::Method evaluate_;
  std::vector<NamedTensor> weights_, statistics_;  // handles
  OperatorGraph graph_;
  std::set<int64_t> samples_;  // at once, that all operators were captured for
};

// Whether the file is there and is an archive, and no shared library.
inline bool is_script_model(const std::filesystem::path& file) {
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(file, unknown)) return false;  // a pipe would not end
  std::ifstream in(file, std::ios::binary);
  char begin[4] = {};
  in.read(begin, sizeof begin);
  return std::string_view(begin, sizeof begin) == std::string_view("PK\3\4", 4);
}

// Makes the model, which begins with the weights in the file, whatever the seed. Throws
// invalid_argument for a file that `ductile capture` did not write, for a precision other than
// fp32, and where the data have another number of inputs. In training mode a forward pass throws
// invalid_argument for a number of samples that was not captured.
inline std::unique_ptr<Model> load_script_model(const std::filesystem::path& file,
                                                const ModelArgs& args) {
  if (args.precision != "fp32") {
    fail(ErrorCode::invalid_argument,
         "train.precision = \"{}\": the operators of model.library = \"{}\" were captured in fp32; "
         "set it to \"fp32\"",
         args.precision, file.string());
  }
  std::unique_ptr<ScriptModel> made;
  try {
    torch::jit::ExtraFilesMap extra = {{ScriptModel::kDescription, ""}};
    torch::jit::Module module = torch::jit::load(file.string(), at::Device(at::kCPU), extra);
    const std::string& written = extra.at(ScriptModel::kDescription);
    if (written.empty()) {
      fail(ErrorCode::invalid_argument, "it holds no {}", ScriptModel::kDescription);
    }
    const nlohmann::json description =
        parse_json(written, ScriptModel::kDescription, ErrorCode::invalid_argument);
    const JsonFields fields(description, ScriptModel::kDescription);
    if (fields.text("format") != "ductile.model") {
      fields.wrong("format", "\"ductile.model\"", fields.at("format"));
    }
    (void)fields.integer("version", 1, 1);
    made = std::make_unique<ScriptModel>(file, std::move(module), description);
  } catch (const std::exception& e) {  // of libtorch, of JSON, and Error
    const std::string_view text = e.what();
    fail(ErrorCode::invalid_argument,
         "model.library = \"{}\" is neither a shared library nor a model that ductile capture "
         "--model wrote ({})",
         file.string(), text.substr(0, text.find('\n')));
  }
  const auto given = static_cast<int64_t>(std::max<size_t>(1, args.info.inputs.size()));
  if (made->num_inputs() != given) {
    fail(ErrorCode::invalid_argument,
         "model.library = \"{}\": its forward() was given {} tensors when it was captured, and the "
         "samples of data.format have {}; use data of as many inputs (data.format = \"synthetic\", "
         "data.synthetic.inputs)",
         file.string(), made->num_inputs(), given);
  }
  return made;
}

}  // namespace ductile::nn
