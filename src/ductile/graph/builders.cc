#include "ductile/graph/builders.h"

#include <array>
#include <charconv>

#include "ductile/base/options.h"
#include "ductile/graph/builders_impl.h"

namespace ductile::graph {
namespace {

constexpr BuilderParameter kMmt[] = {
    {"branches", 4, 1, 1024, "modalities"},
    {"layers", 8, 1, 10000, "transformer layers of each"},
    {"sequence", 256, 1, 1 << 20, "tokens"},
    {"hidden", 1024, 1, 1 << 20, "width"},
    {"whole_layers", 0, 0, 1, "1: one operator a layer, 0: attention, ff1, ff2"}};
constexpr BuilderParameter kDlrm[] = {{"dense", 7, 0, 1024, "dense branches"},
                                      {"sparse", 7, 0, 1024, "embedding tables"},
                                      {"rows", 1'000'000, 1, 1 << 30, "of each table"},
                                      {"width", 4096, 1, 1 << 20, "of linear layers"}};
constexpr BuilderParameter kCandle[] = {{"branches", 7, 1, 1024, "feature encoders"},
                                        {"layers", 4, 1, 1000, "linear layers of each"},
                                        {"width", 4096, 1, 1 << 20, "of linear layers"}};
constexpr BuilderParameter kGpt[] = {{"layers", 24, 1, 50000, "transformer layers"},
                                     {"hidden", 1024, 1, 1 << 20, "width"},
                                     {"heads", 16, 1, 4096, "attention heads"},
                                     {"sequence", 1024, 1, 1 << 20, "tokens"},
                                     {"vocabulary", 50304, 1, 1 << 24, "tokens known"},
                                     {"whole_layers", 0, 0, 1, "1: one operator a layer"}};
constexpr BuilderParameter kBert[] = {{"layers", 24, 1, 50000, "transformer layers"},
                                      {"hidden", 1024, 1, 1 << 20, "width"},
                                      {"heads", 16, 1, 4096, "attention heads"},
                                      {"sequence", 512, 1, 1 << 20, "tokens"},
                                      {"vocabulary", 30522, 1, 1 << 24, "tokens known"},
                                      {"whole_layers", 0, 0, 1, "1: one operator a layer"}};
constexpr BuilderParameter kResnet[] = {{"depth", 50, 18, 152, "18, 34, 50, 101 or 152"},
                                        {"image", 224, 32, 4096, "pixels a side"},
                                        {"classes", 1000, 1, 1 << 24, "outputs"}};
constexpr BuilderParameter kUnet[] = {{"depth", 4, 1, 8, "halvings"},
                                      {"width", 64, 1, 4096, "channels of the first level"},
                                      {"image", 256, 16, 8192, "pixels a side"}};
constexpr BuilderParameter kChain[] = {{"ops", 100, 1, kMaxOps, "operators"},
                                       {"seed", 1, 0, 1 << 30, "of the costs"}};
constexpr BuilderParameter kBranches[] = {{"branches", 8, 1, 10000, "side by side"},
                                          {"ops", 120, 1, kMaxOps, "operators of each"},
                                          {"tail", 40, 1, kMaxOps, "operators after the join"},
                                          {"seed", 1, 0, 1 << 30, "of the costs"}};
constexpr BuilderParameter kRandom[] = {{"ops", 12, 1, kMaxOps, "operators"},
                                        {"seed", 1, 0, 1 << 30, "of shape and costs"},
                                        {"inputs", 2, 1, 64, "most operators that one reads"}};

constexpr Builder kBuilders[] = {
    {"mmt", "multi-modal transformer", kMmt, build::mmt},
    {"dlrm", "recommendation: dense branches and embeddings", kDlrm, build::dlrm},
    {"candle", "CANDLE-Uno: encoders of equal width, concatenated", kCandle, build::candle},
    {"gpt", "decoder-only transformer, output tied to the embedding", kGpt, build::gpt},
    {"bert", "encoder-only transformer with a mask for every layer", kBert, build::bert},
    {"resnet", "residual network for images", kResnet, build::resnet},
    {"unet", "encoder and decoder with skip connections", kUnet, build::unet},
    {"chain", "synthetic: one operator after the other", kChain, build::chain},
    {"branches", "synthetic: unequal branches, a join, a tail", kBranches, build::branches},
    {"random", "synthetic: any shape, not series-parallel in general", kRandom, build::random}};

const Builder* find_builder(std::string_view spec) {
  const std::string_view name = spec.substr(0, spec.find(':'));
  for (const Builder& b : kBuilders) {
    if (b.name == name) return &b;
  }
  return nullptr;
}

std::vector<int64_t> parse_values(const Builder& builder, std::string_view text) {
  std::vector<int64_t> values;
  std::vector<std::string> names;
  for (const BuilderParameter& p : builder.parameters) {
    values.push_back(p.value), names.emplace_back(p.name);
  }
  for (size_t i = 0; !text.empty(); ++i) {
    const size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
    const size_t equals = item.find('=');
    size_t at = i;
    if (equals != std::string_view::npos) {
      const std::string_view key = item.substr(0, equals);
      for (at = 0; at < names.size() && names[at] != key;) ++at;
      if (at == names.size()) {
        const auto nearest = nearest_name(key.substr(0, 80), names);
        fail(ErrorCode::invalid_argument, "{}: unknown parameter \"{}\"{}", builder.name,
             key.substr(0, 80),
             nearest ? fmt::format("; did you mean \"{}\"?", *nearest)
                     : fmt::format("; known are {}", fmt::join(names, ", ")));
      }
    }
    if (at >= names.size()) {
      fail(ErrorCode::invalid_argument, "{}: takes at most {} values ({})", builder.name,
           names.size(), fmt::join(names, ", "));
    }
    const std::string_view number =
        equals == std::string_view::npos ? item : item.substr(equals + 1);
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), values[at]);
    const BuilderParameter& p = builder.parameters[at];
    if (error != std::errc() || end != number.data() + number.size() || values[at] < p.min ||
        values[at] > p.max) {
      fail(ErrorCode::invalid_argument,
           "{}: {} is \"{}\", it must be a whole number from {} to {} ({})", builder.name, p.name,
           number.substr(0, 80), p.min, p.max, p.help);
    }
  }
  return values;
}

}  // namespace

std::span<const Builder> builders() { return kBuilders; }

bool is_builder(std::string_view spec) { return find_builder(spec) != nullptr; }

Graph build_graph(std::string_view spec, const DeviceModel& device) {
  const Builder* builder = find_builder(spec);
  if (builder == nullptr) {
    std::vector<std::string> names;
    for (const Builder& b : kBuilders) names.emplace_back(b.name);
    fail(ErrorCode::not_found, "\"{}\" is no built-in graph; known are {}", spec.substr(0, 80),
         fmt::join(names, ", "));
  }
  const size_t colon = spec.find(':');
  const std::string_view text = colon == std::string_view::npos ? "" : spec.substr(colon + 1);
  Graph graph = builder->build(parse_values(*builder, text), device);
  graph.name = std::string(spec);
  return graph;
}

}  // namespace ductile::graph
