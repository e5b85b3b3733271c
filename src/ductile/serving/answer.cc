#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "ductile/base/json.h"
#include "ductile/serving/inference.h"

namespace ductile::serving {
namespace {

using nlohmann::json;

// One output as values of its type, in JSON or as bytes.
struct Tensor {
  const char* type = "FP32";
  Shape shape;
  std::vector<float> floats;
  std::vector<int64_t> integers;
  std::vector<std::string> texts;
};

template <class T>
void append_bytes(const std::vector<T>& values, std::string& out) {
  out.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

std::string bytes_of(const Tensor& tensor) {
  std::string out;
  append_bytes(tensor.floats, out);
  append_bytes(tensor.integers, out);
  for (const std::string& text : tensor.texts) {
    const auto size = static_cast<uint32_t>(text.size());
    out.append(reinterpret_cast<const char*>(&size), sizeof size);
    out += text;
  }
  return out;
}

// A float in the fewest digits that mean it.
json number(float value) {
  if (!std::isfinite(value)) return nullptr;
  return std::stod(fmt::format("{}", value));
}

json list_of(const Tensor& tensor) {
  json out = json::array();
  for (const float value : tensor.floats) out.push_back(number(value));
  for (const int64_t value : tensor.integers) out.push_back(value);
  for (const std::string& text : tensor.texts) out.push_back(text);
  return out;
}

std::vector<float> probabilities(std::span<const float> logits) {
  std::vector<float> out;
  for (const double p : softmax(logits)) out.push_back(static_cast<float>(p));
  return out;
}

// "0.93:7:seven" of the likeliest, as Triton writes it.
void add_texts(std::span<const float> values, int64_t count, const ModelCard& card, Tensor& out) {
  for (const int64_t label : largest(values, count)) {
    const auto i = static_cast<size_t>(label);
    std::string text = fmt::format("{}:{}", values[i], label);
    if (i < card.class_names.size()) text += ":" + card.class_names[i];
    out.texts.push_back(std::move(text));
  }
}

Tensor make(const InferenceRequest& request, const InferenceRequest::Output& output,
            const ModelCard& card, const InferenceResult& result) {
  Tensor out;
  const auto count = static_cast<int64_t>(request.samples.size());
  if (output.name == "tokens") {
    out.type = "INT64";
    out.shape = {count, request.generation.max_tokens};
    out.integers = result.tokens;
    return out;
  }
  const auto values = static_cast<size_t>(num_elements(card.output));
  for (int64_t i = 0; i < count; ++i) {
    const std::span<const float> logits(result.out.data() + static_cast<size_t>(i) * values,
                                        values);
    if (output.name == "class") {
      out.integers.push_back(largest(logits, 1).front());
      continue;
    }
    const std::vector<float> row = output.name == "probabilities"
                                       ? probabilities(logits)
                                       : std::vector<float>(logits.begin(), logits.end());
    if (output.classification > 0) {
      add_texts(row, output.classification, card, out);
    } else {
      out.floats.insert(out.floats.end(), row.begin(), row.end());
    }
  }
  if (output.name == "class") {
    out.type = "INT64";
    out.shape = {count};
  } else if (output.classification > 0) {
    out.type = "BYTES";
    out.shape = {count, static_cast<int64_t>(out.texts.size()) / count};
  } else {
    out.shape = card.output;
    out.shape.insert(out.shape.begin(), count);
  }
  return out;
}

}  // namespace

HttpResponse answer_inference(const InferenceRequest& request, const ModelCard& card,
                              const InferenceResult& result) {
  json head = {{"model_name", card.name}, {"model_version", std::to_string(card.version)}};
  if (!request.id.empty()) head["id"] = request.id;
  json& outputs = head["outputs"] = json::array();
  std::string tail;
  bool binary = false;
  for (const InferenceRequest::Output& output : request.outputs) {
    const Tensor tensor = make(request, output, card, result);
    json one = {{"name", output.name}, {"datatype", tensor.type}, {"shape", tensor.shape}};
    if (output.binary) {
      const std::string bytes = bytes_of(tensor);
      one["parameters"] = {{"binary_data_size", bytes.size()}};
      tail += bytes;
      binary = true;
    } else {
      one["data"] = list_of(tensor);
    }
    outputs.push_back(std::move(one));
  }
  HttpResponse out;
  out.body = dump_json(head);
  if (binary) {
    out.type = "application/octet-stream";
    out.headers.emplace_back("Inference-Header-Content-Length", std::to_string(out.body.size()));
    out.body += tail;
  }
  return out;
}

json describe_model(const Deployment& deployment) {
  const ModelCard& card = deployment.model->card();
  json out = {{"name", card.name},
              {"versions", {std::to_string(card.version)}},
              {"platform", "ductile"},
              {"parameters", {{"weights_digest", card.digest}, {"batch_sizes", deployment.sizes}}}};
  const auto tensor = [](const char* name, const char* type, Shape shape) {
    shape.insert(shape.begin(), -1);
    return json{{"name", name}, {"datatype", type}, {"shape", std::move(shape)}};
  };
  if (card.tokens) {
    out["inputs"] = {tensor("tokens", "INT64", {-1})};
    out["parameters"]["positions"] = card.input[0];
  } else {
    out["inputs"] = {tensor("images", "UINT8", {card.input[1], card.input[2], card.input[0]})};
  }
  out["outputs"] = json::array();
  if (card.output.size() == 1) {
    out["outputs"].push_back(tensor("class", "INT64", {}));
    out["outputs"].push_back(tensor("probabilities", "FP32", card.output));
  }
  out["outputs"].push_back(tensor("logits", "FP32", card.output));
  if (!card.class_names.empty()) out["parameters"]["class_names"] = card.class_names;
  return out;
}

}  // namespace ductile::serving
