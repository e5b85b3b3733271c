#include "ductile/train/state.h"

#include <algorithm>
#include <cstring>
#include <map>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/pages.h"
#include "ductile/ckpt/digest.h"
#include "ductile/run/json_lines.h"

namespace ductile::train {
namespace {

using Json = nlohmann::json;

std::string describe_shape(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Json json_of(const std::optional<Evaluation>& evaluation) {
  return evaluation ? evaluation->to_json() : Json();
}

std::optional<Evaluation> evaluation_from(const Json& value) {
  if (value.is_null()) return std::nullopt;
  return Evaluation::from_json(value);
}

double number_from(const Json& value) {
  double number = 0;
  if (!run::number_from_json(value, number))
    fail(ErrorCode::data_loss, "the state holds {} in place of a number", dump_json(value));
  return number;
}

std::span<std::byte> bytes_of(std::span<float> values) { return std::as_writable_bytes(values); }

}  // namespace

Json Window::to_json() const {
  Json out = {{"loss", 0.0}, {"correct", 0.0}, {"predictions", 0.0}};
  for (const auto& [name, value] : sums) out[name] = run::json_number(value);
  out["steps"] = updates;
  return out;
}

Window Window::from_json(const Json& value) {
  Window out;
  for (const auto& [name, sum] : value.items()) {
    if (name == "steps") {
      out.updates = sum;
    } else {
      out.sums[name] = number_from(sum);
    }
  }
  return out;
}

size_t StateImage::own_bytes() const {
  std::map<Piece, long> uses;  // in this image; the map's own is one more
  for (const auto& [name, pieces] : arrays_)
    for (const Piece& piece : pieces) ++uses[piece];
  size_t bytes = 0;
  for (const auto& [piece, here] : uses)
    if (piece.use_count() == here + 1) bytes += piece->size() * sizeof(float);
  return bytes;
}

StateImage::Piece StateImage::find(const std::string& array, size_t number,
                                   std::span<const float> values) const {
  const auto found = arrays_.find(array);
  if (found == arrays_.end() || number >= found->second.size()) return nullptr;
  const Piece& piece = found->second[number];
  const bool is_equal = piece->size() == values.size() &&
                        (piece->data() == values.data() ||
                         std::memcmp(piece->data(), values.data(), values.size_bytes()) == 0);
  return is_equal ? piece : nullptr;
}

JobState::JobState(nn::Model& model, const spec::JobOptions& job,
                   const MakeOptimizer& make_optimizer)
    : flat(model, job.optimizer),
      optimizer(make_optimizer(flat.layout())),
      scaler(job.train.precision == "fp16" ? job.train.loss_scale : 1.0) {
  if (job.train.ema_decay > 0 || job.train.tail_average > 0) {
    average = untouched_zeros<float>(flat.layout().total_size());
    for (size_t i = 0; i < flat.parameters().size(); ++i) {
      if (!flat.is_blank(i)) begin_average(i);
    }
    buffer_average = AlignedArray<float>(static_cast<int64_t>(flat.buffer_values().size()));
    std::ranges::copy(flat.buffer_values(), buffer_average.span().begin());
  }
}

void JobState::begin_average(size_t parameter) {
  if (average.span().empty()) return;
  const FlatModel::Entry& p = flat.parameters()[parameter];
  std::copy_n(flat.weights().data() + p.offset, p.size, average.data() + p.offset);
}

void JobState::set_blank(const std::string& parameter, const at::Tensor& value) {
  const auto found = std::ranges::find(flat.parameters(), parameter, &FlatModel::Entry::name);
  DUCTILE_CHECK(found != flat.parameters().end(), "the model has no parameter {}", parameter);
  const auto i = static_cast<size_t>(found - flat.parameters().begin());
  flat.set_blank(i, value);
  begin_average(i);
}

std::span<float> JobState::extra_array(const std::string& part, const std::string& name,
                                       int64_t size) {
  AlignedArray<float>& array = extra(part).arrays[name];
  if (array.span().empty()) array = AlignedArray<float>(size);
  if (static_cast<int64_t>(array.span().size()) != size) {
    fail(ErrorCode::conflict, "the state holds {} values of {}/{}; {} are expected",
         array.span().size(), part, name, size);
  }
  return array.span();
}

// ---- Values.

Json JobState::values() const {
  const optim::LossScaler::State& scaling = scaler.state();
  Json out = {{"optimizer_steps", optimizer->num_steps()},
              {"loss_scaler",
               {{"scale", scaling.scale},
                {"good_steps", scaling.good_steps},
                {"skipped", scaling.skipped}}},
              {"counters",
               {{"updates", counters.updates},
                {"cursor", counters.cursor},
                {"samples_forward", counters.samples_forward},
                {"samples_backward", counters.samples_backward},
                {"flops", counters.flops}}},
              {"hyper", to_json(hyper)},
              {"last_hyper", to_json(last_hyper)},
              {"window", window.to_json()},
              {"evaluated_at", evaluated_at},
              {"evaluation", {{"step", evaluated_step}, {"epoch", evaluated_epoch}}},
              {"best", json_of(best)},
              {"last", json_of(last)},
              {"loss", loss ? run::json_number(*loss) : Json()}};
  if (line) out["metric_line"] = line->to_json();
  Json& last_figures = out["figures"] = Json::object();
  for (const auto& [name, value] : figures) last_figures[name] = run::json_number(value);
  if (average.span().empty() && optimizer->evaluates_other_weights({})) {
    // For programs that export a checkpoint and know no optimiser.
    Json& terms = out["evaluated"] = Json::object();
    for (const optim::Optimizer::Term& t : optimizer->evaluated()) {
      terms[t.state.empty() ? "model" : "optimizer/" + t.state] = t.factor;
    }
  }
  if (const auto scalars = optimizer->scalars(); !scalars.empty()) {
    Json& kept = out["optimizer_scalars"] = Json::object();
    for (const optim::Optimizer::Scalar& s : scalars) kept[s.name] = run::json_number(s.value);
  }
  Json& extra = out["extra"] = Json::object();
  for (const auto& [name, part] : extras_) {
    Json arrays = Json::object();
    for (const auto& [array, values] : part.arrays) arrays[array] = values.span().size();
    extra[name] = {{"values", part.values}, {"arrays", std::move(arrays)}};
  }
  if (!branches_.empty()) out["branches"] = branch_values();
  return out;
}

void JobState::set_values(const Json& values, int64_t step) {
  optimizer->set_num_steps(values.at("optimizer_steps"));
  for (optim::Optimizer::Scalar& s : optimizer->scalars()) {
    s.value = number_from(values.at("optimizer_scalars").at(s.name));
  }
  const Json& scaling = values.at("loss_scaler");
  scaler = optim::LossScaler(optim::LossScaler::State{scaling.at("scale"), scaling.at("good_steps"),
                                                      scaling.at("skipped")});
  const Json& counted = values.at("counters");
  counters = {step,
              counted.at("updates"),
              counted.at("cursor"),
              counted.at("samples_forward"),
              counted.at("samples_backward"),
              counted.at("flops")};
  hyper = optim::hyper_from_json(values.at("hyper"));
  last_hyper = optim::hyper_from_json(values.at("last_hyper"));
  window = Window::from_json(values.at("window"));
  line.reset();
  if (const auto saved = values.find("metric_line"); saved != values.end())
    line = Window::from_json(*saved);
  evaluated_at = values.at("evaluated_at");
  evaluated_step = values.at("evaluation").at("step");
  evaluated_epoch = values.at("evaluation").at("epoch");
  best = evaluation_from(values.at("best"));
  last = evaluation_from(values.at("last"));
  loss = std::nullopt;
  if (!values.at("loss").is_null()) loss = number_from(values.at("loss"));
  figures.clear();
  for (const auto& [name, value] : values.at("figures").items()) figures[name] = number_from(value);
  std::map<std::string, ExtraPart> parts;
  for (const auto& [name, saved] : values.at("extra").items()) {
    ExtraPart& part = parts[name];
    part.values = saved.at("values");
    for (const auto& [array, size] : saved.at("arrays").items()) {
      const auto before = extras_.find(name);
      AlignedArray<float>& place = part.arrays[array];
      if (before != extras_.end()) {  // its contents are kept where the size is the same
        if (const auto old = before->second.arrays.find(array);
            old != before->second.arrays.end() && old->second.span().size() == size)
          place = std::move(old->second);
      }
      if (place.span().empty()) place = AlignedArray<float>(size.get<int64_t>());
    }
  }
  extras_ = std::move(parts);
}

// ---- Tensors.

// With the optimiser's state of its blocks, if that is wanted.
void JobState::add_parameter(const FlatModel::Entry& p, bool with_state,
                             std::vector<NamedTensor>& out) {
  constexpr int64_t kBlock = optim::kBlockFloats;
  const auto part = [&](std::span<float> values, int64_t begin) {
    return values.subspan(static_cast<size_t>(p.offset - begin), static_cast<size_t>(p.size));
  };
  out.push_back({"model/" + p.name, p.shape, part(flat.weights(), 0)});
  if (with_state) {
    const int64_t first = p.offset / kBlock, last = (p.offset + p.size + kBlock - 1) / kBlock;
    const optim::Optimizer::BlockRange blocks{first, p.size == 0 ? first : last};
    for (const optim::Optimizer::StateBuffer& s : optimizer->state(blocks)) {
      out.push_back({fmt::format("optimizer/{}/{}", s.name, p.name), p.shape,
                     p.size == 0 ? std::span<float>() : part(s.values, first * kBlock)});
    }
  }
  if (!average.span().empty()) {
    out.push_back({"average/" + p.name, p.shape, part(average.span(), 0)});
  }
}

std::vector<JobState::NamedTensor> JobState::named() {
  std::vector<NamedTensor> out;
  const bool with_state = optimizer->holds_all();
  for (const FlatModel::Entry& p : flat.parameters()) add_parameter(p, with_state, out);
  add_others(out);
  return out;
}

void JobState::add_others(std::vector<NamedTensor>& out) {
  const auto part = [](std::span<float> flat_array, const FlatModel::Entry& entry) {
    return flat_array.subspan(static_cast<size_t>(entry.offset), static_cast<size_t>(entry.size));
  };
  for (const FlatModel::Entry& b : flat.buffers()) {
    out.push_back({"model/" + b.name, b.shape, part(flat.buffer_values(), b)});
    if (!average.span().empty()) {
      out.push_back({"average/" + b.name, b.shape, part(buffer_average.span(), b)});
    }
  }
  for (auto& [name, extra] : extras_) {
    for (auto& [array, values] : extra.arrays) {
      out.push_back({fmt::format("extra/{}/{}", name, array),
                     {static_cast<int64_t>(values.span().size())},
                     values.span()});
    }
  }
  for (const auto& [name, image] : branches_) {
    for (const auto& [array, pieces] : image.arrays_) {
      for (size_t i = 0; i < pieces.size(); ++i) {
        out.push_back({fmt::format("branch/{}/{}/{}", name, array, i),
                       {static_cast<int64_t>(pieces[i]->size())},
                       *pieces[i]});
      }
    }
  }
}

std::vector<ckpt::TensorView> JobState::tensors_of(const std::vector<bool>& parameters,
                                                   bool others) {
  std::vector<NamedTensor> chosen;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i]) add_parameter(flat.parameters()[i], /*with_state=*/true, chosen);
  }
  if (others) add_others(chosen);
  std::vector<ckpt::TensorView> out;
  for (const NamedTensor& t : chosen) {
    out.push_back({t.name, DType::f32, t.shape, std::as_bytes(t.values)});
  }
  return out;
}

std::vector<std::string> JobState::tensor_names(const FlatModel::Entry& parameter) const {
  std::vector<std::string> out = {"model/" + parameter.name};
  for (const std::string& state : optimizer->state_names()) {
    out.push_back(fmt::format("optimizer/{}/{}", state, parameter.name));
  }
  if (!average.span().empty()) out.push_back("average/" + parameter.name);
  return out;
}

void JobState::add_pieces(const std::vector<Piece>& pieces, std::vector<ckpt::TensorView>& tensors,
                          std::vector<ckpt::TensorPiece>& of) {
  for (const Piece& piece : pieces) {
    const FlatModel::Entry& whole = flat.parameters()[piece.parameter];
    const std::string mark = fmt::format("#{}", piece.begin);
    const FlatModel::Entry entry{
        whole.name + mark, {piece.size}, whole.offset + piece.begin, piece.size};
    std::vector<NamedTensor> chosen;
    add_parameter(entry, /*with_state=*/true, chosen);
    for (const NamedTensor& t : chosen) {
      of.push_back(
          {t.name, t.name.substr(0, t.name.size() - mark.size()), whole.shape, piece.begin});
      tensors.push_back({t.name, DType::f32, t.shape, std::as_bytes(t.values), /*apart=*/true});
    }
  }
}

std::vector<ckpt::TensorView> JobState::tensors() {
  DUCTILE_CHECK(optimizer->holds_all(), "the state of all blocks is asked for, some are held");
  std::vector<ckpt::TensorView> out;
  for (const NamedTensor& t : named()) {
    out.push_back({t.name, DType::f32, t.shape, std::as_bytes(t.values)});
  }
  return out;
}

void JobState::restore(const ckpt::Checkpoint& checkpoint, const Json& values) {
  restore(checkpoint, values, {{0, optimizer->num_blocks()}});
}

void JobState::restore(const ckpt::Checkpoint& checkpoint, const Json& values,
                       const std::vector<optim::Optimizer::BlockRange>& blocks) {
  optimizer->hold(blocks);
  // The arrays of the extra parts are those that the checkpoint names.
  extras_.clear();
  for (const auto& [name, saved] : values.at("extra").items()) {
    for (const auto& [array, size] : saved.at("arrays").items()) extra_array(name, array, size);
  }
  make_branches(values);
  std::vector<NamedTensor> others, wanted;
  add_others(others);
  for (const FlatModel::Entry& p : flat.parameters()) {
    for (std::string& name : tensor_names(p)) wanted.push_back({std::move(name), p.shape, {}});
  }
  wanted.insert(wanted.end(), others.begin(), others.end());
  check_tensors(checkpoint, wanted);
  for (const NamedTensor& t : others) checkpoint.read(t.name, bytes_of(t.values));
  for (const optim::Optimizer::BlockRange& held : optimizer->held()) read_blocks(checkpoint, held);
  share_branches();
  set_values(values, checkpoint.step());
}

// They are those, and there are no others.
void JobState::check_tensors(const ckpt::Checkpoint& checkpoint,
                             const std::vector<NamedTensor>& wanted) {
  std::map<std::string_view, const ckpt::TensorInfo*> known;
  for (const ckpt::TensorInfo& info : checkpoint.tensors()) known[info.name] = &info;
  for (const NamedTensor& t : wanted) {
    const auto found = known.extract(t.name);
    if (found.empty()) {
      fail(ErrorCode::invalid_argument,
           "the checkpoint holds no tensor {}; it is of another model or optimiser", t.name);
    }
    const ckpt::TensorInfo& info = *found.mapped();
    if (info.shape != t.shape || info.dtype != DType::f32) {
      fail(ErrorCode::invalid_argument, "tensor {} is {} {} in the checkpoint and {} {} here",
           t.name, to_string(info.dtype), describe_shape(info.shape), to_string(DType::f32),
           describe_shape(t.shape));
    }
  }
  if (!known.empty()) {
    fail(ErrorCode::invalid_argument,
         "the checkpoint holds tensor {}, which this model and optimiser do not have",
         known.begin()->first);
  }
}

// What it has of the parameters in these blocks, which are held.
void JobState::read_blocks(const ckpt::Checkpoint& checkpoint,
                           const optim::Optimizer::BlockRange& blocks) {
  const int64_t first = blocks.begin * optim::kBlockFloats;
  const int64_t last = std::min(flat.layout().total_size(), blocks.end * optim::kBlockFloats);
  for (const FlatModel::Entry& p : flat.parameters()) {
    const int64_t begin = std::max(p.offset, first), end = std::min(p.offset + p.size, last);
    if (begin >= end) continue;
    std::vector<NamedTensor> parts;
    add_parameter({p.name, {end - begin}, begin, end - begin}, /*with_state=*/true, parts);
    for (const NamedTensor& part : parts) {
      checkpoint.read_range(part.name, (begin - p.offset) * int64_t{sizeof(float)},
                            bytes_of(part.values));
    }
  }
  flat.refresh_half_weights({first, last});
}

// ---- To another worker.

// What is sent besides the values: all arrays that are in no block.
std::vector<std::span<std::byte>> JobState::fed() {
  std::vector<std::span<std::byte>> out;
  for (auto& [name, extra] : extras_)
    for (auto& [array, values] : extra.arrays) out.push_back(bytes_of(values.span()));
  for (const auto& [name, image] : branches_)
    for (const auto& [array, pieces] : image.arrays_)
      for (const StateImage::Piece& piece : pieces) out.push_back(bytes_of(*piece));
  out.push_back(bytes_of(flat.buffer_values()));
  out.push_back(bytes_of(buffer_average.span()));
  std::erase_if(out, [](const auto& bytes) { return bytes.empty(); });
  return out;
}

void JobState::send(parallel::Exchange& exchange, int to, const Json& job) {
  parallel::send_text(exchange, to, dump_json(Json{{"job", job}, {"state", values()}}));
  for (const std::span<const std::byte> bytes : fed()) exchange.send(to, bytes);
}

void JobState::receive(parallel::Exchange& exchange, int from, int64_t step,
                       const std::function<void(const Json& job)>& check) {
  const Json sent = parse_json(parallel::receive_text(exchange, from),
                               "the state that a worker sent", ErrorCode::data_loss);
  check(sent.at("job"));
  set_values(sent.at("state"), step);
  make_branches(sent.at("state"));
  for (const std::span<std::byte> bytes : fed()) exchange.receive(from, bytes);
  share_branches();
}

// ---- Images.

std::vector<JobState::Array> JobState::arrays() {
  std::vector<Array> out = {{StateImage::kWeights, flat.weights()},
                            {"buffers", flat.buffer_values()},
                            {"average", average.span()},
                            {"buffer_average", buffer_average.span()}};
  for (const optim::Optimizer::BlockRange& blocks : optimizer->held()) {
    for (const optim::Optimizer::StateBuffer& s : optimizer->state(blocks)) {
      out.push_back({fmt::format("optimizer/{}/{}", s.name, blocks.begin), s.values});
    }
  }
  for (auto& [name, part] : extras_) {
    for (auto& [array, values] : part.arrays) {
      out.push_back({fmt::format("extra/{}/{}", name, array), values.span()});
    }
  }
  return out;
}

StateImage JobState::fork(const StateImage* like) {
  StateImage image;
  image.values_ = values();
  image.values_.erase("branches");
  image.values_["step"] = counters.step;
  image.held_ = optimizer->held();
  image.branches_ = branches_;
  for (const Array& array : arrays()) {
    std::vector<StateImage::Piece> pieces;
    for (size_t begin = 0; begin < array.values.size(); begin += StateImage::kPieceSize) {
      const auto values = array.values.subspan(
          begin, std::min(StateImage::kPieceSize, array.values.size() - begin));
      StateImage::Piece piece;
      if (like != nullptr) piece = like->find(array.name, pieces.size(), values);
      // The newest of the earlier weights that a part keeps are the present ones.
      if (piece == nullptr) piece = image.find(StateImage::kWeights, pieces.size(), values);
      if (piece == nullptr)
        piece = std::make_shared<std::vector<float>>(values.begin(), values.end());
      pieces.push_back(std::move(piece));
    }
    image.arrays_[array.name] = std::move(pieces);
  }
  return image;
}

void JobState::take(const StateImage& image) {
  optimizer->hold(image.held_);
  set_values(image.values_, image.values_.at("step"));
  branches_ = image.branches_;
  for (const Array& array : arrays()) {
    std::span<float> to = array.values;
    for (const StateImage::Piece& piece : image.arrays_.at(array.name)) {
      std::ranges::copy(*piece, to.begin());
      to = to.subspan(piece->size());
    }
    DUCTILE_CHECK(to.empty(), "the image of {} ends early", array.name);
  }
  flat.refresh_half_weights();
}

std::optional<std::string> JobState::digest() {
  if (!optimizer->holds_all()) return std::nullopt;
  return ckpt::state_digest(counters.step, values(), tensors());
}

// ---- What is evaluated.

JobState::EvaluationWeights JobState::evaluation_weights() {
  const optim::EvaluationInput in{flat.weights()};
  const bool of_the_rule = optimizer->evaluates_other_weights(in);
  if (!average.span().empty()) return {{}, average.span(), buffer_average.span(), {}, of_the_rule};
  if (!of_the_rule) return {};
  EvaluationWeights out;
  out.computed = untouched_zeros<float>(flat.layout().total_size());
  out.weights = out.computed.span();
  out.of_the_rule = true;
  for (const optim::Optimizer::BlockRange& blocks : optimizer->held()) {
    optimizer->evaluation_weights(in, blocks, out.weights);
  }
  return out;
}

JobState::Deployed JobState::deployed(EvaluationWeights evaluated) {
  Deployed out{std::move(evaluated), {}};
  const std::span<float> other = out.weights.weights;
  const std::span<float> weights = other.empty() ? flat.weights() : other;
  const std::span<float> buffers =
      out.weights.buffers.empty() ? flat.buffer_values() : out.weights.buffers;
  const auto add = [&](const FlatModel::Entry& entry, std::span<float> from) {
    out.views.push_back({entry.name, DType::f32, entry.shape,
                         std::as_bytes(from.subspan(static_cast<size_t>(entry.offset),
                                                    static_cast<size_t>(entry.size)))});
  };
  for (const FlatModel::Entry& p : flat.parameters()) add(p, weights);
  for (const FlatModel::Entry& b : flat.buffers()) add(b, buffers);
  return out;
}

}  // namespace ductile::train
