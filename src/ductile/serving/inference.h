#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ductile/base/json_value.h"
#include "ductile/serving/http_message.h"
#include "ductile/serving/model.h"

// The Open Inference Protocol, version 2, with its extension for binary tensors: what a request
// asks for, and the answer's text. No network, no model.
namespace ductile::serving {

// Which tokens follow a prompt.
struct GenerationOptions {
  int64_t max_tokens = 0;  // 0: none, the probabilities of the next one are wanted
  double temperature = 1;  // 0: always the most likely
  int64_t top_k = 0;       // among so many of the most likely ones; 0: among all
  uint64_t seed = 0;
};

struct InferenceRequest {
  std::string id;
  std::vector<Sample> samples;
  std::shared_ptr<const std::string> memory;  // in which the samples' bytes lie
  std::optional<std::chrono::microseconds> timeout;
  GenerationOptions generation;

  struct Output {
    std::string name;
    bool binary = false;
    int64_t classification = 0;  // so many of the likeliest, as texts; 0: as numbers
  };
  std::vector<Output> outputs;
};

// Of one request: samples, and values in its answer.
constexpr int64_t kMostSamples = 4096, kMostValues = int64_t{1} << 24;

// Reads a request for this model; the body is moved out of it. Throws invalid_argument, which names
// the field.
InferenceRequest read_inference(HttpRequest& request, const ModelCard& card);

// What there is to answer with.
struct InferenceResult {
  std::vector<float> out;       // logits of all samples
  std::vector<int64_t> tokens;  // generated, max_tokens of each sample
};
HttpResponse answer_inference(const InferenceRequest& request, const ModelCard& card,
                              const InferenceResult& result);

// GET /v2/models/NAME.
nlohmann::json describe_model(const Deployment& deployment);

// The probabilities of logits, as `ductile predict` computes them: in double.
std::vector<double> softmax(std::span<const float> logits, double temperature = 1);
// The places of the `count` largest values, the first of equal ones first. What is not a number is
// larger than any number.
std::vector<int64_t> largest(std::span<const float> values, int64_t count);
// The token that follows: a pure function of the logits, the options, and which token of which
// sample it is.
int64_t draw_token(std::span<const float> logits, const GenerationOptions& options, int64_t sample,
                   int64_t position);

}  // namespace ductile::serving
