#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/ScalarType.h>
#include <c10/util/accumulate.h>

#include "ductile/base/error.h"
#include "ductile/parallel/kept_buffers_impl.h"
#include "ductile/parallel/stage_parts_impl.h"

namespace ductile::parallel {
namespace {

// The pieces of one transfer between stages whose replicas have the parts from `from` and `to` on.
void add_pieces(size_t transfer, int from, int64_t makers, int to, int64_t readers,
                std::vector<Piece>& out) {
  const int64_t samples = std::lcm(makers, readers);
  const int64_t of_maker = samples / makers, of_reader = samples / readers;
  for (int64_t i = 0; i < makers; ++i) {
    for (int64_t j = 0; j < readers; ++j) {
      Piece piece;
      piece.transfer = transfer;
      piece.from = from + static_cast<int>(i);
      piece.to = to + static_cast<int>(j);
      piece.whole = makers == readers;
      const int64_t begin = std::max(i * of_maker, j * of_reader);
      piece.at_from = begin - i * of_maker;
      piece.at_to = begin - j * of_reader;
      piece.rows = std::min((i + 1) * of_maker, (j + 1) * of_reader) - begin;
      if (piece.rows > 0) out.push_back(std::move(piece));
    }
  }
}

std::vector<int64_t> dense_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> out(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) {
    out[i - 1] = out[i] * std::max<int64_t>(1, sizes[i]);
  }
  return out;
}

// Drawn in the form of `t`, if it may have any values.
at::Tensor varied(const at::Tensor& t, const at::Generator& random) {
  if (!t.is_floating_point()) return t;
  return at::empty_like(t).normal_(0, 1, random);
}

// By number, the tensors that nobody reads behind an operator.
std::vector<std::vector<nn::Source>> last_read(const nn::OperatorGraph& operators) {
  const auto& ops = operators.operators();
  std::map<nn::Source, size_t> last;
  for (size_t i = 0; i < ops.size(); ++i) {
    for (int k = 0; k < ops[i].num_outputs; ++k) last[{static_cast<int>(i), k}] = i;
    for (const nn::Source& s : ops[i].inputs) last[s] = i;
  }
  std::vector<std::vector<nn::Source>> out(ops.size());
  for (const auto& [source, op] : last) out[op].push_back(source);
  return out;
}

// Whether it reads whole numbers of the samples, which are all alike here.
bool reads_numbers(const nn::Operator& op, const std::map<nn::Source, at::Tensor>& made) {
  return std::ranges::any_of(op.inputs, [&](const nn::Source& s) {
    return s.op == nn::kModelInput && !made.at(s).is_floating_point();
  });
}

// What stages with other numbers of replicas send each other.
std::set<nn::Source> divided_sources(const nn::OperatorGraph& operators, const Pipeline& pipeline) {
  std::set<nn::Source> out;
  for (const Transfer& t : transfers_of(pipeline, operators)) {
    if (pipeline.stages[static_cast<size_t>(t.from)].replicas !=
        pipeline.stages[static_cast<size_t>(t.to)].replicas) {
      out.insert(t.source);
    }
  }
  return out;
}

// But for rounding: other samples may send a kernel another way.
bool alike(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kDouble).nan_to_num(), y = b.to(at::kDouble).nan_to_num();
  if (x.sizes() != y.sizes()) return false;
  if (x.numel() == 0) return true;
  return x.sub(y).abs().max().item<double>() <= 0.02 * y.abs().max().item<double>();
}

}  // namespace

void check_samples_first(const nn::OperatorGraph& operators, const Pipeline& pipeline,
                         const nn::Tensors& inputs) {
  const std::set<nn::Source> divided = divided_sources(operators, pipeline);
  if (divided.empty()) return;
  int replicas = 1;
  for (const Pipeline::Stage& s : pipeline.stages) replicas = std::max(replicas, s.replicas);
  const at::NoGradGuard no_grad;
  const at::Generator random = at::detail::createCPUGenerator(/*seed_val=*/1);
  const std::vector<std::vector<nn::Source>> last = last_read(operators);
  std::map<nn::Source, at::Tensor> all, some;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const nn::Source source{nn::kModelInput, static_cast<int>(i)};
    all[source] = varied(inputs[i], random);
    some[source] = share_of(all[source], 0, replicas);
  }
  for (size_t i = 0; i < operators.operators().size(); ++i) {
    const nn::Operator& op = operators.operators()[i];
    nn::Tensors in_all, in_some;
    for (const nn::Source& s : op.inputs) {
      in_all.push_back(all.at(s));
      in_some.push_back(some.at(s));
    }
    const KeptBuffers buffers(op);
    const nn::Tensors made = op.run(in_all);
    buffers.put_back();
    const nn::Tensors own = op.run(in_some);
    buffers.put_back();
    // Their outputs are not compared: those for some samples are taken from those for all.
    const bool numbers = reads_numbers(op, all);
    const bool mixes = op.random || !op.buffers.empty() || numbers;
    for (size_t k = 0; k < made.size(); ++k) {
      const nn::Source source{static_cast<int>(i), static_cast<int>(k)};
      all[source] = numbers ? varied(made[k], random) : made[k];
      some[source] = own[k];
      const bool counts =
          made[k].dim() > 0 && own[k].dim() > 0 && own[k].size(0) * replicas == made[k].size(0);
      const at::Tensor rows = counts ? all[source].narrow(0, 0, own[k].size(0)) : at::Tensor();
      if (counts && mixes) {
        some[source] = rows.clone();
      } else if (divided.contains(source) && (!counts || !alike(own[k], rows))) {
        fail(ErrorCode::invalid_argument,
             "output {} of operator {} does not have the samples first and in their order, so it "
             "cannot be divided between stages of different numbers of replicas; give both as "
             "many, or cut the model elsewhere",
             k, op.name);
      }
    }
    for (const nn::Source& source : last[i]) {
      all.erase(source);
      some.erase(source);
    }
  }
}

size_t num_bytes(const TensorForm& form) {
  return static_cast<size_t>(c10::multiply_integers(form.sizes)) * c10::elementSize(form.type);
}

bool lies_in_rows(const TensorForm& form) { return form.strides == dense_strides(form.sizes); }

bool Pipeline::is_replicated() const {
  return std::ranges::any_of(stages, [](const Stage& s) { return s.replicas > 1; });
}

std::vector<StagePart> parts_of(const Pipeline& pipeline) {
  std::vector<StagePart> out;
  for (size_t s = 0; s < pipeline.stages.size(); ++s) {
    for (int r = 0; r < pipeline.stages[s].replicas; ++r) out.push_back({static_cast<int>(s), r});
  }
  return out;
}

std::map<int, TensorForms> share_forms(const nn::OperatorGraph& operators, const Pipeline& pipeline,
                                       const nn::Tensors& inputs) {
  std::map<int, TensorForms> out;
  for (const Pipeline::Stage& stage : pipeline.stages) {
    if (stage.replicas < 2 || out.contains(stage.replicas)) continue;
    nn::Tensors own;
    for (const at::Tensor& t : inputs) own.push_back(share_of(t, 0, stage.replicas));
    out[stage.replicas] = tensor_forms(operators, own);
  }
  return out;
}

std::vector<Piece> pieces_of(const Pipeline& pipeline, const std::vector<Transfer>& transfers) {
  std::vector<int> first;
  int parts = 0;
  for (const Pipeline::Stage& stage : pipeline.stages) {
    first.push_back(parts);
    parts += stage.replicas;
  }
  std::vector<Piece> out;
  for (size_t t = 0; t < transfers.size(); ++t) {
    const auto from = static_cast<size_t>(transfers[t].from);
    const auto to = static_cast<size_t>(transfers[t].to);
    add_pieces(t, first[from], pipeline.stages[from].replicas, first[to],
               pipeline.stages[to].replicas, out);
  }
  return out;
}

void set_form(Piece& piece, const TensorForm& from, int makers, const TensorForm& to, int readers,
              const std::string& what) {
  piece.form = from;
  if (piece.whole) return;
  const int64_t samples = std::lcm(int64_t{makers}, int64_t{readers});
  const bool fits = !from.sizes.empty() && from.sizes.size() == to.sizes.size() &&
                    from.type == to.type && from.sizes[0] * makers == to.sizes[0] * readers &&
                    from.sizes[0] * makers % samples == 0 &&
                    std::equal(from.sizes.begin() + 1, from.sizes.end(), to.sizes.begin() + 1);
  if (!fits) {
    fail(ErrorCode::invalid_argument,
         "{} cannot be divided by samples between a stage of {} replicas and one of {}: the first "
         "of its dimensions does not count them; give both stages as many replicas, or cut the "
         "model elsewhere",
         what, makers, readers);
  }
  const int64_t rows = from.sizes[0] * makers / samples;  // of a unit
  piece.at_from *= rows;
  piece.at_to *= rows;
  piece.rows *= rows;
  piece.form.sizes[0] = piece.rows;
  piece.form.strides = dense_strides(piece.form.sizes);
}

at::Tensor share_of(const at::Tensor& samples, int replica, int replicas) {
  if (samples.dim() == 0 || samples.size(0) % replicas != 0) {
    fail(ErrorCode::invalid_argument,
         "{} replicas of a stage do not divide the {} samples of a micro-batch", replicas,
         samples.dim() == 0 ? 1 : samples.size(0));
  }
  const at::NoGradGuard no_grad;
  const int64_t own = samples.size(0) / replicas;
  return samples.narrow(0, replica * own, own).clone();
}

at::Tensor rows_of(const at::Tensor& tensor, int64_t begin, int64_t count, bool travel) {
  const at::NoGradGuard no_grad;
  const at::Tensor rows = tensor.narrow(0, begin, count);
  if (travel && rows.is_contiguous()) return rows;
  return at::empty(rows.sizes(), tensor.options()).copy_(rows);
}

at::Tensor joined(const nn::Tensors& pieces, const TensorForm& form) {
  const at::NoGradGuard no_grad;
  if (pieces.size() == 1 && pieces[0].strides() == form.strides) return pieces[0];
  const at::Tensor out = at::empty_strided(form.sizes, form.strides, at::TensorOptions(form.type));
  int64_t row = 0;
  for (const at::Tensor& piece : pieces) {
    out.narrow(0, row, piece.size(0)).copy_(piece);
    row += piece.size(0);
  }
  return out;
}

PartBuffers::PartBuffers(const nn::OperatorGraph& operators, const std::vector<int>& ops) {
  for (const int op : ops) {
    const nn::Operator& o = operators.operators()[static_cast<size_t>(op)];
    of_model_.insert(of_model_.end(), o.buffers.begin(), o.buffers.end());
  }
}

void PartBuffers::begin() {
  const at::NoGradGuard no_grad;
  before_.clear();
  own_.clear();
  for (const nn::NamedTensor& b : of_model_) {
    before_.push_back(b.tensor.clone());
    own_.push_back(b.tensor.clone());
  }
}

// What an operator has saved of the buffer for its backward pass stays good, as in KeptBuffers.
void PartBuffers::lend() const {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < own_.size(); ++i) of_model_[i].tensor.variable_data().copy_(own_[i]);
}

void PartBuffers::take_back() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < own_.size(); ++i) own_[i].copy_(of_model_[i].tensor);
}

void PartBuffers::restore() const {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < before_.size(); ++i) {
    of_model_[i].tensor.variable_data().copy_(before_[i]);
  }
}

std::map<std::string, at::Tensor> PartBuffers::values() const {
  std::map<std::string, at::Tensor> out;
  for (size_t i = 0; i < own_.size(); ++i) out[of_model_[i].name] = own_[i];
  return out;
}

}  // namespace ductile::parallel
