#include "ductile/serving/inference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include <fmt/ranges.h>

#include "ductile/base/base64.h"
#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/rng.h"
#include "ductile/base/table.h"

namespace ductile::serving {
namespace {

using nlohmann::json;

// The types of the protocol that mean something here, with the bytes of an element.
struct DataType {
  std::string_view name;
  size_t size;
};
constexpr DataType kDataTypes[] = {
    {"UINT8", 1}, {"FP32", 4}, {"INT64", 8}, {"INT32", 4}, {"BYTES", 0}};

const DataType& data_type(const std::string& where, const std::string& name) {
  std::vector<std::string> known;
  for (const DataType& type : kDataTypes) {
    if (type.name == name) return type;
    known.emplace_back(type.name);
  }
  fail_unknown_name(where + ": datatype", name, known);
}

size_t header_number(const HttpRequest& request, const char* name) {
  const std::string& text = *request.header(name);
  const bool digits = std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  if (text.empty() || text.size() > 12 || !digits)
    fail(ErrorCode::invalid_argument, "the header {} = \"{}\" must be a number", name, text);
  return std::stoull(text);
}

// The input of a request, as bytes.
struct Input {
  std::string where = "inputs[0]";
  const DataType* type = nullptr;
  Shape shape;
  std::vector<std::span<const std::byte>> items;  // BYTES: one by one
  std::span<const std::byte> bytes;               // the others
};

template <class T>
void append_number(double value, const std::string& where, std::string& out) {
  if constexpr (std::is_integral_v<T>) {
    const double low = static_cast<double>(std::numeric_limits<T>::min());
    const double high = std::min(9e15, static_cast<double>(std::numeric_limits<T>::max()));
    if (value != std::floor(value) || value < low || value > high)
      fail(ErrorCode::invalid_argument, "{}: data has {}, which is no number of its datatype",
           where, value);
  }
  if constexpr (std::is_floating_point_v<T>) {
    if (!(std::abs(value) <= static_cast<double>(std::numeric_limits<T>::max())))
      fail(ErrorCode::invalid_argument, "{}: data has {}, which is too large", where, value);
  }
  const T number = static_cast<T>(value);
  out.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// Nested lists are flattened: the protocol allows both.
void append_values(const json& data, const Input& input, std::string& out,
                   std::vector<size_t>& ends) {
  for (const json& item : data) {
    if (item.is_array()) {
      append_values(item, input, out, ends);
    } else if (input.type->name == "BYTES") {
      if (!item.is_string())
        fail(ErrorCode::invalid_argument, "{}: data of BYTES must be text in base64", input.where);
      const auto bytes = from_base64(item.get_ref<const std::string&>());
      if (!bytes)
        fail(ErrorCode::invalid_argument, "{}: a file in JSON must be base64", input.where);
      out += *bytes;
      ends.push_back(out.size());
    } else if (!item.is_number()) {
      fail(ErrorCode::invalid_argument, "{}: data must be numbers, and has {}", input.where,
           JsonFields::shorten(dump_json(item)));
    } else if (input.type->name == "UINT8") {
      append_number<uint8_t>(item.get<double>(), input.where, out);
    } else if (input.type->name == "FP32") {
      append_number<float>(item.get<double>(), input.where, out);
    } else if (input.type->name == "INT64") {
      append_number<int64_t>(item.get<double>(), input.where, out);
    } else {
      append_number<int32_t>(item.get<double>(), input.where, out);
    }
  }
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// BYTES in binary: each item is its length in four bytes, and then itself.
void split_items(std::string_view bytes, Input& input) {
  while (!bytes.empty()) {
    uint32_t size = 0;
    if (bytes.size() >= sizeof size) std::memcpy(&size, bytes.data(), sizeof size);
    if (bytes.size() < sizeof size || bytes.size() - sizeof size < size)
      fail(ErrorCode::invalid_argument,
           "{}: an item of BYTES is four bytes of length and then so many bytes", input.where);
    input.items.push_back(bytes_of(bytes.substr(sizeof size, size)));
    bytes.remove_prefix(sizeof size + size);
  }
}

// How many elements; throws where they cannot be in a body.
int64_t elements_of(const Input& input) {
  int64_t count = 1;
  for (const int64_t side : input.shape) {
    if (side < 0 || (side > 0 && count > (int64_t{1} << 40) / side))
      fail(ErrorCode::invalid_argument, "{}: shape [{}] is none of data that can be sent",
           input.where, fmt::join(input.shape, ", "));
    count *= side;
  }
  return count;
}

void check_size(const Input& input) {
  const auto want = static_cast<size_t>(elements_of(input));
  const bool items = input.type->size == 0;
  const size_t got = items ? input.items.size() : input.bytes.size() / input.type->size;
  if (got != want || (!items && input.bytes.size() % input.type->size != 0))
    fail(ErrorCode::invalid_argument, "{}: shape [{}] means {} elements of {}, and the data has {}",
         input.where, fmt::join(input.shape, ", "), want, input.type->name, got);
}

void check_values(const Input& input) {
  for (size_t at = 0; at < input.bytes.size(); at += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, input.bytes.data() + at, sizeof value);
    if (!std::isfinite(value))
      fail(ErrorCode::invalid_argument, "{}: element {} is {}; finite numbers are wanted",
           input.where, at / sizeof(float), value);
  }
}

void check_image(const Input& input, const ModelCard& card) {
  const size_t dims = input.shape.size();
  const std::string_view type = input.type->name;
  if (type == "BYTES" && dims == 1) return;
  if (type == "UINT8" && dims == 4) {
    if ((input.shape[3] == 1 || input.shape[3] == 3) && input.shape[1] > 0 && input.shape[2] > 0)
      return;
  } else if (type == "FP32" && dims == card.input.size() + 1) {
    if (std::equal(card.input.begin(), card.input.end(), input.shape.begin() + 1)) return;
  }
  fail(
      ErrorCode::invalid_argument,
      "{}: {} of shape [{}] is no input of this model: it takes UINT8 [n, height, width, channels] "
      "with 1 or 3 channels, FP32 [n, {}], or BYTES [n] (PNG or JPEG files)",
      input.where, type, fmt::join(input.shape, ", "), fmt::join(card.input, ", "));
}

void check_tokens(const Input& input, const ModelCard& card) {
  const bool right = (input.type->name == "INT64" || input.type->name == "INT32") &&
                     input.shape.size() == 2 && input.shape[1] >= 1;
  if (!right)
    fail(ErrorCode::invalid_argument,
         "{}: {} of shape [{}] is no input of this model: it takes INT64 [n, tokens]", input.where,
         input.type->name, fmt::join(input.shape, ", "));
  if (input.shape[1] > card.input[0])
    fail(ErrorCode::invalid_argument, "{}: {} tokens, and the model has {} positions", input.where,
         input.shape[1], card.input[0]);
}

// So that an answer stays in bounds, too.
int64_t most_samples(const ModelCard& card) {
  return std::clamp<int64_t>(kMostValues / std::max<int64_t>(1, num_elements(card.output)), 1,
                             kMostSamples);
}

void add_samples(const Input& input, const ModelCard& card, InferenceRequest& out) {
  if (card.tokens) {
    check_tokens(input, card);
  } else {
    check_image(input, card);
  }
  check_size(input);
  if (input.type->name == "FP32") check_values(input);
  const int64_t count = input.shape[0];
  if (count < 1 || count > most_samples(card))
    fail(ErrorCode::invalid_argument, "{}: {} samples; a request has 1 to {}", input.where, count,
         most_samples(card));
  const Shape shape(input.shape.begin() + 1, input.shape.end());
  for (int64_t i = 0; i < count; ++i) {
    const auto n = static_cast<size_t>(i);
    if (input.type->size == 0) {
      out.samples.push_back({Sample::Kind::file, {}, input.items[n]});
      continue;
    }
    const size_t size = input.bytes.size() / static_cast<size_t>(count);
    const Sample::Kind kind = card.tokens                  ? Sample::Kind::tokens
                              : input.type->name == "FP32" ? Sample::Kind::values
                                                           : Sample::Kind::pixels;
    out.samples.push_back({kind, shape, input.bytes.subspan(n * size, size)});
  }
}

// A body that is all data: one input of the first form that the model takes, as many as there are.
void read_raw(std::string_view bytes, const ModelCard& card, Input& input) {
  input.where = "the body";
  input.type = card.tokens ? &kDataTypes[2] : &kDataTypes[0];
  input.shape = card.tokens ? card.input : Shape{card.input[1], card.input[2], card.input[0]};
  const auto one = static_cast<size_t>(num_elements(input.shape)) * input.type->size;
  if (bytes.empty() || bytes.size() % one != 0)
    fail(ErrorCode::invalid_argument,
         "the body has {} bytes; without a JSON head it is whole samples of {} bytes", bytes.size(),
         one);
  input.shape.insert(input.shape.begin(), static_cast<int64_t>(bytes.size() / one));
  input.bytes = bytes_of(bytes);
}

// INT32 tokens become INT64 ones.
std::string widened(std::span<const std::byte> bytes) {
  std::string out;
  for (size_t at = 0; at < bytes.size(); at += 4) {
    int32_t value = 0;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    append_number<int64_t>(value, "inputs[0]", out);
  }
  return out;
}

void read_parameters(const JsonFields& fields, InferenceRequest& out, bool& binary) {
  if (!fields.has("parameters")) return;
  const JsonFields p(fields.at("parameters"), "parameters");
  p.only({"binary_data_output", "timeout", "max_tokens", "temperature", "top_k", "seed", "priority",
          "sequence_id", "sequence_start", "sequence_end"});
  binary = p.boolean("binary_data_output", false);
  if (p.has("timeout"))
    out.timeout = std::chrono::microseconds(p.integer("timeout", 1, int64_t{3600} * 1000000));
  GenerationOptions& g = out.generation;
  g.max_tokens = p.integer_or("max_tokens", 0, 0, 65536);
  if (p.has("temperature")) g.temperature = p.number("temperature", 0, 1000);
  g.top_k = p.integer_or("top_k", 0, 0, int64_t{1} << 30);
  g.seed = static_cast<uint64_t>(p.integer_or("seed", 0, 0, int64_t{1} << 53));
}

std::vector<std::string> output_names(const ModelCard& card, bool generates) {
  if (generates) return {"tokens"};
  if (card.output.size() != 1) return {"logits"};
  return {"class", "probabilities", "logits"};
}

void read_outputs(const JsonFields& fields, const ModelCard& card, bool binary,
                  InferenceRequest& out) {
  const std::vector<std::string> known = output_names(card, out.generation.max_tokens > 0);
  if (fields.has("outputs")) {
    const json& wanted = fields.array("outputs");
    if (wanted.size() > known.size())
      fail(ErrorCode::invalid_argument, "outputs has {} items; there are {} outputs", wanted.size(),
           known.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      const JsonFields one(wanted[i], fmt::format("outputs[{}]", i));
      InferenceRequest::Output output{one.text("name"), binary, 0};
      if (std::ranges::find(known, output.name) == known.end())
        fail_unknown_name(one.where() + ": name", output.name, known);
      if (one.has("parameters")) {
        const JsonFields p(one.at("parameters"), one.where() + ".parameters");
        p.only({"binary_data", "classification"});
        output.binary = p.boolean("binary_data", binary);
        output.classification = p.integer_or("classification", 0, 0, int64_t{1} << 20);
        if (output.classification > 0 &&
            (output.name != "probabilities" && output.name != "logits"))
          fail(ErrorCode::invalid_argument, "{}: classification is for probabilities and logits",
               p.where());
        if (output.classification > 0 && card.output.size() != 1)
          fail(ErrorCode::invalid_argument, "{}: the model is no classifier", p.where());
      }
      out.outputs.push_back(std::move(output));
    }
  }
  if (!out.outputs.empty()) return;
  for (const std::string& name : known) {
    if (name == "logits" && known.size() > 1) continue;
    out.outputs.push_back({name, binary, 0});
  }
}

// The input of a request with a JSON head; what it needs of memory beside the body goes to `more`.
void read_input(const json& head, std::string_view tail, Input& input, std::string& more,
                bool& owns) {
  const JsonFields fields(head, "the request");
  const json& inputs = fields.array("inputs");
  if (inputs.size() != 1)
    fail(ErrorCode::invalid_argument, "inputs has {} items; this model takes one", inputs.size());
  const JsonFields one(inputs[0], input.where);
  one.only({"name", "shape", "datatype", "data", "parameters"});
  one.text("name");
  input.type = &data_type(input.where, one.text("datatype"));
  for (const json& side : one.array("shape")) {
    if (input.shape.size() == 8)
      fail(ErrorCode::invalid_argument, "{}: shape has more than 8 numbers", input.where);
    input.shape.push_back(one.as_integer(side, "shape", 0, int64_t{1} << 40));
  }
  if (input.shape.empty())
    fail(ErrorCode::invalid_argument, "{}: shape is empty; its first number is that of the samples",
         input.where);
  int64_t binary = -1;
  if (one.has("parameters")) {
    const JsonFields p(one.at("parameters"), input.where + ".parameters");
    p.only({"binary_data_size"});
    binary = p.integer_or("binary_data_size", -1, 0, int64_t{1} << 40);
  }
  if (binary >= 0) {
    if (one.has("data") || static_cast<size_t>(binary) != tail.size())
      fail(ErrorCode::invalid_argument,
           "{}: binary_data_size is {}, and {} bytes come after the JSON head{}", input.where,
           binary, tail.size(), one.has("data") ? ", beside data" : "");
    if (input.type->size == 0) return split_items(tail, input);
    input.bytes = bytes_of(tail);
    return;
  }
  if (!tail.empty())
    fail(ErrorCode::invalid_argument, "{} bytes come after the JSON head, and no input has them",
         tail.size());
  std::vector<size_t> ends;
  append_values(one.array("data"), input, more, ends);
  owns = true;
  input.bytes = bytes_of(more);
  for (size_t i = 0; i < ends.size(); ++i) {
    const size_t begin = i == 0 ? 0 : ends[i - 1];
    input.items.push_back(input.bytes.subspan(begin, ends[i] - begin));
  }
}

}  // namespace

InferenceRequest read_inference(HttpRequest& request, const ModelCard& card) {
  InferenceRequest out;
  auto memory = std::make_shared<std::string>(std::move(request.body));
  out.memory = memory;
  const bool has_head = request.header("inference-header-content-length") != nullptr;
  const size_t head_size =
      has_head ? header_number(request, "inference-header-content-length") : memory->size();
  if (head_size > memory->size())
    fail(ErrorCode::invalid_argument,
         "Inference-Header-Content-Length is {}, and the body has {} bytes", head_size,
         memory->size());
  const std::string_view body = *memory, tail = body.substr(head_size);
  Input input;
  bool binary = false;
  auto more = std::make_shared<std::string>();
  json head = json::object();
  if (has_head && head_size == 0) {
    read_raw(tail, card, input);
  } else {
    head = parse_json(body.substr(0, head_size), "the request", ErrorCode::invalid_argument);
    const JsonFields fields(head, "the request");
    fields.only({"id", "inputs", "outputs", "parameters"});
    out.id = fields.text("id", "");
    bool owns = false;
    read_input(head, tail, input, *more, owns);
    if (owns) out.memory = more;
  }
  const JsonFields fields(head, "the request");
  read_parameters(fields, out, binary);
  if (out.generation.max_tokens > 0 && !card.tokens)
    fail(ErrorCode::invalid_argument, "parameters: max_tokens is for language models");
  read_outputs(fields, card, binary, out);
  if (input.type->name == "INT32" && card.tokens) {
    check_tokens(input, card);
    check_size(input);
    auto wide = std::make_shared<std::string>(widened(input.bytes));
    input.type = &kDataTypes[2];
    input.bytes = bytes_of(*wide);
    out.memory = wide;
  }
  add_samples(input, card, out);
  return out;
}

std::vector<double> softmax(std::span<const float> logits, double temperature) {
  std::vector<double> out(logits.size());
  const double most = *std::ranges::max_element(logits);
  double sum = 0;
  for (size_t i = 0; i < out.size(); ++i)
    sum += out[i] = std::exp((static_cast<double>(logits[i]) - most) / temperature);
  for (double& p : out) p /= sum;
  return out;
}

std::vector<int64_t> largest(std::span<const float> values, int64_t count) {
  const auto is_larger = [](float a, float b) { return std::isnan(a) ? !std::isnan(b) : a > b; };
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto comes_before = [&](int64_t a, int64_t b) {
    const float x = values[static_cast<size_t>(a)], y = values[static_cast<size_t>(b)];
    return is_larger(x, y) || (!is_larger(y, x) && a < b);
  };
  const auto end = order.begin() + std::min(count, static_cast<int64_t>(order.size()));
  std::partial_sort(order.begin(), end, order.end(), comes_before);
  order.erase(end, order.end());
  return order;
}

int64_t draw_token(std::span<const float> logits, const GenerationOptions& options, int64_t sample,
                   int64_t position) {
  const auto all = static_cast<int64_t>(logits.size());
  if (options.temperature == 0) return largest(logits, 1).front();
  const std::vector<int64_t> kept =
      largest(logits, options.top_k > 0 ? std::min(options.top_k, all) : all);
  std::vector<float> values;
  for (const int64_t token : kept) values.push_back(logits[static_cast<size_t>(token)]);
  const std::vector<double> shares = softmax(values, options.temperature);
  Rng rng(options.seed, static_cast<uint64_t>(sample), static_cast<uint64_t>(position));
  double left = static_cast<double>(rng.next64() >> 11) * 0x1p-53;
  for (size_t i = 0; i < shares.size(); ++i) {
    left -= shares[i];
    if (left < 0) return kept[i];
  }
  return kept.front();
}

}  // namespace ductile::serving
