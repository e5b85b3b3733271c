// The models of GraphPipe's evaluation (arXiv 2406.17145, appendix A.2; FlexFlow's defaults where
// the paper is silent), and transformers.
#include "ductile/graph/builders_impl.h"

namespace ductile::graph::build {
namespace {

// Queries, keys, values and output in one operator; kept are the input, the three projections, the
// weights of attention and their product.
OpId attention(Maker& maker, const std::string& name, int64_t sequence, int64_t hidden,
               int64_t heads, const std::vector<OpId>& inputs) {
  const double s = double(sequence), h = double(hidden), a = double(heads);
  Work w;
  w.flops = 8 * s * h * h + 4 * s * s * h;
  w.bytes = kFloat * (2 * s * h + 6 * s * h + 4 * a * s * s);
  w.parameter_bytes = kFloat * 4 * h * h;
  w.weight_flops = 8 * s * h * h;
  w.activation_bytes = kFloat * (5 * s * h + a * s * s);
  return maker.add({name,
                    "attention",
                    {sequence, hidden},
                    w,
                    static_cast<int>(std::bit_floor(static_cast<unsigned>(heads)))},
                   inputs);
}

OpId embedding(Maker& maker, const std::string& name, int64_t rows, int64_t width, int64_t reads,
               std::vector<int64_t> shape, int tied = -1) {
  const double bytes = kFloat * double(reads) * double(width);
  Work w;
  w.flops = double(reads) * double(width);
  w.bytes = 2 * bytes;
  w.parameter_bytes = kFloat * double(rows) * double(width);
  w.weight_traffic = 0;
  w.activation_bytes = 8 * double(reads);
  return maker.add({name, "embedding", std::move(shape), w, 1, true, tied}, {});
}

// A linear layer over the vocabulary; its weights are the embedding's.
OpId vocabulary_head(Maker& maker, int64_t sequence, int64_t hidden, int64_t vocabulary, int tied,
                     OpId input) {
  const double s = double(sequence), h = double(hidden), v = double(vocabulary);
  Work w;
  w.flops = 2 * s * h * v;
  w.bytes = kFloat * s * (h + v);
  w.parameter_bytes = kFloat * h * v;
  w.activation_bytes = kFloat * s * (h + v);
  // With the loss: one number leaves.
  return maker.add({"head", "linear", {1}, w, kMaxTensor, true, tied}, {input});
}

}  // namespace

OpId transformer_layer(Maker& maker, const std::string& name, int64_t sequence, int64_t hidden,
                       int64_t heads, int64_t ffn, bool as_one, const std::vector<OpId>& inputs) {
  if (!as_one) {
    const OpId a = attention(maker, name + ".attention", sequence, hidden, heads, inputs);
    const OpId b = maker.linear(name + ".ff1", hidden, ffn, {a}, sequence);
    return maker.linear(name + ".ff2", ffn, hidden, {b}, sequence);
  }
  const double s = double(sequence), h = double(hidden), a = double(heads), f = double(ffn);
  Work w;
  w.flops = 8 * s * h * h + 4 * s * s * h + 4 * s * h * f;
  w.bytes = kFloat * (8 * s * h + 4 * a * s * s + 2 * s * (h + f));
  w.parameter_bytes = kFloat * (4 * h * h + 2 * h * f);
  w.weight_flops = 8 * s * h * h + 4 * s * h * f;
  w.activation_bytes = kFloat * (6 * s * h + a * s * s + s * f);
  return maker.add({name,
                    "transformer_layer",
                    {sequence, hidden},
                    w,
                    static_cast<int>(std::bit_floor(static_cast<unsigned>(heads)))},
                   inputs);
}

Graph mmt(std::span<const int64_t> v, const DeviceModel& device) {
  const int64_t num_branches = v[0], layers = v[1], sequence = v[2], hidden = v[3];
  Maker maker("mmt", device);
  std::vector<OpId> ends;
  for (int64_t b = 0; b < num_branches; ++b) {
    std::vector<OpId> at;
    for (int64_t l = 0; l < layers; ++l) {
      at = {transformer_layer(maker, fmt::format("branch{}.layer{}", b, l), sequence, hidden, 16,
                              4 * hidden, v[4] != 0, at)};
    }
    ends.push_back(at.front());
  }
  // The outputs side by side, their mean over the sequence, one linear unit, mean squared error.
  const double width = double(hidden * num_branches), s = double(sequence);
  Work w;
  w.flops = s * width + 2 * width;
  w.bytes = kFloat * s * width;
  w.parameter_bytes = kFloat * width;
  w.activation_bytes = kFloat * width;
  maker.add({"head", "concat_mean_linear", {1}, w}, ends);
  return maker.finish();
}

Graph dlrm(std::span<const int64_t> v, const DeviceModel& device) {
  const int64_t dense = v[0], sparse = v[1], rows = v[2], width = v[3];
  if (dense + sparse == 0) {
    fail(ErrorCode::invalid_argument, "dlrm: dense and sparse are both 0: no branch at all");
  }
  constexpr int64_t kTableWidth = 64, kBag = 100;
  Maker maker("dlrm", device);
  std::vector<OpId> ends;
  for (int64_t b = 0; b < dense; ++b) {
    std::vector<OpId> at;
    for (int l = 0; l < 4; ++l) {
      at = {maker.linear(fmt::format("dense{}.{}", b, l), width, width, at)};
    }
    ends.push_back(at.front());
  }
  for (int64_t b = 0; b < sparse; ++b) {
    ends.push_back(
        embedding(maker, fmt::format("table{}", b), rows, kTableWidth, kBag, {kBag * kTableWidth}));
  }
  const int64_t joined = dense * width + sparse * kBag * kTableWidth;
  OpId at = maker.concat("concat", joined, ends);
  for (int l = 0; l < 4; ++l) {
    at = maker.linear(fmt::format("top{}", l), l == 0 ? joined : width, width, {at});
  }
  maker.linear("head", width, 1, {at});
  return maker.finish();
}

Graph candle(std::span<const int64_t> v, const DeviceModel& device) {
  const int64_t num_branches = v[0], layers = v[1], width = v[2];
  Maker maker("candle", device);
  std::vector<OpId> ends;
  for (int64_t b = 0; b < num_branches; ++b) {
    std::vector<OpId> at;
    for (int64_t l = 0; l < layers; ++l) {
      at = {maker.linear(fmt::format("encoder{}.{}", b, l), width, width, at)};
    }
    ends.push_back(at.front());
  }
  OpId at = maker.concat("concat", num_branches * width, ends);
  for (int l = 0; l < 4; ++l) {
    at = maker.linear(fmt::format("top{}", l), l == 0 ? num_branches * width : width, width, {at});
  }
  maker.linear("head", width, 1, {at});
  return maker.finish();
}

Graph gpt(std::span<const int64_t> v, const DeviceModel& device) {
  const int64_t layers = v[0], hidden = v[1], heads = v[2], sequence = v[3], vocabulary = v[4];
  Maker maker("gpt", device);
  OpId at = embedding(maker, "embedding", vocabulary, hidden, sequence, {sequence, hidden}, 0);
  for (int64_t l = 0; l < layers; ++l) {
    at = transformer_layer(maker, fmt::format("layer{}", l), sequence, hidden, heads, 4 * hidden,
                           v[5] != 0, {at});
  }
  vocabulary_head(maker, sequence, hidden, vocabulary, 0, at);
  return maker.finish();
}

Graph bert(std::span<const int64_t> v, const DeviceModel& device) {
  const int64_t layers = v[0], hidden = v[1], heads = v[2], sequence = v[3], vocabulary = v[4];
  Maker maker("bert", device);
  Work mask_work;
  mask_work.bytes = 8 * double(sequence);
  const OpId mask = maker.add({"mask", "input", {sequence}, mask_work}, {});
  OpId at = embedding(maker, "embedding", vocabulary, hidden, sequence, {sequence, hidden}, 0);
  for (int64_t l = 0; l < layers; ++l) {
    at = transformer_layer(maker, fmt::format("layer{}", l), sequence, hidden, heads, 4 * hidden,
                           v[5] != 0, {at, mask});
  }
  vocabulary_head(maker, sequence, hidden, vocabulary, 0, at);
  return maker.finish();
}

}  // namespace ductile::graph::build
